"""What is left of models that are not whole is found, gone on with, and cleared once nobody does."""

from __future__ import annotations

import os
from pathlib import Path

import filelock
import pytest

from engine.errors import UserError
from engine.node.models.library import partial_path
from engine.node.models.unfinished import (
    KEPT_S,
    clear_unfinished,
    find_old,
    find_unfinished,
    named_unfinished,
)

DIGEST = "0123456789abcdef" * 4
NOW_S = 1_800_000_000.0


def leave(folder: Path, name: str, n_bytes: int = 1000, *, age_s: float = 0.0) -> Path:
    """An unfinished file of that name, as downloads and copies have it."""
    path = partial_path(folder / name, DIGEST)
    path.write_bytes(bytes(n_bytes))
    os.utime(path, (NOW_S - age_s, NOW_S - age_s))
    return path


def test_all_that_belongs_to_a_file_is_found_and_nothing_else(tmp_path: Path) -> None:
    partial = leave(tmp_path, "a.gguf")
    ends = tmp_path / f"{partial.name}.ends"
    ends.write_text("700\n")
    piece = tmp_path / f".{partial.name}.k3j_4x8a"
    piece.mkdir()
    (piece / "part.whl").write_bytes(bytes(50))
    imported = tmp_path / ".b.gguf.partial"
    imported.write_bytes(bytes(300))
    others = ["a.gguf", "a.gguf.lock", "a.gguf.sha256", "notes.partial", "c.gguf.0123.partial"]
    for name in others:
        (tmp_path / name).write_text(name)
    a, b = find_unfinished(tmp_path)
    assert (a.file, a.model_id, set(a.paths)) == ("a.gguf", "a", {partial, ends, piece})
    assert (b.file, b.paths, b.size_bytes) == ("b.gguf", (imported,), 300)
    assert a.size_bytes >= 1004
    assert named_unfinished(tmp_path, "a") == named_unfinished(tmp_path, "a.gguf") == (a,)
    assert named_unfinished(tmp_path, "c") == ()

    clear_unfinished(tmp_path, a)
    clear_unfinished(tmp_path, b)
    assert sorted(path.name for path in tmp_path.iterdir() if path.suffix != ".lock") == sorted(
        name for name in others if not name.endswith(".lock")
    )


def test_what_may_be_gone_on_with_is_not_old(tmp_path: Path) -> None:
    leave(tmp_path, "new.gguf", age_s=KEPT_S - 10)
    leave(tmp_path, "old.gguf", age_s=KEPT_S + 10)
    leave(tmp_path, "gone-on.gguf", age_s=KEPT_S + 10)
    ends = tmp_path / f"{partial_path(tmp_path / 'gone-on.gguf', DIGEST).name}.ends"
    ends.write_text("700\n")
    os.utime(ends, (NOW_S, NOW_S))
    assert [each.file for each in find_old(tmp_path, now_s=NOW_S)] == ["old.gguf"]


@pytest.mark.parametrize("held", ["m-00002-of-00003.gguf", "m-00001-of-00003.gguf"])
def test_what_is_being_fetched_is_left_alone(tmp_path: Path, held: str) -> None:
    """Whoever copies a model of several files holds the lock of the first."""
    partial = leave(tmp_path, "m-00002-of-00003.gguf")
    (left,) = find_unfinished(tmp_path)
    with filelock.FileLock(tmp_path / f"{held}.lock"), pytest.raises(UserError, match="being fetched"):
        clear_unfinished(tmp_path, left)
    assert partial.exists()
    clear_unfinished(tmp_path, left)
    assert not partial.exists()


def test_a_folder_that_is_not_there_has_nothing(tmp_path: Path) -> None:
    assert find_unfinished(tmp_path / "none") == ()
