"""What a step of the first run is: one idea, a column of parts under its title, and the button that goes on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from PySide6.QtCore import Signal
from PySide6.QtWidgets import QSpacerItem, QVBoxLayout, QWidget

from app.bridge import Job
from app.context import Context
from app.look.measures import LARGE, MEDIUM, SMALL
from app.widgets.basics import Text, column
from app.wizard.course import Memory, Step


@dataclass(frozen=True, kw_only=True)
class Target:
    """The computer that was chosen to pair with; "" where nobody was found. `shows_code`: it is typed here.

    `needs_baton`: this version has to be put there first.
    """

    name: str = ""
    node_id: str = ""
    shows_code: bool = False
    needs_baton: bool = False


class Guide(Protocol):
    """The wizard around a step."""

    memory: Memory
    target: Target

    def go_on(self) -> None: ...

    def go_to(self, step: Step) -> None: ...

    def finish(self, page: str) -> None:
        """The run is over; show that page."""

    def refresh(self) -> None:
        """The step's buttons are to be looked at again."""


@dataclass(frozen=True, kw_only=True)
class Choice:
    """A button at the foot of a step; `run` None goes on."""

    text: str
    run: Callable[[], object] | None = None
    is_enabled: bool = True


class StepView(QWidget):
    """One step. `choice` is its main button, `other` a quieter one beside it; None where there is none.

    What runs while it is shown is started by `start`, and ends when it is left.
    """

    left = Signal()

    def __init__(self, context: Context, guide: Guide) -> None:
        super().__init__()
        self.context, self.guide = context, guide
        self._jobs: list[Job] = []
        self._is_shown = False
        self._title = Text(size="heading", wrap=True)
        self._sentence = Text(tone="soft", wrap=True)
        self.body: QVBoxLayout = column(spacing=MEDIUM)
        whole = column(self._title, SMALL, self._sentence, LARGE, self.body, None, spacing=0)
        self._air = QSpacerItem(0, 0)
        whole.insertSpacerItem(0, self._air)
        self.setLayout(whole)
        context.state.changed.connect(self._on_changed)

    def set_air(self, px: int) -> None:
        """Room above the title."""
        self._air.changeSize(0, px)
        self.layout().invalidate()  # type: ignore[union-attr]

    def say(self, title: str, sentence: str) -> None:
        self._title.setText(title)
        self._sentence.setText(sentence)
        self._sentence.setVisible(bool(sentence))

    @property
    def title(self) -> str:
        return self._title.text()

    @property
    def sentence(self) -> str:
        return self._sentence.text()

    def choice(self) -> Choice | None:
        return Choice(text=self.tr("Continue"))

    def other(self) -> Choice | None:
        return None

    def show_step(self) -> None:
        """It has come into view."""
        self._is_shown = True
        self.refresh()

    def go_back(self) -> bool:
        """Whether Back led to an earlier part of this very step."""
        return False

    def leave(self) -> None:
        """It goes out of view, and what it has begun ends."""
        self._is_shown = False
        for job in self._jobs:
            job.cancel()
        self._jobs.clear()
        self.left.emit()

    def refresh(self) -> None:
        """Show what is known now."""

    def run(
        self,
        coroutine: Any,
        on_done: Callable[[Any], object] | None = None,
        on_error: Callable[[Any], object] | None = None,
    ) -> Job:
        return self._keep(self.context.bridge.run(coroutine, on_done, on_error or self.context.tell))

    def stream(
        self,
        items: Any,
        on_item: Callable[[Any], object],
        on_done: Callable[[Any], object] | None = None,
        on_error: Callable[[Any], object] | None = None,
    ) -> Job:
        return self._keep(self.context.bridge.stream(items, on_item, on_done, on_error or self.context.tell))

    def _keep(self, job: Job) -> Job:
        self._jobs = [each for each in self._jobs if each.is_running] + [job]
        return job

    @property
    def parts(self) -> frozenset[str]:
        """Names of the node's parts that the step shows."""
        return frozenset()

    def hear(self, part: str) -> None:
        """One of `parts` has changed while this is shown."""
        self.refresh()

    def _on_changed(self, part: str) -> None:
        if self._is_shown and part in self.parts:
            self.hear(part)
            self.guide.refresh()
