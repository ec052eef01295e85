"""Cluster: nobody paired, two that are idle, a handoff under way, a finding, a peer that is away, engines that end."""

from __future__ import annotations

from typing import Any

from PySide6.QtTest import QTest
from PySide6.QtWidgets import QScrollArea

from app.pages.cluster.page import ClusterPage
from app.telemetry.ledger import Ledger
from app.widgets.feedback import Question
from app.widgets.findings import PlanDialog
from tests.app.screenshots import NOW_S, Stage
from tests.app.staged_node import END
from tests.app.telemetry.timelines import Handoff, slot, snapshot
from tests.app.two_computers import MODEL, SLOW_START, SPARK, another, engine, host, link, parts_of
from tests.app.windows import button, click, texts, wait

LOG = [
    "14:24:41 INFO  loading Qwen3.6-27B-Q4_K_XL: 62%",
    "14:24:44 ERROR the system has 3.1 GB of memory left, and 4.0 GB are needed for slot 2",
    "14:24:44 INFO  ended",
]


def play(stage: Stage) -> None:
    app = stage.app
    app.tell(peers=[], joins=[])
    page = app.page("cluster")
    assert isinstance(page, ClusterPage)
    stage.shot("cluster-nobody")
    app.tell(peers=[], joins=[], engines=[], discovery={**app.parts["discovery"], "found": [IN_SIGHT]})
    stage.shot("cluster-somebody")
    app.tell()
    stage.shot("cluster-idle")
    app.tell(peers=[*parts_of()["peers"], another(), another("attic", connected=False)])
    _to_the_end(stage, page)
    stage.shot("cluster-several")
    _to_the_end(stage, page, back=True)

    feeds = app.context.feeds
    ledger = feeds.ledgers.setdefault(MODEL, Ledger(MODEL))
    running = Handoff(asked_s=NOW_S - 8)
    busy = slot(0, "prefill_remote", n_prompt_tokens=28_800, n_prompt_tokens_processed=12_636)
    for name, data in (snapshot(slots=[busy, slot(1)]), *running.until_chunk(26)):
        ledger.hear(name, data, NOW_S)
    app.tell(engines=[engine(active=1)], link=link(SLOW_START))
    feeds.changed.emit(MODEL, "")
    stage.shot("cluster-handoff-and-finding")
    ledger.hear(*snapshot(), NOW_S)
    feeds.changed.emit(MODEL, "")
    _to_the_end(stage, page)
    stage.shot("cluster-lower")
    _to_the_end(stage, page, back=True)
    _play_trials(stage, page)
    _play_plan(stage, page)
    _play_troubles(stage, page)


def _to_the_end(stage: Stage, page: ClusterPage, *, back: bool = False) -> None:
    """Scroll down, or up again."""
    stage.app.window.resize(900, 600)
    scrolled = page.findChild(QScrollArea)
    assert scrolled is not None
    bar = scrolled.verticalScrollBar()
    wait(
        lambda: (
            bar.maximum() > 0 and scrolled.widget().height() == bar.maximum() + scrolled.viewport().height()
        )
    )
    QTest.qWait(50)
    bar.setValue(0 if back else bar.maximum())


def _play_trials(stage: Stage, page: ClusterPage) -> None:
    app = stage.app
    app.tell(link=link(probing="goodput to the other computer"))
    app.staged.streams["/link/selftest"] = [{"prompts": 24}, *({"prompt": n} for n in range(9))]
    click(button(page, "Self-test"))
    wait(lambda: "9 of 24" in texts(page))
    stage.shot("cluster-testing")
    click(button(page, "Stop"))
    app.tell()
    app.staged.streams["/link/selftest"] = [
        {"prompts": 24},
        *({"prompt": n} for n in range(24)),
        {"passed": True, "verdict": "identical"},
        END,
    ]
    click(button(page, "Self-test"))
    wait(lambda: "tokens identical" in texts(page))
    stage.shot("cluster-tested")


def _play_plan(stage: Stage, page: ClusterPage) -> None:
    stage.app.tell(link=link(SLOW_START))
    plan = {
        "steps": [
            "sysctl net.ipv4.tcp_slow_start_after_idle=0",
            "write 33554432 to /proc/sys/net/core/rmem_max",
        ],
        "plan": {"notes": ["it lasts until the computer restarts; run this again then"]},
        "blocked": False,
    }
    stage.app.staged.answers["GET", "/link/tune"] = plan
    page._open_plan(undo=False)
    (dialog,) = page.findChildren(PlanDialog)
    wait(lambda: "administrator" in texts(dialog))
    stage.shot("cluster-plan", dialog)
    dialog.reject()


def _play_troubles(stage: Stage, page: ClusterPage) -> None:
    app = stage.app
    alone = engine(worker={"connected": False, "note": ""})
    app.tell(peers=[away()], joins=[], engines=[alone])
    stage.shot("cluster-away")
    page._on_unpair()
    question = page.findChild(Question)
    assert question is not None
    stage.shot("cluster-unpair", question)
    question.reject()

    crash = ended("the memory of this computer does not suffice")
    app.tell(
        hosts={**parts_of()["hosts"], SPARK: host("NVIDIA GB10", "Linux", 128, 115, loaded=[])},
        engines=[engine(state="failed", worker={}, last_exits=[crash])],
        joins=[],
    )
    stage.shot("cluster-crashed")
    long = {**app.parts["peers"][0], "name": "Rechenknecht im Arbeitszimmer oben links"}
    app.tell(peers=[long], node={**app.parts["node"], "name": "Küchentisch-Studio der Familie Hagen"})
    stage.shot("cluster-long-names")
    app.tell()


IN_SIGHT = {
    "node_id": SPARK,
    "instance": "1",
    "name": "spark",
    "version": "0.1.0",
    "addresses": ["10.77.3.2:7119"],
    "pairing_addresses": [],
    "by": ["multicast"],
    "has_twin": False,
}


def away() -> dict[str, Any]:
    return {
        **parts_of()["peers"][0],
        "connected": False,
        "address": None,
        "local_address": None,
        "note": "nothing answers at 10.77.3.2 in time",
        "since": NOW_S - 312,
    }


def ended(reason: str) -> dict[str, Any]:
    return {"at": NOW_S - 20, "ran_s": 6.2, "status": 1, "reason": reason, "log": LOG}
