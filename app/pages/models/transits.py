"""What is on its way: fetches from the hub, copies between the two computers, and what is left of earlier ones.

Made of the node's parts `downloads`, `copies` and `models`. Knows nothing of Qt.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

# Of a file's name: which part of a split model it is, and what kind of file.
_ENDING = re.compile(r"(-\d{5}-of-\d{5})?\.gguf$")


class Kind(enum.Enum):
    """`LEFT`: of a fetch or copy that nobody knows of any more."""

    DOWNLOAD = "download"
    COPY_OUT = "copy out"
    COPY_IN = "copy in"
    LEFT = "left"
    IMPORT = "import"


@dataclass(frozen=True, kw_only=True)
class Transit:
    """`state`: running, failed, cancelled or done. `source` asks for it again, "" where that is not known.

    `peer` is the other computer's name, and `peer_id` its node id.
    """

    key: str
    kind: Kind
    name: str
    state: str
    source: str = ""
    peer: str = ""
    peer_id: str = ""
    done_bytes: int = 0
    total_bytes: int = 0
    problem: str = ""
    note: str = ""

    @property
    def is_running(self) -> bool:
        return self.state == "running"

    @property
    def can_pause(self) -> bool:
        """It was begun here, and what has come is kept until it is asked for again."""
        is_begun_copy = self.kind in (Kind.COPY_OUT, Kind.COPY_IN) and bool(self.source)
        return self.kind is Kind.DOWNLOAD or is_begun_copy


def transits_of(
    downloads: Iterable[Mapping[str, Any]],
    copies: Iterable[Mapping[str, Any]],
    unfinished: Iterable[Mapping[str, Any]],
    catalogue: Collection[str],
) -> list[Transit]:
    """All that is on its way or can be gone on with; what runs first. `catalogue` are the names that it knows."""
    found = [_download(told) for told in downloads] + [_copy(told) for told in copies]
    # what is here of these is theirs
    known = {each.name for each in found if each.kind is Kind.DOWNLOAD and each.state != "done"}
    known |= {each.name for each in found if each.kind is Kind.COPY_IN and (each.is_running or each.source)}
    left: dict[str, Transit] = {}
    for told in unfinished:
        if (name := told["id"]) not in known and told["size_bytes"]:
            left[name] = _left(told, catalogue, left.get(name))
    found = [each for each in (*found, *left.values()) if _is_open(each)]
    return sorted(found, key=lambda each: not each.is_running)


def _is_open(transit: Transit) -> bool:
    """A copy that was begun on the other computer and stopped is no news: it is begun again there."""
    is_stopped = transit.state == "cancelled" and (transit.can_pause or transit.kind is Kind.LEFT)
    return transit.is_running or transit.state == "failed" or is_stopped


def _left(told: Mapping[str, Any], catalogue: Collection[str], before: Transit | None) -> Transit:
    """With the parts of a split model, which are told one by one."""
    name = told["id"]
    return Transit(
        key=f"left {name}",
        kind=Kind.LEFT,
        name=name,
        state="cancelled",
        source=name if name in catalogue else told.get("source", ""),
        done_bytes=told["size_bytes"] + (before.done_bytes if before is not None else 0),
    )


def _id_of(source: str) -> str:
    """What a model is called once it is here."""
    return _ENDING.sub("", source.rsplit("/", 1)[-1])


def _download(told: Mapping[str, Any]) -> Transit:
    source = told["model"]
    return Transit(
        key=told["id"],
        kind=Kind.DOWNLOAD,
        name=told["model_id"] or _id_of(source),
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
        source=told["source"] if told["begun_here"] else "",
        peer=told["peer"],
        peer_id=told["peer_id"],
        done_bytes=told["done_bytes"],
        total_bytes=told["total_bytes"],
        problem=told["problem"],
    )
