"""The first run: from one computer to two that answer as one, a step at a time. It can be left, and goes on there."""

from __future__ import annotations

from PySide6.QtCore import QPointF, QSize, Qt
from PySide6.QtGui import QKeyEvent, QPainter, QPaintEvent, QResizeEvent
from PySide6.QtWidgets import QFrame, QStackedWidget, QWidget

from app.context import Context
from app.look.look import current_look
from app.look.measures import HUGE, LARGE, MEDIUM, SCROLL_BAR, SMALL
from app.pages.page import Page
from app.state import NodePresence
from app.widgets.basics import Button, Line, Scrolled, Text, column, row
from app.widgets.feedback import announce
from app.wizard.course import Facts, Memory, Step, course, resumed, step_after, step_before
from app.wizard.step import Choice, StepView, Target
from app.wizard.steps.cable import CableStep
from app.wizard.steps.find import FindStep
from app.wizard.steps.model import ModelStep
from app.wizard.steps.pair import PairStep
from app.wizard.steps.permission import PermissionStep
from app.wizard.steps.ready import ReadyStep
from app.wizard.steps.roles import RolesStep
from app.wizard.steps.welcome import WelcomeStep

_VIEWS: dict[Step, type[StepView]] = {
    Step.WELCOME: WelcomeStep,
    Step.PERMISSION: PermissionStep,
    Step.FIND: FindStep,
    Step.PAIR: PairStep,
    Step.CABLE: CableStep,
    Step.MODEL: ModelStep,
    Step.ROLES: RolesStep,
    Step.READY: ReadyStep,
}

_WIDTH = 640


class WizardPage(Page):
    """`Back` and `Later` work in every step. Opened once more, it begins with finding a further computer."""

    fills_window = True

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self.memory = Memory(context.preferences)
        self.target = Target()
        self._wants_another = False
        self._step: Step | None = None
        self._is_open = False
        self._said = ""
        self._views: dict[Step, StepView] = {}
        self._scrolls: dict[Step, Scrolled] = {}
        self._back = Button(self.tr("Back"), self.go_back, kind="quiet", icon="left")
        self._later = Button(self.tr("Later"), self.put_off, kind="quiet")
        self._dots = _Dots()
        self._stack = QStackedWidget()
        starting = Text(self.tr("Starting Baton on this computer…"), tone="soft")
        starting.setAlignment(Qt.AlignmentFlag.AlignCenter)
        self._stack.addWidget(starting)
        self._other = Button(kind="quiet")
        self._other.clicked.connect(lambda _=False: self._act(self._view.other()))
        self._main = Button(kind="primary")
        self._main.clicked.connect(lambda _=False: self._act(self._view.choice()))
        self._lay_out()
        self.setFocusPolicy(Qt.FocusPolicy.StrongFocus)
        for button in (self._back, self._other, self._main):
            button.setEnabled(False)
        self._other.hide()
        self._main.hide()
        context.state.presence_changed.connect(self._on_presence)

    def _lay_out(self) -> None:
        top = row(self._back, None, self._later)
        top.setContentsMargins(LARGE, MEDIUM, LARGE, 0)
        head = QWidget()
        head.setLayout(top)
        dots = row(None, self._dots, None)
        dots.setContentsMargins(0, 0, 0, SMALL)
        foot = QFrame()
        inner = QWidget()
        inner.setMaximumWidth(current_look().px(_WIDTH))
        inner.setLayout(row(None, self._other, self._main, spacing=SMALL))
        inner.layout().setContentsMargins(HUGE, LARGE, HUGE, LARGE)  # type: ignore[union-attr]
        around = row(spacing=0)
        around.addStretch(1)
        around.addWidget(inner, 1000)
        around.addStretch(1)
        # Under the step, which keeps room for its scroll bar.
        around.setContentsMargins(0, 0, SCROLL_BAR, 0)
        foot.setLayout(around)
        foot.setFixedHeight(64)
        self.setLayout(column(head, dots, self._stack, Line(), foot, spacing=0))
        self.layout().setStretch(2, 1)  # type: ignore[union-attr]

    @property
    def step(self) -> Step | None:
        return self._step

    @property
    def _view(self) -> StepView:
        assert self._step is not None
        return self._views[self._step]

    # what a user does

    def keyPressEvent(self, event: QKeyEvent) -> None:
        """Enter is the main button, while nothing in the step has the focus."""
        is_enter = event.key() in (Qt.Key.Key_Return, Qt.Key.Key_Enter)
        if is_enter and self.hasFocus() and self._step is not None:
            self._act(self._view.choice())
        else:
            super().keyPressEvent(event)

    def shown(self) -> None:
        self._is_open = True
        if self.memory.is_over and self._step is None:
            self._begin_again()
        self._on_presence()

    def _begin_again(self) -> None:
        """It was finished or put off before: whoever opens it wants to go on, or to add a computer.

        Who has gone on alone is asked for the other computer again: for one computer, no page leads here.
        """
        if self.memory.step == Step.READY or self.memory.is_alone:
            self._wants_another = True
            self.memory.is_alone = False
            self.memory.step = Step.FIND
        elif self.memory.step in (Step.FIND, Step.PAIR):
            self._wants_another = self._facts.is_paired
        self.memory.is_over = False

    def go_back(self) -> None:
        if self._step is None or self._view.go_back():
            return
        if (before := step_before(self._step, self._facts)) is not None:
            self.go_to(before)

    def put_off(self) -> None:
        """Leave it; it goes on here the next time."""
        self.finish("chat")

    def finish(self, page: str) -> None:
        self.memory.is_over = True
        self._is_open = False
        if self._step is not None:
            self._view.leave()
            self._step = None
        self._wants_another = False
        self.context.shell.go(page)

    # what steps do

    def go_on(self) -> None:
        if self._step is not None:
            self.go_to(step_after(self._step, self._facts))

    def go_to(self, step: Step) -> None:
        if self._step is not None:
            self._view.leave()
        self._step = step
        self._said = ""
        self.memory.step = step
        if step not in self._views:
            self._views[step] = view = _VIEWS[step](self.context, self)
            self._scrolls[step] = scroll = Scrolled(view, width=current_look().px(_WIDTH))
            scroll.setFocusPolicy(Qt.FocusPolicy.NoFocus)
            self._stack.addWidget(scroll)
        view = self._views[step]
        view.set_air(self._air)
        scroll = self._scrolls[step]
        scroll.verticalScrollBar().setValue(0)
        self._stack.setCurrentWidget(scroll)
        self.setFocus()
        view.show_step()
        self.refresh()

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        if self._step is not None:
            self._view.set_air(self._air)

    @property
    def _air(self) -> int:
        """Above the title, where there is room for it."""
        return 40 if self.height() >= 720 else 0

    def refresh(self) -> None:
        if self._step is None:
            return
        self._show(self._main, self._view.choice())
        self._show(self._other, self._view.other())
        self._say()
        facts = self._facts
        self._back.setEnabled(step_before(self._step, facts) is not None)
        self._dots.show_place(course(facts), self._step)

    def _say(self) -> None:
        """What the step is, to who hears it alone."""
        self.setAccessibleName(self._view.title)
        if (said := f"{self._view.title}. {self._view.sentence}") != self._said:
            self._said = said
            announce(self, said)

    @property
    def _facts(self) -> Facts:
        state = self.context.state
        permission = state.part("permission", {}).get("state", "not_applicable")
        return Facts(
            asks_permission=permission != "not_applicable",
            is_paired=bool(state.part("peers", [])),
            is_alone=self.memory.is_alone and not state.part("peers", []),
            wants_another=self._wants_another,
        )

    def _act(self, choice: Choice | None) -> None:
        if choice is not None and choice.is_enabled:
            (choice.run or self.go_on)()

    def _show(self, button: Button, choice: Choice | None) -> None:
        button.setVisible(choice is not None)
        if choice is not None:
            button.setText(choice.text)
            button.setEnabled(choice.is_enabled)

    def _on_presence(self) -> None:
        """Where it goes on depends on what the node says."""
        is_there = self.context.state.presence is NodePresence.THERE
        if is_there and self._is_open and self._step is None:
            self.go_to(resumed(self.memory.step, self._facts))


class _Dots(QWidget):
    """How far one is: a dot for each step, the present one long."""

    def __init__(self) -> None:
        super().__init__()
        self._n, self._at = 0, 0
        current_look().changed.connect(self.update)

    def show_place(self, steps: tuple[Step, ...], step: Step) -> None:
        self._n = len(steps)
        self._at = steps.index(step) if step in steps else 0
        self.setAccessibleName(self.tr("Step {0} of {1}").format(self._at + 1, self._n))
        self.updateGeometry()
        self.update()

    def sizeHint(self) -> QSize:
        return QSize(self._n * 16 + 16, 12)

    def minimumSizeHint(self) -> QSize:
        return self.sizeHint()

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        painter.setPen(Qt.PenStyle.NoPen)
        look = current_look()
        x = 0.0
        for index in range(self._n):
            is_here = index == self._at
            painter.setBrush(look.colour("local" if index <= self._at else "border_strong"))
            width = 22 if is_here else 8
            if is_here:
                painter.drawRoundedRect(int(x), 2, width, 8, 4, 4)
            else:
                painter.drawEllipse(QPointF(x + 4, 6), 4, 4)
            x += width + 8
