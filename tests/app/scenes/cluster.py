"""Cluster: nobody paired, two that are idle, a handoff under way, a finding, a peer that is away, engines that end."""

from __future__ import annotations

import time
from typing import Any

from PySide6.QtTest import QTest
from PySide6.QtWidgets import QScrollArea, QWidget

from app.telemetry.ledger import Ledger
from app.widgets.feedback import Question
from tests.app.screenshots import Stage
from tests.app.telemetry.timelines import Handoff, slot, snapshot
from tests.app.two_computers import (
    MODEL,
    SLOW_START,
    SPARK,
    another,
    engine,
    host,
    link,
    parts_of,
    pretend,
    stop_pretending,
)


def _to_the_end(page: QWidget, *, back: bool = False) -> None:
    """Scroll down, or up again."""
    QTest.qWait(50)
    scrolled = page.findChild(QScrollArea)
    assert scrolled is not None
    bar = scrolled.verticalScrollBar()
    bar.setValue(0 if back else bar.maximum())


LOG = [
    "12:03:41 INFO  loading Qwen3.6-27B-Q4_K_XL: 62%",
    "12:03:44 ERROR the system has 3.1 GB of memory left, and 4.0 GB are needed for slot 2",
    "12:03:44 INFO  ended",
]


def play(stage: Stage) -> None:
    window = stage.app.window
    pretend(stage.app.context, peers=[])
    window.go("cluster")
    stage.shot("cluster-nobody")
    pretend(stage.app.context, peers=parts_of()["peers"])
    stage.shot("cluster-idle")
    pretend(stage.app.context, peers=[*parts_of()["peers"], another(), another("attic", connected=False)])
    _to_the_end(window.page("cluster"))
    stage.shot("cluster-several")
    pretend(stage.app.context, peers=parts_of()["peers"])
    _to_the_end(window.page("cluster"), back=True)

    feeds = stage.app.context.feeds
    ledger = feeds.ledgers.setdefault(MODEL, Ledger(MODEL))
    now_s = time.time()
    running = Handoff(asked_s=now_s - 8)
    busy = slot(0, "prefill_remote", n_prompt_tokens=28_800, n_prompt_tokens_processed=12_636)
    for name, data in (snapshot(slots=[busy, slot(1)]), *running.until_chunk(26)):
        ledger.hear(name, data, now_s)
    feeds._clock = lambda: now_s
    pretend(stage.app.context, engines=[engine(active=1)], link=link(SLOW_START))
    feeds.changed.emit(MODEL, "")
    stage.shot("cluster-handoff-and-finding")
    feeds._clock = time.time
    ledger.hear(*snapshot(), now_s)
    feeds.changed.emit(MODEL, "")
    _to_the_end(window.page("cluster"))
    stage.shot("cluster-lower")
    _to_the_end(window.page("cluster"), back=True)

    pretend(
        stage.app.context,
        peers=[away()],
        joins=[],
        engines=[engine(worker={"connected": False, "note": ""})],
        wake=can_wake(),
    )
    stage.shot("cluster-away")
    page = window.page("cluster")
    page._on_unpair()  # type: ignore[attr-defined]
    question = page.findChild(Question)
    assert question is not None
    stage.shot("cluster-unpair", question)
    question.reject()

    pretend(
        stage.app.context,
        peers=parts_of()["peers"],
        hosts={**parts_of()["hosts"], SPARK: host("NVIDIA GB10", "Linux", 128, 115, loaded=[])},
        engines=[
            engine(
                state="failed", worker={}, last_exits=[ended("the memory of this computer does not suffice")]
            )
        ],
        joins=[],
    )
    QTest.qWait(50)
    stage.shot("cluster-crashed")
    stop_pretending(stage.app.context)


def away() -> dict[str, Any]:
    return {
        **parts_of()["peers"][0],
        "connected": False,
        "address": None,
        "local_address": None,
        "note": "nothing answers at 10.77.3.2 in time",
        "since": time.time() - 312,
    }


def can_wake() -> dict[str, Any]:
    return {"can_wake": [SPARK]}


def ended(reason: str) -> dict[str, Any]:
    return {"at": time.time() - 20, "ran_s": 6.2, "status": 1, "reason": reason, "log": LOG}
