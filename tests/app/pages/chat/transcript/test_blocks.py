"""What pieces of Markdown say."""

from __future__ import annotations

import pytest

from app.pages.chat.transcript.blocks import Block, Code, Rule, Span, Table, Words, blocks_of, units_of
from app.pages.chat.transcript.split import Splitter


def blocks(text: str) -> list[Block]:
    return [block for piece in Splitter(text).pieces for block in blocks_of(piece)]


def spans(text: str) -> tuple[Span, ...]:
    (block,) = blocks(text)
    assert isinstance(block, Words)
    return block.spans


def test_letters_of_each_kind() -> None:
    assert spans("a **b *c*** `d` ~~e~~") == (
        Span(text="a "),
        Span(text="b ", is_bold=True),
        Span(text="c", is_bold=True, is_italic=True),
        Span(text=" "),
        Span(text="d", is_code=True),
        Span(text=" "),
        Span(text="e", is_struck=True),
    )


def test_html_is_text() -> None:
    assert spans("<b onclick='x()'>no</b> &amp; <!-- c -->")[0].text == "<b onclick='x()'>no</b> & <!-- c -->"


@pytest.mark.parametrize(
    ("text", "said", "href"),
    [
        ("[a](https://b.c/d)", "a", "https://b.c/d"),
        ("[a](mailto:x@y.z)", "a", "mailto:x@y.z"),
        ("<http://b.c>", "http://b.c", "http://b.c"),
        ("https://b.c/d?e=f", "https://b.c/d?e=f", "https://b.c/d?e=f"),
        ("![a picture](https://b.c/d.png)", "a picture", "https://b.c/d.png"),
        ("[a](file:///etc/passwd)", "[a](file:///etc/passwd)", ""),
        ("[a](ftp://b.c)", "a", ""),
        ("[a](/local)", "a", ""),
    ],
)
def test_links_lead_to_the_web_or_a_mail_only(text: str, said: str, href: str) -> None:
    (span,) = spans(text)
    assert (span.text, span.href) == (said, href)


def test_an_address_ends_before_the_sentence_does() -> None:
    assert [(span.text, span.href) for span in spans("See https://b.c/d. Or (http://e.f).")] == [
        ("See ", ""),
        ("https://b.c/d", "https://b.c/d"),
        (". Or (", ""),
        ("http://e.f", "http://e.f"),
        (").", ""),
    ]


@pytest.mark.parametrize("text", ["$a^2$", "\\(a^2\\)", "$$a^2$$", "\\[a^2\\]"])
def test_formulas_in_any_brackets(text: str) -> None:
    assert [(span.text, span.is_math) for span in spans(f"So {text} holds")] == [
        ("So ", False),
        ("a²", True),
        (" holds", False),
    ]


@pytest.mark.parametrize(
    "text", ["$5 and $10", "costs $5, not $6.", "$5-$10", "a $ b", "$ 5 $", "from $20 to $30 each"]
)
def test_prices_are_no_formulas(text: str) -> None:
    assert spans(text) == (Span(text=text),)


def test_a_formula_on_lines_of_its_own() -> None:
    (block,) = blocks("$$\na\n+ b\n- c\n$$")
    assert isinstance(block, Words)
    assert block.is_display and block.text == "a + b − c"


def test_code_is_not_a_formula() -> None:
    assert spans("`$a$`") == (Span(text="$a$", is_code=True),)


def test_a_table() -> None:
    (table,) = blocks("| a | b | c |\n|:--|:-:|--:|\n| **x** | y |\n| 1 | 2 | 3 | 4 |")
    assert isinstance(table, Table)
    assert table.aligned == ("left", "center", "right")
    assert units_of(table) == ["a", "b", "c", "x", "y", "", "1", "2", "3"]


def test_tasks() -> None:
    assert [block.marker for block in blocks("- [ ] a\n- [x] b\n- c")] == ["☐", "☑", "•"]


def test_quotes_hold_what_they_hold() -> None:
    one, two, three = blocks("> words\n> - item\n>   > deeper")
    assert (one.quotes, two.quotes, three.quotes) == ((0,), (0,), (0, 1))
    assert (two.indent, two.marker) == (1, "•")


def test_code_and_its_language() -> None:
    (code,) = blocks("```python title=x\na\n\nb\n```")
    assert isinstance(code, Code)
    assert (code.language, code.lines) == ("python", ("a", "", "b"))


def test_a_line_across() -> None:
    assert isinstance(blocks("a\n\n***\n\nb")[1], Rule)


@pytest.mark.parametrize(
    "text",
    [
        "[" * 3000,
        "*_" * 3000,
        "![[" * 2000,
        "\\(" * 3000,
        "$a " * 2000,
        "`" + "``a" * 2000,
        "<" * 3000,
        ">" * 3000,
        "&#" * 3000,
        "[a](b" * 1200,
        "|" * 3000 + "\n" + "|-" * 1499,
        "http://" * 850,
        "\\frac" * 1200,
        "$$" + "{" * 5900,
    ],
    ids=lambda text: text[:6],
)
def test_hostile_text_is_shown(text: str) -> None:
    assert blocks(text)


def test_a_paragraph_of_marks_is_left_as_it_is() -> None:
    text = "[*a* " * 400
    assert spans(text) == (Span(text=text.strip()),)
