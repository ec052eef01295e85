"""Steps of the first run that take one computer: each test has a window of its own, and all the same node."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from PySide6.QtCore import Qt
from PySide6.QtTest import QTest

from app.node.faults import NodeRefused
from app.widgets import feedback
from app.wizard.course import Step
from app.wizard.page import WizardPage
from app.wizard.steps.model import ModelStep
from app.wizard.steps.pair import PairStep
from tests.app.windows import Opened, button, opened, texts, wait
from tests.app.wizard.hands import begin, field, press, type_code, type_into
from tests.engine.node.nodes import NodeProcess


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory, models: Path) -> Iterator[NodeProcess]:
    flags = ("--port", "0", "--node-port", "0")
    with NodeProcess(tmp_path_factory.mktemp("node"), "studio", *flags, models=models) as node:
        yield node


@pytest.fixture
def wizard(app: Opened) -> WizardPage:
    return begin(app)


def test_this_computer_is_given_a_name(app: Opened, wizard: WizardPage) -> None:
    name = field(app, "Name of this computer")
    # one that was given at the start holds
    assert not name.isEnabled()
    app.state._hear(("changed", {"settings": {"settings": [{"name": "name", "source": "default"}]}}))
    type_into(name, "attic")
    QTest.keyClick(name, Qt.Key.Key_Return)
    wait(lambda: any(each.get("kept") == "attic" for each in app.state.part("settings")["settings"]))


def test_a_code_that_is_not_shown_is_taken_back(app: Opened, wizard: WizardPage) -> None:
    wizard.go_to(Step.PAIR)
    wait(lambda: (app.state.part("pairing") or {}).get("offer"))
    press(app, "Back")
    wait(lambda: app.state.part("pairing")["offer"] is None)


def test_another_way_of_pairing_leads_to_the_same_version_on_both(app: Opened, wizard: WizardPage) -> None:
    wizard.go_to(Step.PAIR)
    step = wizard.findChild(PairStep)
    assert isinstance(step, PairStep)
    step._on_error(
        NodeRefused("The other computer has Baton 0.1 and this one 9.0.", status=500, code="version")
    )
    press(app, "Put this version there")
    assert wizard.step is Step.FIND
    wait(lambda: "Put Baton on the other computer" in texts(wizard))
    press(app, "Look for it")
    wait(lambda: "Find the other computer" in texts(wizard))


def test_nobody_shows_a_code(app: Opened, wizard: WizardPage) -> None:
    wizard.go_to(Step.PAIR)
    press(app, "Way: Type the code from there")
    type_code(app, "12345678", "127.0.0.1:9")
    wait(lambda: "No code is shown there" in texts(wizard))
    assert button(app.window, "Pair").isEnabled()


def test_typing_another_code_ends_the_pairing_with_the_one_before(app: Opened, wizard: WizardPage) -> None:
    wizard.go_to(Step.PAIR)
    press(app, "Way: Type the code from there")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        type_code(app, "12345678", f"127.0.0.1:{silent.getsockname()[1]}")
        assert "Pairing…" in texts(wizard) and not button(app.window, "Pair").isEnabled()
        QTest.keyClick(field(app, "Code that the other computer shows"), Qt.Key.Key_Backspace)
        QTest.keyClicks(field(app, "Code that the other computer shows"), "9")
        assert "Pairing…" not in texts(wizard) and button(app.window, "Pair").isEnabled()


def test_a_pairing_that_was_left_is_over(app: Opened, wizard: WizardPage) -> None:
    wizard.go_to(Step.PAIR)
    press(app, "Way: Type the code from there")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        type_code(app, "12345678", f"127.0.0.1:{silent.getsockname()[1]}")
        assert "Pairing…" in texts(wizard)
        press(app, "Back")
        wizard.go_to(Step.PAIR)
        press(app, "Way: Type the code from there")
        assert "Pairing…" not in texts(wizard)
        type_into(field(app, "Code that the other computer shows"), "12345678")
        assert button(app.window, "Pair").isEnabled()


def test_an_address_that_is_none(app: Opened, wizard: WizardPage) -> None:
    wizard.go_to(Step.FIND)
    address = field(app, "Address of the other computer")
    type_into(address, "http://spark")
    press(app, "Look there")
    wait(lambda: address.property("state") == "wrong")


def test_no_address_at_all_is_waited_for(app: Opened, wizard: WizardPage) -> None:
    wizard.go_to(Step.FIND)
    address = field(app, "Address of the other computer")
    press(app, "Look there")
    assert address.hasFocus() and address.property("state") != "wrong"


def test_back_leads_from_putting_baton_there_to_the_search(app: Opened, wizard: WizardPage) -> None:
    wizard.go_to(Step.FIND)
    press(app, "Baton is not on it yet")
    assert wizard.accessibleName() == "Put Baton on the other computer"
    press(app, "Back")
    assert wizard.step is Step.FIND and "Find the other computer" in texts(wizard)
    press(app, "Back")
    assert wizard.step is Step.WELCOME


def test_each_step_is_said_aloud(app: Opened, wizard: WizardPage, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(
        feedback.QAccessible, "updateAccessibility", lambda event: said.append(event.message())
    )
    press(app, "Continue")
    press(app, "Back")
    press(app, "Continue")
    assert [each.split(".")[0] for each in said] == [
        "Find the other computer",
        "Welcome to Baton",
        "Find the other computer",
    ]
    assert wizard.accessibleName() == "Find the other computer"


def test_one_computer_alone(app: Opened, wizard: WizardPage) -> None:
    press(app, "Continue")
    press(app, "Use this computer alone for now")
    assert wizard.step is Step.MODEL
    wait(lambda: "SmolLM2 135M Instruct" in texts(wizard))
    press(app, "Continue")
    wait(lambda: "You are ready" in texts(wizard) and "studio answers by itself" in texts(wizard))
    press(app, "Back")
    press(app, "Later")
    assert app.window.page_shown == "chat"


def test_a_file_of_ones_own(app: Opened, wizard: WizardPage, tmp_path: Path) -> None:
    wizard.go_to(Step.MODEL)
    step = wizard.findChild(ModelStep)
    assert isinstance(step, ModelStep)
    step.import_file(str(tmp_path / "nothing.gguf"))
    wait(lambda: "no such file" in texts(wizard))


def test_it_goes_on_where_it_was_left(node: NodeProcess, tmp_path: Path) -> None:
    with opened(node, tmp_path / "window") as first:
        first.page("setup")
        press(first, "Continue")
        press(first, "Use this computer alone for now")
    with opened(node, tmp_path / "window") as second:
        page = second.page("setup")
        assert isinstance(page, WizardPage)
        wait(lambda: page.step is not None)
        assert page.step is Step.MODEL
        # put off, and begun again where another page offers to set up the other computer
        press(second, "Later")
        second.window.go("setup")
        assert page.step is Step.FIND


def test_another_computer_can_be_set_up_later(app: Opened, wizard: WizardPage) -> None:
    wizard.go_to(Step.READY)
    press(app, "Open Chat")
    app.window.go("setup")
    assert wizard.step is Step.FIND


def test_keys_do_not_lead_out_of_it(app: Opened, wizard: WizardPage) -> None:
    QTest.keyClick(app.window, Qt.Key.Key_2, Qt.KeyboardModifier.ControlModifier)
    assert app.window.page_shown == "setup"
