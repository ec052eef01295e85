"""What a user does in the first run, and what somebody does at the other computer."""

from __future__ import annotations

import asyncio
from typing import Any

from PySide6.QtTest import QTest
from PySide6.QtWidgets import QLineEdit, QWidget

from app.node.client import NodeClient
from app.wizard.course import Step
from app.wizard.page import WizardPage
from tests.app.windows import Opened, address_of, button, click, wait
from tests.engine.node.nodes import NodeProcess


def begin(app: Opened) -> WizardPage:
    """The first run's first step."""
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
