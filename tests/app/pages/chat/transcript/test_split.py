"""Markdown in pieces: the same however it comes, and as the whole text would have been read."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from app.pages.chat.transcript.blocks import Code, Table, Words, blocks_of
from app.pages.chat.transcript.split import (
    MAX_CODE_LINES,
    MAX_DEPTH,
    MAX_LINES,
    MAX_PIECE,
    MAX_TABLE_ROWS,
    Kind,
    PlainSplitter,
    Splitter,
)

# Lines that mean something to Markdown, to be mixed.
_LINES = st.sampled_from(
    [
        "",
        "",
        "words and more",
        "  indented words",
        "      deep words",
        "# heading",
        "===",
        "---",
        "***",
        "- item",
        "  - item within",
        "    - deeper",
        "-",
        "* other",
        "1. first",
        "7) seventh",
        "   goes on",
        "> quote",
        ">> deeper quote",
        "```python",
        "```",
        "  ```",
        "~~~",
        "| a | b |",
        "|---|:-:|",
        "| 1 | 2 |",
        "$$",
        "$$x^2$$",
        "\\[",
        "\\]",
        "<div>",
        "\t- tab",
        "- - - x",
        "[a]: http://b",
        "line  ",
        "\r",
    ]
)
_TEXT = st.one_of(
    st.text(max_size=200),
    st.text(alphabet="-*+#`~>|:$\\[]()_ \t\n1.ab", max_size=200),
    st.lists(_LINES, max_size=25).map("\n".join),
)


@settings(max_examples=400, deadline=None)
@given(text=_TEXT, cuts=st.lists(st.integers(0, 400), max_size=12))
def test_any_cuts_give_the_same_pieces(text: str, cuts: list[int]) -> None:
    splitter, at = Splitter(), 0
    for cut in [*sorted(min(cut, len(text)) for cut in cuts), len(text)]:
        before = list(splitter.pieces)
        first = splitter.feed(text[at:cut])
        at = cut
        assert splitter.pieces[:first] == before[:first]
    assert splitter.pieces == Splitter(text).pieces


@settings(max_examples=100, deadline=None)
@given(text=_TEXT)
def test_letter_by_letter_gives_the_same_pieces(text: str) -> None:
    splitter = Splitter()
    for letter in text:
        splitter.feed(letter)
    assert splitter.pieces == Splitter(text).pieces


@settings(max_examples=200, deadline=None)
@given(text=_TEXT)
def test_no_word_is_lost(text: str) -> None:
    said = "".join(piece.prefix + piece.source + piece.info + piece.marker for piece in Splitter(text).pieces)
    for word in text.split():
        if word.isalnum():
            assert word in said


@settings(max_examples=200, deadline=None)
@given(text=_TEXT)
def test_whatever_comes_can_be_shown(text: str) -> None:
    for piece in Splitter(text).pieces:
        assert blocks_of(piece)


def said_by_pieces(text: str) -> list[str]:
    said = []
    for piece in Splitter(text).pieces:
        for block in blocks_of(piece):
            depth = "  " * block.indent + ">" * len(block.quotes)
            if isinstance(block, Words):
                said.append(f"{depth}{block.marker}{'#' * block.heading}{block.text}")
            elif isinstance(block, Code):
                said.append(f"{depth}code {block.language}: {'|'.join(block.lines)}")
            elif isinstance(block, Table):
                said.append(f"{depth}table {len(block.head)}x{len(block.rows)}")
            else:
                said.append("rule")
    return said


def said_at_once(text: str) -> list[str]:
    """What markdown-it reads in the whole text."""
    said: list[str] = []
    lists: list[int | None] = []
    quotes, marker, heading = 0, "", 0
    tokens = MarkdownIt("commonmark", {"html": False}).enable(["table"]).disable(["html_block"]).parse(text)
    rows = columns = 0
    in_table = False
    for token in tokens:
        depth = "  " * len(lists) + ">" * quotes
        kind = token.type
        if kind == "table_open":
            rows, columns, in_table = -1, 0, True
        elif kind == "tr_open":
            rows += 1
        elif kind == "th_open":
            columns += 1
        elif kind == "table_close":
            in_table = False
            said.append(f"{depth}table {columns}x{rows}")
        elif kind == "bullet_list_open":
            lists.append(None)
        elif kind == "ordered_list_open":
            lists.append(int(token.attrGet("start") or 1))
        elif kind.endswith("list_close"):
            lists.pop()
        elif kind == "list_item_open":
            number = lists[-1]
            marker = "•◦▪"[min(len(lists) - 1, 2)] if number is None else f"{number}{token.markup}"
            if number is not None:
                lists[-1] = number + 1
        elif kind == "blockquote_open":
            quotes += 1
        elif kind == "blockquote_close":
            quotes -= 1
        elif kind == "heading_open":
            heading = int(token.tag[1])
        elif kind == "inline" and not in_table:
            words = "".join(
                "\n" if child.type in ("softbreak", "hardbreak") else child.content
                for child in token.children or []
            )
            said.append(f"{depth}{marker}{'#' * heading}{words}")
            marker, heading = "", 0
        elif kind in ("fence", "code_block"):
            lines = token.content.removesuffix("\n").split("\n") if token.content else []
            said.append(f"{depth}code {token.info}: {'|'.join(lines)}")
        elif kind == "hr":
            said.append("rule")
    return said


@pytest.mark.parametrize(
    "text",
    [
        "a\nb\n\nc",
        "# one\ntwo\n## three",
        "one\n===\ntwo\n---\nthree",
        "- a\n- b\n\n- c\n\nd",
        "- a\n  - b\n    - c\n  - d\n- e",
        "- a\n\n  second paragraph\n\n- b",
        "1. a\n1. b\n1. c",
        "3. a\n4. b\n\n   still b\n5. c",
        "1) a\n2) b\n1. c",
        "intro:\n- a\n- b\noutro without a gap\n\nrest",
        "- a\nlazy\n- b",
        "text\n2. no list, for it begins with two",
        "text\n1. a list",
        "text\n-\nrest",
        "- \n  later",
        "```py\nx = 1\n\ny\n```\nafter",
        "before\n```\ncode\n```",
        "1. step\n   ```sh\n   ls\n     -l\n   ```\n   done\n2. next",
        "~~~\n```\n~~~",
        "````\n```\n````",
        "```\nnever closed\n",
        "text\n\n    code by spaces\n      more\n\n    and more\n\ntext",
        "> a\n> b\nlazy\n\n> c",
        "> - a\n>   - b\n> - c",
        "> # h\n> ```\n> code\n> ```",
        "- > quoted in a list",
        "| a | b |\n|---|---|\n| 1 | 2 |\n| 3 | 4 |\n\nafter",
        "before\n| a | b |\n|---|---|\n| 1 | 2 |\n# heading",
        "| a | b |\n|---|\n| no | table |",
        "***\na\n* * *\nb\n___",
        "- a\n***\n- b",
        "* a\n+ b\n- c",
        "- # heading in an item\n- text",
        "a  \nb\\\nc",
        "<div>\n\n<p>text</p>\n\n</div>",
        "- - a",
        "10. ten\n11. eleven\n    - under eleven",
    ],
)
def test_pieces_say_what_the_whole_text_says(text: str) -> None:
    pieces = [line for line in said_by_pieces(text) if line.strip() not in ("", "•", "◦", "▪")]
    assert pieces == said_at_once(text)


def test_what_is_settled_is_not_read_again() -> None:
    splitter = Splitter("para one\n\npara two\n\nopen")
    assert splitter.feed(" goes on") == 2
    assert [piece.source for piece in splitter.pieces] == ["para one", "para two", "open goes on"]


def test_long_code_is_cut_and_goes_on() -> None:
    lines = [f"line {number}" for number in range(3 * MAX_CODE_LINES + 5)]
    pieces = Splitter("```py\n" + "\n".join(lines) + "\n```\nend").pieces
    assert [len(piece.source.split("\n")) for piece in pieces[:-1]] == [MAX_CODE_LINES] * 3 + [5]
    assert [(piece.is_first, piece.is_last) for piece in pieces[:-1]] == [
        (True, False),
        (False, False),
        (False, False),
        (False, True),
    ]
    assert {piece.info for piece in pieces[:-1]} == {"py"}
    assert pieces[-1].source == "end"


def test_thousands_of_cells_are_cut_and_keep_their_head() -> None:
    rows = [f"| {number} | b | c | d |" for number in range(2000)]
    pieces = Splitter("\n".join(["| a | x | y | z |", "|---|---|---|---|", *rows])).pieces
    assert all(piece.kind is Kind.TABLE for piece in pieces)
    tables = [block for piece in pieces for block in blocks_of(piece)]
    assert all(isinstance(table, Table) and len(table.rows) <= MAX_TABLE_ROWS for table in tables)
    first = [row[0][0].text for table in tables if isinstance(table, Table) for row in table.rows]
    assert first == [str(number) for number in range(2000)]
    assert [table.is_first for table in tables if isinstance(table, Table)] == [True] + [False] * (
        len(tables) - 1
    )


@pytest.mark.parametrize("start", ["", "```\n", "- ", "> ", "$$\n", "| a |\n|---|\n| "])
def test_a_line_of_a_megabyte_is_cut(start: str) -> None:
    pieces = Splitter(start + "word " * 200_000).pieces
    assert max(len(piece.source) for piece in pieces) <= 2 * MAX_PIECE
    assert sum(piece.source.count("word") for piece in pieces) == 200_000


def test_a_poem_without_end_is_cut() -> None:
    pieces = Splitter("a\n" * 10_000).pieces
    assert all(len(piece.source.split("\n")) <= MAX_LINES for piece in pieces)
    assert all(piece.is_tight for piece in pieces[1:])


@pytest.mark.parametrize("mark", ["- ", "> ", "1. ", "+ ", ">"])
def test_deep_nesting_ends_somewhere(mark: str) -> None:
    pieces = Splitter(mark * 1000 + "x").pieces
    blocks = [block for piece in pieces for block in blocks_of(piece)]
    assert max(block.indent for block in blocks) <= MAX_DEPTH
    assert max(len(block.quotes) for block in blocks) <= 20


def test_plain_text_is_left_as_it_is() -> None:
    lines = ["# no heading", "", "- no list", "x" * 3 * MAX_PIECE, *map(str, range(200))]
    splitter = PlainSplitter()
    splitter.feed("\n".join(lines[:3]))
    splitter.feed("\n" + "\n".join(lines[3:]))
    pieces = splitter.pieces
    assert all(piece.kind is Kind.PLAIN and len(piece.source) <= MAX_PIECE + 1000 for piece in pieces)
    assert "".join(piece.source for piece in pieces).replace("\n", "") == "".join(lines)
    assert pieces == PlainSplitter("\n".join(lines)).pieces
