"""Telemetry: nothing asked yet, a long handoff, one under way, prompts that stayed here, one that was given up."""

from __future__ import annotations

from PySide6.QtCore import QPoint

from app.pages.telemetry.page import TelemetryPage
from app.telemetry.ledger import Ledger
from tests.app.screenshots import NOW_S, Stage
from tests.app.telemetry.timelines import Event, Handoff, local, slot, snapshot
from tests.app.windows import texts, wait

MODEL = "Qwen3.6-27B-Q4_K_XL"


def play(stage: Stage) -> None:
    page = stage.app.page("telemetry")
    assert isinstance(page, TelemetryPage)
    stage.app.tell(engines=[])
    stage.shot("telemetry-nothing-loaded")
    stage.app.tell()
    stage.shot("telemetry-empty")
    now_s = NOW_S
    long = Handoff(asked_s=now_s - 31)
    short = local("chat-8", now_s - 55)
    early = local("chat-5", now_s - 140, n_prompt_tokens=212)
    idle = [slot(0, n_cached_tokens=29_111), slot(1, n_cached_tokens=177)]
    tell(stage, snapshot(early, short, slots=idle), *long.events(), now_s=now_s)
    wait(lambda: page._facts.isVisible() and "overlap" in texts(page._facts).lower())
    stage.shot("telemetry-handoff")
    menu = page._export_menu()
    menu.popup(stage.app.window.mapToGlobal(QPoint(960, 48)))
    menu.setActiveAction(menu.actions()[0])
    stage.shot("telemetry-menu-export", over=[menu])
    menu.hide()
    page._waterfall.see_tail()
    stage.shot("telemetry-tail")
    page._waterfall.see_all()
    page._requests.setCurrentIndex(page._requests.requests.index(1))
    stage.shot("telemetry-local")

    page._requests.setCurrentIndex(page._requests.requests.index(0))
    running = Handoff(request_id="chat-9", asked_s=NOW_S - 8.0)
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
    tell(stage, *running.until_chunk(25), now_s=NOW_S)
    for step in range(3):
        busy["n_prompt_tokens_processed"] += 505
        decoding["n_decoded"] += 12
        tell(stage, ("slots", {"slots": [dict(busy), dict(decoding)]}), now_s=NOW_S + step * 0.5)
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
    tell(stage, ("request", {**given_up, "chunks": rest}), ("slots", {"slots": idle}), now_s=NOW_S)
    stage.shot("telemetry-given-up")


def tell(stage: Stage, *events: Event, now_s: float) -> None:
    """As the engine's stream does."""
    feeds = stage.app.context.feeds
    ledger = feeds.ledgers.setdefault(MODEL, Ledger(MODEL))
    for name, data in events:
        key = ledger.hear(name, data, now_s)
    feeds.changed.emit(MODEL, key)
