"""What the hub told, as rows: repositories, the files of one, and models of the catalogue. Knows nothing of Qt."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from app.pages.models.rows import ENGINE_BYTES, ModelRow
from app.pages.models.transits import Transit

# What a cache takes beside the weights, as most models have it.
_CACHE_SHARE = 0.1


@dataclass(frozen=True, kw_only=True)
class Offer:
    """A model that can be fetched by `source`. `share` of it has come: 1 where it is here, None where none is."""

    source: str
    name: str
    about: str
    size_bytes: int
    quantization: str = ""
    share: float | None = None
    is_running: bool = False

    @property
    def is_here(self) -> bool:
        return self.share == 1.0 and not self.is_running

    @property
    def needed_bytes(self) -> int:
        """About: how large its cache is, nobody knows before its header is here."""
        return round(self.size_bytes * (1 + _CACHE_SHARE)) + ENGINE_BYTES


@dataclass(frozen=True, kw_only=True)
class Repository:
    name: str
    downloads: int
    likes: int
    updated: str
    is_gated: bool

    @classmethod
    def told(cls, told: Mapping[str, Any]) -> Repository:
        return cls(
            name=told["repository"],
            downloads=told["downloads"],
            likes=told["likes"],
            updated=date_text(told["updated"]),
            is_gated=told["gated"],
        )


def catalogue_offers(
    catalogue: Iterable[Mapping[str, Any]], models: Iterable[ModelRow], transits: Iterable[Transit]
) -> list[Offer]:
    here = {model.model_id for model in models if model.here}
    coming = {each.source: each for each in transits}
    return [
        Offer(
            source=told["name"],
            name=told["title"],
            about=" · ".join((told["architecture"], told["licence"])),
            size_bytes=told["size_bytes"],
            quantization=told["quantization"],
            **_share(coming.get(told["name"]), is_here=told["here"] or told["name"] in here),
        )
        for told in catalogue
    ]


def file_offers(
    files: Iterable[Mapping[str, Any]], models: Iterable[ModelRow], transits: Iterable[Transit]
) -> list[Offer]:
    """By name: a file of the same name and size is taken for the same."""
    here = {
        (model.path.replace("\\", "/").rsplit("/", 1)[-1], model.size_bytes) for model in models if model.here
    }
    coming = {each.source: each for each in transits}
    return [
        Offer(
            source=told["name"],
            name=told["title"],
            about=told["file"],
            size_bytes=told["size_bytes"],
            quantization=told["quantization"],
            **_share(
                coming.get(told["name"]),
                is_here=(told["file"].rsplit("/", 1)[-1], told["size_bytes"]) in here,
            ),
        )
        for told in files
    ]


def _share(transit: Transit | None, *, is_here: bool) -> dict[str, Any]:
    if transit is not None and transit.is_running:
        total = transit.total_bytes
        return {"share": transit.done_bytes / total if total else 0.0, "is_running": True}
    if is_here:
        return {"share": 1.0}
    if transit is not None and transit.total_bytes and transit.done_bytes:
        return {"share": min(transit.done_bytes / transit.total_bytes, 0.99)}
    return {}


def number_text(number: int) -> str:
    """ "950", "12k", "1.3M": of downloads and likes."""
    if number < 1000:
        return str(number)
    return f"{number / 1e3:.0f}k" if number < 999_500 else f"{number / 1e6:.1f}M"


def date_text(stamp: str) -> str:
    """ "2 Oct 2026" of the hub's own way to write it; "" of anything else."""
    try:
        moment = datetime.fromisoformat(stamp)
    except ValueError:
        return ""
    return f"{moment.day} {moment:%b %Y}"
