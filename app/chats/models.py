"""The models a chat can be had with, out of what the node tells of files and engines. Pure functions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from app.words import translate


class Readiness(Enum):
    UNLOADED = "unloaded"
    LOADING = "loading"
    LOADED = "loaded"
    FAILED = "failed"


@dataclass(frozen=True, kw_only=True)
class Choice:
    """A model of this computer that can be run. `progress` from 0 to 1 while it is loaded; `reason` why it failed.
    `checked` is how far its file has been read through meanwhile, 0 where it is not.

    `on` is the other computer's name where that one has it loaded and answers, "" where this one does.
    """

    id: str
    readiness: Readiness = Readiness.UNLOADED
    progress: float = 0.0
    checked: float = 0.0
    reason: str = ""
    on: str = ""


@dataclass(frozen=True, kw_only=True)
class Coming:
    """A model that is on its way here; `total_bytes` is 0 until it is known."""

    name: str
    done_bytes: int
    total_bytes: int


def coming(downloads: Iterable[dict[str, Any]], copies: Iterable[dict[str, Any]]) -> Coming | None:
    """Of the node's parts of those names: the one that began first."""
    inward = [told for told in copies if told["direction"] == "in"]
    for told in (*downloads, *inward):
        if told["state"] == "running":
            name = str(told["model"]).rsplit("/", 1)[-1].removesuffix(".gguf")
            return Coming(name=name, done_bytes=told["done_bytes"], total_bytes=told["total_bytes"])
    return None


@dataclass(frozen=True, kw_only=True)
class Computers:
    """By name, who answers and who may read prompts for it. Of two, either may be this one."""

    decoder: str
    worker: str
    decodes_here: bool = True

    def prefilled(self, *, by_worker: bool) -> tuple[str, bool]:
        """Where a prompt was prefilled, and whether that is the other computer."""
        return (self.worker, self.decodes_here) if by_worker else (self.decoder, not self.decodes_here)


def computers_for(model: str, roles: dict[str, Any], *, here: str, peer: str, peer_id: str) -> Computers:
    """Of the node's part `roles`; `peer` and `peer_id` are "" where no other computer is there now."""
    agreed = (one for one in roles.get("agreed", ()) if one["model"] == model and one["peer"] == peer_id)
    if any(one["decode"] == peer_id for one in agreed):
        return Computers(decoder=peer, worker=here, decodes_here=False)
    return Computers(decoder=here, worker=peer)


class Share(Enum):
    """What the other computer does for a chat."""

    NOTHING = "nothing"
    READS = "reads"
    WRITES = "writes"


def share_of(model: str, roles: dict[str, Any], *, peer_id: str) -> Share:
    """Of the node's part `roles`; `peer_id` is "" where no other computer is there now."""
    for one in roles.get("agreed", ()):
        if one["model"] == model and one["peer"] == peer_id:
            if one["decode"] == peer_id:
                return Share.WRITES
            if one["prefill"] == peer_id:
                return Share.READS
    return Share.NOTHING


def loaded_on_peer(
    peer: dict[str, Any] | None, roles: dict[str, Any], hosts: dict[str, Any]
) -> dict[str, str]:
    """Of the node's parts: the models that the other computer answers with and has loaded, with its name."""
    if peer is None or not peer["connected"]:
        return {}
    there = (hosts.get(peer["node_id"]) or {}).get("loaded") or ()
    answers = [
        one["model"]
        for one in roles.get("agreed", ())
        if one["peer"] == one["decode"] == peer["node_id"] and one["model"] in there
    ]
    return dict.fromkeys(answers, str(peer["name"]))


def context_of(model_id: str, models: dict[str, Any], settings: dict[str, Any]) -> int | None:
    """How much of a conversation a model would read if it were loaded now; None where that is not known.

    Of the node's parts `models` and `settings`.
    """
    trained = (one["n_ctx_train"] for one in models.get("models", ()) if one["id"] == model_id)
    wished = (one.get("value") for one in settings.get("settings", ()) if one["name"] == "ctx")
    limits = [n for n in (next(trained, None), next(wished, None)) if n]
    return min(limits) if len(limits) == 2 else None


def choices(
    models: dict[str, Any],
    engines: Sequence[dict[str, Any]],
    on_peer: Mapping[str, str] | None = None,
    checks: Mapping[str, float] | None = None,
) -> list[Choice]:
    """Of the node's parts `models`, `engines` and `checks`, and `loaded_on_peer`; those that are loaded first, then by
    name."""
    running = {engine["model"]: engine for engine in engines}
    found = [
        _choice(
            model["id"],
            running.get(model["id"]),
            (on_peer or {}).get(model["id"], ""),
            (checks or {}).get(model["id"], 0.0),
        )
        for model in models.get("models", ())
        if not model["problem"]
    ]
    return sorted(found, key=lambda one: (one.readiness is not Readiness.LOADED, one.id.lower()))


def loading_words(choice: Choice) -> str:
    """How far a model is that is being loaded. Nothing of it is in memory yet while its file is read for its digest."""
    if choice.progress:
        return translate("Models", "loading, {}").format(f"{choice.progress:.0%}")
    if choice.checked:
        return translate("Models", "checking the file, {}").format(f"{choice.checked:.0%}")
    return translate("Models", "loading")


def chosen(among: Sequence[Choice], *wanted: str) -> str:
    """The first of the wanted that is there, else one that is loaded, else any; "" where there is none."""
    there = {one.id for one in among}
    return next((one for one in wanted if one in there), among[0].id if among else "")


def _choice(model_id: str, engine: dict[str, Any] | None, on: str, checked: float) -> Choice:
    if engine is None and on:
        return Choice(id=model_id, readiness=Readiness.LOADED, progress=1.0, on=on)
    if engine is None:
        return Choice(id=model_id)
    if engine["state"] == "ready":
        return Choice(id=model_id, readiness=Readiness.LOADED, progress=1.0)
    if engine["state"] == "failed":
        exits = engine.get("last_exits") or ()
        return Choice(id=model_id, readiness=Readiness.FAILED, reason=exits[-1]["reason"] if exits else "")
    return Choice(id=model_id, readiness=Readiness.LOADING, progress=engine["progress"], checked=checked)
