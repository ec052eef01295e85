"""Markdown cut into pieces that can be parsed, laid out and forgotten one by one, while the text still grows.

A piece is a paragraph, a heading, one item of a list, a quote, part of a code block or of a table, or a formula. The
splitter reads lines and knows of Markdown only what tells where a piece ends; what is within is parsed later, and only
where somebody looks. Text that comes in parts gives the same pieces as at once, and a piece is never longer than
`MAX_PIECE` letters, so that none takes long. What a fence has opened only that fence closes, as people mean it.
"""

from __future__ import annotations

import copy
import re
from dataclasses import dataclass
from enum import Enum

# A paragraph of 500 words. What grows is laid out anew 30 times a second, so a piece must take some milliseconds only.
MAX_PIECE = 3000
MAX_LINES = 60
MAX_CODE_LINES = 80
MAX_TABLE_ROWS = 30
MAX_TABLE_CELLS = 100
MAX_PLAIN_LINES = 40
# Deeper lists are shown as text.
MAX_DEPTH = 12

_FENCE = re.compile(r"(`{3,})([^`]*)$|(~{3,})(.*)$")
_HEADING = re.compile(r"#{1,6}(?:[ \t]|$)")
_RULE = re.compile(r"([-*_])(?:[ \t]*\1){2,}$")
_UNDERLINE = re.compile(r"(?:=+|-+)$")
_ITEM = re.compile(r"([-*+]|\d{1,9}[.)])([ \t]+|$)")
_DELIMITERS = re.compile(r"\|?[ \t]*:?-+:?[ \t]*(?:\|[ \t]*:?-+:?[ \t]*)*\|?$")
_MATH_ENDS = {"$$": "$$", "\\[": "\\]"}
# Of lists in lists, the last for all that are deeper.
BULLETS = "•◦▪"


class Kind(Enum):
    WORDS = "words"
    CODE = "code"
    TABLE = "table"
    MATH = "math"
    PLAIN = "plain"


@dataclass(frozen=True, kw_only=True)
class Piece:
    """`source` is what of the text belongs to it, without what its lists add.

    `indent` counts the lists it stands in, `marker` is what stands before it there. `info` is a code block's language.
    A block that is cut goes on where not `is_first`, and goes on in the next piece where not `is_last`. `is_tight` says
    that no empty line parts it from the piece before. `prefix` belongs before `source` when it is parsed.
    """

    kind: Kind
    source: str
    indent: int = 0
    marker: str = ""
    info: str = ""
    prefix: str = ""
    is_first: bool = True
    is_last: bool = True
    is_tight: bool = False


@dataclass(frozen=True)
class _List:
    """A list that a line may go on in: the column where an item's text begins, and the item's number."""

    column: int
    kind: str
    number: int


class _Mode(Enum):
    NONE = "between pieces"
    WORDS = "a paragraph, a quote, or an item's text"
    FENCED = "code between fences"
    INDENTED = "code by four spaces"
    TABLE = "a table"
    MATH = "a formula on lines of its own"


class Splitter:
    """`pieces` are those of all that was fed so far."""

    def __init__(self, text: str = "") -> None:
        self.text = ""
        self.pieces: list[Piece] = []
        self._n_settled = 0
        self._read_to = 0
        self._reader = _Reader()
        if text:
            self.feed(text)

    def feed(self, text: str) -> int:
        """Add text; returns the index of the first piece that may have changed."""
        self.text += text
        first = self._n_settled
        del self.pieces[first:]
        end = self.text.rfind("\n") + 1
        while self._read_to < end:
            stop = self.text.index("\n", self._read_to) + 1
            self._reader.take(self.text[self._read_to : stop], self.pieces)
            self._read_to = stop
        self._n_settled = len(self.pieces)
        trial = copy.copy(self._reader)
        trial.lines = list(trial.lines)
        if end < len(self.text):
            trial.take(self.text[end:], self.pieces)
        trial.close(self.pieces)
        return first


class PlainSplitter(Splitter):
    """The same for text that is not Markdown."""

    def feed(self, text: str) -> int:
        self.text += text
        self.pieces.clear()
        group: list[str] = []
        n_letters = 0
        for part in (part for line in self.text.splitlines() for part in _cut(line)):
            if group and (len(group) >= MAX_PLAIN_LINES or n_letters + len(part) > MAX_PIECE):
                self._add(group)
                group, n_letters = [], 0
            group.append(part)
            n_letters += len(part)
        if group:
            self._add(group)
        return 0

    def _add(self, lines: list[str]) -> None:
        self.pieces.append(Piece(kind=Kind.PLAIN, source="\n".join(lines), is_tight=bool(self.pieces)))


class _Reader:
    """Where in the text's structure the next line stands. `lines` are those of the open piece."""

    def __init__(self) -> None:
        self.mode = _Mode.NONE
        self.lines: list[str] = []
        self.n_letters = 0
        self.max_rows = MAX_TABLE_ROWS
        self.lists: tuple[_List, ...] = ()
        self.marker = ""
        self.info = ""
        self.prefix = ""
        self.fence = ""
        self.dedent = 0
        self.is_first = True
        self.is_quote = False
        self.is_tight = False
        self.after_blank = True

    def take(self, line: str, out: list[Piece]) -> None:
        """Read one line, with or without its end."""
        line = line.rstrip("\r\n")
        if self.mode is _Mode.FENCED:
            self._take_code(line, out)
            return
        indent, body = _indented(line)
        if not body:
            self._take_blank(out)
        elif self.mode is _Mode.MATH:
            self._take_math(line, body, out)
        elif self.mode is _Mode.INDENTED and indent >= self.dedent:
            self._add_code(_dedented(line, self.dedent), out)
            self.after_blank = False
        else:
            self._take_words(line, indent, body, out)
            self.after_blank = False

    def close(self, out: list[Piece], *, goes_on: bool = False) -> None:
        """End the open piece, if any. One that `goes_on` keeps its mode."""
        if self.mode is _Mode.NONE and not self.marker:
            return
        kind, lines = Kind.WORDS, self.lines
        if self.mode in (_Mode.FENCED, _Mode.INDENTED):
            kind = Kind.CODE
            if self.mode is _Mode.INDENTED and not goes_on:
                lines = _without_blank_end(lines)
        elif self.mode is _Mode.TABLE:
            kind = Kind.TABLE
        elif self.mode is _Mode.MATH and not self.after_blank:
            kind = Kind.MATH
        out.append(
            Piece(
                kind=kind,
                source="\n".join(lines),
                indent=len(self.lists),
                marker=self.marker,
                info=self.info,
                prefix=self.prefix,
                is_first=self.is_first,
                is_last=not goes_on,
                is_tight=self.is_tight,
            )
        )
        self.marker = ""
        self.lines, self.n_letters = [], 0
        self.is_first = not goes_on
        self.is_tight = True
        if not goes_on:
            self.mode, self.info, self.prefix, self.is_quote = _Mode.NONE, "", "", False

    def _open(self, mode: _Mode, out: list[Piece]) -> None:
        """Begin a piece; one that is open has been closed."""
        self.mode = mode
        self.is_tight = bool(out) and not self.after_blank

    # Lines by mode.

    def _take_blank(self, out: list[Piece]) -> None:
        self.after_blank = True
        if self.mode is _Mode.INDENTED:
            self._add_code("", out)
        else:
            self.close(out)

    def _take_code(self, line: str, out: list[Piece]) -> None:
        indent, body = _indented(line)
        if body.startswith(self.fence) and not body.strip(self.fence[0]) and indent < self.dedent + 4:
            self.close(out)
            self.after_blank = False
        else:
            self._add_code(_dedented(line, self.dedent), out)

    def _add_code(self, line: str, out: list[Piece]) -> None:
        for part in _cut(line):
            if self.lines and (len(self.lines) >= MAX_CODE_LINES or self.n_letters + len(part) > MAX_PIECE):
                self.close(out, goes_on=True)
            self.lines.append(part)
            self.n_letters += len(part)

    def _take_math(self, line: str, body: str, out: list[Piece]) -> None:
        if self.n_letters + len(line) > MAX_PIECE:
            self.mode = _Mode.WORDS
            self._add_words(line, out)
            return
        self.lines.append(body)
        self.n_letters += len(body)
        if body.rstrip(".,;").endswith(_MATH_ENDS[self.fence]):
            self.close(out)

    def _take_words(self, line: str, indent: int, body: str, out: list[Piece]) -> None:
        """A line that is neither empty nor within code or a formula: what begins with it, or what it goes on with."""
        while True:
            depth = sum(indent >= one.column for one in self.lists)
            inner = indent - (self.lists[depth - 1].column if depth else 0)
            is_open = self.mode in (_Mode.WORDS, _Mode.TABLE)
            if inner >= 4 and not is_open:
                self._leave_lists(depth, out)
                self._open(_Mode.INDENTED, out)
                self.dedent = indent - inner + 4
                self._add_code(_dedented(line, self.dedent), out)
                return
            if inner < 4 and len(body) <= MAX_PIECE:
                item = self._item(body, depth, is_open)
                if item is None:
                    if self._begins(body, indent, depth, out):
                        return
                else:
                    rest, width = self._begin_item(item, body, indent, depth, out)
                    if not rest:
                        self._open(_Mode.WORDS, out)
                        return
                    indent, body, line = indent + width, rest, " " * (indent + width) + rest
                    continue
            if not is_open or (self.mode is _Mode.TABLE and len(body) > MAX_PIECE):
                self._leave_lists(depth, out)
                self._open(_Mode.WORDS, out)
            self._add_words(body, out)
            return

    def _begins(self, body: str, indent: int, depth: int, out: list[Piece]) -> bool:
        """Whether the line begins something other than a paragraph; if so it is read."""
        in_words = self.mode is _Mode.WORDS
        if fence := _FENCE.match(body):
            self._leave_lists(depth, out)
            self.fence = fence[1] or fence[3]
            self._open(_Mode.FENCED, out)
            self.info = (fence[2] or fence[4] or "").strip()
            self.dedent = indent
            return True
        if in_words and not self.is_quote and self.lines and _UNDERLINE.match(body):
            if depth < len(self.lists):
                return False
            self._add_words(body, out)
            self.close(out)
            return True
        if _HEADING.match(body) or _RULE.match(body):
            self._leave_lists(depth, out)
            self._open(_Mode.WORDS, out)
            self._add_words(body, out)
            self.close(out)
            return True
        if body[0] == ">":
            if not (in_words and self.is_quote):
                self._leave_lists(depth, out)
                self._open(_Mode.WORDS, out)
                self.is_quote = True
            self._add_words(body, out)
            return True
        if body[:2] in _MATH_ENDS and self._begins_math(body, depth, out):
            return True
        if in_words and self.lines and not self.is_quote and _are_columns(self.lines[-1], body):
            self._begin_table(body, out)
            return True
        if self.mode is _Mode.TABLE:
            if len(self.lines) >= self.max_rows or self.n_letters + len(body) > MAX_PIECE:
                head = self.prefix or "\n".join(self.lines[:2]) + "\n"
                self.close(out, goes_on=True)
                self.prefix = head
            self.lines.append(body)
            self.n_letters += len(body)
            return True
        return False

    def _begins_math(self, body: str, depth: int, out: list[Piece]) -> bool:
        end = _MATH_ENDS[body[:2]]
        closing = body.find(end, 2)
        if closing >= 0 and body[closing + 2 :].strip(".,; "):
            return False
        self._leave_lists(depth, out)
        self._open(_Mode.MATH, out)
        self.fence = body[:2]
        self.after_blank = False
        self.lines.append(body)
        self.n_letters = len(body)
        if closing >= 0:
            self.close(out)
        return True

    def _begin_table(self, delimiters: str, out: list[Piece]) -> None:
        head = self.lines.pop()
        if self.lines:
            self.close(out)
            self.is_tight = False
        self.mode = _Mode.TABLE
        self.max_rows = max(3, min(MAX_TABLE_ROWS, MAX_TABLE_CELLS // _n_columns(head)))
        self.lines = [head, delimiters]
        self.n_letters = len(head) + len(delimiters)

    # Lists.

    def _item(self, body: str, depth: int, is_open: bool) -> re.Match[str] | None:
        """What the line begins as an item, if it may."""
        item = _ITEM.match(body)
        if item is None or _RULE.match(body) or depth >= MAX_DEPTH:
            return None
        is_within = is_open and depth == len(self.lists)
        if is_within and (item.end() == len(body) or (item[1][:-1] not in ("", "1"))):
            return None  # a paragraph goes on with "-" alone, and with "1984. "
        return item

    def _begin_item(
        self, item: re.Match[str], body: str, indent: int, depth: int, out: list[Piece]
    ) -> tuple[str, int]:
        """Returns the item's text on this line and how many columns further right it stands."""
        self.close(out)
        before = self.lists[depth] if depth < len(self.lists) else None
        kind = item[1][-1]
        number = int(item[1][:-1]) if item[1][:-1] else 0
        if before is not None and before.kind == kind:
            number = before.number + 1
        spaces = len(item[2].expandtabs(4))
        rest = body[item.end() :]
        width = len(item[1]) + (spaces if 0 < spaces <= 4 and rest else 1)
        self.lists = (*self.lists[:depth], _List(indent + width, kind, number))
        self.marker = f"{number}{kind}" if item[1][:-1] else BULLETS[min(depth, len(BULLETS) - 1)]
        self.is_tight = bool(out) and not self.after_blank
        return rest, width

    def _leave_lists(self, depth: int, out: list[Piece]) -> None:
        if self.mode is not _Mode.NONE:
            self.close(out)
        self.lists = self.lists[:depth]

    def _add_words(self, line: str, out: list[Piece]) -> None:
        for index, part in enumerate(_cut(line)):
            is_full = len(self.lines) >= MAX_LINES or self.n_letters + len(part) > MAX_PIECE
            if self.lines and (index or is_full):
                self.close(out, goes_on=True)
                self.prefix = "> " if self.is_quote and not part.startswith(">") else ""
            self.lines.append(part)
            self.n_letters += len(part)


def _indented(line: str) -> tuple[int, str]:
    """How far the line's text is from the left, and the text."""
    space = line[: len(line) - len(line.lstrip(" \t"))]
    return len(space.expandtabs(4)), line.strip(" \t")


def _dedented(line: str, columns: int) -> str:
    space = line[: len(line) - len(line.lstrip(" \t"))]
    width = len(space.expandtabs(4))
    return " " * max(0, width - columns) + line[len(space) :] if columns else line


def _cut(line: str) -> list[str]:
    """The line in parts that are not too long, at spaces where there are some."""
    parts, at = [], 0
    while len(line) - at > MAX_PIECE:
        space = line.rfind(" ", at + MAX_PIECE // 2, at + MAX_PIECE)
        stop = space + 1 if space >= 0 else at + MAX_PIECE
        parts.append(line[at:stop])
        at = stop
    parts.append(line[at:])
    return parts


def _without_blank_end(lines: list[str]) -> list[str]:
    end = len(lines)
    while end and not lines[end - 1]:
        end -= 1
    return lines[:end]


def _are_columns(head: str, line: str) -> bool:
    """Whether `line` is what stands between the head of a table and its rows."""
    return (
        "|" in head
        and ("|" in line or ":" in line or "-" in line)
        and _DELIMITERS.match(line) is not None
        and _n_columns(head) == _n_columns(line)
    )


def _n_columns(row: str) -> int:
    row = row.strip()
    return len(re.findall(r"(?<!\\)\|", row.removeprefix("|"))) + (
        0 if row.endswith("|") and not row.endswith("\\|") else 1
    )
