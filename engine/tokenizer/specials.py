"""Finds special tokens in a text: the first cut of every encoding.

Longer tokens are searched first over the whole text, whatever stands to the left of them: that is how llama.cpp
cuts, and overlaps are decided by it. Knows token texts and ids, nothing of words or merging.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

# A group of tokens this small is searched one by one.
_SMALL_GROUP = 8


@dataclass(slots=True)
class _Group:
    """Tokens that begin with `prefix`; either few of them in `texts`, or split by the next character."""

    prefix: str
    texts: list[str]
    groups: list[_Group] = field(default_factory=list)


class SpecialTokens:
    """A set of token texts that can be cut out of a text quickly, however many they are."""

    def __init__(self, ids: dict[str, int]) -> None:
        self._ids = ids
        self._root = _group(sorted(ids))

    def cut(self, text: str) -> list[str | int]:
        """`text` in order as pieces of plain text (never empty) and token ids."""
        pieces: list[str | int] = [text] if text else []
        for token in self.occurring(text):
            pieces = _cut_one(pieces, token, self._ids[token])
        return pieces

    def occurring(self, text: str) -> list[str]:
        """Which of the tokens' texts occur in `text`, longest first."""
        return sorted(self._occurring(text), key=_longest_first)

    @property
    def texts(self) -> tuple[str, ...]:
        return tuple(self._ids)

    def _occurring(self, text: str) -> Iterable[str]:
        pending = [self._root] if self._ids else []
        while pending:
            group = pending.pop()
            if group.prefix not in text:
                continue
            yield from (token for token in group.texts if token in text)
            pending.extend(group.groups)


def _group(texts: list[str]) -> _Group:
    """Of sorted `texts`, by common prefixes."""
    prefix = _common_prefix(texts[0], texts[-1]) if texts else ""
    if len(texts) <= _SMALL_GROUP:
        return _Group(prefix, texts)
    group = _Group(prefix, [])
    by_next: dict[str, list[str]] = {}
    for text in texts:
        if len(text) == len(prefix):
            group.texts.append(text)
        else:
            by_next.setdefault(text[len(prefix)], []).append(text)
    group.groups = [_group(members) for members in by_next.values()]
    return group


def _common_prefix(first: str, last: str) -> str:
    length = 0
    for a, b in zip(first, last, strict=False):
        if a != b:
            break
        length += 1
    return first[:length]


def _longest_first(token: str) -> tuple[int, str]:
    return (-len(token.encode("utf-8", "surrogatepass")), token)


def _cut_one(pieces: list[str | int], token: str, token_id: int) -> list[str | int]:
    cut: list[str | int] = []
    for piece in pieces:
        if isinstance(piece, int) or token not in piece:
            cut.append(piece)
            continue
        for index, plain in enumerate(piece.split(token)):
            if index:
                cut.append(token_id)
            if plain:
                cut.append(plain)
    return cut
