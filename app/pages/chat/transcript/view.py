"""The transcript of a conversation: messages one under the other, of any length, as they stream in.

Only messages near the view have widgets, and only what of them is near is laid out; the heights of all else are
estimates, put right without moving what is looked at. It stays at the end while text comes, unless scrolled away.
"""

from __future__ import annotations

import contextlib
from bisect import bisect_right
from collections.abc import Iterable
from itertools import accumulate

from PySide6.QtCore import QPoint, QPointF, QRect, Qt, QThreadPool, QTimer, Signal
from PySide6.QtGui import QKeyEvent, QResizeEvent
from PySide6.QtWidgets import QAbstractScrollArea, QApplication, QFrame, QWidget

from app.look.look import current_look
from app.look.measures import ANSWER_WIDTH, HUGE, LARGE, SMALL
from app.pages.chat.transcript import highlight
from app.pages.chat.transcript.entry import Anchor, Entry
from app.pages.chat.transcript.message import MARGIN, MessageView
from app.pages.chat.transcript.model import Prefill, Shown
from app.widgets.basics import Button
from app.widgets.feedback import announce

# Streamed text is shown about 30 times a second; more often nobody sees.
_SHOW_EVERY_MS = 33
# So much above and below the view is laid out as well, and so much is kept.
_NEAR = 240
_KEPT = 3000
# Who is this near to the end stays there.
_AT_END = 8
_STEP = 48
_DRAG_EVERY_MS = 30
# Heights settle in a turn or two; more would be a fault, and must not hang the window.
_MAX_TURNS = 8


class Transcript(QAbstractScrollArea):
    """Signals carry the message's id; `branch` by how many versions to turn, `edited` the new text, and
    the places of the attached files that go with it."""

    regenerate = Signal(str)
    continue_answer = Signal(str)
    edited = Signal(str, str, object)
    branch = Signal(str, int)
    answer_here = Signal(str)
    delete = Signal(str)
    _colours_came = Signal()

    def __init__(self) -> None:
        super().__init__()
        self.setFrameShape(QFrame.Shape.NoFrame)
        self.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.setAccessibleName(self.tr("Conversation"))
        self.setFocusPolicy(Qt.FocusPolicy.NoFocus)
        self.viewport().setAutoFillBackground(False)
        self.verticalScrollBar().setSingleStep(_STEP)
        self._entries: list[Entry] = []
        self._index: dict[str, int] = {}
        self._tops: list[float] = []
        self._views: dict[str, MessageView] = {}
        self._sticks = True
        self._anchor: tuple[int, Anchor] = (0, (-1, 0, 0.0))
        self._is_settling = False
        self._streaming: set[str] = set()
        self._wanted: set[str] = set()
        self._to_end = Button("", self.go_to_end, icon="down", name=self.tr("To the end"))
        self._to_end.setParent(self)
        self._to_end.setFocusPolicy(Qt.FocusPolicy.TabFocus)
        self._to_end.hide()
        self._timer = QTimer(self, singleShot=True, interval=_SHOW_EVERY_MS)
        self._timer.timeout.connect(self._show_streamed)
        self._dragging = QTimer(self, interval=_DRAG_EVERY_MS)
        self._dragging.timeout.connect(self._scroll_while_dragging)
        self._dragged: tuple[MessageView, QPoint] | None = None
        self._colours_came.connect(self._recolour)
        current_look().changed.connect(self._restyle)
        QApplication.instance().focusChanged.connect(self._on_focus)  # type: ignore[union-attr]

    # What is shown.

    def show_all(self, messages: list[Shown]) -> None:
        """Show another conversation, from its end."""
        self._drop_views(list(self._views))
        self._entries = [Entry(shown, self._want_language) for shown in messages]
        self._streaming.clear()
        self._sticks = True
        self._reindex()
        self._settle()

    def add(self, message: Shown) -> None:
        """One more at the end. The view goes there where the user wrote it."""
        self._entries.append(Entry(message, self._want_language))
        self._sticks = self._sticks or message.role == "user"
        self._reindex()
        self._settle()

    def replace(self, message: Shown) -> None:
        """A message as it is now, with all that has been streamed."""
        if (index := self._index.get(message.id)) is None:
            return
        self._streaming.discard(message.id)
        entry = self._entries[index]
        has_grown = message.text.startswith(entry.shown.text)
        if entry.shown.is_live and not message.is_live:
            announce(
                self, self.tr("Answer: {}").format("\n".join(filter(None, (message.text, message.note))))
            )
        entry.show(message)
        if (view := self._views.get(message.id)) is not None:
            view.renew()
            if not has_grown:
                view.clear_selection()
        self._tops = []
        self._settle()

    def append(self, id: str, text: str = "", reasoning: str = "") -> None:
        """A streamed piece of an answer. One that is not shown any more is let go."""
        if (index := self._index.get(id)) is None:
            return
        self._entries[index].hold(text, reasoning)
        self._streaming.add(id)
        if not self._timer.isActive():
            self._timer.start()

    def show_prefill(self, id: str, prefill: Prefill | None) -> None:
        """How far the prompt of an answer is that has no text yet; None when it is read."""
        if (index := self._index.get(id)) is None:
            return
        self._entries[index].set_prefill(prefill)
        if (view := self._views.get(id)) is not None:
            view.update()
        self._tops = []
        self._settle()

    @property
    def shown(self) -> list[Shown]:
        """The messages, with what has been streamed into them so far."""
        return [entry.shown for entry in self._entries]

    def go_to_end(self) -> None:
        had_focus = self._to_end.hasFocus()
        self._to_end.clearFocus()
        self._sticks = True
        self._settle()
        if had_focus and self._entries:
            # The button is gone; left alone, focus would wander to a message above and the view with it.
            self._views[self._entries[-1].shown.id].setFocus()

    def message(self, id: str) -> QWidget | None:
        """The widget of a message that is in view."""
        return self._views.get(id)

    def _reindex(self) -> None:
        self._index = {entry.shown.id: index for index, entry in enumerate(self._entries)}
        for entry in self._entries:
            entry.set_width(self._column)
        self._tops = []

    def _show_streamed(self) -> None:
        for id in self._streaming:
            index = self._index.get(id)
            if index is None:
                continue
            changed = self._entries[index].take_in()
            if changed is not None and (view := self._views.get(id)) is not None:
                view.update(QRect(0, int(changed) - 4, view.width(), 1 << 20))
        self._streaming.clear()
        self._tops = []
        self._settle()

    # Layout.

    @property
    def _column(self) -> float:
        """Of the whole width, so that nothing moves when the scroll bar comes."""
        return float(max(120, min(current_look().px(ANSWER_WIDTH), self.width() - 2 * HUGE)))

    @property
    def _all_tops(self) -> list[float]:
        if not self._tops:
            self._tops = [
                float(LARGE),
                *accumulate((entry.height for entry in self._entries), initial=float(LARGE)),
            ][1:]
        return self._tops

    def _settle(self) -> None:
        """Lay out what is near the view, and put all where it belongs."""
        if self._is_settling or not self._entries:
            self._rest_empty()
            return
        self._is_settling = True
        height = self.viewport().height()
        value = 0.0
        for _ in range(_MAX_TURNS):
            value = self._wanted_value(height)
            if not self._lay_out(value - _NEAR, value + height + _NEAR):
                break
            self._tops = []
        bar = self.verticalScrollBar()
        total = self._all_tops[-1] + SMALL
        bar.setPageStep(height)
        bar.setRange(0, max(0, round(total - height)))
        bar.setValue(round(value))
        if not self._sticks:
            self._anchor = self._anchor_at(bar.value())
        self._place_views(bar.value(), height)
        self._to_end.setVisible(not self._sticks)
        self._is_settling = False

    def _rest_empty(self) -> None:
        if not self._entries:
            self.verticalScrollBar().setRange(0, 0)
            self._to_end.hide()

    def _wanted_value(self, height: int) -> float:
        most = max(0.0, self._all_tops[-1] + SMALL - height)
        if self._sticks:
            return most
        index, anchor = self._anchor
        index = min(index, len(self._entries) - 1)
        return max(0.0, min(most, self._all_tops[index] + self._entries[index].y_of(anchor)))

    def _anchor_at(self, value: float) -> tuple[int, Anchor]:
        index = max(0, min(len(self._entries), bisect_right(self._all_tops, value)) - 1)
        return index, self._entries[index].anchor_at(value - self._all_tops[index])

    def _between(self, top: float, bottom: float) -> Iterable[int]:
        tops = self._all_tops
        first = max(0, bisect_right(tops, top) - 1)
        last = bisect_right(tops, bottom)
        return range(first, min(last, len(self._entries)))

    def _lay_out(self, top: float, bottom: float) -> bool:
        has_changed = False
        tops = self._all_tops
        for index in self._between(top, bottom):
            has_changed = self._entries[index].lay_out(top - tops[index], bottom - tops[index]) or has_changed
        return has_changed

    def _place_views(self, value: int, height: int) -> None:
        tops, left = self._all_tops, round((self.width() - self._column) / 2) - MARGIN
        near = list(self._between(value - _NEAR, value + height + _NEAR))
        ids = {self._entries[index].shown.id for index in near}
        gone = [id for id, view in self._views.items() if id not in ids and not view.is_pinned]
        for id in gone:
            self._entries[self._index[id]].forget_all()
        self._drop_views(gone)
        has_new = False
        for id in [*ids, *(id for id in self._views if id not in ids)]:
            index = self._index[id]
            entry = self._entries[index]
            if id not in self._views:
                self._views[id] = self._made_view(entry)
                has_new = True
            view = self._views[id]
            view.is_last = index == len(self._entries) - 1
            top = round(tops[index]) - value
            view.setGeometry(left, top, round(self._column) + 2 * MARGIN, round(entry.height))
            entry.forget(-top - _KEPT, -top + height + _KEPT)
            view.arrange(-top - _NEAR, -top + height + _NEAR)
            view.show()
        if has_new:
            self._order_focus()

    def _made_view(self, entry: Entry) -> MessageView:
        view = MessageView(entry, self.viewport())
        id = entry.shown.id
        signals = {
            "regenerate": self.regenerate,
            "continue": self.continue_answer,
            "delete": self.delete,
            "answer_here": self.answer_here,
        }
        view.acted.connect(lambda act: signals[act].emit(id))
        view.edited.connect(lambda text, kept: self.edited.emit(id, text, kept))
        view.turned.connect(lambda by: self.branch.emit(id, by))
        view.resized.connect(self._on_resized)
        view.reached.connect(self._order_focus)
        view.selecting.connect(lambda: self._clear_selections(view))
        view.dragged.connect(lambda point: self._on_dragged(view, point))
        return view

    def _drop_views(self, ids: Iterable[str]) -> None:
        dropped = [view for id in ids if (view := self._views.pop(id, None)) is not None]
        # Focus leaves what is hidden, and whoever gets it must not have views made anew meanwhile.
        was_settling, self._is_settling = self._is_settling, True
        for view in dropped:
            view.hide()
            view.deleteLater()
        self._is_settling = was_settling

    def _order_focus(self) -> None:
        """Tab goes through what is in view from top to bottom."""
        before: QWidget = self._to_end
        for id in sorted(self._views, key=lambda id: self._index[id]):
            for control in self._views[id].controls():
                QWidget.setTabOrder(before, control)
                before = control

    def _on_resized(self) -> None:
        """A message was folded, unfolded or edited."""
        if self._is_settling:
            return
        if self._sticks:
            # What the user has just opened stays where it is.
            self._anchor = self._anchor_at(self.verticalScrollBar().value())
            self._sticks = False
            self._tops = []
            self._settle()
            self._sticks = self._is_near_end()
            self._to_end.setVisible(not self._sticks)
        else:
            self._tops = []
            self._settle()
        self._order_focus()

    def _is_near_end(self) -> bool:
        bar = self.verticalScrollBar()
        return bar.value() >= bar.maximum() - _AT_END

    # What the user does.

    def scrollContentsBy(self, dx: int, dy: int) -> None:
        if self._is_settling or not self._entries:
            return
        self._sticks = self._is_near_end()
        self._anchor = self._anchor_at(self.verticalScrollBar().value())
        self._settle()

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        for entry in self._entries:
            entry.set_width(self._column)
        self._tops = []
        size = self._to_end.sizeHint()
        self._to_end.resize(size)
        self._to_end.move((self.width() - size.width()) // 2, self.height() - size.height() - SMALL)
        self._settle()

    def keyPressEvent(self, event: QKeyEvent) -> None:
        bar = self.verticalScrollBar()
        if event.key() == Qt.Key.Key_Home:
            bar.setValue(0)
        elif event.key() == Qt.Key.Key_End:
            self.go_to_end()
        else:
            super().keyPressEvent(event)

    def _clear_selections(self, but: MessageView) -> None:
        for view in self._views.values():
            if view is not but:
                view.clear_selection()

    def _on_dragged(self, view: MessageView, point: QPoint) -> None:
        self._dragged = None if point.isNull() else (view, point)
        if self._dragged is None:
            self._dragging.stop()
        elif not self._dragging.isActive():
            self._dragging.start()

    def _scroll_while_dragging(self) -> None:
        if self._dragged is None:
            return
        view, point = self._dragged
        y = self.viewport().mapFromGlobal(point).y()
        over = min(0, y) + max(0, y - self.viewport().height())
        if over:
            bar = self.verticalScrollBar()
            bar.setValue(bar.value() + max(-120, min(120, over)))
            view.drag_to(QPointF(view.mapFromGlobal(point)))

    def _on_focus(self, old: QWidget | None, new: QWidget | None) -> None:
        for view in self._views.values():
            if any(one is not None and (one is view or view.isAncestorOf(one)) for one in (old, new)):
                view.focus_moved()
                if new is not None and new is not view and view.isAncestorOf(new):
                    self._bring_into_view(new)

    def _bring_into_view(self, widget: QWidget) -> None:
        top = widget.mapTo(self.viewport(), QPoint(0, 0)).y()
        bottom, height = top + widget.height(), self.viewport().height()
        bar = self.verticalScrollBar()
        if bottom > height:
            bar.setValue(bar.value() + bottom - height + SMALL)
        elif top < 0:
            bar.setValue(bar.value() + top - SMALL)

    # Colours.

    def _restyle(self) -> None:
        for entry in self._entries:
            entry.restyle()
        self._tops = []
        self._settle()
        for view in self._views.values():
            view.update()

    def _want_language(self, language: str) -> None:
        """Have the colours of a language got ready, off this thread; code is plain until then."""
        if language in self._wanted:
            return
        self._wanted.add(language)

        def get() -> None:
            highlight.load(language)
            # the window may have ended meanwhile
            with contextlib.suppress(RuntimeError):
                self._colours_came.emit()

        QThreadPool.globalInstance().start(get)

    def _recolour(self) -> None:
        for id, view in self._views.items():
            self._entries[self._index[id]].forget_all()
            view.update()
        self._settle()
