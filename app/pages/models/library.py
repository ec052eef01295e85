"""The library: the models of both computers, to filter, sort, load, copy and look into."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise

from PySide6.QtCore import Qt, Signal
from PySide6.QtGui import QKeyEvent, QResizeEvent
from PySide6.QtWidgets import QHBoxLayout, QMenu, QWidget

from app.amounts import size_text
from app.context import Context
from app.look.look import current_look
from app.look.measures import HUGE, MEDIUM, SMALL, TINY
from app.pages.models.inspect import InspectPanel
from app.pages.models.row import Doer, LibraryRow
from app.pages.models.rows import Memory, ModelRow, Order, chosen
from app.widgets.basics import Button, Card, Scrolled, Text, column, row
from app.widgets.controls import Menu, SearchField, tick
from app.widgets.feedback import Action, EmptyState

_PANEL_WIDTH = 320
# With the room around; in a wider window names would be far from their buttons.
_LIST_WIDTH = 1168

# With less room the panel takes the list's place.
_BESIDE_FROM = 900

_Key = tuple[str, bool]


class LibraryView(QWidget):
    """`asked_get` is sent when the user wants other models, `asked_import` for a file of theirs.

    `asked_search` has words for which nothing is here; `arranged` says that `reach` may be another.
    """

    arranged = Signal()
    asked_get = Signal()
    asked_import = Signal()
    asked_search = Signal(str)

    def __init__(self, context: Context, doer: Doer, reveal: Callable[[ModelRow], object]) -> None:
        super().__init__()
        self._context, self._doer = context, doer
        self._models: list[ModelRow] = []
        self._notes: Sequence[str] = ()
        self._here = Memory(name="")
        self._there: Memory | None = None
        self._faults: dict[str, str] = {}
        self._rows: dict[_Key, LibraryRow] = {}
        self._chosen: _Key | None = None
        self._is_known = False
        self._make_parts(reveal)
        self._lay_out()

    def _make_parts(self, reveal: Callable[[ModelRow], object]) -> None:
        self.filter = SearchField(
            self.tr("Filter by name, architecture, quantisation"), name=self.tr("Filter models")
        )
        self.filter.setMaximumWidth(current_look().px(360))
        self.filter.textChanged.connect(self._show)
        self.order = _OrderButton()
        self.order.chosen.connect(self._show)
        self._sum = Text(size="caption", tone="faint")
        self._bring = Button(self.tr("Import…"), self.asked_import.emit, icon="folder")
        self._get = Button(self.tr("Get models"), self.asked_get.emit, kind="primary", icon="download")
        self._card = Card(padding=TINY, spacing=0)
        self._card.setAccessibleName(self.tr("Models"))
        self._none_words = Text(tone="soft")
        self._none_search = Button(
            self.tr("Search Hugging Face for it"),
            lambda: self.asked_search.emit(self.filter.text()),
            kind="link",
        )
        self._none = QWidget()
        self._none.setLayout(row(self._none_words, self._none_search, None, spacing=SMALL))
        self._note = Text(size="caption", tone="soft", wrap=True)
        self._hint = Text(
            self.tr(
                "Drop a GGUF file here to have it among them. What LM Studio, Ollama and the Hugging Face cache keep "
                "on this computer shows up by itself."
            ),
            size="caption",
            tone="faint",
            wrap=True,
        )
        self._empty_words = self.tr(
            "A model is one GGUF file. Get a small one to begin with, drop a file of yours here, or use what LM "
            "Studio, Ollama or the Hugging Face cache keep on this computer: those show up by themselves."
        )
        self._empty = EmptyState(
            "models",
            self.tr("No models yet"),
            self._empty_words,
            Action(text=self.tr("Get models"), run=self.asked_get.emit),
            Action(text=self.tr("Import a file…"), run=self.asked_import.emit),
        )
        self.panel = InspectPanel(self._context, reveal)
        self.panel.closed.connect(lambda: self.choose(None))
        self.panel.hide()

    def _lay_out(self) -> None:
        self._tools = row(self.filter, self.order, None, self._bring, self._get, spacing=SMALL)
        self._tools.setStretch(0, 3)
        self._tools.setContentsMargins(HUGE, MEDIUM, HUGE, SMALL)
        self._scrolled = scrolled = Scrolled(
            self._card,
            self._none,
            column(self._sum, self._hint, spacing=2),
            self._note,
            margin=0,
            spacing=MEDIUM,
        )
        scrolled.column.setContentsMargins(HUGE, TINY, HUGE, HUGE)
        scrolled.column.addStretch(1)
        self._list = QWidget()
        self._list.setLayout(column(self._tools, scrolled, spacing=0))
        self._around = around = QHBoxLayout(self)
        around.setSpacing(0)
        self._side = QWidget()
        self._side.setLayout(row(self.panel))
        self._side.hide()
        around.addWidget(self._list, 1)
        around.addWidget(self._side)
        around.addWidget(self._empty, 1)
        self._empty.hide()
        self._list.hide()

    @property
    def reach(self) -> int:
        """How wide it is at most, in the middle of its room."""
        look = current_look()
        return look.px(_LIST_WIDTH) + (look.px(_PANEL_WIDTH) + HUGE if self._chosen is not None else 0)

    @property
    def rows(self) -> dict[_Key, LibraryRow]:
        return self._rows

    def show_models(
        self,
        models: Sequence[ModelRow],
        here: Memory,
        there: Memory | None,
        faults: dict[str, str],
        notes: Sequence[str],
    ) -> None:
        self._models, self._here, self._there = list(models), here, there
        self._faults, self._notes = faults, notes
        self._is_known = True
        self._show()

    def choose(self, key: _Key | None) -> None:
        """Look into that model; into none."""
        before, self._chosen = self._chosen, key
        for each, shown in self._rows.items():
            shown.set_chosen(each == key)
        if key is not None and key in self._rows:
            self.panel.show_model(self._rows[key].model)
        else:
            self._chosen = None
            self.panel.forget()
            if before in self._rows:
                self._rows[before].setFocus()
        self._arrange()

    def keyPressEvent(self, event: QKeyEvent) -> None:
        if event.key() == Qt.Key.Key_Escape and self._chosen is not None:
            self.choose(None)
        else:
            super().keyPressEvent(event)

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self._arrange()

    def _arrange(self) -> None:
        is_open = self._chosen is not None
        is_beside = self.width() >= current_look().px(_BESIDE_FROM)
        has_models = bool(self._models)
        self._empty.setVisible(self._is_known and not has_models)
        self._list.setVisible(has_models and (is_beside or not is_open))
        self._side.setVisible(has_models and is_open)
        self.panel.setVisible(is_open)
        room = (self.width() - self.reach) // 2 if has_models else 0
        self._around.setContentsMargins(max(0, room), 0, max(0, room), 0)
        self.arranged.emit()
        layout = self._side.layout()
        assert layout is not None
        if is_beside:
            self._side.setFixedWidth(current_look().px(_PANEL_WIDTH) + HUGE)
            layout.setContentsMargins(0, MEDIUM, HUGE, HUGE)
        else:
            self._side.setMinimumWidth(0)
            self._side.setMaximumWidth(16777215)
            layout.setContentsMargins(HUGE, MEDIUM, HUGE, HUGE)

    def _show(self, *_: object) -> None:
        found = chosen(self._models, self.filter.text(), self.order.order)
        keys = [(model.model_id, model.here) for model in found]
        if keys != list(self._rows):
            self._place(keys)
        peer = self._context.peer
        for key, model in zip(keys, found, strict=True):
            self._rows[key].show_model(
                model,
                self._here,
                self._there,
                peer["name"] if peer else "",
                self._faults.get(model.model_id, ""),
            )
        self._card.setVisible(bool(found))
        self._none.setVisible(not found)
        self._none_words.setText(self.tr("No model here matches “{}”.").format(self.filter.text()))
        self._sum.setText(self._sum_words(found))
        self._note.setText("\n".join(self._notes))
        self._note.setVisible(bool(self._notes and found))
        self._empty.say(self.tr("No models yet"), "\n\n".join((self._empty_words, *self._notes)))
        self._hint.setVisible(bool(found))
        if self._chosen is not None:
            if self._chosen in self._rows:
                self.panel.show_model(self._rows[self._chosen].model)
            elif self._chosen not in {(model.model_id, model.here) for model in self._models}:
                self.choose(None)
        self._arrange()

    def _place(self, keys: Sequence[_Key]) -> None:
        """Rows that stay are moved, not made anew: they may have the focus."""
        while self._card.column.takeAt(0) is not None:
            pass
        old, self._rows = self._rows, {}
        for key in keys:
            if (made := old.pop(key, None)) is None:
                made = LibraryRow(self._doer)
                made.chosen.connect(partial(self.choose, key))
                made.left.connect(partial(self._go_on, key))
            self._rows[key] = made
            self._card.column.addWidget(made)
        for gone in old.values():
            gone.hide()
            gone.deleteLater()
        stops = [self._get, *(stop for shown in self._rows.values() for stop in shown.tab_stops)]
        for before, after in pairwise(stops):
            QWidget.setTabOrder(before, after)

    def _go_on(self, key: _Key, step: int) -> None:
        """From a row to its neighbour."""
        keys = list(self._rows)
        at = keys.index(key) + step
        if 0 <= at < len(keys):
            self._rows[keys[at]].setFocus(Qt.FocusReason.TabFocusReason)
            self._scrolled.ensureWidgetVisible(self._rows[keys[at]])

    def _sum_words(self, found: Sequence[ModelRow]) -> str:
        own = [model for model in self._models if model.here and not model.program and not model.is_link]
        words = self.tr("{0} of {1} models").format(len(found), len(self._models))
        if len(found) == len(self._models):
            words = self.tr("{} models").format(len(found)) if len(found) != 1 else self.tr("1 model")
        return words + self.tr(" · Baton's own take {}").format(
            size_text(sum(model.size_bytes for model in own))
        )

    def focus_filter(self) -> None:
        self.filter.setFocus(Qt.FocusReason.ShortcutFocusReason)


class _OrderButton(Button):
    """Shows the order of the list, and lets another be chosen."""

    chosen = Signal()

    def __init__(self) -> None:
        super().__init__(kind="quiet", icon="down")
        self.setLayoutDirection(Qt.LayoutDirection.RightToLeft)
        self._words = {
            Order.NAME: self.tr("By name"),
            Order.SIZE: self.tr("Largest first"),
            Order.PARAMETERS: self.tr("Most parameters first"),
        }
        self.order = Order.NAME
        self._show()
        self.clicked.connect(lambda: self.menu_of_orders().popup(self.mapToGlobal(self.rect().bottomLeft())))

    def menu_of_orders(self) -> QMenu:
        menu = Menu(self)
        for order, word in self._words.items():
            tick(menu.addAction(word, partial(self.choose, order)), is_chosen=order is self.order)
        return menu

    def choose(self, order: Order) -> None:
        self.order = order
        self._show()
        self.chosen.emit()

    def _show(self) -> None:
        self.setText(self._words[self.order])
        self.setAccessibleName(self.tr("Sort: {}").format(self._words[self.order]))
