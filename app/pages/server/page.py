"""The page Server: where programs reach the models, how, and what they did lately."""

from __future__ import annotations

from PySide6.QtCore import Qt
from PySide6.QtGui import QResizeEvent
from PySide6.QtWidgets import QBoxLayout, QStackedWidget

from app.context import Context
from app.look.look import current_look
from app.look.measures import LARGE, MEDIUM, SMALL
from app.pages.page import Page
from app.pages.server.endpoint import EndpointCard, OthersCard
from app.pages.server.examples import ExamplesCard
from app.pages.server.log_view import LogView
from app.pages.server.requests_view import RequestsView
from app.widgets.basics import Card, Line, Scrolled, column, row
from app.widgets.controls import Segments

# Below this the two cards stand one under the other.
_SIDE_BY_SIDE = 920

_ACTIVITY_HEIGHT = 360


class ServerPage(Page):
    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self.endpoint = EndpointCard(context)
        self.others = OthersCard(context, self.endpoint.show_new_key)
        self.examples = ExamplesCard(context)
        self.requests = RequestsView(context)
        self.log = LogView(context)
        left = column(self.endpoint, self.others, spacing=LARGE)
        left.setStretch(0, 1)
        self._cards = row(left, self.examples, spacing=LARGE)
        self._cards.setStretch(0, 1)
        self._cards.setStretch(1, 1)
        self._choice = Segments(
            [("requests", self.tr("Requests")), ("log", self.tr("Log"))], name=self.tr("Activity")
        )
        self._choice.show_value("requests")
        self._choice.chosen.connect(lambda value: self.show_activity(str(value)))
        self._views = QStackedWidget()
        self._views.addWidget(self.requests)
        self._views.addWidget(self.log)
        self._activity = Card(padding=0, spacing=0)
        head = row(self._choice, None, self.log.tools, spacing=MEDIUM)
        head.setContentsMargins(MEDIUM, SMALL, MEDIUM, SMALL)
        body = column(self._views, margin=SMALL)
        body.setContentsMargins(MEDIUM, SMALL, SMALL, SMALL)
        self._activity.column.addLayout(head)
        self._activity.column.addWidget(Line())
        self._activity.column.addLayout(body, 1)
        self._activity.setMinimumHeight(_ACTIVITY_HEIGHT)
        scrolled = Scrolled(self._cards, width=1120)
        scrolled.column.addWidget(self._activity, 1)
        scrolled.setFocusPolicy(Qt.FocusPolicy.NoFocus)
        self.setLayout(column(scrolled, margin=0))
        self.show_activity("requests")

    def show_activity(self, name: str) -> None:
        """requests or log."""
        self._choice.show_value(name)
        self._views.setCurrentWidget(self.log if name == "log" else self.requests)
        self.log.tools.setVisible(name == "log")

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        beside = event.size().width() >= current_look().px(_SIDE_BY_SIDE)
        self._cards.setDirection(
            QBoxLayout.Direction.LeftToRight if beside else QBoxLayout.Direction.TopToBottom
        )
