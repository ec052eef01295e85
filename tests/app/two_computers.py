"""What a node says that this computer cannot have: a Mac and a DGX Spark with a cable of 10 Gbit/s between them."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Iterator
from pathlib import Path
from typing import Any

from PySide6.QtCore import QTimer

from app.bridge import Bridge
from app.context import Context
from app.node.client import NodeClient
from app.preferences import Preferences
from app.state import NodePresence, NodeState
from app.widgets.feedback import Action
from engine import config
from tests.app.windows import wait

STUDIO, SPARK = "a" * 32, "b" * 32
MODEL = "Qwen3.6-27B-Q4_K_XL"
GB = 1 << 30


def pretend(context: Context, **changed: Any) -> None:
    """Show these parts of the state, and those in `changed`, and hear no more of a real node."""
    context.client.endpoint_events = _silence  # type: ignore[method-assign]
    state = context.state
    state._be(NodePresence.THERE)
    if state._job is not None:
        state._job.cancel()
    parts = {**parts_of(), **changed}
    state._parts.update(parts)
    for name in parts:
        state.changed.emit(name)


def stop_pretending(context: Context) -> None:
    """Hear the real node again, and forget what it never said."""
    del context.client.endpoint_events  # type: ignore[attr-defined]
    context.state.begin(start=False)
    context.feeds.ledgers.clear()
    context.feeds._clock = time.time
    wait(lambda: context.state.presence is NodePresence.THERE)


class Shell:
    """A window's frame that only remembers."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.went: list[str] = []

    def toast(self, text: str, action: Action | None = None) -> None:
        self.said.append(text)

    def go(self, page: str) -> None:
        self.went.append(page)


@contextlib.contextmanager
def two_computers(folder: Path) -> Iterator[Context]:
    """What pages are given when nobody but us speaks for the node."""
    bridge, client = Bridge(), NodeClient(lambda: None)
    context = Context(
        bridge=bridge,
        client=client,
        state=NodeState(bridge, client, lambda: contextlib.nullcontext(str)),
        preferences=Preferences(folder / "window.json"),
        data=folder / "data",
        command=("false",),
    )
    context.shell = Shell()
    try:
        pretend(context)
        yield context
    finally:
        for timer in context.state.findChildren(QTimer):
            timer.stop()
        bridge.close(client.close())


async def _silence(model: str) -> AsyncGenerator[Any, None]:
    """The events of an engine that has nothing to say."""
    await asyncio.Event().wait()
    yield


def parts_of() -> dict[str, Any]:
    """Two paired computers, joined, idle, with a cable that was measured."""
    now_s = time.time()
    return {
        "node": {
            "node_id": STUDIO,
            "name": "studio",
            "baton": "0.1.0",
            "notes": [],
            "endpoint": "",
            "fingerprint": "",
        },
        "peers": [
            {
                "node_id": SPARK,
                "name": "spark",
                "fingerprint": "b182b4a0427568b2d8cc621c0231806",
                "connected": True,
                "address": "10.77.3.2",
                "local_address": "10.77.3.1",
                "baton": "0.1.0",
                "note": "",
                "twin": "",
                "since": now_s - 7_260,
            }
        ],
        "hosts": {
            STUDIO: host("Apple M2 Ultra", "macOS", 192, 141, loaded=[MODEL]),
            SPARK: host("NVIDIA GB10", "Linux", 128, 93, loaded=[MODEL]),
        },
        "engines": [engine()],
        "workers": [],
        "joins": [
            {"model": MODEL, "prefill": "spark", "prefill_node_id": SPARK, "note": "", "since": now_s - 7_000}
        ],
        "roles": roles(),
        "link": link(),
    }


def settings() -> dict[str, Any]:
    """The node's settings with nothing set."""
    return {"settings": [_declared(setting) for setting in config.NODE_SETTINGS]}


def _declared(setting: config.Setting) -> dict[str, Any]:
    return {
        **{"name": setting.name, "group": setting.group, "type": setting.kind.__name__, "help": setting.help},
        **{"minimum": setting.minimum, "maximum": setting.maximum, "choices": list(setting.choices)},
        **{"default": setting.default, "value": None if setting.is_secret else setting.default},
        "is_secret": setting.is_secret,
    }


def another(name: str = "garage", *, connected: bool = True) -> dict[str, Any]:
    """One more paired computer, as `peers` tells of it."""
    node_id = name[0].replace("g", "d") * 32
    since = time.time() - 420
    (spark,) = parts_of()["peers"]
    return {**spark, "node_id": node_id, "name": name, "connected": connected, "since": since}


def host(device: str, system: str, memory_gb: int, free_gb: int, loaded: list[str]) -> dict[str, Any]:
    return {
        "device": device,
        "system": system,
        "memory_bytes": memory_gb * GB,
        "free_bytes": free_gb * GB,
        "gpu_bytes": 0,
        "loaded": loaded,
    }


def engine(**changed: Any) -> dict[str, Any]:
    return {
        "model": MODEL,
        "progress": 1.0,
        "active": 0,
        "used_at": time.time() - 40,
        "needed_bytes": 22 * GB,
        "worker": {"connected": True, "note": ""},
        "state": "ready",
        "pid": 4711,
        "port": 50_123,
        "since": time.time() - 7_000,
        "starts": 1,
        "last_exits": [],
        **changed,
    }


def roles(**changed: Any) -> dict[str, Any]:
    return {
        "wishes": {SPARK: {"prefill": "auto", "count": 0, "by": ""}},
        "agreed": [
            {
                "peer": SPARK,
                "model": MODEL,
                "prefill": SPARK,
                "decode": STUDIO,
                "reason": "studio decodes: 4,000 tokens with an answer of 300 take 14.6 s with spark prefilling, and "
                "27.9 s at best where spark decodes",
                "is_wish": False,
                "prompt_tokens": 4000,
                "answer_tokens": 300,
                "ways": [
                    way(SPARK, STUDIO, 2.5, 14.6),
                    way(STUDIO, STUDIO, 11.8, 23.9),
                    way(SPARK, SPARK, 2.4, 27.9),
                    way(STUDIO, SPARK, 12.0, 37.5),
                ],
            }
        ],
        "not_measured": {},
        "device": "Apple M2 Ultra",
        "memory": {"total_bytes": 192 * GB, "free_bytes": 141 * GB, "gpu_bytes": 0},
        "measured": {},
        **changed,
    }


def way(prefill: str, decode: str, first_token_s: float, total_s: float) -> dict[str, Any]:
    return {
        "prefill": prefill,
        "decode": decode,
        "first_token_s": first_token_s,
        "total_s": total_s,
        "obstacle": "",
    }


def link(*findings: dict[str, Any], **changed: Any) -> dict[str, Any]:
    """Measured, with what was found."""
    ceiling = {
        "peer_id": SPARK,
        "local_interface": "en7",
        "peer_interface": "enP2p1s0",
        "send_gbps": 9.84,
        "receive_gbps": 9.81,
        "path_mtu": 8000,
        "round_trip_ms": 0.19,
        "local_mtu": 8000,
        "local_speed_mbps": 10_000,
        "measured_at": time.time() - 600,
    }
    return {"probing": None, "report": report(*findings), "ceilings": {SPARK: ceiling}, **changed}


def report(*findings: dict[str, Any]) -> dict[str, Any]:
    way_there = {
        "path_mtu": 8000,
        "goodput_gbps": 9.84,
        "goodput_two_streams_gbps": 9.81,
        "burst_bytes": 2_097_152,
        "burst_warm_ms": 1.8,
        "burst_after_idle_ms": 1.9,
    }
    return {
        "measured_at": time.time() - 600,
        "took_s": 7.3,
        "here": facts("en7", "Thunderbolt Ethernet"),
        "cable": {"interface": "en7", "reason": "the other computer is connected over en7"},
        "peer": {
            "node_id": SPARK,
            "name": "spark",
            "facts": facts("enP2p1s0", "mlx5_core"),
            "local_interface": "en7",
            "peer_interface": "enP2p1s0",
            "path": {
                "round_trips": {"sent": 200, "lost": 0, "median_ms": 0.19, "worst_ms": 0.41},
                "to_peer": way_there,
                "from_peer": way_there,
            },
            "counted_here": {},
            "counted_there": {},
        },
        "missing": "",
        "findings": list(findings),
    }


def facts(name: str, driver: str) -> dict[str, Any]:
    interface = {
        "name": name,
        "kind": "ethernet",
        "is_up": True,
        "mtu": 8000,
        "max_mtu": 9000,
        "speed_mbps": 10_000,
        "mac": "",
        "port": "",
        "driver": driver,
        "guid": "",
        "addresses": [],
        "counters": {},
    }
    granted = {"receive_granted": 33_554_432, "send_granted": 33_554_432}
    limits = {
        **granted,
        "receive_auto_max": 33_554_432,
        "send_auto_max": 33_554_432,
        "slow_start_after_idle": False,
    }
    return {
        "network": {"interfaces": [interface], "routes": []},
        "limits": {**limits, "mtu_probing": False, "shared_interfaces": []},
    }


SLOW_START = {
    "code": "slow_start_after_idle",
    "severity": "slow",
    "what": "after a pause of a second spark sends slowly at first",
    "why": "a burst of 2.1 MB takes 6.4 ms where it takes 1.8 ms on a busy connection: each answer's first chunk waits "
    "4.6 ms for it",
    "fix": "run `baton link tune --apply` on both computers",
    "is_tunable": True,
}
