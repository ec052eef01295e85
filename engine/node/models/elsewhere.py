"""Models that other programs keep on this computer, found where those keep them by default; read, and never changed.

GGUF files alone. They are used where they lie: nothing is copied or linked. What is damaged is left out, with a note.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from engine.errors import ModelFileError
from engine.gguf.reader import part_paths
from engine.node.models.catalogue import model_id_of

LM_STUDIO = "LM Studio"
HUGGING_FACE = "Hugging Face"
OLLAMA = "Ollama"

# Of one program; a folder with more is no folder of models.
MAX_FILES = 2000

# LM Studio keeps OWNER/REPOSITORY/FILE, a snapshot of the hub's cache may have folders of its own.
_DEPTH = 3

# A manifest names a handful of layers.
_MAX_MANIFEST_BYTES = 1 << 20

_WEIGHTS = "application/vnd.ollama.image.model"

# The part of a model that sees; it is no model by itself.
_PROJECTOR = "mmproj"


@dataclass(frozen=True, kw_only=True)
class KeptModel:
    """One model: the program that keeps it, what it is called there, and its files in order."""

    program: str
    name: str
    paths: tuple[Path, ...]


@dataclass(frozen=True, kw_only=True)
class Kept:
    """All that was found. `notes` say what was left out, a sentence each."""

    models: tuple[KeptModel, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Places:
    """The folders where each program keeps models; those that are not there hold none."""

    lm_studio: tuple[Path, ...] = ()
    hugging_face: tuple[Path, ...] = ()
    ollama: tuple[Path, ...] = ()


def default_places(environment: Mapping[str, str], home: Path, system: str = sys.platform) -> Places:
    """Where the programs look themselves, which their own variables may change."""
    cache = Path(environment.get("XDG_CACHE_HOME") or home / ".cache")
    studios = [home / ".lmstudio", home / ".cache" / "lm-studio"]
    with contextlib.suppress(OSError, ValueError):
        # LM Studio notes here where else its user has it
        if text := (home / ".lmstudio-home-pointer").read_text("utf-8").strip():
            studios.insert(0, Path(text))
    hub = environment.get("HF_HUB_CACHE") or environment.get("HUGGINGFACE_HUB_CACHE")
    hub_home = Path(environment.get("HF_HOME") or cache / "huggingface")
    ollama = [Path(environment.get("OLLAMA_MODELS") or home / ".ollama" / "models")]
    if system == "linux":
        # that of the service, which has a user of its own
        ollama.append(Path("/usr/share/ollama/.ollama/models"))
    return Places(
        lm_studio=tuple(studio / "models" for studio in dict.fromkeys(studios)),
        hugging_face=(Path(hub) if hub else hub_home / "hub",),
        ollama=tuple(ollama),
    )


def kept_elsewhere() -> Kept:
    """What is in the default places of this user and this system."""
    return find_kept(default_places(os.environ, Path.home()))


def find_kept(places: Places) -> Kept:
    """Every model there is, each file once. Nothing is raised: what cannot be read is left out."""
    finder = _Finder()
    for folder in places.lm_studio:
        finder.take(LM_STUDIO, _gguf_files(folder))
    for folder in places.hugging_face:
        for snapshot in _snapshots(folder):
            finder.take(HUGGING_FACE, _gguf_files(snapshot))
    for folder in places.ollama:
        _take_ollama(folder, finder)
    return Kept(models=tuple(finder.models), notes=tuple(finder.notes))


class _Finder:
    def __init__(self) -> None:
        self.models: list[KeptModel] = []
        self.notes: list[str] = []
        self._known: set[str] = set()

    def take(self, program: str, files: Iterable[Path]) -> None:
        """Group files to models; of a split one those that are here."""
        groups: dict[Path, list[Path]] = {}
        for file in files:
            groups.setdefault(_first_part(file), []).append(file)
        for first, found in groups.items():
            self.add(program, model_id_of(first), tuple(sorted(found)))

    def add(self, program: str, name: str, paths: tuple[Path, ...]) -> None:
        real = os.path.realpath(paths[0])
        if real not in self._known:
            self._known.add(real)
            self.models.append(KeptModel(program=program, name=name, paths=paths))


def _first_part(file: Path) -> Path:
    try:
        return next(iter(part_paths(file)))
    except ModelFileError:
        return file


def _gguf_files(folder: Path, depth: int = _DEPTH) -> list[Path]:
    """Down to some folders below; without hidden ones."""
    found: list[Path] = []
    for file in _walk(folder, depth):
        if len(found) == MAX_FILES:
            break
        if file.suffix == ".gguf" and not file.name.startswith(_PROJECTOR):
            found.append(file)
    return found


def _walk(folder: Path, depth: int) -> Iterator[Path]:
    try:
        entries = sorted(folder.iterdir())
    except OSError:
        return
    for entry in entries:
        if entry.name.startswith("."):
            continue
        if not _is_folder(entry):
            yield entry
        elif depth > 0:
            yield from _walk(entry, depth - 1)


def _is_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except OSError:
        return False


def _snapshots(cache: Path) -> Iterator[Path]:
    """Of each repository the snapshot that its main branch is at, else the one that changed last."""
    try:
        repositories = sorted(cache.glob("models--*"))
    except OSError:
        return
    for repository in repositories:
        with contextlib.suppress(OSError, ValueError):
            main = repository / "refs" / "main"
            revision = main.read_text("utf-8").strip() if main.is_file() else ""
            known = [path for path in (repository / "snapshots").iterdir() if path.is_dir()]
            named = [path for path in known if path.name == revision]
            if known:
                yield (named or [max(known, key=lambda path: path.stat().st_mtime)])[0]


# Ollama


class _Layer(msgspec.Struct):
    media_type: str = msgspec.field(name="mediaType")
    digest: Annotated[str, Meta(pattern=r"^sha256:[0-9a-f]{64}\Z")]


class _Manifest(msgspec.Struct):
    layers: Annotated[list[_Layer], Meta(max_length=256)]


def _take_ollama(folder: Path, finder: _Finder) -> None:
    """Its files are called by their digests; manifests say what they are."""
    manifests = folder / "manifests"
    for manifest in _walk(manifests, 4):
        name = _ollama_name(manifest.relative_to(manifests).parts)
        try:
            if manifest.stat().st_size > _MAX_MANIFEST_BYTES:
                raise ValueError("it is far too long")
            layers = msgspec.json.decode(manifest.read_bytes(), type=_Manifest).layers
        except (OSError, ValueError) as error:
            finder.notes.append(
                f"Ollama's manifest of {name} cannot be read ({_reason(error)}); it is left out: pull it there again"
            )
            continue
        blobs = [
            folder / "blobs" / layer.digest.replace(":", "-")
            for layer in layers
            if layer.media_type == _WEIGHTS
        ]
        if not blobs:
            continue  # a model in the cloud has no weights here
        if len(blobs) > 1 or not blobs[0].is_file():
            why = "is in several files" if len(blobs) > 1 else "is not whole"
            finder.notes.append(f"Ollama's {name} {why}; it is left out")
            continue
        finder.add(OLLAMA, name, (blobs[0],))


def _ollama_name(parts: tuple[str, ...]) -> str:
    """As Ollama shows it: the registry and its own "library" are not said."""
    *where, model, tag = parts if len(parts) > 1 else ("", *parts)
    owner = "/".join(part for part in where[1:] if part != "library")
    return f"{owner}/{model}:{tag}" if owner else f"{model}:{tag}"


def _reason(error: Exception) -> str:
    return (error.strerror or "") if isinstance(error, OSError) else "it is damaged"


def file_names(model: KeptModel) -> tuple[str, ...]:
    """What its files are called elsewhere: blobs of Ollama have names that say nothing."""
    if all(path.suffix == ".gguf" for path in model.paths):
        return tuple(path.name for path in model.paths)
    return (re.sub(r"[^\w.-]", "-", model.name, flags=re.ASCII) + ".gguf",)


def free_id(model: KeptModel, taken: Iterable[str]) -> str:
    """A name for it among those that are taken: its own, else one that says who keeps it."""
    known = set(taken)
    if model.name not in known:
        return model.name
    marked = f"{model.name}@{model.program.lower().replace(' ', '-')}"
    numbered = (f"{marked}-{number}" for number in range(2, len(known) + 3))
    return next(name for name in (marked, *numbered) if name not in known)
