"""The slots of an engine: what each does, how far it is, what it holds, and how fast it goes."""

from __future__ import annotations

from PySide6.QtCore import QCoreApplication, Qt
from PySide6.QtWidgets import QGridLayout, QWidget

from app.look.measures import LARGE, SMALL
from app.telemetry import figures
from app.telemetry.ledger import Slot
from app.widgets.basics import Text, row
from app.widgets.feedback import Dot, Meter

_COLUMNS = 5


class SlotsTable(QWidget):
    """A row for each slot, kept while their number stays."""

    def __init__(self) -> None:
        super().__init__()
        self._grid = QGridLayout(self)
        self._grid.setContentsMargins(0, 0, 0, 0)
        self._grid.setHorizontalSpacing(LARGE)
        self._grid.setVerticalSpacing(SMALL)
        self._grid.setColumnStretch(2, 1)
        heads = (
            self.tr("Slot"),
            self.tr("State"),
            self.tr("Progress"),
            self.tr("Cached"),
            self.tr("Speed"),
        )
        for column, head in enumerate(heads):
            text = Text(head, size="caption", tone="faint", strong=True)
            text.setAlignment(_side(column))
            self._grid.addWidget(text, 0, column)
        self._rows: list[_Row] = []

    def show_slots(self, slots: list[Slot], hues: tuple[str, str]) -> None:
        """`hues` are the worker's and the decoder's."""
        while len(self._rows) < len(slots):
            self._rows.append(_Row(self._grid, len(self._rows) + 1))
        for index, line in enumerate(self._rows):
            line.show_slot(slots[index] if index < len(slots) else None, hues)


class _Row:
    """The parts of one row of the grid."""

    def __init__(self, grid: QGridLayout, index: int) -> None:
        self._number = Text(tone="soft")
        self._dot = Dot()
        self._state = Text()
        self._meter = Meter(4)
        self._progress = Text(size="caption", tone="soft")
        self._cached = Text(tone="soft")
        self._speed = Text()
        state, progress = QWidget(), QWidget()
        state.setLayout(row(self._dot, self._state, None))
        progress.setLayout(row(self._meter, self._progress))
        progress.layout().setStretch(0, 1)  # type: ignore[union-attr]
        self._widgets = (self._number, state, progress, self._cached, self._speed)
        for column, widget in enumerate(self._widgets):
            if isinstance(widget, Text):
                widget.setAlignment(_side(column))
            grid.addWidget(widget, index, column)

    def show_slot(self, slot: Slot | None, hues: tuple[str, str]) -> None:
        for widget in self._widgets:
            widget.setVisible(slot is not None)
        if slot is None:
            return
        words, hue = describe(slot, hues)
        is_idle = slot.state == "idle"
        self._number.setText(str(slot.number))
        self._dot.show_tone(hue, filled=not is_idle)
        self._state.setText(words)
        self._state.set_tone("faint" if is_idle else "")
        is_prefilling = slot.state.startswith("prefill")
        self._meter.setVisible(is_prefilling)
        self._meter.show_shares((slot.progress, hue))
        self._progress.setText(_progress(slot))
        self._cached.setText(figures.count(slot.n_cached))
        self._speed.setText(figures.speed(slot.tokens_per_s))
        self._speed.set_tone("faint" if slot.tokens_per_s is None else "")


def describe(slot: Slot, hues: tuple[str, str]) -> tuple[str, str]:
    """What it does in a word or two, and the hue of who does it."""
    worker, decoder = hues
    known = {
        "idle": (_tr("idle"), "text_faint"),
        "restoring": (_tr("bringing a prefix"), decoder),
        "prefill_local": (_tr("prefills here"), decoder),
        "prefill_remote": (_tr("prefilled remotely"), worker),
        "decode": (_tr("decodes"), decoder),
        "releasing": (_tr("letting go"), "warning"),
    }
    return known.get(slot.state, (slot.state.replace("_", " "), "text_faint"))


def _progress(slot: Slot) -> str:
    if slot.state.startswith("prefill"):
        return _tr("{} of {}").format(figures.count(slot.n_processed), figures.count(slot.n_prompt))
    if slot.state == "decode":
        return _tr("{} tokens").format(figures.count(slot.n_decoded))
    return ""


def _side(column: int) -> Qt.AlignmentFlag:
    side = Qt.AlignmentFlag.AlignRight if column >= 3 else Qt.AlignmentFlag.AlignLeft
    return side | Qt.AlignmentFlag.AlignVCenter


def _tr(words: str) -> str:
    return QCoreApplication.translate("SlotsTable", words)
