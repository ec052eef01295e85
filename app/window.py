"""The frame: pages to the left, the title and how the two computers are above, a banner below when one is needed."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable

from PySide6.QtCore import QSize, Qt, QTimer, Signal
from PySide6.QtGui import QCloseEvent, QKeySequence, QPaintEvent, QResizeEvent, QShortcut, QShowEvent
from PySide6.QtWidgets import (
    QButtonGroup,
    QFrame,
    QMainWindow,
    QStackedWidget,
    QVBoxLayout,
    QWidget,
)
from shiboken6 import isValid

from app.chats.titles import shortened
from app.context import Context, is_there
from app.look.look import current_look
from app.look.measures import LARGE, MEDIUM, SMALL
from app.node.link_report import about
from app.pages.page import Page
from app.state import NodePresence
from app.telemetry import figures
from app.troubles import Remedy, Trouble, worst
from app.widgets.basics import Button, Text, row, with_keys
from app.widgets.feedback import Action, Banner, Dot, Toast
from app.words import translate

_NARROW = 1000
_NAV_WIDTH = 168
_NAV_NARROW = 58

# Of the window's icon, which systems show at many sizes.
_ICON = 64

# Of a computer's name in the status chip.
_NAME_CHARS = 20

# Pages with a number key.
_NUMBERED = 6

# How pages are made; the first word is the page's name.
PageMaker = Callable[[Context], Page]


class MainWindow(QMainWindow):
    """`closed` is sent when the user closes it, `quit_asked` at the keys for that: what becomes of Baton is another's
    decision.

    `notified` has a title and a sentence of long work that is over, and is sent while another window is in front.
    """

    closed = Signal()
    quit_asked = Signal()
    notified = Signal(str, str)

    def __init__(self, context: Context, pages: dict[str, tuple[str, str, PageMaker]]) -> None:
        """`pages` by name: the word in the navigation, its icon, and what makes the page when it is first shown.

        One without a word is not in the navigation.
        """
        super().__init__()
        context.shell = self
        self._context = context
        self._pages = pages
        self._made: dict[str, Page] = {}
        self._page = ""
        self._first = ""
        self._is_filled = False
        self._left_by: QWidget | None = None
        self.setWindowTitle("Baton")
        self.setMinimumSize(QSize(current_look().px(720), 520))
        self._navigation = _Navigation({name: page for name, page in pages.items() if page[0]})
        self._navigation.chosen.connect(self.go)
        self._title = Text(size="title")
        self._status = _Status(context, lambda: self.go("cluster"))
        self._stack = QStackedWidget()
        self._banner = Banner()
        self._lay_out()
        self._toast = Toast(self, self._under_toast)
        self._bind_keys()
        context.state.presence_changed.connect(self._on_presence)
        current_look().changed.connect(self._show_icon)
        self._show_icon()
        context.state.changed.connect(self._on_changed)
        self._on_presence()

    def _lay_out(self) -> None:
        bar = QFrame()
        bar.setProperty("kind", "topbar")
        bar.setFixedHeight(max(52, current_look().px(44)))
        self._bar = bar
        self._header_place = row(spacing=SMALL)
        bar.setLayout(row(self._title, LARGE, self._header_place, None, self._status, spacing=SMALL))
        bar.layout().setContentsMargins(24, 0, LARGE, 0)  # type: ignore[union-attr]
        foot = QWidget()
        foot.setLayout(row(self._banner))
        foot.layout().setContentsMargins(LARGE, 0, LARGE, MEDIUM)  # type: ignore[union-attr]
        self._foot = foot
        right = QVBoxLayout()
        right.setContentsMargins(0, 0, 0, 0)
        right.setSpacing(0)
        right.addWidget(bar)
        right.addWidget(self._stack, 1)
        right.addWidget(foot)
        body = QWidget()
        body.setObjectName("page")
        around = row(self._navigation, spacing=0)
        around.addLayout(right, 1)
        body.setLayout(around)
        self.setCentralWidget(body)
        foot.hide()

    def begin_with(self, page: str) -> None:
        """As `go`, but the frame is painted first and the page made after: Baton is seen in half the time."""
        self._first = page
        self._title.setText(_word(self._pages[page]))
        self._navigation.show_page(page)

    # The shell that pages speak to.

    def toast(self, text: str, action: Action | None = None) -> None:
        self._toast.say(text, action)

    def go(self, page: str) -> None:
        if page == self._page or page not in self._pages:
            return
        if page not in self._made:
            self._made[page] = made = self._pages[page][2](self._context)
            self._stack.addWidget(made)
            # It stays; a collector that went through all of it each time would stop the window for 50 ms and more.
            gc.freeze()
            # It is off while the program starts.
            gc.enable()
        self._page = page
        shown = self._made[page]
        self._title.setText(_word(self._pages[page]))
        self._is_filled = shown.fills_window
        self._navigation.setVisible(not self._is_filled)
        self._bar.setVisible(not self._is_filled)
        self._on_presence()
        self._navigation.show_page(page)
        self._show_header(shown.header())
        # else the first button of the page gets it, and a ring that nobody asked for
        self._stack.setFocus()
        self._stack.setCurrentWidget(shown)
        shown.shown()

    def _under_toast(self) -> list[QWidget]:
        """What a toast must not cover."""
        page = self._made.get(self._page)
        return [each for each in (self._foot, page.foot if page else None) if each is not None]

    def notify(self, title: str, text: str) -> None:
        if not self.isActiveWindow():
            self.notified.emit(title, text)

    def page(self, name: str) -> Page:
        """The page of that name, made if it was not yet."""
        if name not in self._made:
            current = self._page
            self.go(name)
            if current:
                self.go(current)
        return self._made[name]

    def end(self) -> None:
        """No page is shown again."""
        for page in self._made.values():
            page.end()

    @property
    def page_shown(self) -> str:
        return self._page or self._first

    def banner(self, text: str, *actions: Action, tone: str = "warning") -> None:
        """Something that needs the user; "" takes it away."""
        self._foot.setVisible(bool(text))
        if text:
            self._banner.say(text, *actions, tone=tone)
        else:
            self._banner.silence()

    def _show_header(self, widget: QWidget | None) -> None:
        while (item := self._header_place.takeAt(0)) is not None:
            if (old := item.widget()) is not None:
                old.setParent(None)
        if widget is not None:
            self._header_place.addWidget(widget)

    def _show_icon(self) -> None:
        self.setWindowIcon(current_look().icon("baton", "local", _ICON))

    def _on_presence(self) -> None:
        state = self._context.state
        if state.presence is NodePresence.GONE:
            self.banner(
                self.tr("{0} Your chats are safe. Start it again to get answers.").format(state.fault),
                Action(text=self.tr("Start it again"), run=state.begin),
                tone="danger",
            )
        else:
            self._show_trouble()

    def _on_changed(self, part: str) -> None:
        if (
            part in ("engines", "workers", "peers", "permission")
            and self._context.state.presence is NodePresence.THERE
        ):
            self._show_trouble()

    def _show_trouble(self) -> None:
        state = self._context.state
        if self._is_filled:
            self.banner("")
            return
        told = {name: state.part(name) or [] for name in ("engines", "workers", "permission")}
        peer = self._context.peer
        trouble = worst({**told, "peers": [] if peer is None else [peer, *self._context.other_peers]})
        # Cluster tells of it at more length
        if trouble is None or (trouble.kind != "permission denied" and self._page == "cluster"):
            self.banner("")
            return
        self.banner(self._sentence(trouble), *self._ways_out(trouble), tone=trouble.tone)

    def _sentence(self, trouble: Trouble) -> str:
        detail = f": {trouble.detail}" if trouble.detail else ""
        match trouble.kind:
            case "engine failed":
                return self.tr("{0} could not be kept loaded{1}.").format(trouble.subject, detail)
            case "engine restarting":
                return self.tr("{0} stopped{1}. It is being started again, and your chats are safe.").format(
                    trouble.subject, detail
                )
            case "worker restarting":
                return self.tr(
                    "The worker of {0} stopped{1}. It is being started again, and {2} prefills by itself meanwhile."
                ).format(trouble.subject, detail, trouble.served)
            case "peer away":
                why = f" {about(trouble.detail, trouble.subject)}" if trouble.detail else ""
                return self.tr("{0} is away.{1} Answers go on here, prefilled on this computer.").format(
                    trouble.subject, why
                )
        return trouble.detail

    def _ways_out(self, trouble: Trouble) -> tuple[Action, ...]:
        context, model = self._context, {"model": trouble.subject}
        match trouble.remedy:
            case Remedy.LOAD_AGAIN:
                return (
                    Action(
                        text=self.tr("Leave it unloaded"),
                        run=lambda: context.bridge.run(
                            context.client.post("/models/unload", model), on_error=context.tell
                        ),
                    ),
                    Action(
                        text=self.tr("Load it again"),
                        run=lambda: context.bridge.run(
                            context.client.endpoint_post("/models/load", model), on_error=context.tell
                        ),
                    ),
                )
            case Remedy.OPEN_SETUP:
                return (Action(text=self.tr("What to do"), run=lambda: self.go("setup")),)
        see = Action(text=self.tr("See Cluster"), run=lambda: self.go("cluster"))
        if trouble.remedy is Remedy.RECONNECT:
            return see, Action(text=self.tr("Reconnect"), run=lambda: self._call(trouble))
        return (see,)

    def _call(self, trouble: Trouble) -> None:
        context = self._context
        self.toast(self.tr("Calling {} at every address that is known of it.").format(trouble.subject))
        context.bridge.run(context.client.post(f"/peers/{trouble.node_id}/call"), on_error=context.tell)

    def _bind_keys(self) -> None:
        for name, keys in _keys_of(self._pages).items():
            self._key(keys, lambda name=name: self._go_by_key(name))  # type: ignore[misc]
        self._key("Ctrl+,", lambda: self._go_by_key("settings"))
        self._key(QKeySequence(QKeySequence.StandardKey.Quit), self.quit_asked.emit)

    def _go_by_key(self, page: str) -> None:
        if not self._is_filled:
            self.go(page)

    def _key(self, keys: str | QKeySequence, run: Callable[[], object]) -> None:
        QShortcut(QKeySequence(keys), self, activated=run)  # type: ignore[call-overload]

    def paintEvent(self, event: QPaintEvent) -> None:
        super().paintEvent(event)
        if self._first and not self._page:
            QTimer.singleShot(0, self._go_to_first)

    def _go_to_first(self) -> None:
        # Something else may have been opened meanwhile, or the first page by an earlier paint.
        if not self._page:
            self.go(self._first)

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self._navigation.set_narrow(event.size().width() < current_look().px(_NARROW))

    def focusNextPrevChild(self, forward: bool) -> bool:
        """Qt asks for this as well where a control that has the focus is hidden or disabled, as a button that was just
        pressed: then the page has it, in place of some other control, and Tab goes back to that button."""
        held = self.focusWidget()
        if held is not None and not (held.isVisible() and held.isEnabled()):
            self._left_by = held
            self._stack.setFocus()
            return True
        left, self._left_by = self._left_by, None
        if held is self._stack and left is not None and isValid(left) and _can_take_focus(left):
            left.setFocus(Qt.FocusReason.TabFocusReason)
            return True
        return super().focusNextPrevChild(forward)

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        if self.focusWidget() is None:
            self._stack.setFocus()

    def closeEvent(self, event: QCloseEvent) -> None:
        event.ignore()
        self.closed.emit()


def _keys_of(pages: Iterable[str]) -> dict[str, str]:
    """The shortcut of each of the first pages."""
    return {name: f"Ctrl+{number}" for number, name in enumerate(pages, 1) if number <= _NUMBERED}


class _Navigation(QFrame):
    """The pages' names; icons alone where the window is narrow."""

    chosen = Signal(str)

    def __init__(self, pages: dict[str, tuple[str, str, PageMaker]]) -> None:
        super().__init__()
        self.setProperty("kind", "sidebar")
        self._group = QButtonGroup(self)
        self._buttons: dict[str, tuple[Button, str]] = {}
        layout = QVBoxLayout(self)
        layout.setContentsMargins(SMALL, MEDIUM, SMALL, MEDIUM)
        layout.setSpacing(2)
        keys = _keys_of(pages)
        for name, page in pages.items():
            word, icon = _word(page), page[1]
            if name == "settings":
                layout.addStretch(1)
            button = Button(word, lambda name=name: self.chosen.emit(name), kind="nav", icon=icon)  # type: ignore[misc]
            button.setFocusPolicy(Qt.FocusPolicy.TabFocus)
            button.setAccessibleName(word)
            button.setCheckable(True)
            # read aloud as one of several; what it does is the group's
            button.setAutoExclusive(True)
            self._group.addButton(button)
            button.setToolTip(with_keys(word, keys[name]) if name in keys else word)
            self._buttons[name] = button, word
            layout.addWidget(button)
        self._is_narrow: bool | None = None
        self.set_narrow(False)

    def show_page(self, name: str) -> None:
        if name in self._buttons:
            self._buttons[name][0].setChecked(True)
        # arrow keys go to the others
        for button, _ in self._buttons.values():
            is_stop = button.isChecked()
            button.setFocusPolicy(Qt.FocusPolicy.TabFocus if is_stop else Qt.FocusPolicy.NoFocus)

    def set_narrow(self, narrow: bool) -> None:
        if narrow is self._is_narrow:
            return
        self._is_narrow = narrow
        self.setFixedWidth(_NAV_NARROW if narrow else current_look().px(_NAV_WIDTH))
        for button, word in self._buttons.values():
            # the space keeps the word off its icon
            button.setText("" if narrow else f" {word}")


class _Status(Button):
    """The two computers and the cable in a few words; opens the cluster."""

    def __init__(self, context: Context, on_click: Callable[[], object]) -> None:
        super().__init__("", on_click, kind="chip")
        self._context = context
        self._dot = Dot()
        self._words = Text(size="caption", tone="soft")
        self._words.setAttribute(Qt.WidgetAttribute.WA_TransparentForMouseEvents)
        self._dot.setAttribute(Qt.WidgetAttribute.WA_TransparentForMouseEvents)
        self.setLayout(row(self._dot, self._words, spacing=SMALL))
        self.layout().setContentsMargins(MEDIUM, 2, MEDIUM, 2)  # type: ignore[union-attr]
        context.state.changed.connect(self._on_changed)
        context.state.presence_changed.connect(self._show)
        self._show()

    def sizeHint(self) -> QSize:
        layout = self.layout()
        return QSize(layout.sizeHint().width() if layout else 0, current_look().px(28))

    def _on_changed(self, part: str) -> None:
        if part in ("node", "peers", "link", "engines"):
            self._show()

    def _show(self) -> None:
        tone, words = self._described()
        self._dot.show_tone(tone)
        self._words.setText(words)
        self.setAccessibleName(self.tr("{}. Opens Cluster").format(words))
        self.updateGeometry()

    def _described(self) -> tuple[str, str]:
        context, state = self._context, self._context.state
        if state.presence is NodePresence.STARTING:
            return "warning", self.tr("Starting")
        if state.presence is NodePresence.GONE:
            return "danger", self.tr("Not running")
        peer = context.peer
        if peer is None:
            return "local", self.tr("{} alone").format(shortened(context.computer, _NAME_CHARS))
        here, there = (shortened(name, _NAME_CHARS) for name in (context.computer, peer["name"]))
        if not is_there(peer):
            return "warning", self.tr("{0}, {1} is away").format(here, there)
        ceiling = (state.part("link", {}).get("ceilings") or {}).get(peer["node_id"]) or {}
        speed = min(ceiling.get("send_gbps", 0), ceiling.get("receive_gbps", 0))
        return "local", f"{here} ⇄ {there}" + (f"  {figures.rate(speed * 1e9 / 8)}" if speed else "")


def _can_take_focus(widget: QWidget) -> bool:
    return widget.isVisible() and widget.isEnabled()


def _word(page: tuple[str, str, PageMaker]) -> str:
    """What a page is called; "" for one that the navigation does not have."""
    return translate("Pages", page[0]) if page[0] else ""
