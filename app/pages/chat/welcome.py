"""What an empty chat says: what it is good for, with a few beginnings, or what is missing before it can answer."""

from __future__ import annotations

from PySide6.QtCore import QSize, Qt, Signal
from PySide6.QtWidgets import QGridLayout, QSizePolicy, QStackedWidget, QWidget

from app.amounts import size_text
from app.chats.models import Coming, Share
from app.look.look import current_look
from app.look.measures import HUGE, LARGE, MEDIUM, SMALL
from app.widgets.basics import Button, Icon, Text, column, row
from app.widgets.feedback import Action, EmptyState


class Welcome(QStackedWidget):
    """`begun` tells a beginning to write into the composer, `attach_wanted` that one of them needs a file."""

    begun = Signal(str)
    attach_wanted = Signal(str)
    models_wanted = Signal()

    def __init__(self) -> None:
        super().__init__()
        self._title = Text(self.tr("What would you like to know?"), size="heading")
        self._where = Text(tone="soft", wrap=True)
        for text in (self._title, self._where):
            text.setAlignment(Qt.AlignmentFlag.AlignHCenter)
        grid = QGridLayout()
        grid.setSpacing(MEDIUM)
        for at, (icon, name, sentence, beginning, with_file) in enumerate(self._beginnings()):
            card = _Beginning(icon, name, sentence)
            signal = self.attach_wanted if with_file else self.begun
            card.clicked.connect(lambda _=False, signal=signal, text=beginning: signal.emit(text))
            grid.addWidget(card, at // 2, at % 2)
        cards = QWidget()
        cards.setLayout(grid)
        grid.setContentsMargins(0, 0, 0, 0)
        cards.setMaximumWidth(current_look().px(560))
        cards.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Fixed)
        around = row(spacing=0)
        around.addStretch(1)
        around.addWidget(cards, 1000)
        around.addStretch(1)
        asking = QWidget()
        asking.setLayout(
            column(None, self._title, self._where, SMALL, around, None, margin=HUGE, spacing=MEDIUM)
        )
        self._no_model = EmptyState(
            "models",
            self.tr("No model is on this computer yet"),
            self.tr(
                "A model is the file that answers. Get a small one to begin with; it takes a minute or two."
            ),
            Action(text=self.tr("Choose a model"), run=self.models_wanted.emit),
        )
        self._coming = EmptyState(
            "download", "", "", Action(text=self.tr("See how it gets on"), run=self.models_wanted.emit)
        )
        self._starting = EmptyState(
            "clock", self.tr("Starting"), self.tr("Baton's node is starting on this computer.")
        )
        for page in (asking, self._no_model, self._starting, self._coming):
            self.addWidget(page)

    def say(
        self, *, is_there: bool, has_models: bool, coming: Coming | None, peer: str, share: Share
    ) -> None:
        """`coming` is a model on its way here, `peer` the name of the other computer, `share` what it does here."""
        without = 1 if coming is None else 3
        self.setCurrentIndex(2 if not is_there else 0 if has_models else without)
        if coming is not None:
            self._coming.say(self.tr("A model is on its way"), self._how_far(coming))
        where = {
            Share.NOTHING: self.tr("Nothing leaves this computer."),
            Share.READS: self.tr("Nothing leaves your computers. Long prompts are read on {peer}."),
            Share.WRITES: self.tr("Nothing leaves your computers. Answers are written on {peer}."),
        }
        self._where.setText(where[share].format(peer=peer))

    def _how_far(self, coming: Coming) -> str:
        if not coming.total_bytes:
            return self.tr("{} begins to come. You can ask as soon as it is here.").format(coming.name)
        return self.tr("{0} of {1} of {2} have come. You can ask as soon as it is here.").format(
            size_text(coming.done_bytes), size_text(coming.total_bytes), coming.name
        )

    def _beginnings(self) -> tuple[tuple[str, str, str, str, bool], ...]:
        return (
            (
                "file",
                self.tr("Summarise a file"),
                self.tr("Text or PDF, as long as it fits"),
                self.tr("Summarise the attached file in ten lines."),
                True,
            ),
            (
                "edit",
                self.tr("Draft a message"),
                self.tr("From a few words of yours"),
                self.tr("Write a short, friendly message that says: "),
                False,
            ),
            (
                "branch",
                self.tr("Compare two options"),
                self.tr("What speaks for each"),
                self.tr("Compare these two in a table, and say which one you would take and why: "),
                False,
            ),
            (
                "chat",
                self.tr("Explain some code"),
                self.tr("Line by line, with its traps"),
                self.tr("Explain this code line by line, and point out mistakes:\n\n"),
                False,
            ),
        )


class _Beginning(Button):
    """A card that can be clicked: an icon, a name and a line."""

    def __init__(self, icon: str, name: str, sentence: str) -> None:
        super().__init__("", kind="tile")
        self.setAccessibleName(name)
        self.setAccessibleDescription(sentence)
        words = column(Text(name, strong=True), Text(sentence, size="caption", tone="soft"), spacing=2)
        self.setLayout(row(Icon(icon, "local"), words, spacing=MEDIUM))
        self.layout().setContentsMargins(LARGE, MEDIUM, MEDIUM, MEDIUM)  # type: ignore[union-attr]
        self.layout().setStretch(1, 1)  # type: ignore[union-attr]
        for child in self.findChildren(QWidget):
            child.setAttribute(Qt.WidgetAttribute.WA_TransparentForMouseEvents)
        self.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Fixed)

    def sizeHint(self) -> QSize:
        layout = self.layout()
        return layout.sizeHint() if layout is not None else super().sizeHint()

    def minimumSizeHint(self) -> QSize:
        return QSize(120, self.sizeHint().height())
