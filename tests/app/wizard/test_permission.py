"""macOS's permission in the first run: what it says in each state, with what the node would tell on a Mac."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from PySide6.QtCore import QUrl
from PySide6.QtGui import QDesktopServices

from app.node import lan
from app.wizard.course import Step
from app.wizard.page import WizardPage
from app.wizard.steps import permission
from engine.link.permission import SETTINGS_URL, Observed, decide
from tests.app.windows import Opened, button, click, texts, wait
from tests.app.wizard.hands import begin
from tests.engine.node.nodes import NodeProcess


def tell(app: Opened, **observed: Any) -> None:
    """As the node of a Mac that has observed that."""
    verdict = decide(
        Observed(is_macos=True, host="10.71.17.2", is_direct=True, tool_reached=True, **observed)
    )
    told = {
        "state": verdict.state.value,
        "sentence": verdict.sentence,
        "steps": list(verdict.steps),
        "settings_url": verdict.settings_url,
    }
    app.state._hear(("changed", {"permission": told}))


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory, models: Path) -> Iterator[NodeProcess]:
    flags = ("--port", "0", "--node-port", "0")
    with NodeProcess(tmp_path_factory.mktemp("node"), "studio", *flags, models=models) as node:
        yield node


@pytest.fixture
def step(app: Opened) -> WizardPage:
    page = begin(app)
    tell(app, connect_errno=65)
    click(button(app.window, "Continue"))
    return page


def test_the_question_is_explained_before_it_comes(
    app: Opened, step: WizardPage, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []
    monkeypatch.setattr(permission, "touch_local_network", lambda: asked.append(True))
    assert step.step is Step.PERMISSION
    assert "macOS is going to ask you once" in texts(step) and not asked
    click(button(app.window, "Ask now"))
    assert asked and button(app.window, "Check again")
    # nobody is kept here
    click(button(app.window, "Go on without"))
    assert step.step is Step.FIND


def test_a_no_leads_to_the_switch(app: Opened, step: WizardPage, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[QUrl] = []
    monkeypatch.setattr(QDesktopServices, "openUrl", opened.append)
    tell(app, connect_errno=65, asked_for_s=60.0)
    wait(lambda: "macOS keeps Baton from 10.71.17.2" in texts(step))
    assert "Open System Settings, Privacy & Security, Local Network" in texts(step)
    click(button(app.window, "Open System Settings"))
    assert [url.toString() for url in opened] == [SETTINGS_URL]


def test_a_yes_goes_on(app: Opened, step: WizardPage) -> None:
    tell(app, connect_errno=0)
    wait(lambda: "macOS lets Baton use the local network" in texts(step))
    click(button(app.window, "Continue"))
    assert step.step is Step.FIND


def test_a_cable_that_is_out_is_no_matter_of_permission(app: Opened, step: WizardPage) -> None:
    tell(app, connect_errno=None)
    wait(lambda: "does not answer" in texts(step))
    assert button(app.window, "Continue").isEnabled()


def test_the_first_contact_is_one_packet_to_all(monkeypatch: pytest.MonkeyPatch) -> None:
    sent = []

    class Socket:
        def __init__(self, *kind: int) -> None:
            pass

        def __enter__(self) -> Socket:
            return self

        def __exit__(self, *error: object) -> None:
            pass

        def setblocking(self, is_blocking: bool) -> None:
            assert not is_blocking

        def sendto(self, data: bytes, to: tuple[str, int]) -> None:
            sent.append((data, to))
            raise OSError(65, "No route to host")

    monkeypatch.setattr(lan.socket, "socket", Socket)
    lan.touch_local_network()
    assert sent == [(b"", ("224.0.0.251", 5353))]
