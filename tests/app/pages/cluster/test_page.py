"""The page Cluster, as a node tells of two computers: what is shown, and what its buttons ask for."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Iterator
from pathlib import Path
from typing import Any

import pytest
from PySide6.QtCore import QPoint
from PySide6.QtWidgets import QAbstractButton, QProgressBar

from app.context import Context
from app.look.look import Look
from app.node.faults import NodeRefused
from app.pages.cluster.page import ClusterPage
from app.state import NodePresence
from app.telemetry.ledger import Ledger
from app.widgets.feedback import Question
from app.widgets.findings import PlanDialog
from tests.app.telemetry.timelines import Handoff, slot, snapshot
from tests.app.two_computers import (
    MODEL,
    SLOW_START,
    SPARK,
    STUDIO,
    another,
    engine,
    link,
    parts_of,
    pretend,
    roles,
    two_computers,
)
from tests.app.windows import button, click, texts, wait


class Asked:
    """What was asked of the node, and what it answers."""

    def __init__(self, context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
        self.of: list[Any] = []
        self.lines: list[dict[str, Any]] = []
        self.undo_steps: list[str] = []
        self.n_looked = 0
        for name in ("get", "post", "delete", "endpoint_post"):
            monkeypatch.setattr(context.client, name, self._answer(name))
        monkeypatch.setattr(context.client, "lines", self._lines)

    def _answer(self, name: str) -> Any:
        async def ask(path: str, body: Any = None) -> Any:
            if path == "/link/tune/undo":  # which asks for nothing to be done
                self.n_looked += 1
                return {"steps": self.undo_steps}
            self.of.append((name, path) if body is None else (name, path, body))
            if path.endswith("/wake"):
                return {"note": "spark is back after 4 s"}
            return {"steps": []}

        return ask

    async def _lines(self, path: str, body: Any = None) -> AsyncGenerator[dict[str, Any], None]:
        self.of.append(("lines", path, body))
        for line in self.lines:
            yield line


@pytest.fixture
def context(tmp_path: Path) -> Iterator[Context]:
    with two_computers(tmp_path) as context:
        yield context


@pytest.fixture
def asked(context: Context, monkeypatch: pytest.MonkeyPatch) -> Asked:
    return Asked(context, monkeypatch)


@pytest.fixture
def page(context: Context, asked: Asked) -> Iterator[ClusterPage]:
    page = ClusterPage(context)
    page.resize(1100, 740)
    page.show()
    page.shown()
    yield page
    page.hide()
    page.deleteLater()


def test_nobody_paired_leads_to_the_setup(page: ClusterPage) -> None:
    pretend(page.context, peers=[])
    assert "One computer so far" in texts(page)
    click(button(page, "Set up the other computer"))
    assert page.context.shell.went == ["setup"]  # type: ignore[attr-defined]


def test_two_computers_and_the_cable_are_one_picture(page: ClusterPage) -> None:
    said = texts(page.picture)
    for words in (
        *("studio", "this computer", "decodes", "Apple M2 Ultra · macOS", "141 GB of 192 GB free"),
        *(
            "spark",
            "the other computer",
            "prefills",
            "NVIDIA GB10 · Linux",
            "93 GB of 128 GB free",
            "✓ same model",
        ),
        *("10 Gb/s · MTU 8000 · 0.2 ms", "ceiling 9.8 Gb/s · now 0.0 Gb/s", "✓ 7 checks"),
    ):
        assert words in said
    assert "spark, prefills" in page.picture.peer.accessibleName()


@pytest.mark.parametrize("motion_ms", [150, 0])
def test_a_dot_runs_only_while_something_flows(
    page: ClusterPage, monkeypatch: pytest.MonkeyPatch, motion_ms: int
) -> None:
    monkeypatch.setattr(Look, "motion_ms", motion_ms)
    feeds = page.context.feeds
    assert not page.picture._timer.isActive()
    ledger = feeds.ledgers.setdefault(MODEL, Ledger(MODEL))
    busy = slot(0, "prefill_remote", n_prompt_tokens=28_800, n_prompt_tokens_processed=12_300)
    running = Handoff(asked_s=feeds.now_s - 3)
    for name, data in (snapshot(slots=[busy]), *running.until_chunk(9)):
        ledger.hear(name, data, feeds.now_s)
    feeds.changed.emit(MODEL, "")
    assert page.picture._timer.isActive() is bool(motion_ms)
    assert "KV is on its way to this computer" in page.picture.accessibleDescription()
    page.hide()
    assert not page.picture._timer.isActive()
    page.show()
    assert page.picture._timer.isActive() is bool(motion_ms)
    ledger.hear(*snapshot(slots=[slot(0)]), feeds.now_s)
    feeds.changed.emit(MODEL, "")
    assert not page.picture._timer.isActive()
    assert "on its way" not in page.picture.accessibleDescription()


def test_findings_are_cards_that_can_be_mended(page: ClusterPage, asked: Asked) -> None:
    pretend(page.context, link=link(SLOW_START))
    wait(lambda: "After a pause" in texts(page))
    said = texts(page)
    assert "After a pause of a second spark sends slowly at first." in said and "4.6 ms" in said
    assert "✓ 6 checks" in said and "⚠ 1" in said and "6 checks of the cable are well" in said
    assert "A round trip takes" not in said
    click(button(page, "Show them"))
    assert "A round trip takes 0.2 ms" in texts(page)
    click(button(page, f"Fix: {SLOW_START['what'][:1].upper()}{SLOW_START['what'][1:]}."))
    dialog = page.findChild(PlanDialog)
    assert dialog is not None
    wait(lambda: ("get", "/link/tune") in asked.of)
    dialog.reject()


def test_roles_have_a_reason_and_can_be_had_otherwise(page: ClusterPage, asked: Asked) -> None:
    said = texts(page)
    assert "4,000 tokens with an answer of 300 take 14.6 s with spark prefilling" in said
    assert "✓ spark prefills, studio decodes" in said and "spark alone" in said and "27.9 s" in said
    for name, prefill in (("studio prefills", STUDIO), ("spark prefills", SPARK), ("Fastest way", "auto")):
        click(button(page, name))
        wait(lambda prefill=prefill: ("post", "/roles", {"prefill": prefill}) in asked.of)  # type: ignore[misc]


def test_the_choice_of_roles_keeps_the_focus_when_it_is_answered(page: ClusterPage, asked: Asked) -> None:
    chosen = button(page, "studio prefills")
    click(chosen)
    wish = {SPARK: {"prefill": STUDIO, "count": 2, "by": STUDIO}}
    pretend(page.context, roles=roles(wishes=wish))
    assert button(page, "studio prefills") is chosen and chosen.isChecked()
    chosen = button(page, "Fastest way")
    chosen.setChecked(True)  # and was refused
    page._show()
    assert button(page, "studio prefills").isChecked()


def test_what_a_test_finds_does_not_move_its_button(page: ClusterPage, asked: Asked) -> None:
    pretend(page.context, link=link(report=None))
    page.layout().activate()
    before = button(page, "Test link").mapTo(page, QPoint(0, 0))
    pretend(page.context, link=link(SLOW_START))
    wait(lambda: SLOW_START["why"][1:] in texts(page))
    assert button(page, "Test link").mapTo(page, QPoint(0, 0)).y() == before.y()


def test_without_the_node_nothing_is_said_of_what_goes_on(page: ClusterPage) -> None:
    """And nothing is offered that only the node could do."""
    page.context.state._forget_what_ran()
    page.context.state._be(NodePresence.GONE)
    said = texts(page)
    assert "Baton is not running" in said and "away" not in said and "answers alone" not in said
    assert "not known now" in said and "no link" not in said
    for name in ("Test link", "Self-test", "Unpair", "spark prefills"):
        assert not button(page, name).isEnabled()


def test_while_the_other_computer_is_away_its_cable_is_not_tested(page: ClusterPage) -> None:
    pretend(page.context, peers=[away()], joins=[], roles=roles(agreed=[]))
    assert not button(page, "Test link").isEnabled()
    assert "They are agreed once spark is there." in texts(page)
    # what was found of this end alone says nothing of a cable
    pretend(
        page.context,
        link=link(report={**parts_of()["link"]["report"], "peer": None, "missing": "`baton pair`"}),
    )
    assert "`baton pair`" not in texts(page) and button(page, "Test link").isEnabled()


def test_what_was_set_up_can_be_undone_when_nothing_is_found_any_more(
    page: ClusterPage, asked: Asked
) -> None:
    wait(lambda: asked.n_looked)
    assert "Undo" not in labels(page)
    asked.undo_steps = ["ip link set dev en7 mtu 1500"]
    page.shown()
    wait(lambda: "Undo" in labels(page))
    click(button(page, "Undo what Baton has set up"))
    dialog = page.findChild(PlanDialog)
    assert dialog is not None and "Undo on studio" in texts(dialog)
    wait(lambda: "ip link set" in dialog._steps.toPlainText())
    asked.undo_steps = []
    dialog.changed.emit()
    wait(lambda: "Undo" not in labels(page))
    dialog.reject()


def test_who_prefills_just_now_is_shown_to(page: ClusterPage) -> None:
    ledger = page.context.feeds.ledgers.setdefault(MODEL, Ledger(MODEL))
    for name, data in (snapshot(), *Handoff().until_chunk(1)):
        ledger.hear(name, data, time.time())
    page._show()
    assert "prefilling" in texts(page.picture.peer)


def test_the_link_is_tested_part_by_part(page: ClusterPage, asked: Asked) -> None:
    click(button(page, "Test link"))
    wait(lambda: ("lines", "/link/probe", {"peer": SPARK}) in asked.of)
    pretend(page.context, link=link(probing="round trips"))
    assert "Measuring: round trips." in texts(page)
    bar = next(bar for bar in page.findChildren(QProgressBar) if bar.isVisibleTo(page))
    assert bar.value() == 2 and not button(page, "Test link").isEnabled()
    pretend(page.context)
    wait(lambda: button(page, "Test link").isEnabled())
    assert "9.8 Gb/s there, 9.8 Gb/s back." in texts(page)


@pytest.mark.parametrize(
    ("last", "words"),
    [
        (
            {"passed": True, "verdict": "2 prompts gave the same answer either way"},
            "✓ 2 prompts, tokens identical.",
        ),
        (
            {"passed": False, "verdict": "the two computers do not compute the same"},
            "The two computers do not",
        ),
    ],
)
def test_the_self_test_says_what_came_of_it(
    page: ClusterPage, asked: Asked, last: dict[str, Any], words: str
) -> None:
    asked.lines = [{"prompts": 2}, {"prompt": {}}, {"prompt": {}}, last]
    click(button(page, "Self-test"))
    wait(lambda: words in texts(page))
    assert ("lines", "/link/selftest", {"model": MODEL}) in asked.of


def test_without_a_worker_there_is_nothing_to_test(page: ClusterPage) -> None:
    join = {"prefill_node_id": SPARK, "model": MODEL, "prefill": "spark", "note": "spark is loading it"}
    pretend(page.context, joins=[join], engines=[engine(worker={"connected": False})])
    assert not button(page, "Self-test").isEnabled()
    assert "spark is loading it" in texts(page)


def away(**changed: Any) -> dict[str, Any]:
    return {
        **parts_of()["peers"][0],
        "connected": False,
        "note": "nothing answers",
        "since": time.time() - 125,
    } | changed


def test_a_peer_that_is_away_can_be_called_and_woken(page: ClusterPage, asked: Asked) -> None:
    pretend(page.context, peers=[away()], wake={"can_wake": []})
    wait(lambda: "spark has been away for 2 min " in texts(page))
    assert "Nothing answers." in texts(page)
    assert "no link" in texts(page.picture) and not button(page, "Self-test").isEnabled()
    click(button(page, "Reconnect"))
    wait(lambda: ("post", f"/peers/{SPARK}/call") in asked.of)
    assert not button(page, "Reconnect").isEnabled()
    pretend(page.context)
    assert "away for" not in texts(page)

    pretend(page.context, peers=[away()], wake={"can_wake": [SPARK]})
    click(button(page, "Wake it"))
    wait(lambda: page.context.shell.said == ["spark is back after 4 s."])  # type: ignore[attr-defined]
    assert ("post", f"/peers/{SPARK}/wake") in asked.of


def test_an_engine_that_ended_shows_cause_and_last_words(page: ClusterPage, asked: Asked) -> None:
    end = {
        "at": time.time() - 5,
        "ran_s": 6.0,
        "status": 1,
        "reason": "the memory does not suffice",
        "log": ["it needs 4.0 GB"],
    }
    pretend(page.context, engines=[engine(state="waiting", last_exits=[end, end])])
    wait(lambda: "The memory" in texts(page))
    said = texts(page)
    assert "The memory does not suffice. It is being started again. It has ended 2 times." in said
    assert "it needs 4.0 GB" in said
    click(button(page, "Hide its log"))
    assert "it needs 4.0 GB" not in texts(page)
    pretend(page.context, engines=[engine(state="failed", last_exits=[end])])
    wait(lambda: "Starting it again would end the same way." in texts(page))
    click(button(page, "Load it again"))
    wait(lambda: ("endpoint_post", "/models/load", {"model": MODEL}) in asked.of)


def test_unpairing_is_asked_first(page: ClusterPage, asked: Asked) -> None:
    click(button(page, "Unpair"))
    question = page.findChild(Question)
    assert question is not None and "Models and chats stay" in texts(question)
    click(button(question, "Keep it"))
    assert asked.of == []
    question.deleteLater()
    click(button(page, "Unpair"))
    question = page.findChildren(Question)[-1]
    click(button(question, "Unpair"))
    wait(lambda: ("delete", f"/peers/{SPARK}") in asked.of)
    wait(lambda: page.context.shell.said == ["spark is unpaired."])  # type: ignore[attr-defined]


def labels(page: ClusterPage) -> list[str]:
    """Of the buttons that can be seen."""
    return [each.text() for each in page.findChildren(QAbstractButton) if each.isVisibleTo(page)]


def test_of_several_computers_one_is_shown_and_the_others_can_be_chosen(
    page: ClusterPage, asked: Asked
) -> None:
    assert "Other paired computers" not in texts(page)
    garage, why = another("garage"), "attic runs an older Baton: update it"
    pretend(
        page.context, peers=[garage, *parts_of()["peers"], {**another("attic", connected=False), "note": why}]
    )
    assert "spark" in texts(page.picture) and "garage" not in texts(page.picture)
    wait(lambda: all(words in texts(page) for words in ("garage", "attic", "away for 7 min")))
    assert "attic runs an older Baton: update it." in texts(page)
    assert not button(page, "Use attic").isEnabled()
    click(button(page, "Use garage"))
    wishes = [("post", "/roles", {"prefill": "auto"}), ("post", "/roles", {"prefill": garage["node_id"]})]
    wait(lambda: asked.of == wishes)
    wish = {garage["node_id"]: {"prefill": garage["node_id"], "count": 2, "by": STUDIO}}
    pretend(page.context, peers=[*parts_of()["peers"], garage], joins=[], roles=roles(wishes=wish))
    assert "garage" in texts(page.picture) and "spark" not in texts(page.picture)
    wait(lambda: "attic" not in texts(page) and "Use this one" in labels(page))
    click(button(page, "Unpair spark"))
    question = page.findChildren(Question)[-1]
    click(button(question, "Unpair"))
    wait(lambda: ("delete", f"/peers/{SPARK}") in asked.of)


def test_what_the_node_refuses_is_said(page: ClusterPage, monkeypatch: pytest.MonkeyPatch) -> None:
    async def refuse(path: str, body: Any = None) -> Any:
        raise NodeRefused("The model does not fit spark.", status=400)

    monkeypatch.setattr(page.context.client, "post", refuse)
    click(button(page, "spark prefills"))
    wait(lambda: page.context.shell.said == ["The model does not fit spark."])  # type: ignore[attr-defined]
