"""The first run as a user goes it: clicks and keys, two real nodes on this computer."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from PySide6.QtCore import Qt
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QLineEdit, QWidget

from app.node.client import NodeClient
from app.node.faults import NodeRefused
from app.wizard.course import Memory, Step
from app.wizard.page import WizardPage
from app.wizard.steps.model import ModelStep
from app.wizard.steps.pair import PairStep
from app.wizard.words import short_fingerprint
from tests.app.windows import Opened, address_of, button, click, opened, texts, wait
from tests.engine.node.nodes import NodeProcess


@pytest.fixture
def spark(tmp_path: Path) -> Iterator[NodeProcess]:
    """The other computer, which has no model yet."""
    with NodeProcess(tmp_path, "spark", "--port", "0", "--node-port", "0") as node:
        yield node


@pytest.fixture
def unreachable(monkeypatch: pytest.MonkeyPatch) -> None:
    """No source of models answers the nodes that are started from now on."""
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/")
    monkeypatch.setenv("PIP_RETRIES", "0")


@pytest.fixture
def wizard(app: Opened) -> WizardPage:
    page = app.page("setup")
    assert isinstance(page, WizardPage)
    wait(lambda: page.step is Step.WELCOME)
    return page


def press(app: Opened, text: str) -> None:
    """Click what says that, as soon as it can be."""
    wait(lambda: _is_ready(app.window, text))
    click(button(app.window, text))


def _is_ready(window: QWidget, text: str) -> bool:
    try:
        return button(window, text).isEnabled()
    except AssertionError:
        return False


def field(app: Opened, name: str) -> QLineEdit:
    """The visible field of that accessible name."""
    found = [
        one for one in app.window.findChildren(QLineEdit) if one.accessibleName() == name and one.isVisible()
    ]
    assert found, f"no field {name!r}"
    return found[0]


def type_into(widget: QLineEdit, text: str) -> None:
    widget.clear()
    QTest.keyClicks(widget, text)


def there(node: NodeProcess, path: str, body: dict[str, Any]) -> Any:
    """What somebody at the other computer has its node do."""

    async def ask() -> Any:
        client = NodeClient(lambda: address_of(node))
        try:
            return await client.post(path, body)
        finally:
            await client.close()

    return asyncio.run(ask())


def type_code(app: Opened, code: str, address: str) -> None:
    type_into(field(app, "Code that the other computer shows"), code)
    type_into(field(app, "Address of the other computer"), address)
    press(app, "Pair")


def test_from_the_first_start_to_the_chat(app: Opened, wizard: WizardPage, spark: NodeProcess) -> None:
    assert "studio" in app.context.computer and not app.window._navigation.isVisible()
    QTest.keyClick(wizard, Qt.Key.Key_Return)
    assert wizard.step is Step.FIND
    press(app, "I have a code")
    offer = there(spark, "/pairing/offer", {})
    type_code(app, offer["code"].replace("-", ""), f"127.0.0.1:{offer['port']}")
    wait(lambda: "spark is paired" in texts(wizard))
    said = texts(wizard)
    assert "Only these two computers can read what passes between them" in said
    assert short_fingerprint(spark.ready["fingerprint"]) in said
    assert short_fingerprint(app.state.part("node")["fingerprint"]) in said
    press(app, "Continue")
    assert wizard.step is Step.CABLE
    wait(lambda: "Gb/s to spark" in texts(wizard) or "Gbit/s" in texts(wizard))
    press(app, "Continue")
    press(app, "Copy smollm2-135m to spark")
    wait(lambda: "on both" in texts(wizard))
    press(app, "Continue")
    assert wizard.step is Step.ROLES
    wait(lambda: "decodes" in texts(wizard))
    press(app, "Roles: spark prefills")
    wait(lambda: "spark prefills and studio decodes" in texts(wizard))
    press(app, "Continue")
    wait(lambda: "You are ready" in texts(wizard) and "spark is connected" in texts(wizard))
    press(app, "Open Chat")
    assert app.window.page_shown == "chat" and app.window._navigation.isVisible()
    assert Memory(app.context.preferences).is_over


def test_this_computer_is_given_a_name(app: Opened, wizard: WizardPage) -> None:
    name = field(app, "Name of this computer")
    # one that was given at the start holds
    assert not name.isEnabled()
    app.state._hear(("changed", {"settings": {"settings": [{"name": "name", "source": "default"}]}}))
    type_into(name, "attic")
    QTest.keyClick(name, Qt.Key.Key_Return)
    wait(lambda: any(each.get("kept") == "attic" for each in app.state.part("settings")["settings"]))


def test_a_wrong_code_is_refused_and_another_can_be_shown(
    app: Opened, wizard: WizardPage, spark: NodeProcess
) -> None:
    wizard.go_to(Step.PAIR)
    offer = there(spark, "/pairing/offer", {})
    press(app, "Way: Type the code from there")
    wrong = "".join(str(9 - int(digit)) for digit in offer["code"] if digit.isdigit())
    type_code(app, wrong, f"127.0.0.1:{offer['port']}")
    wait(lambda: "That is not the code that is shown there" in texts(wizard))
    press(app, "Way: Show a code here")
    wait(lambda: "One moment" in texts(wizard))
    press(app, "Show a new code")
    wait(lambda: "Type it on the other computer" in texts(wizard))
    wait(lambda: (shown := app.state.part("pairing")["offer"]) and shown["code"] in texts(wizard))


def test_a_code_that_is_typed_on_the_other_computer(
    app: Opened, wizard: WizardPage, spark: NodeProcess
) -> None:
    wizard.go_to(Step.PAIR)
    wait(lambda: (app.state.part("pairing") or {}).get("offer"))
    offer = app.state.part("pairing")["offer"]
    there(spark, "/pairing/join", {"code": offer["code"], "to": f"127.0.0.1:{offer['port']}"})
    wait(lambda: "spark is paired" in texts(wizard))
    press(app, "Continue")
    assert wizard.step is Step.CABLE
    wizard.go_back()
    # what is done is not asked for again
    assert wizard.step is Step.WELCOME


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


def test_an_address_that_is_none(app: Opened, wizard: WizardPage) -> None:
    wizard.go_to(Step.FIND)
    address = field(app, "Address of the other computer")
    type_into(address, "http://spark")
    press(app, "Look there")
    wait(lambda: address.property("state") == "wrong")


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


def test_a_model_that_cannot_be_had_now(unreachable: None, app: Opened, wizard: WizardPage) -> None:
    wizard.go_to(Step.MODEL)
    press(app, "Get gemma3-270m")
    wait(lambda: "could not be fetched" in texts(wizard))
    # once the network is back
    assert button(app.window, "Get gemma3-270m").isEnabled()


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
        # put off, and opened again from another page
        press(second, "Later")
        second.window.go("setup")
        assert page.step is Step.MODEL


def test_another_computer_can_be_set_up_later(app: Opened, wizard: WizardPage) -> None:
    wizard.go_to(Step.READY)
    press(app, "Open Chat")
    app.window.go("setup")
    assert wizard.step is Step.FIND


def test_keys_do_not_lead_out_of_it(app: Opened, wizard: WizardPage) -> None:
    QTest.keyClick(app.window, Qt.Key.Key_2, Qt.KeyboardModifier.ControlModifier)
    assert app.window.page_shown == "setup"
