"""Code as runs of letters with the names of their colours, by Pygments' lexers. Knows no colours and no Qt."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import lru_cache

from pygments.lexer import Lexer
from pygments.lexers import get_lexer_by_name
from pygments.token import Comment, Keyword, Name, Number, Operator, String, Token, _TokenType
from pygments.util import ClassNotFound

# What is left after that stays plain: a line of odd code must not stop the window.
_MAX_S = 0.02

# Longer lines are data or packed by a tool; thousands of colours in one would take long to lay out.
_MAX_LINE = 1000

# The palette's fields by kind of token; the first that holds the token decides.
_COLOURS: tuple[tuple[_TokenType, str], ...] = (
    (Comment, "text_faint"),
    (String, "code_string"),
    (Number, "code_number"),
    (Keyword.Constant, "code_number"),
    (Keyword, "code_word"),
    (Operator.Word, "code_word"),
    (Name.Function, "code_name"),
    (Name.Class, "code_name"),
    (Name.Decorator, "code_name"),
    (Name.Tag, "code_word"),
    (Name.Attribute, "code_name"),
    (Name.Builtin, "code_name"),
    (Name.Variable, "code_name"),
    (Token.Generic.Deleted, "danger"),
    (Token.Generic.Inserted, "local"),
    (Token.Generic.Heading, "code_word"),
    (Token.Generic.Prompt, "text_faint"),
)

# Names are what a model wrote behind a fence, and there is no end to them.
_MAX_LEXERS = 200
_lexers: dict[str, Lexer | None] = dict.fromkeys(("", "text", "plain", "plaintext", "txt"))

# Where a run of letters begins and ends in its line, and its colour.
Run = tuple[int, int, str]


def highlight(lines: Sequence[str], language: str) -> list[list[Run]]:
    """The coloured runs of each line; none in a language that is not known or has not been loaded."""
    runs: list[list[Run]] = [[] for _ in lines]
    lexer = _lexers.get(language.lower())
    if lexer is None:
        return runs
    row, column = 0, 0
    deadline_s = time.monotonic() + _MAX_S
    for _, kind, letters in lexer.get_tokens_unprocessed("\n".join(lines) + "\n"):
        colour = _colour(kind)
        for index, part in enumerate(letters.split("\n")):
            if index:
                row, column = row + 1, 0
            if row >= len(lines):
                break
            if colour and len(lines[row]) <= _MAX_LINE and part.strip():
                runs[row].append((column, column + len(part), colour))
            column += len(part)
        if time.monotonic() > deadline_s:
            break
    return runs


def is_loaded(language: str) -> bool:
    """Whether it can be coloured at once, as far as it can be at all."""
    return language.lower() in _lexers


def load(language: str) -> None:
    """Get what colours a language. Takes up to a fifth of a second, and may be called from any thread."""
    name = language.lower()
    try:
        lexer = get_lexer_by_name(name, stripnl=False, ensurenl=False)
        for _ in lexer.get_tokens_unprocessed("x = 1\n"):
            pass  # it prepares its expressions when it first reads
    except ClassNotFound:
        lexer = None
    if len(_lexers) < _MAX_LEXERS:
        _lexers[name] = lexer


@lru_cache(maxsize=1024)
def _colour(kind: _TokenType) -> str:
    return next((colour for within, colour in _COLOURS if kind in within), "")
