"""Kernels that are kept: built once in a process, and once on a computer where there is a cache folder."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from pathlib import Path

import pytest

from engine import paths
from engine.kernels import jit

pytestmark = pytest.mark.usefixtures("needs_jit")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(paths, "cache_dir", lambda: tmp_path / "cache")
    return tmp_path / "cache" / "kernels"


class Counting:
    """Builds kernels that write a number, and counts them."""

    def __init__(self) -> None:
        self.built: list[int] = []

    def build(self, number: int) -> jit.Kernel:
        self.built.append(number)
        k = jit.Builder(("out",))
        k.store(k.c(number), k.field("out"))
        return k.compile()

    def new_process(self) -> Callable[[int], jit.Kernel]:
        """`build`, kept, with nothing in memory yet."""
        return jit.kept(self.build)


def written_by(kernel: jit.Kernel) -> int:
    out = array("q", [0])
    kernel(out.buffer_info()[0], 1)
    return out[0]


def test_builds_once() -> None:
    counting = Counting()
    kernel = counting.new_process()
    assert kernel(7) is kernel(7)
    assert written_by(kernel(7)) == 7
    assert written_by(kernel(8)) == 8
    assert counting.built == [7, 8]


def test_the_next_process_builds_nothing() -> None:
    counting = Counting()
    counting.new_process()(7)
    later = counting.new_process()
    assert written_by(later(7)) == 7
    assert counting.built == [7]
    assert written_by(later(8)) == 8
    assert counting.built == [7, 8]


def test_a_damaged_entry_is_built_again(folder: Path) -> None:
    counting = Counting()
    counting.new_process()(7)
    (entry,) = folder.iterdir()
    entry.write_bytes(entry.read_bytes()[:-5])
    assert written_by(counting.new_process()(7)) == 7
    assert written_by(counting.new_process()(7)) == 7
    assert counting.built == [7, 7]


@pytest.mark.parametrize("changed", ["_sources", "_target"])
def test_other_sources_or_another_processor_build_again(
    changed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    counting = Counting()
    counting.new_process()(7)
    other = {"_sources": "changed", "_target": (*jit._target(), "changed")}[changed]
    monkeypatch.setattr(jit, changed, lambda: other)
    assert written_by(counting.new_process()(7)) == 7
    assert counting.built == [7, 7]


def test_works_without_a_folder(folder: Path) -> None:
    folder.parent.write_bytes(b"a file is in the way")
    counting = Counting()
    assert written_by(counting.new_process()(7)) == 7
    assert written_by(counting.new_process()(7)) == 7
    assert counting.built == [7, 7]


def test_keeps_nothing_on_disk_without_sources(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jit, "_sources", lambda: None)
    counting = Counting()
    assert written_by(counting.new_process()(7)) == 7
    assert not folder.exists()


def test_sources_are_those_of_this_package() -> None:
    digest = jit._sources()
    assert digest is not None and len(digest) == 64
