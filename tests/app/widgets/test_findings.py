"""The plan of what mending the cable changes, as a user reads and agrees to it. The system's changes are made up."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from PySide6.QtWidgets import QPlainTextEdit, QWidget

from app.bridge import Bridge
from app.node.faults import NodeRefused
from app.node.link_report import Check
from app.widgets.findings import FindingCard, PlanDialog
from tests.app.windows import button, click, texts, wait

STEPS = ["ip link set dev eth1 mtu 9000", "write 33554432 to /proc/sys/net/core/rmem_max"]


class Node:
    """Answers as a node would whose system lets it."""

    def __init__(self) -> None:
        self.plan: dict[str, Any] = {
            "steps": STEPS,
            "blocked": False,
            "plan": {"notes": ["it lasts until a restart"]},
        }
        self.fault: Exception | None = None
        self.asked: list[str] = []
        self.done: list[dict[str, Any]] = []

    async def get(self, path: str) -> Any:
        self.asked.append(path)
        if self.fault is not None:
            raise self.fault
        return self.plan

    async def close(self) -> None:
        pass

    async def lines(self, path: str, body: dict[str, Any]) -> AsyncGenerator[dict[str, Any], None]:
        self.done.append(body)
        if self.fault is not None:
            raise self.fault
        yield {"steps": STEPS}


@pytest.fixture
def node() -> Node:
    return Node()


@pytest.fixture
def context(node: Node) -> Iterator[Any]:
    bridge = Bridge()
    yield SimpleNamespace(bridge=bridge, client=node, computer="studio", peer={"name": "spark"})
    bridge.close(node.close())


@pytest.fixture
def parent(look: object) -> Iterator[QWidget]:
    widget = QWidget()
    yield widget
    widget.deleteLater()


def opened(parent: QWidget, context: Any, *, undo: bool = False) -> PlanDialog:
    dialog = PlanDialog(parent, context, undo=undo)
    dialog.show()
    return dialog


def steps(dialog: PlanDialog) -> str:
    found = dialog.findChild(QPlainTextEdit)
    assert isinstance(found, QPlainTextEdit)
    return found.toPlainText()


def test_every_step_is_shown_before_it_is_done(node: Node, context: Any, parent: QWidget) -> None:
    dialog = opened(parent, context)
    changed: list[bool] = []
    dialog.changed.connect(lambda: changed.append(True))
    wait(lambda: steps(dialog) == "\n".join(STEPS))
    wait(lambda: "It lasts until a restart." in texts(dialog))
    assert "Do the same on spark" in texts(dialog)
    assert not node.done
    click(button(dialog, "Change it"))
    wait(lambda: "It is done" in texts(dialog))
    assert node.done == [{"action": "apply"}] and changed
    click(button(dialog, "Close"))


def test_undoing_shows_what_puts_everything_back(node: Node, context: Any, parent: QWidget) -> None:
    dialog = opened(parent, context, undo=True)
    wait(lambda: steps(dialog))
    assert node.asked == ["/link/tune/undo"]
    click(button(dialog, "Undo it"))
    wait(lambda: "It is undone" in texts(dialog))
    assert node.done == [{"action": "undo"}]


@pytest.mark.parametrize(
    ("plan", "said"),
    [
        ({"steps": [], "blocked": False, "plan": {"notes": []}}, "nothing has to change here"),
        ({"steps": STEPS, "blocked": True, "plan": {"notes": []}}, "Undo that first"),
    ],
)
def test_where_there_is_nothing_to_agree_to(
    node: Node, context: Any, parent: QWidget, plan: dict[str, Any], said: str
) -> None:
    node.plan = plan
    dialog = opened(parent, context)
    wait(lambda: said in texts(dialog))
    assert steps(dialog) == ""
    with pytest.raises(AssertionError):
        button(dialog, "Change it")


def test_without_a_cable_it_says_what_to_do(node: Node, context: Any, parent: QWidget) -> None:
    node.fault = NodeRefused("no direct cable: name one with --interface", status=400, code="no_cable")
    dialog = opened(parent, context)
    wait(lambda: "Plug one in" in texts(dialog))
    assert "--interface" not in texts(dialog)


def test_a_no_to_the_systems_question_changes_nothing(node: Node, context: Any, parent: QWidget) -> None:
    dialog = opened(parent, context)
    wait(lambda: steps(dialog))
    node.fault = NodeRefused("nothing was changed: it was not allowed", status=500)
    click(button(dialog, "Change it"))
    wait(lambda: "Nothing was changed: it was not allowed." in texts(dialog))


def test_only_what_tuning_mends_has_a_button(look: object) -> None:
    clicks: list[str] = []
    mends = FindingCard(
        Check(code="small_mtu", tone="warning", what="Packets are small.", is_tunable=True),
        on_fix=lambda: clicks.append("fix"),
        on_undo=lambda: clicks.append("undo"),
    )
    click(button(mends, "Fix"))
    click(button(mends, "Undo"))
    assert clicks == ["fix", "undo"]
    other = FindingCard(
        Check(code="no_cable", tone="warning", what="There is no cable."), on_fix=lambda: None
    )
    with pytest.raises(AssertionError):
        button(other, "Fix")
