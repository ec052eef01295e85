"""The models on this computer: the GGUF files of one folder, each with what it is and whether Baton can run it.

Files come here by `library`, by a copy from a paired computer, by `import_model`, or by hand; all are found alike.
Those that other programs keep come after them (`elsewhere`). No torch: the memory that a model takes is counted from
its header.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from engine.cache.spec import KVType
from engine.errors import DiskFull, HostError, ModelFileError, ModelNotFound, UserError
from engine.files import NO_SUCH_FILE, file_fault
from engine.gguf.digest import digest_of_parts, file_digests, known_digest, model_digest
from engine.gguf.mix import quantization
from engine.gguf.reader import MAX_PARTS, GGUFFile, model_stem, part_paths
from engine.models.spec import ModelSpec, read_spec
from engine.node.models.catalogue import model_id_of
from engine.node.models.elsewhere import Kept, file_names, free_id
from engine.node.models.library import forget_note
from engine.node.progress import Progress

# What an engine takes beside weights and cache: torch, tables of tokens, and the rows of one pass.
ENGINE_BYTES = 600_000_000

_GGUF = "*.gguf"

# Of a file that is copied, between two words of how far it is.
_COPY_BYTES = 16 << 20


@dataclass(frozen=True, kw_only=True)
class LocalModel:
    """One model. `problem` is a sentence where Baton cannot run it; what is then not known is empty or 0.

    `is_link`: its file is kept elsewhere, and only linked here. `program` keeps it, "" where Baton does; `names` are
    those of its files for a copy.
    """

    model_id: str
    paths: tuple[Path, ...]
    size_bytes: int
    is_link: bool
    program: str = ""
    names: tuple[str, ...] = ()
    problem: str = ""
    title: str = ""
    architecture: str = ""
    quantization: str = ""
    n_params: int = 0
    n_ctx_train: int = 0
    digest: str | None = None
    spec: ModelSpec | None = None
    weight_bytes: int = 0

    def needed_bytes(self, *, n_ctx: int, n_slots: int, kv_type: KVType = KVType.BF16) -> int:
        """Memory that an engine takes with so many slots: the weights as they are in the file, and the cache.

        A dense copy of the weights, for prefill, is made only where there is room for it. 0 for one that cannot be run.
        """
        if self.spec is None:
            return 0
        cache_bytes = self.cache_bytes(n_ctx=n_ctx, n_slots=n_slots, kv_type=kv_type)
        return self.weight_bytes + cache_bytes + ENGINE_BYTES

    def cache_bytes(self, *, n_ctx: int, n_slots: int, kv_type: KVType = KVType.BF16) -> int:
        """Of that, what the slots take; 0 for one that cannot be run."""
        if self.spec is None:
            return 0
        n_ctx = min(n_ctx, self.spec.context_length)
        return self.spec.cache_spec(kv_type=kv_type, n_ctx=n_ctx, n_slots=n_slots).total_bytes()

    def kv_bytes_per_token(self, *, kv_type: KVType = KVType.BF16) -> int:
        """What one position of a prompt adds to the cache, and to a handoff; 0 for one that cannot be run."""
        if self.spec is None:
            return 0
        return self.spec.cache_spec(kv_type=kv_type, n_ctx=1, n_slots=1).bytes_per_token()

    @property
    def path(self) -> Path:
        return self.paths[0]

    def told(self, *, needed_bytes: int = 0) -> ToldModel:
        """`needed_bytes` is the memory that it takes as this computer would load it."""
        return ToldModel(
            id=self.model_id,
            files=self.names,
            path=str(self.path),
            size_bytes=self.size_bytes,
            is_link=self.is_link,
            problem=self.problem,
            title=self.title,
            architecture=self.architecture,
            n_params=self.n_params,
            n_ctx_train=self.n_ctx_train,
            digest=self.digest,
            program=self.program,
            quantization=self.quantization,
            needed_bytes=needed_bytes,
            kv_bytes_per_token=self.kv_bytes_per_token(),
        )


class ToldModel(msgspec.Struct, frozen=True, kw_only=True):
    """A model as users, the app and paired computers are told of it; later versions may tell more."""

    id: Annotated[str, Meta(max_length=1024)]
    files: Annotated[tuple[str, ...], Meta(max_length=MAX_PARTS)]
    path: str
    size_bytes: Annotated[int, Meta(ge=0)]
    is_link: bool
    problem: str
    title: str
    architecture: str
    n_params: Annotated[int, Meta(ge=0)]
    n_ctx_train: Annotated[int, Meta(ge=0)]
    digest: Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")] | None
    program: Annotated[str, Meta(max_length=64)] = ""
    quantization: Annotated[str, Meta(max_length=64)] = ""
    needed_bytes: Annotated[int, Meta(ge=0)] = 0
    kv_bytes_per_token: Annotated[int, Meta(ge=0)] = 0


def _weight_bytes(file: GGUFFile) -> int:
    return sum(tensor.n_bytes for tensor in file.tensors.values())


# the folder


@dataclass(frozen=True)
class _Seen:
    """A model as it was when its files had these sizes and times."""

    files: tuple[tuple[str, int, int], ...]
    model: LocalModel


class Folder:
    """Looks at a models folder again and again; headers are read only of what is new. Not for two threads at once."""

    def __init__(self, path: Path, digests_dir: Path, kept: Callable[[], Kept] = Kept) -> None:
        """`kept` gives what other programs have on this computer."""
        self.path = path
        self.digests_dir = digests_dir
        self.notes: tuple[str, ...] = ()
        self._kept = kept
        self._seen: dict[Path, _Seen] = {}

    def models(self) -> tuple[LocalModel, ...]:
        """All there are, by id; of two that would have the same id the second is known by its file's name."""
        seen: dict[Path, _Seen] = {}
        models: dict[str, LocalModel] = {}
        for paths in _grouped(sorted(self.path.glob(_GGUF))):
            model = self._looked_at(paths, seen)
            if model.model_id in models:
                model = replace(model, model_id=model.path.name)
            models[model.model_id] = model
        own = {os.path.realpath(model.path) for model in models.values()}
        kept = self._kept()
        self.notes = kept.notes
        for each in kept.models:
            if os.path.realpath(each.paths[0]) in own:
                continue
            model_id = free_id(each, models)
            models[model_id] = replace(
                self._looked_at(each.paths, seen),
                model_id=model_id,
                program=each.program,
                names=file_names(each),
                is_link=False,
            )
        self._seen = seen
        return tuple(models[model_id] for model_id in sorted(models))

    def _looked_at(self, paths: tuple[Path, ...], seen: dict[Path, _Seen]) -> LocalModel:
        """Written down in `seen`."""
        files = _identity(paths)
        found = self._seen.get(paths[0])
        if found is None or found.files != files:
            found = _Seen(files, _look_at(paths, sum(size for _, size, _ in files)))
        seen[paths[0]] = found
        return replace(found.model, digest=self._known_digest(paths))

    def _known_digest(self, paths: Iterable[Path]) -> str | None:
        digests = [known_digest(path, cache_dir=self.digests_dir) for path in paths]
        known = [digest for digest in digests if digest is not None]
        return digest_of_parts(known) if known and len(known) == len(digests) else None


def _grouped(paths: list[Path]) -> list[tuple[Path, ...]]:
    """The files of each model: a split one has those that are here of the parts that a name speaks of."""
    groups: dict[Path, tuple[Path, ...]] = {}
    for path in paths:
        try:
            parts = tuple(part_paths(path))
        except ModelFileError:
            parts = (path,)
        groups.setdefault(parts[0], tuple(part for part in parts if part in paths))
    return list(groups.values())


def _identity(paths: tuple[Path, ...]) -> tuple[tuple[str, int, int], ...]:
    files = []
    for path in paths:
        try:
            stat = path.stat()
            files.append((path.name, stat.st_size, stat.st_mtime_ns))
        except OSError:
            files.append((path.name, 0, 0))
    return tuple(files)


def _look_at(paths: tuple[Path, ...], size_bytes: int) -> LocalModel:
    model = LocalModel(
        model_id=model_id_of(paths[0]),
        paths=paths,
        names=tuple(path.name for path in paths),
        size_bytes=size_bytes,
        is_link=any(path.is_symlink() for path in paths),
    )
    if fault := file_fault(paths[0], wanted="a GGUF file"):
        return replace(model, problem=fault)
    try:
        with GGUFFile.open(paths[0]) as file:
            model = replace(model, architecture=file.architecture, quantization=quantization(file))
            spec = read_spec(file.metadata)
            return replace(
                model,
                title=spec.name,
                n_params=sum(tensor.n_elements for tensor in file.tensors.values()),
                n_ctx_train=spec.context_length,
                spec=spec,
                weight_bytes=_weight_bytes(file),
            )
    except UserError as error:
        return replace(model, problem=str(error))


def find_model(models: Iterable[LocalModel], text: str) -> LocalModel:
    """The one with this id, file name or digest; raises ModelNotFound with the ids that there are."""
    known = list(models)
    for model in known:
        if text in (model.model_id, model.path.name, model.digest):
            return model
    ids = ", ".join(model.model_id for model in known) or "none"
    raise ModelNotFound(f"{text[:200]}: no such model on this computer; it has {ids}")


def import_model(folder: Folder, source: Path, progress: Progress, *, copy: bool = False) -> LocalModel:
    """Have the model of the user's file `source` here: by a link to it, or by a copy, and the file stays as it is.

    A model that is here already is not taken twice; another one of the same name gets a name with its digest. Raises
    ModelNotFound, ModelFileError or UnsupportedModel for what cannot be run, and DiskFull or HostError.
    """
    if (fault := file_fault(source, wanted="a GGUF file")) and fault != NO_SUCH_FILE:
        raise UserError(f"{source}: {fault}")
    with GGUFFile.open(source) as file:
        read_spec(file.metadata)
        sources = tuple(path.resolve() for path in file.paths)
    names = tuple(path.name for path in file.paths)
    try:
        folder.path.mkdir(parents=True, exist_ok=True)
        targets = _targets(folder, names, lambda: file_digests(sources, cache_dir=folder.digests_dir))
        for path, target in zip(sources, targets, strict=True):
            if not target.exists():
                _bring(path, target, progress, copy=copy)
    except OSError as error:
        raise _disk_error(folder.path, error) from error
    return find_model(folder.models(), targets[0].name)


def free_names(folder: Folder, names: tuple[str, ...], digests: tuple[str, ...]) -> tuple[str, ...]:
    """Names for a model's files, its own where nothing else has them, else with the beginning of its digest."""
    return tuple(path.name for path in _targets(folder, names, lambda: digests))


def _targets(
    folder: Folder, names: tuple[str, ...], digests: Callable[[], tuple[str, ...]]
) -> tuple[Path, ...]:
    """Where files of these names go: each place is free, or holds that very content."""
    targets = tuple(folder.path / name for name in names)
    taken = [target for target in targets if os.path.lexists(target)]
    if not taken:
        return targets
    wanted = digests()
    if all(_holds(folder, target, digest) for target, digest in zip(targets, wanted, strict=True)):
        return targets
    mark = digest_of_parts(wanted)[:8]
    return tuple(folder.path / _marked(name, mark) for name in names)


def _holds(folder: Folder, path: Path, digest: str) -> bool:
    """Whether the file is not there, or is the one with that digest."""
    if not os.path.lexists(path):
        return True
    try:
        return model_digest([path], cache_dir=folder.digests_dir) == digest
    except ModelFileError:
        return False


def _marked(name: str, mark: str) -> str:
    stem = model_stem(Path(name))
    return f"{stem}-{mark}{name[len(stem) :]}"


def _bring(source: Path, target: Path, progress: Progress, *, copy: bool) -> None:
    if not copy:
        # Windows wants a privilege for links; there, and where the disk knows none, it is a copy after all
        with contextlib.suppress(OSError, NotImplementedError):
            target.symlink_to(source)
            return
    size = source.stat().st_size
    if shutil.disk_usage(target.parent).free < size:
        raise DiskFull(
            f"the disk that holds {target.parent} has no room for {size / 1e9:.1f} GB: make room, or import the file "
            "by a link"
        )
    progress.advance(0, size)
    unfinished = target.with_name(f".{target.name}.partial")
    try:
        _copy(source, unfinished, size, progress)
        os.replace(unfinished, target)
    finally:
        unfinished.unlink(missing_ok=True)
    progress.advance(size, size)


def _copy(source: Path, target: Path, size: int, progress: Progress) -> None:
    done = 0
    with source.open("rb") as reading, target.open("wb") as writing:
        while block := reading.read(_COPY_BYTES):
            writing.write(block)
            done += len(block)
            progress.advance(done, size)


def remove_model(model: LocalModel, in_use: Mapping[str, str]) -> None:
    """Delete the model's files from the folder; of one that is linked here only the link.

    `in_use` says of each model that is loaded what ends its engine. Raises UserError for such a one and for one that
    another program keeps, or HostError.
    """
    if model.program:
        raise UserError(
            f"{model.model_id} belongs to {model.program}: delete it there, and it is gone here, too"
        )
    if (ended_by := in_use.get(model.model_id)) is not None:
        raise UserError(f"{model.model_id} is loaded by an engine: end that by {ended_by}, and try again")
    try:
        for path in model.paths:
            path.unlink(missing_ok=True)
            forget_note(path)
    except OSError as error:
        raise _disk_error(model.path.parent, error) from error


def _disk_error(folder: Path, error: OSError) -> HostError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return DiskFull(
            f"the disk that holds {folder} is full: make room, or choose a folder on another disk (in Settings, or by "
            "`baton config set models`)"
        )
    return HostError(
        f"{error.filename or folder}: {error.strerror or error}; check the folder, or choose another (in Settings, or "
        "by `baton config set models`)"
    )
