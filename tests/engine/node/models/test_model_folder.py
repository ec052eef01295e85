"""The models on this computer: what lies in the folder, what it is, what is imported and removed."""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from engine.errors import DiskFull, ModelFileError, ModelNotFound, UnsupportedModel, UserError
from engine.gguf.types import ValueType
from engine.node.models import model_folder
from engine.node.models.model_folder import (
    ENGINE_BYTES,
    Folder,
    find_model,
    import_model,
    remove_model,
)
from tests.conftest import SMOLLM2_FILE
from tests.engine.gguf.build import pair, scalar
from tests.engine.node.models.models_at_hand import HEAD_DIM, KV_HEADS, LAYERS, write_model
from tests.engine.node.models.silent import Silent


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    (tmp_path / "models").mkdir()
    return Folder(tmp_path / "models", tmp_path / "digests")


def split_info(number: int, count: int) -> tuple[bytes, ...]:
    return (
        pair("split.no", ValueType.UINT16, scalar(ValueType.UINT16, number)),
        pair("split.count", ValueType.UINT16, scalar(ValueType.UINT16, count)),
    )


def write_split(folder: Path, stem: str) -> tuple[Path, Path]:
    """Two parts, of which only the first has the tensor that both have here: the second's is renamed."""
    first = write_model(folder / f"{stem}-00001-of-00002.gguf", extra=split_info(0, 2))
    second = write_model(folder / f"{stem}-00002-of-00002.gguf", extra=split_info(1, 2))
    second.write_bytes(second.read_bytes().replace(b"token_embd.weight", b"another_em.weight"))
    return first, second


def test_each_model_is_listed_with_what_it_is(folder: Folder) -> None:
    write_model(folder.path / "b.gguf", name="Model B")
    write_model(folder.path / SMOLLM2_FILE)
    write_split(folder.path, "whole")
    (folder.path / "readme.txt").write_text("no model")
    models = {model.model_id: model for model in folder.models()}
    assert list(models) == ["b", "smollm2-135m", "whole"]
    assert (models["b"].title, models["b"].architecture, models["b"].n_params) == ("Model B", "llama", 1024)
    assert models["b"].n_ctx_train == 8192 and not models["b"].problem
    assert [path.name for path in models["whole"].paths] == [
        "whole-00001-of-00002.gguf",
        "whole-00002-of-00002.gguf",
    ]
    assert models["whole"].size_bytes == sum(path.stat().st_size for path in models["whole"].paths)


def test_what_cannot_be_run_is_listed_with_the_reason(folder: Folder) -> None:
    write_model(folder.path / "other.gguf", architecture="rwkv7")
    (folder.path / "broken.gguf").write_bytes(b"GGUF and no more")
    (folder.path / "away.gguf").symlink_to(folder.path / "nowhere.gguf")
    (folder.path / "loop.gguf").symlink_to(folder.path / "loop.gguf")
    (folder.path / "folder.gguf").mkdir()
    write_split(folder.path, "half")
    (folder.path / "half-00001-of-00002.gguf").unlink()
    problems = {model.model_id: model.problem for model in folder.models()}
    assert "'rwkv7' is not known" in problems["other"]
    assert "broken.gguf" in problems["broken"]
    assert "nowhere.gguf, which is not there" in problems["away"]
    assert "cannot be looked at" in problems["loop"]
    assert "a folder" in problems["folder"]
    assert "missing" in problems["half"]


def test_headers_are_read_only_of_what_is_new(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    write_model(folder.path / "a.gguf")
    looked_at = []
    real = model_folder._look_at
    monkeypatch.setattr(
        model_folder, "_look_at", lambda paths, size: looked_at.append(paths[0].name) or real(paths, size)
    )
    folder.models()
    write_model(folder.path / "b.gguf")
    folder.models()
    write_model(folder.path / "a.gguf", n_bytes=8192)
    (model, _) = folder.models()
    assert looked_at == ["a.gguf", "b.gguf", "a.gguf"]
    assert model.n_params == 2048


def test_two_models_never_have_the_same_id(folder: Folder) -> None:
    write_model(folder.path / SMOLLM2_FILE)
    write_model(folder.path / "smollm2-135m.gguf")
    assert sorted(model.model_id for model in folder.models()) == ["smollm2-135m", "smollm2-135m.gguf"]


def test_an_import_links_the_users_file_and_leaves_it_as_it_is(folder: Folder, tmp_path: Path) -> None:
    source = write_model(tmp_path / "mine.gguf")
    content, before = source.read_bytes(), source.stat()
    model = import_model(folder, source, Silent())
    assert model.is_link and model.path.resolve() == source
    remove_model(model, in_use={})
    assert folder.models() == ()
    assert source.read_bytes() == content and source.stat().st_mtime_ns == before.st_mtime_ns


def test_an_import_by_copy_needs_the_users_file_no_more(folder: Folder, tmp_path: Path) -> None:
    source = write_model(tmp_path / "mine.gguf")
    content = source.read_bytes()
    model = import_model(folder, source, Silent(), copy=True)
    source.unlink()
    assert not model.is_link and model.path.read_bytes() == content


def test_where_the_system_makes_no_links_it_is_a_copy(
    folder: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: Path, target: Path) -> None:
        raise OSError("a privilege is missing")

    monkeypatch.setattr(Path, "symlink_to", refuse)
    source = write_model(tmp_path / "mine.gguf")
    assert not import_model(folder, source, Silent()).is_link
    assert source.exists()


def test_all_parts_of_a_split_model_are_imported(folder: Folder, tmp_path: Path) -> None:
    _, second = write_split(tmp_path, "mine")
    assert len(import_model(folder, second, Silent()).paths) == 2


def test_the_same_model_is_not_imported_twice(folder: Folder, tmp_path: Path) -> None:
    source = write_model(tmp_path / "mine.gguf")
    first = import_model(folder, source, Silent())
    again = import_model(folder, source, Silent(), copy=True)
    assert first.path == again.path
    assert len(folder.models()) == 1


def test_another_model_of_the_same_name_gets_a_name_of_its_own(folder: Folder, tmp_path: Path) -> None:
    there = write_model(folder.path / "mine.gguf")
    content = there.read_bytes()
    source = write_model(tmp_path / "mine.gguf")
    model = import_model(folder, source, Silent())
    digest = hashlib.sha256(source.read_bytes()).hexdigest()
    assert model.model_id == f"mine-{digest[:8]}"
    assert there.read_bytes() == content


@pytest.mark.parametrize(
    ("make", "error"),
    [
        (lambda path: path.write_bytes(b"not a model"), ModelFileError),
        (lambda path: write_model(path, architecture="rwkv7"), UnsupportedModel),
        (lambda path: None, ModelNotFound),
        (lambda path: path.mkdir(), UserError),
        (os.mkfifo, UserError),
    ],
    ids=["no GGUF", "unknown architecture", "nothing", "a folder", "a pipe"],
)
def test_only_models_that_can_be_run_are_imported(
    folder: Folder, tmp_path: Path, make: Callable[[Path], object], error: type[Exception]
) -> None:
    make(tmp_path / "mine.gguf")
    with pytest.raises(error):
        import_model(folder, tmp_path / "mine.gguf", Silent())
    assert list(folder.path.iterdir()) == []


def test_a_model_in_use_is_not_removed(folder: Folder) -> None:
    write_model(folder.path / "a.gguf")
    (model,) = folder.models()
    with pytest.raises(UserError, match="loaded by an engine: end that by saying so, and try again"):
        remove_model(model, in_use={"a": "saying so"})
    assert model.path.exists()
    remove_model(model, in_use={"b": "saying so"})
    assert not model.path.exists()


def test_a_model_is_found_by_id_file_or_digest(folder: Folder) -> None:
    write_model(folder.path / "a.gguf")
    (model,) = folder.models()
    for text in ("a", "a.gguf"):
        assert find_model([model], text) is model
    with pytest.raises(ModelNotFound, match=r"it has a$"):
        find_model([model], "b")


def test_what_a_model_needs_grows_with_slots_and_context(folder: Folder) -> None:
    write_model(folder.path / "a.gguf", n_bytes=1 << 20, n_ctx=2048)
    row = 2 * KV_HEADS * HEAD_DIM * 2
    (model,) = folder.models()
    assert model.kv_bytes_per_token() == LAYERS * row
    base = (1 << 20) + ENGINE_BYTES
    for n_ctx, n_slots in ((1024, 1), (1024, 4), (2048, 2)):
        assert model.needed_bytes(n_ctx=n_ctx, n_slots=n_slots) == base + n_slots * n_ctx * LAYERS * row
    # no slot is longer than what the model was trained for
    assert model.needed_bytes(n_ctx=1 << 20, n_slots=1) == model.needed_bytes(n_ctx=2048, n_slots=1)


def test_a_disk_that_fills_up_while_a_model_is_copied_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fill(source: Path, target: Path, *_: object) -> None:
        Path(target).write_bytes(b"half")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(model_folder, "_copy", fill)
    folder = Folder(tmp_path / "models", tmp_path / "digests")
    with pytest.raises(DiskFull, match="make room"):
        import_model(folder, write_model(tmp_path / "a.gguf"), Silent(), copy=True)
    assert list(folder.path.iterdir()) == []
