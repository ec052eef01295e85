"""Telemetry: nothing asked yet, a long handoff, one under way, prompts that stayed here, one that was given up."""

from __future__ import annotations

import time

from PySide6.QtTest import QTest

from app.pages.telemetry.page import TelemetryPage
from app.telemetry.ledger import Ledger
from tests.app.screenshots import Stage
from tests.app.telemetry.timelines import Event, Handoff, local, slot, snapshot
from tests.app.two_computers import pretend, stop_pretending

MODEL = "Qwen3.6-27B-Q4_K_XL"


def play(stage: Stage) -> None:
    stage.app.window.go("telemetry")
    stage.shot("telemetry-empty")
    pretend(stage.app.context)
    page = stage.app.window.page("telemetry")
    assert isinstance(page, TelemetryPage)
    now_s = time.time()
    long = Handoff(asked_s=now_s - 31)
    short = local("chat-8", now_s - 55)
    early = local("chat-5", now_s - 140, n_prompt_tokens=212)
    idle = [slot(0, n_cached_tokens=29_111), slot(1, n_cached_tokens=177)]
    tell(stage, snapshot(early, short, slots=idle), *long.events(), now_s=now_s)
    QTest.qWait(100)
    stage.shot("telemetry-handoff")
    page._waterfall.see_tail()
    stage.shot("telemetry-tail")
    page._waterfall.see_all()
    page._requests.setCurrentIndex(page._requests.requests.index(1))
    stage.shot("telemetry-local")

    page._requests.setCurrentIndex(page._requests.requests.index(0))
    running = Handoff(request_id="chat-9", asked_s=time.time() - 8.0)
    busy = slot(
        0,
        "prefill_remote",
        n_prompt_tokens=28_800,
        n_prompt_tokens_processed=12_636,
        n_cached_tokens=12_636,
        prefill="remote",
    )
    decoding = slot(
        1, "decode", n_prompt_tokens=96, n_prompt_tokens_processed=96, n_decoded=60, n_cached_tokens=155
    )
    tell(stage, *running.until_chunk(25), now_s=time.time())
    for step in range(3):
        busy["n_prompt_tokens_processed"] += 505
        decoding["n_decoded"] += 12
        tell(stage, ("slots", {"slots": [dict(busy), dict(decoding)]}), now_s=time.time() + step * 0.5)
    QTest.qWait(100)
    stage.shot("telemetry-under-way")

    given_up = running.timeline(
        "ended",
        n_chunks=25,
        outcome="stop",
        prefilled_ms=31_400.0,
        first_token_ms=31_460.0,
        last_token_ms=36_000.0,
        ended_ms=36_000.2,
        n_decoded=110,
        n_remote_tokens=12_636,
        n_prompt_tokens_processed=28_800,
        fallback={"reason": "peer_lost", "detail": "the connection to the worker broke", "at_ms": 7_620.0},
    )
    step_ms = (31_400.0 - 7_700.0) / 32
    rest = [
        {
            "first": 12_650 + index * 505,
            "stop": min(12_650 + (index + 1) * 505, 28_799),
            "prefill": "local",
            "at_ms": 7_700.0 + (index + 1) * step_ms,
            "compute_ms": step_ms * 0.98,
            "computed_ms": 7_700.0 + (index + 1) * step_ms,
            "bytes": 0,
        }
        for index in range(32)
    ]
    tell(stage, ("request", {**given_up, "chunks": rest}), ("slots", {"slots": idle}), now_s=time.time())
    QTest.qWait(100)
    stage.shot("telemetry-given-up")
    stop_pretending(stage.app.context)


def tell(stage: Stage, *events: Event, now_s: float) -> None:
    """As the engine's stream does."""
    feeds = stage.app.context.feeds
    ledger = feeds.ledgers.setdefault(MODEL, Ledger(MODEL))
    for name, data in events:
        key = ledger.hear(name, data, now_s)
    feeds.changed.emit(MODEL, key)
