"""The widget of a message that is in view: paints it, and is where it is pointed at, selected, read aloud and acted on.

It holds nothing that a message needs when it is out of view; `entry` does.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from PySide6.QtCore import QEvent, QPoint, QPointF, QRectF, QSize, Qt, QUrl, Signal
from PySide6.QtGui import (
    QContextMenuEvent,
    QDesktopServices,
    QEnterEvent,
    QFocusEvent,
    QFontMetrics,
    QGuiApplication,
    QKeyEvent,
    QKeySequence,
    QMouseEvent,
    QPainter,
    QPaintEvent,
    QPen,
    QWheelEvent,
)
from PySide6.QtWidgets import QApplication, QScrollBar, QWidget

from app.look.look import current_look
from app.look.measures import CAPTION_PX, RADIUS_BUBBLE, RADIUS_CARD
from app.pages.chat.transcript.boxes import CODE_HEAD, CodeBox, Wide
from app.pages.chat.transcript.entry import FILE_HEIGHT, WAITING_HEIGHT, Entry
from app.pages.chat.transcript.flow import Flow, Place
from app.pages.chat.transcript.parts import (
    EDITOR_HEIGHT,
    PREFILL_HEIGHT,
    Action,
    Actions,
    CopyButton,
    Editor,
    PrefillPanel,
)
from app.pages.chat.transcript.words import note_line, thought
from app.widgets.basics import Button
from app.widgets.controls import Menu

# Room to the left and right of the column, for focus and for what sticks out of letters.
MARGIN = 12
# What is read aloud at once is no longer.
_READ_ALOUD = 20_000

# A place in a message: its flow, and there its slot, unit and position.
Spot = tuple[int, int, int, int]
# A code block or a table: its flow, and there the slot where it begins and which of its blocks it is.
Key = tuple[int, int, int]


@dataclass(frozen=True, kw_only=True)
class _Chip:
    """An attached file as it is painted."""

    name: str
    tokens: str
    place: QRectF


class MessageView(QWidget):
    """Signals: `acted` tells regenerate, continue, delete or answer_here; `edited` the new text, and which of the
    attached files go with it, by their places."""

    acted = Signal(str)
    edited = Signal(str, object)
    turned = Signal(int)
    resized = Signal()
    reached = Signal()
    selecting = Signal()
    dragged = Signal(QPoint)

    def __init__(self, entry: Entry, parent: QWidget) -> None:
        super().__init__(parent)
        self.entry = entry
        self.is_last = False
        self._is_hovered = False
        self._rings = False
        self._from: Spot | None = None
        self._to: Spot | None = None
        self._is_dragging = False
        self._actions: Actions | None = None
        self._thought: Button | None = None
        self._panel: PrefillPanel | None = None
        self.editor: Editor | None = None
        self._leave_out: list[Button] = []
        self._left_out: set[int] = set()
        self._copies: dict[Key, CopyButton] = {}
        self._bars: dict[Key, QScrollBar] = {}
        self.setMouseTracking(True)
        self.setFocusPolicy(Qt.FocusPolicy.StrongFocus)
        self.name()

    def name(self) -> None:
        """What a screen reader says."""
        shown = self.entry.shown
        who = {"user": self.tr("You"), "assistant": self.tr("Answer"), "system": self.tr("System prompt")}
        self.setAccessibleName(who[shown.role])
        files = ", ".join(one.name for one in shown.attachments)
        said = [shown.text[:_READ_ALOUD], files, note_line(shown.note)]
        self.setAccessibleDescription("\n".join(part for part in said if part))

    @property
    def is_pinned(self) -> bool:
        """Whether it has to stay though it is out of view."""
        return self.editor is not None or self._from is not None or self._has_focus_within()

    # Controls within it.

    def arrange(self, top: float, bottom: float) -> None:
        """Put the controls where they belong; those of code only where it is between."""
        entry = self.entry
        self._arrange_thought()
        self._arrange_panel()
        self._arrange_editor()
        self._arrange_actions()
        copies: dict[Key, float] = {}
        bars: dict[Key, tuple[float, float, float, Wide]] = {}
        for number, flow, left, y in entry.flows():
            for (slot, ordinal), box_top, box in flow.wide_blocks(top - y, bottom - y):
                key = number, slot, ordinal
                if isinstance(box, CodeBox) and box.is_first:
                    copies[key] = y + box_top
                if box.wide is not None and box.wide.reach > 0:
                    x = MARGIN + left + box.left
                    bars[key] = x, y + box_top + box.height, box.wide.room, box.wide
        self._arrange_copies(copies)
        self._arrange_bars(bars)

    def _arrange_thought(self) -> None:
        plan, shown = self.entry.plan, self.entry.shown
        if plan.thought is None:
            if self._thought is not None:
                self._thought.hide()
            return
        if self._thought is None:
            self._thought = Button("", self._toggle, kind="fold", icon="right")
            self._thought.setParent(self)
        button = self._thought
        words = thought(shown)
        is_open = self.entry.is_open
        if button.text() != words or button.property("open") != is_open:
            button.setProperty("open", is_open)
            button.setText(words)
            button.show_icon("down" if is_open else "right", "text_soft")
            state = self.tr("unfolded") if is_open else self.tr("folded")
            button.setAccessibleName(f"{words}, {state}")
            button.adjustSize()
        button.move(MARGIN - 8, round(plan.thought))
        button.show()

    def _toggle(self) -> None:
        self.entry.toggle()
        self.clear_selection()
        self.resized.emit()

    def _arrange_panel(self) -> None:
        plan, prefill = self.entry.plan, self.entry.prefill
        if plan.prefill is None or prefill is None:
            if self._panel is not None:
                self._panel.hide()
            return
        if self._panel is None:
            self._panel = PrefillPanel()
            self._panel.setParent(self)
            self._panel.answer_here.connect(lambda: self.acted.emit("answer_here"))
        self._panel.say(prefill)
        self._panel.setGeometry(
            MARGIN, round(plan.prefill), self.width() - 2 * MARGIN, current_look().px(PREFILL_HEIGHT)
        )
        self._panel.show()

    def _arrange_editor(self) -> None:
        plan = self.entry.plan
        if plan.editor is None:
            return
        if self.editor is None:
            self.editor = Editor(self.entry.shown.text)
            self.editor.setParent(self)
            self.editor.sent.connect(self._send_edited)
            self.editor.cancelled.connect(self._end_editing)
            self.editor.show()
            self.editor.field.setFocus()
            self.editor.field.moveCursor(self.editor.field.textCursor().MoveOperation.End)
            self._make_leaving_out()
        self.editor.setGeometry(
            MARGIN, round(plan.editor), self.width() - 2 * MARGIN, current_look().px(EDITOR_HEIGHT)
        )
        for button, chip in zip(self._leave_out, self._chips(), strict=True):
            button.move(round(chip.place.right()) - button.width() - 2, round(chip.place.center().y()) - 11)

    def _make_leaving_out(self) -> None:
        """A cross for each file, which may be what made the message too long."""
        for index in range(len(self.entry.shown.attachments)):
            button = Button(kind="icon", icon="close")
            button.clicked.connect(lambda _=False, index=index: self._toggle_left_out(index))
            button.setProperty("scale", "small")
            button.setIconSize(QSize(14, 14))
            button.setParent(self)
            button.resize(22, 22)
            button.show()
            self._leave_out.append(button)
            self._name_leaving_out(index)

    def _toggle_left_out(self, index: int) -> None:
        self._left_out ^= {index}
        self._name_leaving_out(index)
        self.update()

    def _name_leaving_out(self, index: int) -> None:
        button, is_out = self._leave_out[index], index in self._left_out
        name = self.entry.shown.attachments[index].name
        words = self.tr("Put {} back") if is_out else self.tr("Leave {} out")
        button.setAccessibleName(words.format(name))
        button.setToolTip(words.format(name))
        button.show_icon("refresh" if is_out else "close")

    def begin_editing(self) -> None:
        self.clear_selection()
        self.entry.set_editing(True)
        self.resized.emit()

    def _end_editing(self) -> None:
        editor, self.editor = self.editor, None
        if editor is not None:
            self.setFocus()
            editor.hide()
            editor.deleteLater()
        for button in self._leave_out:
            button.hide()
            button.deleteLater()
        self._leave_out, self._left_out = [], set()
        self.entry.set_editing(False)
        self.resized.emit()

    def _send_edited(self, text: str) -> None:
        kept = [at for at in range(len(self.entry.shown.attachments)) if at not in self._left_out]
        self._end_editing()
        self.edited.emit(text, kept)

    def _arrange_actions(self) -> None:
        plan, shown = self.entry.plan, self.entry.shown
        is_reached = self._rings or (self._has_focus_within() and not self.hasFocus())
        is_wanted = self.is_last or self._is_hovered or is_reached
        if not is_wanted or shown.is_live or self.entry.is_editing:
            if self._actions is not None:
                self._actions.hide()
            return
        if self._actions is None:
            self._actions = Actions(lambda: self.entry.shown.text, self._offered(), shown.branch)
            self._actions.turned.connect(self.turned)
            self._actions.setParent(self)
        actions = self._actions
        x = self.width() - MARGIN + 9 - actions.width() if shown.role == "user" else MARGIN - 9
        actions.move(x, round(plan.actions))
        actions.show()

    def _offered(self) -> list[Action]:
        shown = self.entry.shown
        offered = []
        if shown.role == "assistant":
            offered.append(self._action("refresh", self.tr("Regenerate"), "regenerate"))
            if shown.note:
                offered.append(self._action("resume", self.tr("Continue"), "continue"))
        if shown.role == "user":
            offered.append(Action(icon="edit", name=self.tr("Edit"), run=self.begin_editing))
        if shown.role != "system":
            offered.append(self._action("trash", self.tr("Delete"), "delete"))
        return offered

    def _action(self, icon: str, name: str, act: str) -> Action:
        return Action(icon=icon, name=name, run=lambda: self.acted.emit(act))

    def renew(self) -> None:
        """The message has been replaced."""
        if self._actions is not None:
            self._actions.hide()
            self._actions.deleteLater()
            self._actions = None
        self.name()
        self.update()

    def _arrange_copies(self, wanted: dict[Key, float]) -> None:
        for key in [key for key in self._copies if key not in wanted]:
            self._copies.pop(key).deleteLater()
        for key, y in wanted.items():
            if key not in self._copies:
                flow = self.entry.flow(key[0])
                button = CopyButton(self.tr("Copy code"), self._code_of(flow, key[1], key[2]))
                button.setParent(self)
                button.setIconSize(button.iconSize() * 0.9)
                button.resize(button.sizeHint())
                self._copies[key] = button
            button = self._copies[key]
            right = self.width() - MARGIN
            button.move(
                right - button.width() - 4, round(y) + (current_look().px(CODE_HEAD) - button.height()) // 2
            )
            button.show()

    def _code_of(self, flow: Flow, slot: int, ordinal: int) -> Callable[[], str]:
        return lambda: flow.code_from(slot, ordinal)

    def _arrange_bars(self, wanted: dict[Key, tuple[float, float, float, Wide]]) -> None:
        for key in [key for key in self._bars if key not in wanted]:
            self._bars.pop(key).deleteLater()
        for key, (x, bottom, room, wide) in wanted.items():
            if key not in self._bars:
                bar = self._bars[key] = QScrollBar(Qt.Orientation.Horizontal, self)
                bar.setAccessibleName(self.tr("Scroll sideways"))
                bar.valueChanged.connect(lambda value, wide=wide: self._scroll_block(wide, value))
            bar = self._bars[key]
            bar.setPageStep(round(room))
            bar.setRange(0, round(wide.reach))
            bar.setValue(round(wide.offset))
            bar.setGeometry(round(x) + 8, round(bottom) - 11, round(room), 10)
            bar.show()

    def _scroll_block(self, wide: Wide, value: float) -> None:
        wide.offset = max(0.0, min(wide.reach, value))
        self.update()

    def controls(self) -> list[QWidget]:
        """Those that are there, in the order of reading."""
        copies = sorted(self._copies.values(), key=lambda button: button.y())
        inner: list[QWidget | None] = [self._thought, *copies]
        if self._panel is not None:
            inner.append(self._panel.button)
        if self._actions is not None:
            inner += self._actions.buttons
        inner += self._leave_out
        return [self, *(one for one in inner if one is not None)]

    # Painting.

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        entry, plan, look = self.entry, self.entry.plan, current_look()
        clip = QRectF(event.rect())
        if self._rings:
            painter.setPen(QPen(look.colour("local"), 2))
            painter.setBrush(Qt.BrushStyle.NoBrush)
            painter.drawRoundedRect(QRectF(self.rect()).adjusted(1, 1, -1, -3), RADIUS_CARD, RADIUS_CARD)
        if plan.files is not None:
            self._paint_files(painter)
        if plan.bubble is not None:
            self._paint_bubble(painter, plan.bubble)
        if plan.reasoning is not None:
            height = entry.flow(0).height - 4
            painter.fillRect(QRectF(MARGIN + 2, plan.reasoning + 2, 2, height), look.colour("border_strong"))
        low, high = self._selection() or (None, None)
        for number, flow, left, top in entry.flows():

            def selected(slot: int, unit: int, number: int = number) -> tuple[int, int] | None:
                key = number, slot, unit
                if low is None or high is None or key < low[:3] or key > high[:3]:
                    return None
                return (low[3] if key == low[:3] else 0), (high[3] if key == high[:3] else 1 << 29)

            flow.paint(painter, QPointF(MARGIN + left, top), clip, selected)
        if plan.waiting is not None:
            painter.setPen(Qt.PenStyle.NoPen)
            painter.setBrush(look.colour("local"))
            painter.drawEllipse(QRectF(MARGIN + 1, plan.waiting + look.px(WAITING_HEIGHT) / 2 - 5, 10, 10))
        for unit, y in ((entry.note, plan.note), (entry.stats, plan.stats)):
            if unit is not None and y is not None:
                unit.paint(painter, QPointF(MARGIN, y), None)

    def _paint_bubble(self, painter: QPainter, bubble: QRectF) -> None:
        look = current_look()
        is_own = self.entry.shown.role == "user"
        painter.setPen(Qt.PenStyle.NoPen)
        painter.setBrush(look.colour("local_soft" if is_own else "sunken"))
        radius = RADIUS_BUBBLE if is_own else RADIUS_CARD
        painter.drawRoundedRect(bubble.translated(MARGIN, 0), radius, radius)
        if not is_own:
            painter.setFont(look.font(CAPTION_PX, strong=True))
            painter.setPen(look.colour("text_faint"))
            place = QRectF(bubble.left() + MARGIN + 16, bubble.top() + 8, bubble.width(), look.px(24))
            painter.drawText(place, Qt.AlignmentFlag.AlignVCenter, self.tr("System prompt"))

    def _chips(self) -> list[_Chip]:
        """The attached files, from the top, with room for a cross while they can be left out."""
        top = self.entry.plan.files
        if top is None:
            return []
        look = current_look()
        metrics, height = QFontMetrics(look.font(CAPTION_PX)), look.px(FILE_HEIGHT)
        chips = []
        for index, file in enumerate(self.entry.shown.attachments):
            n_tokens = file.n_tokens
            tokens = " · " + self.tr("{} tokens").format(f"{n_tokens:,}") if n_tokens is not None else ""
            name = metrics.elidedText(file.name, Qt.TextElideMode.ElideMiddle, look.px(320))
            width = metrics.horizontalAdvance(name + tokens) + 48 + (20 if self.entry.is_editing else 0)
            y = top + index * (height + 4)
            place = QRectF(self.width() - MARGIN - width, y + 0.5, width - 0.5, height - 1)
            chips.append(_Chip(name=name, tokens=tokens, place=place))
        return chips

    def _paint_files(self, painter: QPainter) -> None:
        look = current_look()
        font = look.font(CAPTION_PX)
        metrics = QFontMetrics(font)
        for index, chip in enumerate(self._chips()):
            is_out = index in self._left_out
            font.setStrikeOut(is_out)
            painter.setFont(font)
            painter.setPen(QPen(look.colour("border"), 1))
            painter.setBrush(look.colour("sunken" if is_out else "surface"))
            painter.drawRoundedRect(chip.place, 6, 6)
            file = QPointF(chip.place.left() + 10, chip.place.top() + (chip.place.height() - 16) // 2 + 0.5)
            painter.drawPixmap(file, look.pixmap("file", "text_soft", 16))
            text = chip.place.adjusted(32, 0, -8, 0)
            painter.setPen(look.colour("text_faint" if is_out else "text"))
            painter.drawText(text, Qt.AlignmentFlag.AlignVCenter, chip.name)
            painter.setPen(look.colour("text_faint"))
            text.adjust(metrics.horizontalAdvance(chip.name), 0, 0, 0)
            painter.drawText(text, Qt.AlignmentFlag.AlignVCenter, chip.tokens)

    # Selecting and pointing.

    def spot_at(self, point: QPointF) -> tuple[Spot, str] | None:
        """The place nearest to a point, and the link that is exactly there."""
        near = None
        for number, flow, left, top in self.entry.flows():
            away = max(0.0, top - point.y(), point.y() - top - flow.height)
            if near is None or away < near[0]:
                near = away, number, flow, left, top
        if near is None:
            return None
        away, number, flow, left, top = near
        hit = flow.hit(point.x() - MARGIN - left, point.y() - top)
        if hit is None:
            return None
        place, href = hit
        return (number, *place), "" if away else href

    def _selection(self) -> tuple[Spot, Spot] | None:
        if self._from is None or self._to is None or self._from == self._to:
            return None
        return min(self._from, self._to), max(self._from, self._to)

    def selected_text(self) -> str:
        if (selection := self._selection()) is None:
            return ""
        low, high = selection
        parts = []
        for number in range(low[0], high[0] + 1):
            flow = self.entry.flow(number)
            start: Place = low[1:] if number == low[0] else (0, 0, 0)
            end: Place = high[1:] if number == high[0] else flow.end
            if number == 0 and not self.entry.is_open:
                continue
            parts.append(flow.copied(start, end))
        return "\n\n".join(parts)

    def select_all(self) -> None:
        flows = list(self.entry.flows())
        if flows:
            self.selecting.emit()
            self._from = flows[0][0], 0, 0, 0
            self._to = flows[-1][0], *flows[-1][1].end
            self.update()

    def clear_selection(self) -> None:
        if self._from is not None:
            self._from = self._to = None
            self.update()

    def copy(self) -> None:
        if text := self.selected_text():
            QGuiApplication.clipboard().setText(text)

    def drag_to(self, point: QPointF) -> None:
        """The selection follows the pointer, which may be outside."""
        if self._is_dragging and (found := self.spot_at(point)) is not None:
            self._to = found[0]
            self.update()

    def mousePressEvent(self, event: QMouseEvent) -> None:
        if event.button() is not Qt.MouseButton.LeftButton:
            return
        found = self.spot_at(event.position())
        self.selecting.emit()
        if found is not None:
            if not event.modifiers() & Qt.KeyboardModifier.ShiftModifier or self._from is None:
                self._from = found[0]
            self._to = found[0]
            self._is_dragging = True
            self.update()

    def mouseMoveEvent(self, event: QMouseEvent) -> None:
        if self._is_dragging:
            self.drag_to(event.position())
            self.dragged.emit(event.globalPosition().toPoint())
            return
        found = self.spot_at(event.position())
        href = found[1] if found else ""
        is_over_text = any(
            top <= event.position().y() < top + flow.height for _, flow, _, top in self.entry.flows()
        )
        shape = Qt.CursorShape.IBeamCursor if is_over_text else Qt.CursorShape.ArrowCursor
        self.setCursor(Qt.CursorShape.PointingHandCursor if href else shape)
        if href != self.toolTip():
            self.setToolTip(href)

    def mouseReleaseEvent(self, event: QMouseEvent) -> None:
        if event.button() is not Qt.MouseButton.LeftButton:
            return
        self._is_dragging = False
        self.dragged.emit(QPoint())
        found = self.spot_at(event.position())
        if self._from == self._to:
            self._from = self._to = None
            if found is not None and found[1]:
                QDesktopServices.openUrl(QUrl(found[1]))

    def mouseDoubleClickEvent(self, event: QMouseEvent) -> None:
        if (found := self.spot_at(event.position())) is not None:
            number, *place = found[0]
            start, end = self.entry.flow(number).word_at((place[0], place[1], place[2]))
            self._from = number, place[0], place[1], start
            self._to = number, place[0], place[1], end
            self.update()

    def wheelEvent(self, event: QWheelEvent) -> None:
        delta = event.pixelDelta() if not event.pixelDelta().isNull() else event.angleDelta() / 2
        is_sideways = bool(event.modifiers() & Qt.KeyboardModifier.ShiftModifier)
        across = delta.x() or (delta.y() if is_sideways else 0)
        wide = self._wide_at(event.position()) if abs(across) >= abs(delta.y()) or is_sideways else None
        if wide is None or not across:
            event.ignore()
            return
        self._scroll_block(wide, wide.offset - across)
        for bar in self._bars.values():
            bar.blockSignals(True)
        self.arrange(0, self.height())
        for bar in self._bars.values():
            bar.blockSignals(False)
        event.accept()

    def _wide_at(self, point: QPointF) -> Wide | None:
        for _, flow, _, top in self.entry.flows():
            for _, y, box in flow.wide_blocks(point.y() - top, point.y() - top + 1):
                if y <= point.y() - top < y + box.height and box.wide is not None and box.wide.reach > 0:
                    return box.wide
        return None

    def contextMenuEvent(self, event: QContextMenuEvent) -> None:
        found = self.spot_at(QPointF(event.pos()))
        menu = Menu(self)
        menu.addAction(self.tr("Copy"), self.copy).setEnabled(bool(self.selected_text()))
        menu.addAction(self.tr("Select all"), self.select_all)
        if found is not None and found[1]:
            href = found[1]
            menu.addAction(self.tr("Copy link"), lambda: QGuiApplication.clipboard().setText(href))
        menu.popup(event.globalPos())
        menu.aboutToHide.connect(menu.deleteLater)

    def keyPressEvent(self, event: QKeyEvent) -> None:
        if event.matches(QKeySequence.StandardKey.Copy):
            self.copy()
        elif event.matches(QKeySequence.StandardKey.SelectAll):
            self.select_all()
        else:
            event.ignore()

    # Being looked at.

    def enterEvent(self, event: QEnterEvent) -> None:
        self._is_hovered = True
        self._arrange_actions()

    def leaveEvent(self, event: QEvent) -> None:
        self._is_hovered = False
        self._arrange_actions()

    def focusInEvent(self, event: QFocusEvent) -> None:
        self._rings = event.reason() in (Qt.FocusReason.TabFocusReason, Qt.FocusReason.BacktabFocusReason)
        self._arrange_actions()
        self.reached.emit()
        self.update()

    def focusOutEvent(self, event: QFocusEvent) -> None:
        self._rings = False
        self.update()

    def focus_moved(self) -> None:
        """Focus has gone somewhere within, or away."""
        self._arrange_actions()

    def _has_focus_within(self) -> bool:
        focus = QApplication.focusWidget()
        return focus is not None and (focus is self or self.isAncestorOf(focus))
