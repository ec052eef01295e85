"""An answer's text as it comes: stop strings are found across token borders and never sent.

Knows nothing of tokens but what the decoder makes of them; UTF-8 is the decoder's affair.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class Decoder(Protocol):
    """The tokenizer's stream decoder."""

    def push(self, token_id: int, /) -> str:
        """The text that is certain after this token."""

    def flush(self) -> str:
        """The rest."""


class TextStream:
    """Turns token ids into text that is safe to send.

    What could still become a stop string is held back. After the first stop string `stop` names it, and nothing
    more comes out. Of several that end at the same place the one that begins first counts.
    """

    def __init__(self, decoder: Decoder, stops: Sequence[str]) -> None:
        self._decoder = decoder
        self._stops = tuple(stops)
        self._held = ""
        self.stop: str | None = None

    def push(self, token_id: int) -> str:
        """The text that is certain to belong to the answer after this token; often empty."""
        text = self._decoder.push(token_id)
        if not self._stops:
            return text
        return self._release(text)

    def finish(self) -> str:
        """The end of the answer: whatever was held back, up to a stop string."""
        if self.stop is not None:
            return ""
        rest = self._release(self._decoder.flush()) if self._stops else self._decoder.flush()
        held, self._held = self._held, ""
        return rest if self.stop is not None else rest + held

    def _release(self, text: str) -> str:
        if not text or self.stop is not None:
            return ""
        text = self._held + text
        found = [(at, stop) for stop in self._stops if (at := text.find(stop)) >= 0]
        if found:
            at, self.stop = min(found, key=lambda hit: (hit[0], -len(hit[1])))
            self._held = ""
            return text[:at]
        n_held = max(_overlap(text, stop) for stop in self._stops)
        cut = len(text) - n_held
        self._held = text[cut:]
        return text[:cut]


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of `text` that is a beginning, though not the whole, of `stop`."""
    first = stop[0]
    at = text.find(first, max(0, len(text) - len(stop) + 1))
    while at >= 0:
        if stop.startswith(text[at:]):
            return len(text) - at
        at = text.find(first, at + 1)
    return 0
