"""Blocks as they are laid out and painted. A box is made for one width, and made anew for another.

A place in a box is a unit, as `blocks.units_of` counts them, and a position in it as Qt counts letters (UTF-16).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from math import ceil
from typing import cast

from PySide6.QtCore import QPointF, QRectF, Qt
from PySide6.QtGui import (
    QColor,
    QFont,
    QFontMetricsF,
    QPainter,
    QPainterPath,
    QPen,
    QTextCharFormat,
    QTextLayout,
    QTextLine,
    QTextOption,
)

from app.look.look import Look, current_look
from app.look.measures import BODY_PX, CAPTION_PX, HEADING_PX, LARGE, MEDIUM, RADIUS_CARD, SMALL, TITLE_PX
from app.pages.chat.transcript.blocks import Block, Code, Rule, Span, Table, Words
from app.pages.chat.transcript.highlight import Run

INDENT = 24
QUOTE = 16
CODE_PX = BODY_PX - 1
CODE_LINE = 20
CODE_HEAD = 36
CODE_PAD = MEDIUM
RULE_HEIGHT = 1
CELL_PAD = 8
# A line of text is as high as this many times its letters.
LINE = 1.55
_HEADINGS_PX = {1: HEADING_PX, 2: HEADING_PX - 3, 3: TITLE_PX}
_MIN_COLUMN = 72
_MAX_COLUMN = 420

# What of a unit is selected, from and to.
Selected = Callable[[int], tuple[int, int] | None]


@dataclass(kw_only=True)
class Style:
    """How running text looks."""

    px: int = BODY_PX
    colour: str = "text"
    line: float = LINE

    @property
    def line_height(self) -> int:
        return current_look().px(self.px * self.line)


@dataclass
class Wide:
    """A block that may be wider than its column, and how far it is scrolled; shared by the parts it was cut into."""

    content: float = 0.0
    room: float = 0.0
    offset: float = 0.0
    columns: list[float] = field(default_factory=list)

    @property
    def reach(self) -> float:
        return max(0.0, self.content - self.room)


@dataclass(frozen=True, kw_only=True)
class Hit:
    unit: int
    position: int
    href: str = ""


class Unit:
    """A run of text at a place in its box."""

    def __init__(
        self,
        spans: Sequence[Span],
        font: QFont,
        width: float,
        *,
        colour: QColor,
        line_height: float,
        align: Qt.AlignmentFlag = Qt.AlignmentFlag.AlignLeft,
        wraps: bool = True,
        runs: Sequence[Run] = (),
    ) -> None:
        self.x = self.y = 0.0
        self._colour = colour
        text, formats = _formatted(spans, font)
        formats += _coloured(text, runs)
        self.codes, self.links = _marks(spans)
        self.length = n_utf16(text)
        self._layout = layout = QTextLayout(text, font)
        option = QTextOption(align)
        option.setWrapMode(
            QTextOption.WrapMode.WrapAtWordBoundaryOrAnywhere if wraps else QTextOption.WrapMode.NoWrap
        )
        option.setTabStopDistance(QFontMetricsF(font).horizontalAdvance("    "))
        layout.setTextOption(option)
        layout.setFormats(formats)
        layout.setCacheEnabled(True)
        layout.beginLayout()
        y = 0.0
        while (line := layout.createLine()).isValid():
            line.setLineWidth(width)
            height = max(line_height, ceil(line.height()))
            line.setPosition(QPointF(0, y + (height - line.height()) / 2))
            y += height
        layout.endLayout()
        self.height = y
        self.natural_width = layout.maximumWidth()

    def paint(self, painter: QPainter, origin: QPointF, selected: tuple[int, int] | None) -> None:
        look = current_look()
        for start, end in self.codes:
            painter.setPen(Qt.PenStyle.NoPen)
            painter.setBrush(look.colour("hover"))
            for rect in self.rects(start, end):
                painter.drawRoundedRect(rect.translated(origin).adjusted(-2, 0, 2, 0), 4, 4)
        ranges = []
        if selected is not None:
            marked = QTextLayout.FormatRange()
            marked.start, marked.length = selected[0], min(selected[1], self.length) - selected[0]
            marked.format.setBackground(look.colour("selection"))
            ranges.append(marked)
        painter.setPen(self._colour)
        self._layout.draw(painter, origin, ranges)

    def rects(self, start: int, end: int) -> Iterator[QRectF]:
        """Where the letters from `start` to `end` are, line by line."""
        for index in range(self._layout.lineCount()):
            line = self._layout.lineAt(index)
            first, last = line.textStart(), line.textStart() + line.textLength()
            if end <= first or start >= last:
                continue
            left, right = _x_of(line, max(start, first)), _x_of(line, min(end, last))
            yield QRectF(min(left, right), line.y(), abs(right - left), line.height())

    def position_at(self, x: float, y: float) -> int:
        lines = [self._layout.lineAt(index) for index in range(self._layout.lineCount())]
        if not lines or y < 0:
            return 0
        line = next((one for one in lines if y < one.y() + one.height() + 2), lines[-1])
        return int(line.xToCursor(x))

    def word_at(self, position: int) -> tuple[int, int]:
        text = self._layout.text()
        start = end = min(position, len(text))
        while start > 0 and (text[start - 1].isalnum() or text[start - 1] == "_"):
            start -= 1
        while end < len(text) and (text[end].isalnum() or text[end] == "_"):
            end += 1
        return (start, end) if end > start else (start, min(len(text), start + 1))

    def link_at(self, x: float, y: float) -> str:
        for start, end, href in self.links:
            if any(rect.contains(x, y) for rect in self.rects(start, end)):
                return href
        return ""


class Box:
    """A block that is laid out. `height` is all it takes; `wide` where it can be scrolled sideways."""

    height = 0.0
    n_units = 0
    wide: Wide | None = None

    def __init__(self, block: Block) -> None:
        self._block = block
        self.left = block.indent * INDENT + len(block.quotes) * QUOTE

    def unit(self, index: int) -> Unit:
        raise IndexError(index)

    def place(self, index: int) -> QPointF:
        """Where a unit stands in the box."""
        unit = self.unit(index)
        return QPointF(unit.x, unit.y)

    def unit_near(self, x: float, y: float) -> int:
        """The unit that a point is at, or nearest to."""
        return 0

    def hit(self, x: float, y: float) -> Hit | None:
        if not self.n_units:
            return None
        index = self.unit_near(x, y)
        place, unit = self.place(index), self.unit(index)
        x, y = x - place.x(), y - place.y()
        return Hit(unit=index, position=unit.position_at(x, y), href=unit.link_at(x, y))

    def paint(self, painter: QPainter, origin: QPointF, clip: QRectF, selected: Selected) -> None:
        raise NotImplementedError

    def paint_around(self, painter: QPainter, origin: QPointF, above: float) -> None:
        """The bars of the quotes around the block, up to `above` over it."""
        look = current_look()
        painter.setPen(Qt.PenStyle.NoPen)
        painter.setBrush(look.colour("border_strong"))
        for index, indent in enumerate(self._block.quotes):
            x = origin.x() + indent * INDENT + index * QUOTE
            painter.drawRect(QRectF(x, origin.y() - above, 2, self.height + above))


class WordsBox(Box):
    n_units = 1

    def __init__(self, block: Words, width: float, style: Style) -> None:
        super().__init__(block)
        look = current_look()
        px = _HEADINGS_PX.get(block.heading, style.px)
        if block.is_display:
            px += 1
        self._font = look.font(px, strong=block.heading > 0)
        self._style = style
        self._marker = block.marker
        self._line_height = look.px(px * (1.35 if block.heading else style.line))
        self._unit = Unit(
            block.spans,
            self._font,
            max(40.0, width - self.left),
            colour=look.colour("text_soft" if block.quotes else style.colour),
            line_height=self._line_height,
            align=Qt.AlignmentFlag.AlignHCenter if block.is_display else Qt.AlignmentFlag.AlignLeft,
        )
        self._unit.x = self.left
        self.height = self._unit.height

    @property
    def natural_width(self) -> float:
        return self.left + self._unit.natural_width

    def unit(self, index: int) -> Unit:
        return self._unit

    def paint(self, painter: QPainter, origin: QPointF, clip: QRectF, selected: Selected) -> None:
        if self._marker:
            painter.setFont(self._font)
            painter.setPen(current_look().colour("text_soft"))
            gutter = QRectF(origin.x() + self.left - 64, origin.y(), 56, self._line_height)
            painter.drawText(
                gutter, Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter, self._marker
            )
        self._unit.paint(painter, origin + QPointF(self._unit.x, 0), selected(0))


class RuleBox(Box):
    height = RULE_HEIGHT

    def __init__(self, block: Rule, width: float) -> None:
        super().__init__(block)
        self._width = width

    def paint(self, painter: QPainter, origin: QPointF, clip: QRectF, selected: Selected) -> None:
        rect = QRectF(origin.x() + self.left, origin.y(), self._width - self.left, RULE_HEIGHT)
        painter.fillRect(rect, current_look().colour("border"))


class CodeBox(Box):
    """Lines are laid out when they are first seen. `runs` are the coloured letters of each."""

    def __init__(self, block: Code, width: float, wide: Wide, runs: list[list[Run]]) -> None:
        super().__init__(block)
        self.wide: Wide = wide
        self.runs = runs
        self.lines = block.lines
        self.n_units = len(block.lines)
        self.is_first = block.is_first
        self._code = block
        self._width = width - self.left
        look = current_look()
        self._line_height = look.px(CODE_LINE)
        self._top = look.px(CODE_HEAD) if block.is_first else 0
        self._made: dict[int, Unit] = {}
        self._font = look.font(CODE_PX, mono=True)
        self.height = code_height(block)
        letter = QFontMetricsF(self._font).horizontalAdvance("0")
        longest = max((len(line.expandtabs(4)) for line in block.lines), default=0)
        wide.room = self._width - 2 * CODE_PAD
        wide.content = max(wide.content, longest * letter + 2)

    def unit(self, index: int) -> Unit:
        if (made := self._made.get(index)) is None:
            look = current_look()
            made = self._made[index] = Unit(
                [Span(text=self._code.lines[index])],
                self._font,
                1e7,
                colour=look.colour("text"),
                line_height=self._line_height,
                wraps=False,
                runs=self.runs[index],
            )
        return made

    def place(self, index: int) -> QPointF:
        return QPointF(self.left + CODE_PAD - self.wide.offset, self._top + index * self._line_height)

    def unit_near(self, x: float, y: float) -> int:
        return max(0, min(self.n_units - 1, int((y - self._top) // self._line_height)))

    def paint(self, painter: QPainter, origin: QPointF, clip: QRectF, selected: Selected) -> None:
        look = current_look()
        room = QRectF(origin.x() + self.left, origin.y(), self._width, self.height)
        _paint_frame(painter, room, look, is_first=self._code.is_first, is_last=self._code.is_last)
        if self._code.is_first:
            painter.setFont(look.font(CAPTION_PX))
            painter.setPen(look.colour("text_faint"))
            head = QRectF(room.left() + CODE_PAD, room.top(), room.width() - 100, self._top)
            align = Qt.AlignmentFlag.AlignVCenter | Qt.AlignmentFlag.AlignLeft
            painter.drawText(head, align, self._code.language or "text")
        painter.save()
        inner = room.adjusted(CODE_PAD - 4, 0, -CODE_PAD + 4, 0)
        painter.setClipRect(inner, Qt.ClipOperation.IntersectClip)
        top = origin.y() + self._top
        first = max(0, int((clip.top() - top) // self._line_height))
        last = min(self.n_units, int((clip.bottom() - top) // self._line_height) + 1)
        for index in range(first, last):
            self.unit(index).paint(painter, origin + self.place(index), selected(index))
        painter.restore()


class TableBox(Box):
    """Columns as wide as they need, narrowed to fit where they can be; one that was cut keeps the widths."""

    def __init__(self, block: Table, width: float, wide: Wide, style: Style) -> None:
        super().__init__(block)
        self.wide: Wide = wide
        self._room = width - self.left
        self._table = block
        self._rows = (block.head, *block.rows) if block.is_first else block.rows
        if block.is_first or not wide.columns:
            wide.columns = _column_widths(block, self._room)
        wide.content, wide.room = sum(wide.columns), self._room
        self._units: list[Unit] = []
        self._tops: list[float] = []
        self._lay_out(style)
        self.n_units = len(self._units)

    def _lay_out(self, style: Style) -> None:
        look = current_look()
        y = 0.0
        for index, row in enumerate(self._rows):
            is_head = self._table.is_first and index == 0
            self._tops.append(y)
            x, height = 0.0, 0.0
            for column, cell in enumerate(row):
                width = self.wide.columns[column]
                unit = Unit(
                    cell,
                    look.font(style.px, strong=is_head),
                    max(24.0, width - 2 * CELL_PAD),
                    colour=look.colour(style.colour),
                    line_height=style.line_height,
                    align=_ALIGN.get(self._table.aligned[column], Qt.AlignmentFlag.AlignLeft),
                )
                unit.x, unit.y = self.left + x + CELL_PAD, y + CELL_PAD
                self._units.append(unit)
                x += width
                height = max(height, unit.height)
            y += max(height, style.line_height) + 2 * CELL_PAD
        self._tops.append(y)
        self.height = y

    def unit(self, index: int) -> Unit:
        return self._units[index]

    def place(self, index: int) -> QPointF:
        unit = self._units[index]
        return QPointF(unit.x - self.wide.offset, unit.y)

    def unit_near(self, x: float, y: float) -> int:
        n_columns = len(self.wide.columns)
        row = next((at for at in range(len(self._rows)) if y < self._tops[at + 1]), len(self._rows) - 1)
        x += self.wide.offset - self.left
        column = 0
        while column < n_columns - 1 and x >= self.wide.columns[column]:
            x -= self.wide.columns[column]
            column += 1
        return max(0, min(self.n_units - 1, row * n_columns + column))

    def paint(self, painter: QPainter, origin: QPointF, clip: QRectF, selected: Selected) -> None:
        look = current_look()
        painter.save()
        left = origin.x() + self.left
        painter.setClipRect(QRectF(left, origin.y(), self._room, self.height), Qt.ClipOperation.IntersectClip)
        width = min(self._room, sum(self.wide.columns))
        n_columns = len(self.wide.columns)
        for row in range(len(self._rows)):
            top, bottom = origin.y() + self._tops[row], origin.y() + self._tops[row + 1]
            if bottom < clip.top() or top > clip.bottom():
                continue
            is_head = self._table.is_first and row == 0
            colour = look.colour("border_strong" if is_head else "border")
            if not (self._table.is_last and row == len(self._rows) - 1) or is_head:
                painter.fillRect(QRectF(left, bottom - 1, width, 1), colour)
            for index in range(row * n_columns, (row + 1) * n_columns):
                self._units[index].paint(painter, origin + self.place(index), selected(index))
        painter.restore()


_ALIGN = {"center": Qt.AlignmentFlag.AlignHCenter, "right": Qt.AlignmentFlag.AlignRight}


def _x_of(line: QTextLine, position: int) -> float:
    found = cast("float | tuple[float, int]", line.cursorToX(position))
    return found[0] if isinstance(found, tuple) else found


def code_height(block: Code) -> float:
    """Known before the code is laid out, for a line never wraps."""
    look = current_look()
    head = look.px(CODE_HEAD) if block.is_first else 0
    foot = CODE_PAD if block.is_last else 0
    return head + foot + len(block.lines) * look.px(CODE_LINE)


def n_utf16(text: str) -> int:
    """How many letters Qt counts."""
    return len(text) if text.isascii() else len(text.encode("utf-16-le", "surrogatepass")) // 2


def sliced_utf16(text: str, start: int, end: int) -> str:
    """From and to where Qt counts."""
    if text.isascii():
        return text[start:end]
    return text.encode("utf-16-le", "surrogatepass")[2 * start : 2 * end].decode("utf-16-le", "replace")


def box_of(
    block: Block, width: float, style: Style, wide: Wide, runs: Callable[[Code], list[list[Run]]]
) -> Box:
    """Lay a block out. `runs` colours code."""
    if isinstance(block, Words):
        return WordsBox(block, width, style)
    if isinstance(block, Code):
        return CodeBox(block, width, wide, runs(block))
    if isinstance(block, Table):
        return TableBox(block, width, wide, style)
    assert isinstance(block, Rule)
    return RuleBox(block, width)


def gap_before(block: Block, before: Block | None) -> int:
    """The room between two blocks."""
    if before is None:
        return 0
    if isinstance(block, Code | Table) and not block.is_first:
        return 0
    if isinstance(before, Words) and before.heading:
        return SMALL
    if isinstance(block, Words) and block.heading:
        return 24 if block.heading <= 2 else 20
    if isinstance(block, Rule) or isinstance(before, Rule):
        return LARGE
    if block.is_tight and isinstance(block, Words) and isinstance(before, Words):
        return 4 if block.marker or before.indent else 0
    return MEDIUM


def _formatted(spans: Sequence[Span], font: QFont) -> tuple[str, list[QTextLayout.FormatRange]]:
    look = current_look()
    text, formats, at = [], [], 0
    for span in spans:
        letters = span.text.replace("\n", "\u2028")
        length = n_utf16(letters)
        if span.is_bold or span.is_italic or span.is_struck or span.is_code or span.href:
            ranged = QTextLayout.FormatRange()
            ranged.start, ranged.length = at, length
            ranged.format = _format(span, font, look)
            formats.append(ranged)
        text.append(letters)
        at += length
    return "".join(text), formats


def _coloured(text: str, runs: Sequence[Run]) -> list[QTextLayout.FormatRange]:
    """Runs count letters as Python does."""
    look = current_look()
    formats = []
    for start, end, name in runs:
        ranged = QTextLayout.FormatRange()
        ranged.start, ranged.length = n_utf16(text[:start]), n_utf16(text[start:end])
        ranged.format.setForeground(look.colour(name))
        formats.append(ranged)
    return formats


def _format(span: Span, font: QFont, look: Look) -> QTextCharFormat:
    made = QTextCharFormat()
    if span.is_code:
        made.setFont(look.font(max(CAPTION_PX, font.pixelSize() / look.text_scale - 1), mono=True))
    if span.is_bold:
        made.setFontWeight(QFont.Weight.DemiBold)
    if span.is_italic:
        made.setFontItalic(True)
    if span.is_struck:
        made.setFontStrikeOut(True)
    if span.href:
        made.setForeground(look.colour("local"))
        made.setFontUnderline(True)
    return made


def _marks(spans: Sequence[Span]) -> tuple[list[tuple[int, int]], list[tuple[int, int, str]]]:
    """Where inline code and links are."""
    codes, links, at = [], [], 0
    for span in spans:
        end = at + n_utf16(span.text)
        if span.is_code:
            codes.append((at, end))
        if span.href:
            links.append((at, end, span.href))
        at = end
    return codes, links


def _paint_frame(painter: QPainter, room: QRectF, look: Look, *, is_first: bool, is_last: bool) -> None:
    """A sunken card; one that was cut has its corners at its ends only."""
    painter.save()
    painter.setClipRect(room, Qt.ClipOperation.IntersectClip)
    card = room.adjusted(0.5, 0.5 if is_first else -20, -0.5, -0.5 if is_last else 20)
    path = QPainterPath()
    path.addRoundedRect(card, RADIUS_CARD, RADIUS_CARD)
    painter.fillPath(path, look.colour("sunken"))
    painter.setPen(QPen(look.colour("border"), 1))
    painter.setBrush(Qt.BrushStyle.NoBrush)
    painter.drawPath(path)
    painter.restore()


def _column_widths(block: Table, room: float) -> list[float]:
    """What the cells need, no more than they should; the widest give way first where it is too much."""
    metrics = QFontMetricsF(current_look().font(strong=True))
    needed = []
    for column in range(len(block.head)):
        cells = (row[column] for row in (block.head, *block.rows))
        texts = ("".join(span.text for span in cell)[:200] for cell in cells)
        widest = max(metrics.horizontalAdvance(line) for text in texts for line in (text.split("\n")))
        needed.append(min(_MAX_COLUMN, widest + 2 * CELL_PAD + 4))
    surplus = sum(needed) - room
    if surplus <= 0:
        return needed
    low = [min(width, _MIN_COLUMN) for width in needed]
    spare = sum(needed) - sum(low)
    share = min(1.0, surplus / spare) if spare > 0 else 0.0
    return [width - (width - least) * share for width, least in zip(needed, low, strict=True)]
