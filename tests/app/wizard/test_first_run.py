"""The first run as a user goes it: clicks and keys, two real nodes on this computer."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from PySide6.QtCore import Qt
from PySide6.QtTest import QTest

from app.chats.model import Sampling
from app.pages.chat.page import ChatPage
from app.wizard.course import Memory, Step
from app.wizard.page import WizardPage
from app.wizard.words import short_fingerprint
from tests.app.windows import Opened, button, texts, wait
from tests.app.wizard.hands import begin, press, there, type_code
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
    return begin(app)


def test_from_the_first_start_to_the_first_answer(
    app: Opened, wizard: WizardPage, spark: NodeProcess
) -> None:
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
    page = app.window.page("chat")
    assert isinstance(page, ChatPage)
    page.chat.change(sampling=Sampling(temperature=0.0, max_tokens=4))
    QTest.keyClicks(page.composer.text, "What is a relay race?")
    QTest.keyClick(page.composer.text, Qt.Key.Key_Return)
    wait(lambda: not page.chat.is_empty and not page.chat.is_answering)
    asked, said = page.transcript.shown
    assert asked.text == "What is a relay race?" and said.text and said.stats is not None


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


def test_a_model_that_cannot_be_had_now(unreachable: None, app: Opened, wizard: WizardPage) -> None:
    wizard.go_to(Step.MODEL)
    press(app, "Get gemma3-270m")
    wait(lambda: "could not be fetched" in texts(wizard))
    # once the network is back
    assert button(app.window, "Get gemma3-270m").isEnabled()
