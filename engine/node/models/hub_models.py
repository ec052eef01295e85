"""A file of any repository of the Hugging Face hub as a model of the library, by the digests that the hub publishes."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from engine.errors import ModelNotFound
from engine.gguf.reader import model_stem, part_paths
from engine.node.models.catalogue import CatalogueModel, HubSource, Source
from engine.node.models.library import Library, Remote, ask_source
from engine.node.models.model_folder import Folder, free_names
from engine.node.progress import Progress

_NAME = re.compile(
    r"(?P<repository>[\w-][\w.-]{0,95}/[\w-][\w.-]{0,95})/(?P<file>(?:[\w-][\w.+() -]*/)*[\w-][\w.+() -]*\.gguf)",
    re.ASCII,
)

Ask = Callable[[Source, CatalogueModel], Remote]


def parse_hub_name(text: str) -> tuple[str, str]:
    """Repository and file of OWNER/REPO/FILE.gguf, which may be in folders; raises ModelNotFound."""
    match = _NAME.fullmatch(text) if len(text) <= 512 else None
    if match is None:
        raise ModelNotFound(
            f"{text[:200]!r} is no file of the hub: write OWNER/REPO/FILE.gguf, such as "
            "Qwen/Qwen3-0.6B-GGUF/Qwen3-0.6B-Q8_0.gguf"
        )
    return match["repository"], match["file"]


def get_from_hub(
    library: Library, folder: Folder, name: str, progress: Progress, ask: Ask = ask_source
) -> Path:
    """The file that `name` (OWNER/REPO/FILE) means, fetched and verified first, with all parts of a split one.

    Where another file has its name here, it gets one with the beginning of its digest. Raises what `Library.get` does.
    """
    repository, file = parse_hub_name(name)
    parts = [_as_published(repository, path.as_posix(), ask) for path in part_paths(Path(file))]
    digests = tuple(part.sources[0].sha256 or "" for part in parts)
    names = free_names(folder, tuple(part.file for part in parts), digests)
    total = sum(part.size_bytes for part in parts)
    done = 0
    for part, free in zip(parts, names, strict=True):
        library.get(replace(part, file=free), _PartOf(progress, done, total), "hub")
        done += part.size_bytes
    progress.advance(total, total)
    return library.folder / names[0]


class _PartOf:
    """The progress of one file as that of all of them."""

    def __init__(self, whole: Progress, before: int, total: int) -> None:
        self._whole, self._before, self._total = whole, before, total

    def note(self, sentence: str) -> None:
        self._whole.note(sentence)

    def advance(self, done: int, total: int) -> None:
        self._whole.advance(self._before + done, self._total)


def _as_published(repository: str, file: str, ask: Ask) -> CatalogueModel:
    """The file with the size and digest that the hub has of it now. Raises DownloadFailed."""
    source = HubSource(repository=repository, revision="main", file=file, sha256=None, checked=False)
    name = Path(file).name
    model = CatalogueModel(
        name=model_stem(Path(name)),
        title="",
        architecture="",
        quantization="",
        licence="",
        file=name,
        size_bytes=0,
        sources=(source,),
    )
    remote = ask(source, model)
    return replace(model, size_bytes=remote.size_bytes, sources=(replace(source, sha256=remote.sha256),))
