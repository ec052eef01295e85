"""A text laid out from top to bottom: only what somebody looks at, the rest by an estimate of its height.

A slot is a piece of the text with its height. Slots in view are parsed and laid out, and forgotten when they are far
away; their heights stay. Text that is added changes the last slots alone.
"""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import accumulate
from math import ceil

from PySide6.QtCore import QPointF, QRectF
from PySide6.QtGui import QPainter

from app.look.look import current_look
from app.pages.chat.transcript.blocks import Block, Code, Table, Words, blocks_of, separator, units_of
from app.pages.chat.transcript.boxes import (
    CELL_PAD,
    INDENT,
    Box,
    Hit,
    Style,
    Wide,
    box_of,
    code_height,
    gap_before,
    n_utf16,
    sliced_utf16,
)
from app.pages.chat.transcript.highlight import Run, highlight, is_loaded
from app.pages.chat.transcript.split import Kind, Piece, PlainSplitter, Splitter

# Code that grows is coloured anew no more often.
_COLOUR_EVERY_S = 0.25
# Letters are on average this much of their height wide.
_LETTER = 0.5

# A place in a flow: slot, unit, position.
Place = tuple[int, int, int]


@dataclass
class Slot:
    """`boxes` with their tops, where it is laid out; `height` is an estimate where it never was."""

    piece: Piece
    outline: Block
    gap: float = 0.0
    height: float = 0.0
    boxes: list[tuple[float, Box]] | None = None


@dataclass
class _Colours:
    """Those of code that grows, when they were last made."""

    slot: int = -1
    lines: tuple[str, ...] = ()
    runs: list[list[Run]] = field(default_factory=list)
    made_at_s: float = 0.0


class Flow:
    """`want_language` is asked for the colours of a language that is not loaded yet."""

    def __init__(
        self, text: str, style: Style, *, is_plain: bool, is_live: bool, want_language: Callable[[str], None]
    ) -> None:
        self._style = style
        self._width = 0.0
        self._is_live = is_live
        self._want_language = want_language
        self._splitter = PlainSplitter(_clean(text)) if is_plain else Splitter(_clean(text))
        self._laid: set[int] = set()
        self._wides: dict[tuple[int, int], Wide] = {}
        self._colours = _Colours()
        self._tops: list[float] = []
        self.slots: list[Slot] = []
        self._sync(0)

    @property
    def text(self) -> str:
        return self._splitter.text

    @property
    def height(self) -> float:
        return self.tops[-1]

    @property
    def tops(self) -> list[float]:
        """Where each slot begins, with the gap over it, and the end of all."""
        if not self._tops:
            self._tops = [0.0, *accumulate(slot.gap + slot.height for slot in self.slots)]
        return self._tops

    def set_width(self, width: float) -> None:
        if width == self._width:
            return
        self._width = width
        self.forget_all()
        for slot in self.slots:
            slot.height = self._estimate(slot)
        self._tops = []

    def feed(self, text: str) -> int:
        """Add text; returns the first slot that has changed."""
        first = self._splitter.feed(_clean(text))
        self._sync(first)
        return first

    def finish(self) -> None:
        """No more text will come."""
        if self._is_live:
            self._is_live = False
            self._forget(len(self.slots) - 1)

    # Layout.

    def lay_out(self, top: float, bottom: float) -> bool:
        """Lay out what is between; whether heights were not as they had been estimated."""
        tops = self.tops
        index = max(0, bisect_right(tops, top) - 1)
        y, has_changed = tops[index] if index < len(self.slots) else 0.0, False
        while index < len(self.slots) and y < bottom:
            slot = self.slots[index]
            if slot.boxes is None:
                before = slot.height
                self._lay(index)
                has_changed = has_changed or slot.height != before
            y += slot.gap + slot.height
            index += 1
        if has_changed:
            self._tops = []
        return has_changed

    def forget(self, top: float, bottom: float) -> None:
        """Forget what is laid out beyond these."""
        tops = self.tops
        for index in [at for at in self._laid if tops[at + 1] < top or tops[at] > bottom]:
            self._forget(index)

    def forget_all(self) -> None:
        for index in list(self._laid):
            self._forget(index)

    def _forget(self, index: int) -> None:
        if 0 <= index < len(self.slots):
            self.slots[index].boxes = None
        self._laid.discard(index)

    def _sync(self, first: int) -> None:
        """Bring the slots from `first` on to the splitter's pieces."""
        old = self.slots[first:]
        del self.slots[first:]
        for index, piece in enumerate(self._splitter.pieces[first:], first):
            kept = old[index - first] if index - first < len(old) else None
            if kept is not None and kept.piece == piece:
                self.slots.append(kept)
                continue
            outline = _outline(piece)
            before = self.slots[-1].outline if self.slots else None
            slot = Slot(piece=piece, outline=outline, gap=gap_before(outline, before))
            slot.height = self._estimate(slot)
            self.slots.append(slot)
            self._laid.discard(index)
            if piece.kind not in (Kind.CODE, Kind.TABLE):
                self._wides = {key: wide for key, wide in self._wides.items() if key[0] != index}
        self._laid = {index for index in self._laid if index < len(self.slots)}
        self._tops = []

    def _lay(self, index: int) -> None:
        slot = self.slots[index]
        head = self._head(index)
        if head != index and slot.piece.kind is Kind.TABLE and not self._wide(head, 0).columns:
            self._lay(head)
        boxes: list[tuple[float, Box]] = []
        y, before = 0.0, None
        for ordinal, block in enumerate(blocks_of(slot.piece)):
            if before is not None:
                y += gap_before(block, before)
            wide = self._wide(head, ordinal)
            box = box_of(block, self._width, self._style, wide, lambda code: self._runs(index, code))
            boxes.append((y, box))
            y += box.height
            before = block
        slot.boxes, slot.height = boxes, y
        self._laid.add(index)

    def _head(self, index: int) -> int:
        """Where the block begins that this slot is a part of."""
        while index > 0 and not self.slots[index].piece.is_first:
            index -= 1
        return index

    def _wide(self, head: int, ordinal: int) -> Wide:
        return self._wides.setdefault((head, ordinal), Wide())

    def _runs(self, index: int, code: Code) -> list[list[Run]]:
        """The colours of code; of code that grows, those that were made a moment ago."""
        if not is_loaded(code.language):
            self._want_language(code.language)
            return [[] for _ in code.lines]
        if not self._is_live or index != len(self.slots) - 1:
            return highlight(code.lines, code.language)
        kept, now_s = self._colours, time.monotonic()
        if kept.slot == index and now_s - kept.made_at_s < _COLOUR_EVERY_S:
            same = 0
            for old, new in zip(kept.lines, code.lines, strict=False):
                if old != new:
                    break
                same += 1
            return kept.runs[:same] + [[] for _ in code.lines[same:]]
        runs = highlight(code.lines, code.language)
        self._colours = _Colours(index, code.lines, runs, now_s)
        return runs

    def _estimate(self, slot: Slot) -> float:
        piece, style = slot.piece, self._style
        if isinstance(slot.outline, Code):
            return code_height(slot.outline)
        if piece.kind is Kind.TABLE:
            return (piece.source.count("\n") + (0 if piece.is_first else 1)) * (
                style.line_height + 2 * CELL_PAD
            )
        width = max(60.0, self._width - piece.indent * INDENT)
        per_line = max(4.0, width / (current_look().px(style.px) * _LETTER))
        n_lines = sum(max(1, ceil(len(line) / per_line)) for line in piece.source.split("\n"))
        return n_lines * style.line_height

    # What is at a place.

    def boxes(self, top: float, bottom: float) -> Iterator[tuple[int, int, float, Box]]:
        """Of what is laid out between: slot, the box's first unit, the box's top, and the box."""
        tops = self.tops
        index = max(0, bisect_right(tops, top) - 1)
        while index < len(self.slots) and tops[index] < bottom:
            slot, n_units = self.slots[index], 0
            for y, box in slot.boxes or ():
                yield index, n_units, tops[index] + slot.gap + y, box
                n_units += box.n_units
            index += 1

    def hit(self, x: float, y: float) -> tuple[Place, str] | None:
        """The nearest place to a point, and the link there."""
        tops = self.tops
        near = None
        for index, unit, top, box in self.boxes(y - 200, y + 200):
            if near is None or _distance(y, top, box) < _distance(y, near[2], near[3]):
                near = index, unit, top, box
        if near is None:
            slot = max(0, min(len(self.slots) - 1, bisect_right(tops, y) - 1))
            return (slot, 0, 0), ""
        index, unit, top, box = near
        hit = box.hit(x, y - top) or Hit(unit=0, position=0)
        is_on_it = top <= y < top + box.height
        return (index, unit + hit.unit, hit.position), hit.href if is_on_it else ""

    def word_at(self, place: Place) -> tuple[int, int]:
        """The word around a place."""
        if place[0] >= len(self.slots):
            return place[2], place[2]
        for _, box in self.slots[place[0]].boxes or ():
            if place[1] < box.n_units:
                return box.unit(place[1]).word_at(place[2])
            place = place[0], place[1] - box.n_units, place[2]
        return place[2], place[2]

    @property
    def end(self) -> Place:
        if not self.slots:
            return 0, 0, 0
        units = [unit for block in blocks_of(self.slots[-1].piece) for unit in units_of(block)]
        return len(self.slots) - 1, max(0, len(units) - 1), n_utf16(units[-1]) if units else 0

    def copied(self, start: Place, end: Place) -> str:
        """The text between two places, as it is read."""
        parts: list[str] = []
        for index in range(start[0], min(end[0], len(self.slots) - 1) + 1):
            unit = 0
            for block in blocks_of(self.slots[index].piece):
                for ordinal, text in enumerate(units_of(block)):
                    if (index, unit) >= start[:2] and (index, unit) <= end[:2]:
                        first = start[2] if (index, unit) == start[:2] else 0
                        last = end[2] if (index, unit) == end[:2] else n_utf16(text)
                        if parts:
                            parts.append(separator(block, ordinal) if ordinal else _between(block))
                        if block.marker and not ordinal and not first:
                            parts.append("  " * (block.indent - 1) + block.marker + " ")
                        parts.append(sliced_utf16(text, first, last))
                    unit += 1
        return "".join(parts)

    def code_from(self, index: int, ordinal: int) -> str:
        """All of a code block that begins there."""
        lines: list[str] = []
        for slot in self.slots[index:]:
            blocks = blocks_of(slot.piece)
            code = blocks[ordinal] if ordinal < len(blocks) else None
            if not isinstance(code, Code) or (lines and code.is_first):
                break
            lines += code.lines
            if code.is_last:
                break
        return "\n".join(lines)

    def wide_blocks(self, top: float, bottom: float) -> Iterator[tuple[tuple[int, int], float, Box]]:
        """Of code and tables that end between: a name of the block, where its last part begins, and that part."""
        for index, _, y, box in self.boxes(top, bottom):
            if box.wide is not None:
                ordinal = next(at for at, (_, one) in enumerate(self.slots[index].boxes or ()) if one is box)
                yield (self._head(index), ordinal), y, box

    def paint(
        self,
        painter: QPainter,
        origin: QPointF,
        clip: QRectF,
        selected: Callable[[int, int], tuple[int, int] | None],
    ) -> None:
        """`clip` is where to paint, and `selected` tells what of a unit of a slot is."""
        last_slot, last_bottom = -1, 0.0
        for index, unit, y, box in self.boxes(clip.top() - origin.y(), clip.bottom() - origin.y()):
            at = origin + QPointF(0, y)
            box.paint_around(painter, at, y - last_bottom if index == last_slot else 0)
            box.paint(painter, at, clip, lambda one, index=index, unit=unit: selected(index, unit + one))  # type: ignore[misc]
            last_slot, last_bottom = index, y + box.height


def _clean(text: str) -> str:
    """Without halves of letters, which no text may have and Qt would not take."""
    if text.isascii():
        return text.replace("\0", "\ufffd")
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace").replace("\0", "\ufffd")


def _outline(piece: Piece) -> Block:
    """What of a piece tells how far it stands from its neighbours, without parsing it."""
    if piece.kind is Kind.CODE:
        return blocks_of(piece)[0]
    if piece.kind is Kind.TABLE:
        return Table(
            indent=piece.indent, is_tight=piece.is_tight, is_first=piece.is_first, is_last=piece.is_last
        )
    hashes = len(piece.source) - len(piece.source.lstrip("#"))
    heading = hashes if piece.kind is Kind.WORDS and piece.source[hashes : hashes + 1] in (" ", "") else 0
    if heading == 0 and piece.kind is Kind.WORDS and piece.source.rstrip("-=").endswith("\n"):
        heading = 2
    return Words(
        indent=piece.indent,
        marker=piece.marker,
        is_tight=piece.is_tight,
        heading=heading if heading <= 6 else 0,
    )


def _between(block: Block) -> str:
    return "\n" if block.is_tight or block.marker else "\n\n"


def _distance(y: float, top: float, box: Box) -> float:
    return max(0.0, top - y, y - top - box.height)
