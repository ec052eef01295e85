"""What a page is: a widget with a title, which is told when it comes into view."""

from __future__ import annotations

from PySide6.QtWidgets import QWidget

from app.context import Context


class Page(QWidget):
    """`title` stands in the top bar. `header` may give a widget for the bar's right side.

    `fills_window`: while it is shown there is neither navigation nor bar.
    """

    title = ""
    fills_window = False

    def __init__(self, context: Context) -> None:
        super().__init__()
        self.setObjectName("page")
        self.context = context

    def shown(self) -> None:
        """The page has come into view; its data may be old."""

    def header(self) -> QWidget | None:
        return None
