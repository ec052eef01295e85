"""Files of any repository of the hub as models of the library."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from engine.errors import DownloadFailed, ModelNotFound
from engine.node.models.catalogue import CatalogueModel, HubSource, Source
from engine.node.models.hub_models import get_from_hub, parse_hub_name
from engine.node.models.library import Library
from engine.node.models.model_folder import Folder
from engine.node.progress import Progress


class Published:
    """A file on the hub, which is `content`."""

    def __init__(self, content: bytes) -> None:
        self._content = content
        self.size_bytes = len(content)
        self.sha256 = hashlib.sha256(content).hexdigest()

    def fetch(self, partial: Path, progress: Progress) -> None:
        partial.write_bytes(self._content)
        progress.advance(self.size_bytes, self.size_bytes)


class Heard:
    def __init__(self) -> None:
        self.said: list[tuple[int, int]] = []

    def note(self, sentence: str) -> None:
        pass

    def advance(self, done: int, total: int) -> None:
        self.said.append((done, total))


class Hub:
    def __init__(self, **files: bytes) -> None:
        self.files = files
        self.n_asked = 0

    def __call__(self, source: Source, model: CatalogueModel) -> Published:
        assert isinstance(source, HubSource)
        self.n_asked += 1
        content = self.files.get(source.file.removesuffix(".gguf"))
        if content is None:
            raise DownloadFailed(f"the hub has no {source.file}")
        if source.sha256 is not None:
            assert source.sha256 == hashlib.sha256(content).hexdigest()
        return Published(content)


def get(folder: Path, hub: Hub, name: str, progress: Progress | None = None) -> Path:
    return get_from_hub(
        Library(folder, hub), Folder(folder, folder / "digests"), name, progress or Heard(), hub
    )


def test_a_file_comes_under_its_own_name(tmp_path: Path) -> None:
    path = get(tmp_path, Hub(**{"q8/tiny": b"weights"}), "someone/tiny-GGUF/q8/tiny.gguf")
    assert path == tmp_path / "tiny.gguf" and path.read_bytes() == b"weights"


def test_what_is_here_is_not_fetched_again(tmp_path: Path) -> None:
    hub = Hub(tiny=b"weights")
    path = get(tmp_path, hub, "someone/tiny/tiny.gguf")
    before = path.stat().st_mtime_ns
    assert get(tmp_path, hub, "someone/tiny/tiny.gguf") == path
    assert path.stat().st_mtime_ns == before


def test_another_file_of_that_name_is_left(tmp_path: Path) -> None:
    (tmp_path / "tiny.gguf").write_bytes(b"of another")
    path = get(tmp_path, Hub(tiny=b"weights"), "someone/tiny/tiny.gguf")
    assert path.name.startswith("tiny-") and path.read_bytes() == b"weights"
    assert (tmp_path / "tiny.gguf").read_bytes() == b"of another"


def test_all_parts_of_a_split_one_come_as_one_job(tmp_path: Path) -> None:
    names = [f"big-{number:05d}-of-00002" for number in (1, 2)]
    hub = Hub(**{names[0]: b"first", names[1]: b"the second"})
    heard = Heard()
    path = get(tmp_path, hub, f"someone/big/{names[0]}.gguf", heard)
    assert path == tmp_path / f"{names[0]}.gguf"
    assert [(tmp_path / f"{name}.gguf").read_bytes() for name in names] == [b"first", b"the second"]
    assert heard.said[0] == (5, 15) and heard.said[-1] == (15, 15)
    assert [done for done, _ in heard.said] == sorted(done for done, _ in heard.said)


@pytest.mark.parametrize(
    "name",
    ["", "tiny.gguf", "someone/tiny", "someone/tiny/x.bin", "a/b/../c.gguf", "/a/b/c.gguf", "a/b/.c.gguf"],
)
def test_what_is_no_file_of_the_hub_is_refused(name: str) -> None:
    with pytest.raises(ModelNotFound, match=r"OWNER/REPO/FILE\.gguf"):
        parse_hub_name(name)
