"""What a piece of Markdown says: paragraphs, code, tables and lines, each with what stands around it.

CommonMark with tables and struck-out text, by markdown-it-py. HTML is text; a picture is a link to it, never fetched;
formulas are put into words. Links lead to the web or to a mail only.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from app.pages.chat.transcript.formula import readable
from app.pages.chat.transcript.split import BULLETS, Kind, Piece

if TYPE_CHECKING:
    from markdown_it import MarkdownIt
    from markdown_it.rules_inline import StateInline
    from markdown_it.token import Token

_SCHEMES = ("http://", "https://", "mailto:")
_ADDRESS = re.compile(r"https?://[^\s<>\"'`]*[^\s<>\"'`.,;:!?)\]}*_]")
_TASK = re.compile(r"\[([ xX])\] ")
# A row of a table with more cells than this is a hostile one.
_MAX_COLUMNS = 40
# With more marks than this in one paragraph it is no prose, and the parser would take long over it.
_MAX_MARKS = 400
_MARKS = re.compile(r"[\[\]*_~`<&$\\]")


@dataclass(frozen=True, kw_only=True)
class Span:
    """Letters of one kind. `href` is where a link leads, "" without."""

    text: str
    is_bold: bool = False
    is_italic: bool = False
    is_struck: bool = False
    is_code: bool = False
    is_math: bool = False
    href: str = ""


Spans = tuple[Span, ...]


@dataclass(frozen=True, kw_only=True)
class Block:
    """`indent` counts the lists around it, `quotes` tells after how many lists each quote around it begins.

    `marker` stands before it, as an item of a list. `is_tight` says that no empty line parts it from the block before.
    """

    indent: int = 0
    quotes: tuple[int, ...] = ()
    marker: str = ""
    is_tight: bool = False


@dataclass(frozen=True, kw_only=True)
class Words(Block):
    """A paragraph; `heading` is 1 to 6 for a heading. A formula on lines of its own `is_display`."""

    spans: Spans = ()
    heading: int = 0
    is_display: bool = False

    @property
    def text(self) -> str:
        return "".join(span.text for span in self.spans)


@dataclass(frozen=True, kw_only=True)
class Code(Block):
    lines: tuple[str, ...] = ()
    language: str = ""
    is_first: bool = True
    is_last: bool = True


@dataclass(frozen=True, kw_only=True)
class Table(Block):
    """`aligned` tells of each column: left, center or right. Where not `is_first` the head has been shown before."""

    aligned: tuple[str, ...] = ()
    head: tuple[Spans, ...] = ()
    rows: tuple[tuple[Spans, ...], ...] = ()
    is_first: bool = True
    is_last: bool = True


@dataclass(frozen=True, kw_only=True)
class Rule(Block):
    """A line across."""


def blocks_of(piece: Piece) -> tuple[Block, ...]:
    """What is in a piece, top to bottom; at least one block."""
    around = Block(indent=piece.indent, marker=piece.marker, is_tight=piece.is_tight)
    if piece.kind is Kind.CODE:
        return (
            Code(
                **_fields(around),
                lines=tuple(piece.source.split("\n")) if piece.source else (),
                language=piece.info.split(maxsplit=1)[0][:32] if piece.info else "",
                is_first=piece.is_first,
                is_last=piece.is_last,
            ),
        )
    if piece.kind is Kind.MATH:
        shown = readable(_without_ends(piece.source.strip()))
        return (Words(**_fields(around), spans=(Span(text=shown, is_math=True),), is_display=True),)
    if piece.kind is Kind.PLAIN or (piece.kind is Kind.WORDS and _is_odd(piece.source)):
        return (Words(**_fields(around), spans=_linked(Span(text=piece.source))),)
    made = tuple(_Walk(around, piece).blocks(_parser().parse(piece.prefix + piece.source)))
    return made or (Words(**_fields(around)),)


def units_of(block: Block) -> list[str]:
    """The texts in which a place can be pointed at: a paragraph, each line of code, each cell row by row."""
    if isinstance(block, Words):
        return [block.text]
    if isinstance(block, Code):
        return list(block.lines)
    if isinstance(block, Table):
        rows = (block.head, *block.rows) if block.is_first else block.rows
        return ["".join(span.text for span in cell) for row in rows for cell in row]
    return []


def separator(block: Block, unit: int) -> str:
    """What stands before a unit of a block in copied text, but for the first."""
    if isinstance(block, Table):
        return "\t" if unit % len(block.head) else "\n"
    return "\n"


def _is_odd(source: str) -> bool:
    return len(source) > _MAX_MARKS and len(_MARKS.findall(source)) > _MAX_MARKS


def _fields(around: Block) -> dict[str, Any]:
    return {
        "indent": around.indent,
        "quotes": around.quotes,
        "marker": around.marker,
        "is_tight": around.is_tight,
    }


@dataclass
class _Walk:
    """Goes through the parser's tokens; `around` is what stands around the next block."""

    around: Block
    piece: Piece
    _numbers: list[int | None] = field(default_factory=list)
    _has_made: bool = False

    def blocks(self, tokens: Sequence[Token]) -> Iterator[Block]:
        at = 0
        while at < len(tokens):
            token = tokens[at]
            if token.type == "table_open":
                end = next(index for index in range(at, len(tokens)) if tokens[index].type == "table_close")
                yield self._made(self._table(tokens[at:end]))
                at = end
            elif token.type == "inline":
                heading = int(tokens[at - 1].tag[1]) if tokens[at - 1].type == "heading_open" else 0
                yield from self._words(token, heading)
            elif token.type in ("fence", "code_block"):
                yield self._made(self._code(token))
            elif token.type == "hr":
                yield self._made(Rule(**_fields(self.around)))
            else:
                self._step(token)
            at += 1

    def _made(self, block: Block) -> Block:
        self._has_made = True
        self.around = replace(self.around, marker="", is_tight=False)
        return block

    def _step(self, token: Token) -> None:
        """Into a list or a quote, or out of it."""
        around = self.around
        if token.type == "blockquote_open":
            self.around = replace(around, quotes=(*around.quotes, around.indent))
        elif token.type == "blockquote_close":
            self.around = replace(around, quotes=around.quotes[:-1])
        elif token.type in ("bullet_list_open", "ordered_list_open"):
            start = int(token.attrGet("start") or 1) if token.type[0] == "o" else None
            self._numbers.append(start)
            self.around = replace(around, indent=around.indent + 1)
        elif token.type in ("bullet_list_close", "ordered_list_close"):
            self._numbers.pop()
            self.around = replace(around, indent=around.indent - 1)
        elif token.type == "list_item_open":
            number = self._numbers[-1]
            bullet = BULLETS[min(around.indent, len(BULLETS)) - 1]
            marker = bullet if number is None else f"{number}{token.markup}"
            self.around = replace(around, marker=marker, is_tight=self._has_made)
            if number is not None:
                self._numbers[-1] = number + 1

    def _words(self, token: Token, heading: int) -> Iterator[Block]:
        marker = self.around.marker
        spans = _spans(token.children or [])
        if marker and spans and (task := _TASK.match(spans[0].text)):
            self.around = replace(self.around, marker="☐" if task[1] == " " else "☑")
            spans = (replace(spans[0], text=spans[0].text[task.end() :]), *spans[1:])
        is_display = len(spans) == 1 and spans[0].is_math and token.content.startswith(("$$", "\\["))
        yield self._made(Words(**_fields(self.around), spans=spans, heading=heading, is_display=is_display))

    def _code(self, token: Token) -> Code:
        lines = token.content.removesuffix("\n").split("\n")
        language = token.info.split(maxsplit=1)[0][:32] if token.info.strip() else ""
        return Code(**_fields(self.around), lines=tuple(lines), language=language)

    def _table(self, tokens: Sequence[Token]) -> Table:
        rows: list[list[Spans]] = []
        aligned: list[str] = []
        for token in tokens:
            if token.type == "tr_open":
                rows.append([])
            elif token.type == "th_open":
                style = str(token.attrGet("style") or "")
                aligned.append(style.partition(":")[2] or "left")
            elif token.type == "inline" and len(rows[-1]) < _MAX_COLUMNS:
                rows[-1].append(_spans(token.children or []))
        return Table(
            **_fields(self.around),
            aligned=tuple(aligned[:_MAX_COLUMNS]),
            head=tuple(rows[0]),
            rows=tuple((*row, *((),) * len(rows[0]))[: len(rows[0])] for row in rows[1:]),
            is_first=self.piece.is_first,
            is_last=self.piece.is_last,
        )


def _spans(tokens: Sequence[Token]) -> Spans:
    """Inline tokens as letters of one kind each; neighbours of one kind are joined."""
    made: list[Span] = []
    bold = italic = struck = 0
    href = ""
    for token in tokens:
        match token.type:
            case "strong_open" | "strong_close":
                bold += token.nesting
            case "em_open" | "em_close":
                italic += token.nesting
            case "s_open" | "s_close":
                struck += token.nesting
            case "link_open":
                href = _allowed(str(token.attrGet("href") or ""))
            case "link_close":
                href = ""
            case _:
                span = Span(
                    text=_shown(token),
                    is_bold=bold > 0,
                    is_italic=italic > 0,
                    is_struck=struck > 0,
                    is_code=token.type == "code_inline",
                    is_math=token.type == "math",
                    href=_allowed(str(token.attrGet("src") or "")) if token.type == "image" else href,
                )
                if not span.text:
                    continue
                if made and replace(made[-1], text=span.text) == span:
                    made[-1] = replace(span, text=made[-1].text + span.text)
                else:
                    made.append(span)
    return tuple(linked for span in made for linked in _linked(span))


def _shown(token: Token) -> str:
    if token.type in ("softbreak", "hardbreak"):
        return "\n"
    if token.type == "math":
        return readable(token.content)
    if token.type == "image":
        return token.content or str(token.attrGet("src") or "")
    return token.content


def _linked(span: Span) -> Spans:
    """Addresses in running text as links."""
    if span.is_code or span.is_math or span.href or "://" not in span.text:
        return (span,)
    parts: list[Span] = []
    at = 0
    for found in _ADDRESS.finditer(span.text):
        if found.start() > at:
            parts.append(replace(span, text=span.text[at : found.start()]))
        parts.append(replace(span, text=found[0], href=found[0]))
        at = found.end()
    if at < len(span.text):
        parts.append(replace(span, text=span.text[at:]))
    return tuple(parts)


def _allowed(href: str) -> str:
    return href if href.lower().startswith(_SCHEMES) else ""


def _without_ends(source: str) -> str:
    body = source.rstrip(".,; ")
    rest = source[len(body) :]
    for opening, closing in (("$$", "$$"), ("\\[", "\\]")):
        if body.startswith(opening):
            body = body.removeprefix(opening).removesuffix(closing)
    return body + rest


def _math(state: StateInline, silent: bool) -> bool:
    """A formula between dollars or escaped brackets. Dollars as people write prices are none."""
    source, start = state.src, state.pos
    if source[start] == "$":
        mark = "$$" if source.startswith("$$", start) else "$"
        end = _closing_dollar(source, start + len(mark), mark)
        closing = mark
    elif source.startswith(("\\(", "\\["), start):
        closing = "\\)" if source[start + 1] == "(" else "\\]"
        mark = source[start : start + 2]
        end = source.find(closing, start + 2)
    else:
        return False
    if end < 0:
        return False
    if not silent:
        token = state.push("math", "", 0)
        token.content = source[start + len(mark) : end]
    state.pos = end + len(closing)
    return True


def _closing_dollar(source: str, start: int, mark: str) -> int:
    if mark == "$$":
        return source.find("$$", start)
    if start >= len(source) or source[start].isspace():
        return -1
    end = source.find("$", start)
    while end >= 0:
        follows = source[end + 1 : end + 2]
        if source[end - 1] == "\\":
            end = source.find("$", end + 1)
            continue
        is_closing = end > start and not source[end - 1].isspace() and not follows.isdigit()
        return end if is_closing else -1
    return -1


def prepare() -> None:
    """Have what parses; on a thread beside the window's, once that is shown, so that neither waits for its import."""
    _parser()


@lru_cache(maxsize=1)
def _parser() -> MarkdownIt:
    from markdown_it import MarkdownIt

    made = MarkdownIt("commonmark", {"html": False, "maxNesting": 20}).enable(["table", "strikethrough"])
    made.disable(["html_block", "html_inline"])
    made.inline.ruler.before("escape", "math", _math)
    return made
