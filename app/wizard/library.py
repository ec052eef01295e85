"""The models of both computers and of the catalogue, side by side, and what can be done with each. Knows no Qt."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from app.amounts import memory_text, size_text
from app.words import translate

# As the node reckons: beside the file, an engine takes this; of memory, a model may take that share.
_ENGINE_BYTES = 600_000_000
_CACHE_SHARE = 0.1
_USABLE_SHARE = 0.8


@dataclass(frozen=True, kw_only=True)
class ModelRow:
    """One model. `name` is what it is asked for by; `peers` are the paired computers that have the same content.

    `problem` says why Baton cannot run it; `fits` whether this computer has the memory.
    """

    name: str
    title: str
    size_bytes: int
    here: bool
    peers: tuple[str, ...] = ()
    in_catalogue: bool = False
    problem: str = ""
    digest: str = ""
    fits: bool = True

    @property
    def is_usable(self) -> bool:
        return self.here and not self.problem

    def about(self, memory_bytes: float) -> str:
        """Its size, and whether it fits this computer."""
        size = size_text(self.size_bytes)
        if self.problem:
            words = translate("Wizard", "cannot be run: {}").format(self.problem)
        elif not self.fits:
            room = memory_text(usable(memory_bytes))
            words = translate("Wizard", "too large for this computer, which can give it {}").format(room)
        elif not self.here and self.peers:
            words = translate("Wizard", "fits this computer, and is on {}").format(self.peers[0])
        else:
            words = translate("Wizard", "fits this computer")
        return f"{size} · {words}"


def usable(memory_bytes: float) -> float:
    return _USABLE_SHARE * memory_bytes


def memory_of(computer: dict[str, Any]) -> float:
    """What models may be reckoned with, before anything was measured."""
    return float(computer.get("gpu_limit_bytes") or computer.get("memory_bytes") or 0)


def rows(library: dict[str, Any], catalogue: list[dict[str, Any]], *, memory_bytes: float) -> list[ModelRow]:
    """First what both have, then what is here, there, and in the catalogue alone; the small ones first."""
    titles = {entry["name"]: entry["title"] for entry in catalogue}
    found = {model["id"]: _row(model, memory_bytes, here=True) for model in library["here"]["models"]}
    digests = {model["digest"]: model["id"] for model in library["here"]["models"] if model["digest"]}
    for peer in library["peers"]:
        for told in peer["models"]:
            name = digests.get(told["digest"]) if told["digest"] else None
            if (
                name is None
                and told["id"] in found
                and None in (told["digest"], _digest(library, told["id"]))
            ):
                name = told["id"]
            if name is None:
                name = told["id"] if told["id"] not in found else f"{told['id']} ({peer['name']})"
                found.setdefault(name, _row({**told, "id": name}, memory_bytes, here=False))
            found[name] = _with_peer(found[name], peer["name"])
    known = [
        ModelRow(
            name=entry["name"],
            title=entry["title"],
            size_bytes=entry["size_bytes"],
            here=False,
            in_catalogue=True,
            fits=_fits(entry["size_bytes"], memory_bytes),
        )
        for entry in catalogue
        if not entry["here"] and entry["name"] not in found
    ]
    named = [replace(model, title=titles.get(model.name, model.title)) for model in found.values()]
    return sorted([*named, *known], key=_order)


def _row(told: dict[str, Any], memory_bytes: float, *, here: bool) -> ModelRow:
    return ModelRow(
        name=told["id"],
        title=told["title"] or told["id"],
        size_bytes=told["size_bytes"],
        here=here,
        problem=told["problem"],
        digest=told["digest"] or "",
        fits=_fits(told["size_bytes"], memory_bytes),
    )


def _digest(library: dict[str, Any], name: str) -> str | None:
    return next((model["digest"] for model in library["here"]["models"] if model["id"] == name), None)


def _with_peer(model: ModelRow, peer: str) -> ModelRow:
    return replace(model, peers=(*model.peers, peer))


def _fits(size_bytes: int, memory_bytes: float) -> bool:
    return size_bytes * (1 + _CACHE_SHARE) + _ENGINE_BYTES <= usable(memory_bytes)


def _order(model: ModelRow) -> tuple[bool, bool, bool, int]:
    return not (model.here and model.peers), not model.here, not model.peers, model.size_bytes
