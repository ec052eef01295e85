"""What the page Cluster tells, out of the node's state: both computers, the cable, and what went wrong. No Qt."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from app.node.link_report import about
from app.telemetry import figures
from app.words import translate

# An engine that ended is told of for so long once another runs in its place.
_TOLD_FOR_S = 600.0


class Parts(Protocol):
    """The node's state, by the names of its parts."""

    def part(self, name: str, default: Any = None) -> Any: ...


@dataclass(frozen=True, kw_only=True)
class Computer:
    """One of the two as its card shows it. `hue` is local or peer; `state` is a few words with a `tone`.

    `used` is the share of the memory that is taken, None where that is not known.
    """

    name: str
    hue: str
    role: str
    device: str
    memory: str
    used: float | None
    model: str
    is_same_model: bool
    state: str
    tone: str
    is_away: bool = False


@dataclass(frozen=True, kw_only=True)
class Cable:
    """`about` is what it is, `carries` what it can; both empty where it was never measured."""

    is_up: bool
    about: str = ""
    carries: str = ""


@dataclass(frozen=True, kw_only=True)
class Crash:
    """An engine or worker that ended by itself: when (Unix time), why, and its last words.

    `is_final`: it is not started again by itself.
    """

    model: str
    what: str
    at_s: float
    reason: str
    log: tuple[str, ...]
    n_ends: int
    is_final: bool
    is_back: bool


class Story:
    """Of this computer and the paired one `peer`, None where there is none. `now_s` is Unix time.

    `is_running`: the node runs, which says all this. Without it nothing is known of what goes on; `is_starting`: it is
    about to.
    """

    def __init__(
        self,
        parts: Parts,
        peer: dict[str, Any] | None,
        now_s: float,
        *,
        is_running: bool = True,
        is_starting: bool = False,
    ) -> None:
        self._parts, self._peer, self._now_s = parts, peer, now_s
        self.is_running, self._is_starting = is_running, is_starting
        self.node: dict[str, Any] = parts.part("node", {})
        self._engines: list[dict[str, Any]] = parts.part("engines", [])
        self._workers: list[dict[str, Any]] = parts.part("workers", [])
        self._hosts: dict[str, dict[str, Any]] = parts.part("hosts", {})

    @property
    def here_id(self) -> str:
        return str(self.node.get("node_id", ""))

    @property
    def peer_id(self) -> str:
        return str(self._peer["node_id"]) if self._peer else ""

    @property
    def here_name(self) -> str:
        return str(self.node.get("name") or translate("Cluster", "this computer"))

    @property
    def peer_name(self) -> str:
        return str(self._peer["name"]) if self._peer else ""

    @property
    def is_peer_there(self) -> bool:
        return bool(self._peer and self._peer["connected"])

    @property
    def model(self) -> str:
        """The one that is told about: loaded here, or for the other one, or else the first that both have."""
        engines = sorted(self._engines, key=lambda engine: (engine["state"] == "ready", engine["used_at"]))
        if engines:
            return str(engines[-1]["model"])
        if self._workers:
            return str(self._workers[-1]["model"])
        return str(self.agreed["model"]) if self.agreed else ""

    @property
    def is_loaded(self) -> bool:
        return bool(self._engines or self._workers)

    @property
    def agreed(self) -> dict[str, Any] | None:
        """The roles for the model, or for any that both have where none is loaded."""
        found = [
            each for each in self._parts.part("roles", {}).get("agreed", ()) if each["peer"] == self.peer_id
        ]
        loaded = {each["model"] for each in (*self._engines, *self._workers)}
        return next(
            (each for each in found if each["model"] in loaded), found[0] if found and not loaded else None
        )

    @property
    def is_joined(self) -> bool:
        """Whether a worker is connected, so that prompts can be handed over now."""
        here = any(engine["worker"].get("connected") for engine in self._engines)
        return here or any(worker["link"].get("connected") for worker in self._workers)

    def here(self) -> Computer:
        if self._is_starting:
            words = translate("Cluster", "Baton is starting")
            return self._computer(self.here_id, self.here_name, "local", "", words, "warning")
        if not self.is_running:
            words = translate("Cluster", "Baton is not running")
            return self._computer(self.here_id, self.here_name, "local", "", words, "danger")
        engine = next((each for each in self._engines if each["model"] == self.model), None)
        worker = next((each for each in self._workers if each["model"] == self.model), None)
        state, tone = _state_of(engine or worker)
        return self._computer(
            self.here_id, self.here_name, "local", self.model if self.is_loaded else "", state, tone
        )

    def why_nothing(self) -> str:
        """Why nothing can be tried with the other computer; "" where it can."""
        if self._is_starting:
            return translate("Cluster", "Baton is starting on this computer.")
        if not self.is_running:
            return translate("Cluster", "Baton is not running on this computer.")
        return "" if self.is_peer_there else translate("Cluster", "{} is away.").format(self.peer_name)

    def peer(self, *, is_prefilling: bool = False) -> Computer:
        """`is_prefilling`: it does so just now."""
        assert self._peer is not None
        state, tone = self._peer_state()
        if is_prefilling and self.is_joined and self._engines:
            state = translate("Cluster", "prefilling")
        model = self.model if self.is_joined and self.is_peer_there else self._peer_model()
        return self._computer(self.peer_id, self.peer_name, "peer", model, state, tone)

    def cable(self) -> Cable:
        if not self.is_peer_there:
            return Cable(is_up=False, about="" if self.is_running else translate("Cluster", "not known now"))
        ceiling = (self._parts.part("link", {}).get("ceilings") or {}).get(self.peer_id)
        if not ceiling:
            return Cable(is_up=True)
        speed = ceiling["local_speed_mbps"]
        words = [
            figures.link_speed(speed) if speed else "",
            translate("Cluster", "MTU {}").format(ceiling["path_mtu"] or ceiling["local_mtu"]),
            figures.duration(ceiling["round_trip_ms"]) if ceiling["round_trip_ms"] is not None else "",
        ]
        gbps = min(ceiling["send_gbps"], ceiling["receive_gbps"])
        return Cable(is_up=True, about=" · ".join(filter(None, words)), carries=figures.rate(gbps * 1e9 / 8))

    def away(self) -> str:
        """What to know of a peer that is away: since when, and why as far as that is known. "" while it is there."""
        if self._peer is None or self.is_peer_there or not self.is_running:
            return ""
        since = figures.passed(self._now_s - self._peer["since"])
        words = translate("Cluster", "{0} has been away for {1}.").format(self.peer_name, since)
        why = about(self._peer["note"], self.peer_name)
        return f"{words} {why}" if why else words

    def crashes(self) -> list[Crash]:
        """The latest end of each engine and worker here that is down, or was lately; the newest first."""
        found = [*self._crashes_of(self._engines, "engine"), *self._crashes_of(self._workers, "worker")]
        return sorted(found, key=lambda crash: crash.at_s, reverse=True)

    def note_of_join(self) -> str:
        """Why the loaded model has no worker yet, as the node says it; "" where it has one, or none is wanted."""
        joins = [each for each in self._parts.part("joins", []) if each["model"] == self.model]
        return str(joins[0]["note"]) if joins else ""

    def _crashes_of(self, processes: list[dict[str, Any]], what: str) -> Iterator[Crash]:
        for each in processes:
            ends = each["last_exits"]
            if not ends:
                continue
            last, is_back = ends[-1], each["state"] == "ready"
            if is_back and self._now_s - last["at"] > _TOLD_FOR_S:
                continue
            yield Crash(
                model=each["model"],
                what=what,
                at_s=last["at"],
                reason=last["reason"],
                log=tuple(last["log"]),
                n_ends=len(ends),
                is_final=each["state"] == "failed",
                is_back=is_back,
            )

    def _computer(self, node_id: str, name: str, hue: str, model: str, state: str, tone: str) -> Computer:
        host = self._hosts.get(node_id)
        agreed = self.agreed
        memory, used = "", None
        if host is not None and self.is_running:
            total, free = host["memory_bytes"], host["free_bytes"]
            memory = translate("Cluster", "{0} of {1} free").format(
                figures.memory(free), figures.memory(total)
            )
            used = 1 - free / total if total else None
        return Computer(
            name=name,
            hue=hue,
            role=self._role(node_id, agreed),
            device=" · ".join(filter(None, (host["device"], host["system"]))) if host else "",
            memory=memory,
            used=used,
            model=model,
            is_same_model=hue == "peer" and bool(model) and self.is_loaded and model == self.model,
            state=state,
            tone=tone,
            is_away=hue == "peer" and not self.is_peer_there,
        )

    def _role(self, node_id: str, agreed: dict[str, Any] | None) -> str:
        """What it does for the other one, as things are now."""
        if not self.is_running:
            return ""
        if not self.is_peer_there:
            return translate("Cluster", "answers alone") if self._peer and node_id == self.here_id else ""
        if agreed is None:
            return ""
        if agreed["decode"] == node_id:
            return (
                translate("Cluster", "decodes")
                if agreed["prefill"]
                else translate("Cluster", "answers alone")
            )
        if agreed["prefill"] == node_id:
            return translate("Cluster", "prefills")
        return translate("Cluster", "stands by")

    def _peer_model(self) -> str:
        host = self._hosts.get(self.peer_id)
        loaded = host["loaded"] if host and self.is_peer_there else ()
        return self.model if self.model in loaded else next(iter(loaded), "")

    def _peer_state(self) -> tuple[str, str]:
        assert self._peer is not None
        if not self.is_running:
            return translate("Cluster", "not known now"), ""
        if not self.is_peer_there:
            since = figures.passed(self._now_s - self._peer["since"])
            return translate("Cluster", "away for {}").format(since), "warning"
        if self.is_joined:
            return translate("Cluster", "ready"), "local"
        if note := self.note_of_join():
            return note, "warning"
        if self._peer_model():
            return translate("Cluster", "connected"), "local"
        return translate("Cluster", "connected, no model loaded"), "local"


def _state_of(process: dict[str, Any] | None) -> tuple[str, str]:
    """Of an engine or a worker, in a few words."""
    if process is None:
        return translate("Cluster", "no model loaded"), ""
    match process["state"]:
        case "ready":
            n_active = process.get("active", 0)
            if n_active > 1:
                return translate("Cluster", "answering {} requests").format(n_active), "local"
            return translate("Cluster", "answering") if n_active else translate("Cluster", "ready"), "local"
        case "starting":
            progress = process.get("progress", 0.0)
            if progress:
                return translate("Cluster", "loads, {}").format(f"{progress:.0%}"), "local"
            return translate("Cluster", "loads"), "local"
        case "waiting":
            return translate("Cluster", "starts again"), "warning"
        case _:
            return translate("Cluster", "failed"), "danger"
