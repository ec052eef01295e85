"""What a page is: a widget that is told when it comes into view."""

from __future__ import annotations

from PySide6.QtWidgets import QWidget

from app.context import Context


class Page(QWidget):
    """`header` may give a widget for the top bar's right side.

    `fills_window`: while it is shown there is neither navigation nor bar. `foot` is a widget at its lower edge that
    nothing may cover.
    """

    fills_window = False
    foot: QWidget | None = None

    def __init__(self, context: Context) -> None:
        super().__init__()
        self.setObjectName("page")
        self.context = context

    def shown(self) -> None:
        """The page has come into view; its data may be old."""

    def end(self) -> None:
        """The window ends: nothing of the bridge is heard any more. Put away what is open."""

    def header(self) -> QWidget | None:
        return None
