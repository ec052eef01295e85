"""The slots of an engine: what each does, how far it is, what it holds, and how fast it goes."""

from __future__ import annotations

from PySide6.QtCore import Qt
from PySide6.QtWidgets import QGridLayout, QWidget

from app.look.measures import LARGE, SMALL
from app.telemetry import figures
from app.telemetry.ledger import Slot
from app.telemetry.sides import Sides
from app.widgets.basics import Text, column, row
from app.widgets.feedback import Dot, Meter
from app.words import translate


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
        for place, head in enumerate(heads):
            text = Text(head, size="caption", tone="faint", strong=True)
            text.setAlignment(_side(place))
            self._grid.addWidget(text, 0, place)
        self._rows: list[_Row] = []

    def show_slots(self, slots: list[Slot], sides: Sides) -> None:
        while len(self._rows) < len(slots):
            self._rows.append(_Row(self._grid, len(self._rows) + 1))
        for index, line in enumerate(self._rows):
            line.show_slot(slots[index] if index < len(slots) else None, sides)


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
        progress.setLayout(column(self._progress, self._meter, spacing=2))
        progress.setMinimumHeight(28)
        self._widgets = (self._number, state, progress, self._cached, self._speed)
        for place, widget in enumerate(self._widgets):
            if isinstance(widget, Text):
                widget.setAlignment(_side(place))
            grid.addWidget(widget, index, place)

    def show_slot(self, slot: Slot | None, sides: Sides) -> None:
        for widget in self._widgets:
            widget.setVisible(slot is not None)
        if slot is None:
            return
        words, hue = describe(slot, sides)
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


def describe(slot: Slot, sides: Sides) -> tuple[str, str]:
    """What it does in a word or two, and the hue of who does it."""
    worker, decoder = sides.worker_hue, sides.decoder_hue
    known = {
        "idle": (translate("SlotsTable", "idle"), "text_faint"),
        "restoring": (translate("SlotsTable", "restoring"), decoder),
        "prefill_local": (translate("SlotsTable", "prefill: {}").format(sides.decoder), decoder),
        "prefill_remote": (translate("SlotsTable", "prefill: {}").format(sides.worker), worker),
        "decode": (translate("SlotsTable", "decode"), decoder),
        "releasing": (translate("SlotsTable", "releasing"), "warning"),
    }
    return known.get(slot.state, (slot.state.replace("_", " "), "text_faint"))


def _progress(slot: Slot) -> str:
    if slot.state.startswith("prefill"):
        return translate("SlotsTable", "{} of {}").format(
            figures.count(slot.n_processed), figures.count(slot.n_prompt)
        )
    if slot.state == "decode":
        return translate("SlotsTable", "{} tokens").format(figures.count(slot.n_decoded))
    return ""


def _side(column: int) -> Qt.AlignmentFlag:
    side = Qt.AlignmentFlag.AlignRight if column >= 3 else Qt.AlignmentFlag.AlignLeft
    return side | Qt.AlignmentFlag.AlignVCenter
