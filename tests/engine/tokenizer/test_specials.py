"""Cutting special tokens out of a text, against the plain way to do it: one token after the other."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from engine.tokenizer.specials import SpecialTokens


def cut_plainly(ids: dict[str, int], text: str) -> list[str | int]:
    pieces: list[str | int] = [text]
    for token in sorted(ids, key=lambda token: (-len(token.encode()), token)):
        cut: list[str | int] = []
        for piece in pieces:
            while isinstance(piece, str) and (at := piece.find(token)) >= 0:
                cut += [piece[:at], ids[token]]
                piece = piece[at + len(token) :]
            cut.append(piece)
        pieces = cut
    return [piece for piece in pieces if piece != ""]


WORDS = st.text("ab<é", min_size=1, max_size=5)


@settings(max_examples=500, deadline=None)
@given(tokens=st.sets(WORDS, max_size=30), text=st.text("ab<é", max_size=60))
def test_cuts_as_the_plain_way_does(tokens, text):
    ids = {token: index for index, token in enumerate(sorted(tokens))}
    assert SpecialTokens(ids).cut(text) == cut_plainly(ids, text)


def test_the_longest_wins_wherever_it_stands():
    specials = SpecialTokens({"<a>": 1, "a>bcd": 2})
    assert specials.cut("<a>bcd") == ["<", 2]


def test_thousands_of_tokens_with_one_beginning():
    specials = SpecialTokens({f"<unused{index}>": index for index in range(6242)})
    assert specials.cut("<unused17>x<unused6241><unused6242>") == [17, "x", 6241, "<unused6242>"]
    assert specials.cut("") == []
