"""The list of conversations: searched, grouped by day, renamed in place. Thousands are rows of a model, no widgets."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import date
from typing import Any

from PySide6.QtCore import (
    QAbstractListModel,
    QEvent,
    QModelIndex,
    QPersistentModelIndex,
    QPoint,
    QRect,
    QSize,
    Qt,
    Signal,
)
from PySide6.QtGui import (
    QContextMenuEvent,
    QFontMetrics,
    QKeyEvent,
    QMouseEvent,
    QPainter,
)
from PySide6.QtWidgets import (
    QAbstractItemView,
    QFrame,
    QLineEdit,
    QListView,
    QMenu,
    QStyle,
    QStyledItemDelegate,
    QStyleOptionViewItem,
    QWidget,
)

from app.chats.model import MARK_BEGIN, MARK_END, Found, Listed
from app.chats.titles import Group, Groups
from app.look.look import current_look
from app.look.measures import BODY_PX, CAPTION_PX, MEDIUM, RADIUS_CONTROL, SMALL, TINY
from app.widgets.basics import Button, Text, column, row, with_keys
from app.widgets.controls import Menu, SearchField

WIDTH = 240

_ROW_HEIGHT = 32
_FOUND_HEIGHT = 52
_MORE_WIDTH = 28

_ID = Qt.ItemDataRole.UserRole
_IS_HEADER = Qt.ItemDataRole.UserRole + 1
_SNIPPET = Qt.ItemDataRole.UserRole + 2
_IS_PINNED = Qt.ItemDataRole.UserRole + 3
_IS_ANSWERING = Qt.ItemDataRole.UserRole + 4

_Index = QModelIndex | QPersistentModelIndex


# A conversation, or a header's words.
_Row = Listed | Found | str


class ConversationModel(QAbstractListModel):
    """Rows with headers between them; `renamed` is what the user typed into one."""

    renamed = Signal(str, str)

    def __init__(self) -> None:
        super().__init__()
        self._rows: list[_Row] = []
        self._answering: frozenset[str] = frozenset()

    def show_listed(self, listed: Sequence[Listed], today: date) -> None:
        """By day, pinned ones first; they come in this order already."""
        words = {
            Group.PINNED: self.tr("Pinned"),
            Group.TODAY: self.tr("Today"),
            Group.YESTERDAY: self.tr("Yesterday"),
            Group.WEEK: self.tr("Previous 7 days"),
            Group.MONTH: self.tr("Previous 30 days"),
            Group.OLDER: self.tr("Older"),
        }
        groups = Groups(today)
        rows: list[_Row] = []
        last: Group | None = None
        for one in listed:
            if (group := groups.group_of(one)) is not last:
                rows.append(words[group])
                last = group
            rows.append(one)
        self._show(rows)

    def show_found(self, found: Sequence[Found]) -> None:
        self._show(list(found))

    def show_answering(self, ids: frozenset[str]) -> None:
        """Mark those that are answering just now."""
        if ids != self._answering:
            self._answering = ids
            self.dataChanged.emit(self.index(0), self.index(len(self._rows) - 1), [_IS_ANSWERING])

    def index_of(self, conversation_id: str) -> QModelIndex:
        """Not valid where it is not among the rows."""
        for at, one in enumerate(self._rows):
            if not isinstance(one, str) and one.id == conversation_id:
                return self.index(at)
        return QModelIndex()

    def rowCount(self, parent: _Index = QModelIndex()) -> int:  # noqa: B008
        return 0 if parent.isValid() else len(self._rows)

    def data(self, index: _Index, role: int = Qt.ItemDataRole.DisplayRole) -> Any:
        one = self._rows[index.row()]
        if isinstance(one, str):
            return one if role == Qt.ItemDataRole.DisplayRole else role == _IS_HEADER or None
        if role in (Qt.ItemDataRole.DisplayRole, Qt.ItemDataRole.EditRole):
            return one.title or self.tr("Untitled")
        if role == Qt.ItemDataRole.AccessibleTextRole:
            return self.tr("{title}, pinned").format(title=one.title) if one.pinned else one.title
        if role == Qt.ItemDataRole.ToolTipRole:
            return one.title
        if role == _ID:
            return one.id
        if role == _SNIPPET:
            return _one_line(one.snippet) if isinstance(one, Found) else ""
        if role == _IS_PINNED:
            return one.pinned
        return one.id in self._answering if role == _IS_ANSWERING else None

    def flags(self, index: _Index) -> Qt.ItemFlag:
        if not index.isValid() or isinstance(self._rows[index.row()], str):
            return Qt.ItemFlag.NoItemFlags
        return Qt.ItemFlag.ItemIsEnabled | Qt.ItemFlag.ItemIsSelectable | Qt.ItemFlag.ItemIsEditable

    def setData(self, index: _Index, value: Any, role: int = Qt.ItemDataRole.EditRole) -> bool:
        title, one = str(value).strip(), self._rows[index.row()]
        if role != Qt.ItemDataRole.EditRole or not title or isinstance(one, str):
            return False
        self.renamed.emit(one.id, title)
        return True

    def _show(self, rows: list[_Row]) -> None:
        if rows == self._rows:
            return
        self.beginResetModel()
        self._rows = rows
        self.endResetModel()


class _Delegate(QStyledItemDelegate):
    """Paints a row: a title with what is there to do with it, or a piece of what was found, or a header."""

    def __init__(self, parent: QWidget) -> None:
        super().__init__(parent)
        self.is_found = False
        self.menu_open_at = ""

    def sizeHint(self, option: QStyleOptionViewItem, index: _Index) -> QSize:
        return QSize(WIDTH, current_look().px(_FOUND_HEIGHT if self.is_found else _ROW_HEIGHT))

    def paint(self, painter: QPainter, option: QStyleOptionViewItem, index: _Index) -> None:
        painter.save()
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        rect = option.rect.adjusted(SMALL, 1, -SMALL, -1)
        if index.data(_IS_HEADER):
            self._paint_header(painter, rect, index)
        else:
            self._paint_row(painter, rect, option, index)
        painter.restore()

    def _paint_header(self, painter: QPainter, rect: QRect, index: _Index) -> None:
        look = current_look()
        painter.setFont(look.font(CAPTION_PX, strong=True))
        painter.setPen(look.colour("text_faint"))
        text = rect.adjusted(SMALL, 0, -SMALL, -TINY)
        painter.drawText(text, Qt.AlignmentFlag.AlignBottom | Qt.AlignmentFlag.AlignLeft, index.data())

    def _paint_row(self, painter: QPainter, rect: QRect, option: QStyleOptionViewItem, index: _Index) -> None:
        look, state = current_look(), option.state
        is_over = bool(state & QStyle.StateFlag.State_MouseOver) or self.menu_open_at == index.data(_ID)
        is_selected = bool(state & QStyle.StateFlag.State_Selected)
        if is_selected or is_over:
            painter.setPen(Qt.PenStyle.NoPen)
            painter.setBrush(look.colour("pressed" if is_selected else "hover"))
            painter.drawRoundedRect(rect, RADIUS_CONTROL, RADIUS_CONTROL)
        if state & QStyle.StateFlag.State_HasFocus and state & QStyle.StateFlag.State_KeyboardFocusChange:
            pen = painter.pen()
            pen.setColor(look.colour("local"))
            pen.setStyle(Qt.PenStyle.SolidLine)
            pen.setWidthF(2.0)
            painter.setPen(pen)
            painter.setBrush(Qt.BrushStyle.NoBrush)
            painter.drawRoundedRect(rect.adjusted(1, 1, -1, -1), RADIUS_CONTROL, RADIUS_CONTROL)
        text = rect.adjusted(SMALL, 0, -SMALL, 0)
        if self.is_found:
            text.setHeight(rect.height() // 2)
            text.translate(0, TINY // 2)
        if is_over:
            self._paint_more(painter, rect)
            text.setRight(rect.right() - _MORE_WIDTH)
        elif index.data(_IS_ANSWERING):
            painter.setPen(Qt.PenStyle.NoPen)
            painter.setBrush(look.colour("local"))
            painter.drawEllipse(QRect(rect.right() - 16, text.center().y() - 3, 8, 8))
            text.setRight(rect.right() - _MORE_WIDTH)
        painter.setFont(look.font(BODY_PX, strong=is_selected))
        painter.setPen(look.colour("text"))
        _draw_line(painter, text, index.data())
        if self.is_found and (snippet := index.data(_SNIPPET)):
            text = rect.adjusted(SMALL, rect.height() // 2 - TINY // 2, -SMALL, 0)
            text.setHeight(rect.height() // 2 - TINY // 2)
            _draw_snippet(painter, text, snippet)

    def _paint_more(self, painter: QPainter, rect: QRect) -> None:
        pixmap = current_look().pixmap("more", "text_soft", 16)
        painter.drawPixmap(rect.right() - _MORE_WIDTH + 6, rect.center().y() - 8, pixmap)

    def createEditor(self, parent: QWidget, option: QStyleOptionViewItem, index: _Index) -> QWidget:
        editor = QLineEdit(parent)
        editor.setAccessibleName(self.tr("Title"))
        editor.setMaxLength(200)
        return editor

    def updateEditorGeometry(self, editor: QWidget, option: QStyleOptionViewItem, index: _Index) -> None:
        rect = option.rect.adjusted(SMALL, 0, -SMALL, 0)
        rect.setHeight(current_look().px(_ROW_HEIGHT))
        editor.setGeometry(rect)


class _View(QListView):
    """Opens a row where it is clicked, and its menu where its dots are, by the right button, or by the menu key."""

    opened = Signal(str)
    menu_wanted = Signal(str, QPoint)
    deleted = Signal(str)

    def __init__(self, model: ConversationModel) -> None:
        super().__init__()
        self.rows = _Delegate(self)
        self.setModel(model)
        self.setItemDelegate(self.rows)
        self.setAccessibleName(self.tr("Conversations"))
        self.setUniformItemSizes(True)
        self.setMouseTracking(True)
        self.setEditTriggers(QAbstractItemView.EditTrigger.EditKeyPressed)
        self.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.setVerticalScrollMode(QAbstractItemView.ScrollMode.ScrollPerPixel)
        self.setFrameShape(QFrame.Shape.NoFrame)

    @property
    def is_typing(self) -> bool:
        """Whether a title is being typed."""
        return self.state() is QAbstractItemView.State.EditingState

    def mousePressEvent(self, event: QMouseEvent) -> None:
        index = self.indexAt(event.position().toPoint())
        if not index.isValid() or index.data(_IS_HEADER) or event.button() is not Qt.MouseButton.LeftButton:
            return
        rect = self.visualRect(index)
        if event.position().x() >= rect.right() - SMALL - _MORE_WIDTH:
            self._ask_menu(index, event.globalPosition().toPoint())
            return
        super().mousePressEvent(event)
        self.opened.emit(index.data(_ID))

    def contextMenuEvent(self, event: QContextMenuEvent) -> None:
        by_key = event.reason() is QContextMenuEvent.Reason.Keyboard
        index = self.currentIndex() if by_key else self.indexAt(event.pos())
        if index.isValid() and not index.data(_IS_HEADER):
            below = self.viewport().mapToGlobal(self.visualRect(index).bottomLeft())
            self._ask_menu(index, below if by_key else event.globalPos())

    def keyPressEvent(self, event: QKeyEvent) -> None:
        index = self.currentIndex()
        if index.isValid() and event.key() in (Qt.Key.Key_Return, Qt.Key.Key_Enter, Qt.Key.Key_Space):
            if not self.is_typing:
                self.opened.emit(index.data(_ID))
        elif index.isValid() and event.key() in (Qt.Key.Key_Delete, Qt.Key.Key_Backspace):
            self.deleted.emit(index.data(_ID))
        else:
            super().keyPressEvent(event)

    def viewportEvent(self, event: QEvent) -> bool:
        if event.type() is QEvent.Type.Leave:
            self.viewport().update()
        return super().viewportEvent(event)

    def _ask_menu(self, index: QModelIndex, at: QPoint) -> None:
        self.rows.menu_open_at = index.data(_ID)
        self.viewport().update()
        self.menu_wanted.emit(index.data(_ID), at)
        self.rows.menu_open_at = ""
        self.viewport().update()


class _Search(SearchField):
    """Escape leaves it, and the arrow leads into what is under it."""

    left = Signal()
    went_down = Signal()

    def keyPressEvent(self, event: QKeyEvent) -> None:
        if event.key() == Qt.Key.Key_Escape:
            self.left.emit()
        elif event.key() == Qt.Key.Key_Down:
            self.went_down.emit()
        else:
            super().keyPressEvent(event)


class ConversationPane(QFrame):
    """Search, the list, and what can be done with one of it. Signals carry a conversation's id."""

    opened = Signal(str)
    new_wanted = Signal()
    searched = Signal(str)
    left_search = Signal()
    renamed = Signal(str, str)
    pinned = Signal(str, bool)
    exported = Signal(str)
    deleted = Signal(str)
    import_wanted = Signal()
    export_all_wanted = Signal()

    def __init__(self) -> None:
        super().__init__()
        self.setProperty("kind", "sidebar")
        self.setFixedWidth(current_look().px(WIDTH))
        self.model = ConversationModel()
        self.model.renamed.connect(self.renamed)
        self.search = _Search(self.tr("Search"), name=self.tr("Search conversations"))
        self.search.setProperty("kind", "search")
        self.search.textChanged.connect(self.searched)
        self.search.returnPressed.connect(self._open_first)
        self.search.left.connect(self._leave_search)
        self.search.went_down.connect(self._enter_list)
        new = Button("", self.new_wanted.emit, kind="icon", icon="plus", name=self.tr("New chat"))
        new.setToolTip(with_keys(self.tr("New chat"), "Ctrl+N"))
        self.search.setToolTip(with_keys(self.tr("Search conversations"), "Ctrl+K"))
        more = Button("", icon="more", kind="icon", name=self.tr("Import and export"))
        more.clicked.connect(lambda: self._show_more(more))
        self.view = _View(self.model)
        self.view.opened.connect(self.opened)
        self.view.deleted.connect(self.deleted)
        self.view.menu_wanted.connect(self._show_menu)
        self._fault = Text(tone="danger", size="caption", wrap=True, selectable=True)
        self._fault.setContentsMargins(MEDIUM, SMALL, MEDIUM, SMALL)
        self._fault.hide()
        self._empty = Text(tone="faint", size="caption", wrap=True)
        self._empty.setAlignment(Qt.AlignmentFlag.AlignHCenter)
        head = row(self.search, new, more, spacing=2)
        head.setContentsMargins(MEDIUM, MEDIUM, SMALL, SMALL)
        self._empty.setContentsMargins(MEDIUM, SMALL, MEDIUM, 0)
        self.setLayout(column(head, self._fault, self._empty, self.view, spacing=0))
        self.layout().setStretch(3, 1)  # type: ignore[union-attr]
        self.layout().setContentsMargins(0, 0, 1, SMALL)  # type: ignore[union-attr]
        self._current = ""
        self.setTabOrder(self.search, new)
        self.setTabOrder(new, more)
        self.setTabOrder(more, self.view)
        self._after_typing: Sequence[Listed] | None = None
        self.view.rows.closeEditor.connect(self._typed, Qt.ConnectionType.QueuedConnection)
        self.model.modelReset.connect(self._on_reset)
        self._on_reset()

    def show_listed(self, listed: Sequence[Listed]) -> None:
        """Once no title is being typed. What is in view stays there; the open one is followed if it is in view."""
        self._after_typing = None
        if self.view.is_typing:
            self._after_typing = listed
            return
        self._be_found(False)
        bar = self.view.verticalScrollBar()
        at, follows = bar.value(), self._is_current_seen
        self.model.show_listed(listed, date.fromtimestamp(time.time()))
        self._on_reset()
        bar.setValue(at)
        if follows:
            self._select()

    @property
    def _is_current_seen(self) -> bool:
        """Whether the open one is in view, or not in the list yet."""
        rect = self.view.visualRect(self.model.index_of(self._current))
        return rect.isEmpty() or rect.intersects(self.view.viewport().rect())

    def _typed(self) -> None:
        if self._after_typing is not None:
            self.show_listed(self._after_typing)
        bar = self.view.verticalScrollBar()
        at = bar.value()
        self._select()  # the open one, in place of the one whose title was typed
        bar.setValue(at)

    def show_fault(self, why: str) -> None:
        """Why chats cannot be read or kept just now; "" where they can."""
        self._fault.setText(why)
        self._fault.setVisible(bool(why))
        self._show_emptiness()

    def show_found(self, found: Sequence[Found]) -> None:
        self._be_found(True)
        self.model.show_found(found)
        self._on_reset()

    def show_current(self, conversation_id: str) -> None:
        """That one is open; none of the list where it is not in it."""
        if conversation_id != self._current:
            self._current = conversation_id
            self._select()

    def title_of(self, conversation_id: str) -> str:
        """Empty where it is not in the list."""
        index = self.model.index_of(conversation_id)
        return str(index.data()) if index.isValid() else ""

    def rename(self, conversation_id: str) -> None:
        """Have its title typed in its place."""
        if (index := self.model.index_of(conversation_id)).isValid():
            self.view.setCurrentIndex(index)
            self.view.edit(index)

    def menu_of(self, conversation_id: str) -> QMenu:
        index = self.model.index_of(conversation_id)
        is_pinned = bool(index.data(_IS_PINNED))
        menu = Menu(self)
        menu.addAction(self.tr("Rename"), lambda: self.rename(conversation_id))
        menu.addAction(
            self.tr("Unpin") if is_pinned else self.tr("Pin"),
            lambda: self.pinned.emit(conversation_id, not is_pinned),
        )
        menu.addAction(self.tr("Export…"), lambda: self.exported.emit(conversation_id))
        menu.addSeparator()
        menu.addAction(self.tr("Delete"), lambda: self.deleted.emit(conversation_id))
        return menu

    def more_menu(self) -> QMenu:
        menu = Menu(self)
        menu.addAction(self.tr("Import…"), self.import_wanted.emit)
        export = menu.addAction(self.tr("Export all…"), self.export_all_wanted.emit)
        export.setEnabled(self.model.rowCount() > 0 or bool(self.search.text()))
        return menu

    def _first(self) -> QModelIndex:
        rows = (self.model.index(at) for at in range(self.model.rowCount()))
        return next((index for index in rows if not index.data(_IS_HEADER)), QModelIndex())

    def _open_first(self) -> None:
        if (index := self._first()).isValid():
            self.opened.emit(index.data(_ID))

    def _leave_search(self) -> None:
        self.search.clear()
        self.left_search.emit()

    def _enter_list(self) -> None:
        if not self.view.currentIndex().isValid():
            self.view.setCurrentIndex(self._first())
        self.view.setFocus(Qt.FocusReason.TabFocusReason)

    def _show_menu(self, conversation_id: str, at: QPoint) -> None:
        menu = self.menu_of(conversation_id)
        menu.exec(at)
        menu.deleteLater()

    def _show_more(self, beside: QWidget) -> None:
        menu = self.more_menu()
        menu.exec(beside.mapToGlobal(QPoint(0, beside.height() + 2)))
        menu.deleteLater()

    def _be_found(self, is_found: bool) -> None:
        if self.view.rows.is_found != is_found:
            self.view.rows.is_found = is_found
            self.model.show_found([])

    def _on_reset(self) -> None:
        self._show_emptiness()
        self._select()

    def _show_emptiness(self) -> None:
        is_empty = self.model.rowCount() == 0
        self._empty.setVisible(is_empty and not self._fault.text())
        self._empty.setText(
            self.tr("Nothing found. Try fewer words.")
            if self.search.text().strip()
            else self.tr("Conversations are listed here.")
        )

    def _select(self) -> None:
        index = self.model.index_of(self._current)
        if index.isValid():
            self.view.setCurrentIndex(index)
            above = index.siblingAtRow(index.row() - 1)
            if above.isValid() and above.data(_IS_HEADER):
                self.view.scrollTo(above)
        else:
            self.view.clearSelection()
            self.view.setCurrentIndex(QModelIndex())


def _one_line(snippet: str) -> str:
    """Without line breaks, and without the marks of Markdown that would only disturb."""
    return " ".join(snippet.replace("*", "").replace("`", "").split())


def _draw_line(painter: QPainter, rect: QRect, text: str) -> None:
    elided = painter.fontMetrics().elidedText(text, Qt.TextElideMode.ElideRight, rect.width())
    painter.drawText(rect, Qt.AlignmentFlag.AlignVCenter | Qt.AlignmentFlag.AlignLeft, elided)


def _draw_snippet(painter: QPainter, rect: QRect, snippet: str) -> None:
    """What was found in strong letters; begun near the first hit, so that it is seen in a narrow list."""
    look = current_look()
    plain, strong = look.font(CAPTION_PX), look.font(CAPTION_PX, strong=True)
    first = snippet.find(MARK_BEGIN)
    if first > 24:
        cut = snippet.find(" ", first - 16)
        snippet = "…" + snippet[cut + 1 if 0 <= cut < first else first :]
    left, is_hit = rect.left(), False
    for piece in snippet.replace(MARK_END, MARK_BEGIN).split(MARK_BEGIN):
        metrics = QFontMetrics(strong if is_hit else plain)
        painter.setFont(strong if is_hit else plain)
        painter.setPen(look.colour("local" if is_hit else "text_faint"))
        room = rect.right() - left
        if room <= 0:
            return
        place = QRect(left, rect.top(), room, rect.height())
        alignment = Qt.AlignmentFlag.AlignVCenter | Qt.AlignmentFlag.AlignLeft
        painter.drawText(place, alignment, metrics.elidedText(piece, Qt.TextElideMode.ElideRight, room))
        left += metrics.horizontalAdvance(piece)
        is_hit = not is_hit
