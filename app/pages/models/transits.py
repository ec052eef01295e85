"""What is on its way: fetches from the hub, copies between the two computers, and what is left of earlier ones.

Made of the node's parts `downloads`, `copies` and `models`. Knows nothing of Qt.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any


class Kind(enum.Enum):
    """`LEFT`: of a fetch or copy that nobody knows of any more."""

    DOWNLOAD = "download"
    COPY_OUT = "copy out"
    COPY_IN = "copy in"
    LEFT = "left"
    IMPORT = "import"


@dataclass(frozen=True, kw_only=True)
class Transit:
    """`state`: running, failed, cancelled or done. `source` asks for it again, "" where that is not known."""

    key: str
    kind: Kind
    name: str
    state: str
    source: str = ""
    peer: str = ""
    done_bytes: int = 0
    total_bytes: int = 0
    problem: str = ""
    note: str = ""

    @property
    def is_running(self) -> bool:
        return self.state == "running"


def transits_of(
    downloads: Iterable[Mapping[str, Any]],
    copies: Iterable[Mapping[str, Any]],
    unfinished: Iterable[Mapping[str, Any]],
    catalogue: Mapping[str, str],
    dismissed: Collection[str] = (),
) -> list[Transit]:
    """All that is on its way or can be gone on with; what runs first. `catalogue` has names by files."""
    found = [_download(told) for told in downloads] + [_copy(told) for told in copies]
    known = {
        file_of(each, catalogue) for each in found if each.kind is Kind.DOWNLOAD and each.state != "done"
    }
    incoming = {each.name for each in found if each.kind is Kind.COPY_IN and each.is_running}
    for told in unfinished:
        if told["file"] not in known and told["id"] not in incoming:
            found.append(
                Transit(
                    key=f"left {told['id']}",
                    kind=Kind.LEFT,
                    name=told["id"],
                    state="cancelled",
                    source=catalogue.get(told["file"], ""),
                    done_bytes=told["size_bytes"],
                )
            )
    open_ones = [
        each
        for each in found
        if each.is_running or (each.state in ("failed", "cancelled") and each.key not in dismissed)
    ]
    # a copy that was stopped is no news, and is sent again where the model is
    open_ones = [
        each for each in open_ones if each.state != "cancelled" or each.kind in (Kind.DOWNLOAD, Kind.LEFT)
    ]
    return sorted(open_ones, key=lambda each: not each.is_running)


def file_of(transit: Transit, catalogue: Mapping[str, str]) -> str:
    """The name of the file that a fetch is of."""
    files = {name: file for file, name in catalogue.items()}
    return files.get(transit.source) or transit.source.rsplit("/", 1)[-1]


def _download(told: Mapping[str, Any]) -> Transit:
    source = told["model"]
    return Transit(
        key=told["id"],
        kind=Kind.DOWNLOAD,
        name=told["model_id"] or source.rsplit("/", 1)[-1].removesuffix(".gguf"),
        state=told["state"],
        source=source,
        done_bytes=told["done_bytes"],
        total_bytes=told["total_bytes"],
        problem=told["problem"],
        note=told["note"],
    )


def _copy(told: Mapping[str, Any]) -> Transit:
    return Transit(
        key=told["id"],
        kind=Kind.COPY_IN if told["direction"] == "in" else Kind.COPY_OUT,
        name=told["model"],
        state=told["state"],
        source=told["model"],
        peer=told["peer"],
        done_bytes=told["done_bytes"],
        total_bytes=told["total_bytes"],
        problem=told["problem"],
    )


def sentence(words: str) -> str:
    """What the node says of a fault, as a sentence; a name at its beginning stays as it is."""
    first = words.split(" ", 1)[0]
    began = words[:1].upper() + words[1:] if first.isalpha() else words
    return began if not began or began.endswith((".", "…", "!", "?")) else f"{began}."
