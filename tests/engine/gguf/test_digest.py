"""Digests are those of the bytes, are computed once, and change with the file."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from engine.errors import ModelFileError
from engine.gguf import digest
from engine.gguf.digest import model_digest


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache" / "digests"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "model.gguf"
    path.write_bytes(os.urandom(3_000_001))
    return path


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_one_file_has_the_sha256_of_its_bytes(model: Path, cache: Path) -> None:
    assert model_digest([model], cache_dir=cache) == sha256(model)


def test_a_file_is_read_once(model: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = model_digest([model], cache_dir=cache)

    def never(*_: object) -> bytes:
        raise AssertionError("the file was read again")

    monkeypatch.setattr(digest, "_computed", never)
    assert model_digest([model], cache_dir=cache) == first
    assert model_digest([model.parent / "cache" / ".." / model.name], cache_dir=cache) == first


def test_a_changed_file_is_read_again(model: Path, cache: Path) -> None:
    first = model_digest([model], cache_dir=cache)
    stat = model.stat()
    model.write_bytes(os.urandom(stat.st_size))
    os.utime(model, ns=(stat.st_atime_ns, stat.st_mtime_ns + 1))
    second = model_digest([model], cache_dir=cache)
    assert second == sha256(model) != first
    model.write_bytes(b"other size")
    os.utime(model, ns=(stat.st_atime_ns, stat.st_mtime_ns + 1))
    assert model_digest([model], cache_dir=cache) == sha256(model)
    assert len(list(cache.iterdir())) == 1


@pytest.mark.parametrize(
    "kept", [b"", b"{", b"[]", b"{}", b'{"sha256": 5}', b'{"sha256": "zz"}', b"\xff", b"[" * 60_000]
)
def test_a_broken_cache_entry_is_replaced(model: Path, cache: Path, kept: bytes) -> None:
    model_digest([model], cache_dir=cache)
    (entry,) = cache.iterdir()
    sound = entry.read_bytes()
    entry.write_bytes(kept)
    assert model_digest([model], cache_dir=cache) == sha256(model)
    assert entry.read_bytes() == sound


def test_a_cache_that_cannot_be_written_costs_only_time(model: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert model_digest([model], cache_dir=tmp_path / "file" / "digests") == sha256(model)


def test_parts_count_in_their_order(tmp_path: Path, cache: Path) -> None:
    parts = [tmp_path / f"{number}.gguf" for number in range(3)]
    for number, path in enumerate(parts):
        path.write_bytes(bytes([number]) * (number + 1))
    whole = model_digest(parts, cache_dir=cache)
    expected = hashlib.sha256(b"".join(bytes.fromhex(sha256(path)) for path in parts)).hexdigest()
    assert whole == expected
    assert model_digest(parts[::-1], cache_dir=cache) != whole


def test_progress_runs_to_the_end_over_all_parts(model: Path, tmp_path: Path, cache: Path) -> None:
    second = tmp_path / "second.gguf"
    second.write_bytes(bytes(1_500_000))
    total = 4_500_001
    for _ in range(2):  # computed, then from the cache
        seen: list[tuple[int, int]] = []
        model_digest([model, second], cache_dir=cache, on_progress=lambda done, of: seen.append((done, of)))  # noqa: B023
        assert seen == sorted(seen) and seen[-1] == (total, total)
        assert {of for _, of in seen} == {total}


def test_a_file_that_changes_meanwhile_is_refused(model: Path, cache: Path) -> None:
    def grow(done: int, of: int) -> None:
        os.utime(model, ns=(0, done))

    with pytest.raises(ModelFileError, match=r"model\.gguf: the file changed"):
        model_digest([model], cache_dir=cache, on_progress=grow)
    assert not cache.exists()


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, cache: Path) -> None:
    for path in (tmp_path / "absent.gguf", tmp_path):
        with pytest.raises(ModelFileError, match=f"{path}.*cannot be read"):
            model_digest([path], cache_dir=cache)
    with pytest.raises(ValueError, match="at least one"):
        model_digest([], cache_dir=cache)
