"""How many tokens a text has at least, seen from its bytes alone. Knows no tokenizer.

Cutting a text into tokens takes about a hundred times its size in memory. Whether it could fit a context at all is
told before that, by counting what no token covers many of: each token of a vocabulary covers at most so many bytes, so
many beginnings of words and so many digits, and a text with more of them has more tokens than one.
"""

from __future__ import annotations

from collections.abc import Iterable


def _classes() -> bytearray:
    """A class for each byte: space, a (a letter, or begins one), 1 (a digit), b (goes on with one), or a dot."""
    table = bytearray(b"." * 256)
    for byte in range(256):
        character = chr(byte)
        if byte > 0xC2 or (character.isascii() and character.isalpha()):
            table[byte] = ord("a")
        elif character.isascii() and character.isdigit():
            table[byte] = ord("1")
        elif character.isascii() and character.isspace():
            table[byte] = ord(" ")
        elif 0x80 <= byte < 0xC0:
            table[byte] = ord("b")
    return table


# What is counted, written in classes; a token covers one where it covers its last byte. Tokens of real vocabularies
# cover one word and one to three digits: the first is nearly the count of tokens of prose, the second helps with code,
# the third with tables of numbers. None of them overlaps itself.
_EVENTS = ((b" a",), (b" a", b".a", b"1a"), (b"1",))


_MOST_BYTES_OF_A_CHARACTER = 4


class LeastTokens:
    """The bound for one vocabulary. `spellings` are what its tokens cover.

    Bytes of `lost` may become no token at all. With `any_character` one token stands for whatever has none.
    """

    def __init__(self, spellings: Iterable[bytes], *, lost: bytes = b"", any_character: bool = False) -> None:
        self._lost = lost
        table = _classes()
        for byte in lost:
            table[byte] = ord(".")
        self._table = bytes(table)
        self._most_bytes = _MOST_BYTES_OF_A_CHARACTER if any_character else 1
        shapes = set()
        for spelling in spellings:
            self._most_bytes = max(self._most_bytes, len(spelling))
            # Behind a space, where its first byte counts most.
            shapes.add((b" " + spelling).translate(self._table))
        self._most = [max((_count(shape, event) for shape in shapes), default=0) or 1 for event in _EVENTS]

    def of(self, text: bytes) -> int:
        """No encoding of this text (UTF-8) has fewer tokens."""
        n_bytes = len(text.translate(None, self._lost)) if self._lost else len(text)
        classes = text.translate(self._table)
        bounds = [_count(classes, event) / most for event, most in zip(_EVENTS, self._most, strict=True)]
        return int(max(n_bytes / self._most_bytes, *bounds))


def _count(classes: bytes, event: Iterable[bytes]) -> int:
    return sum(map(classes.count, event))
