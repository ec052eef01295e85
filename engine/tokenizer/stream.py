"""Text out of token bytes, a token at a time. Knows bytes and UTF-8 only."""

from __future__ import annotations

import codecs
from collections.abc import Callable


class StreamDecoder:
    """Turns ids into text as they come; no character is ever handed out in halves.

    All that `push` and `flush` return, joined, equals the decoding of all ids at once. Bytes that cannot become
    a character turn into U+FFFD as soon as that is certain, at the latest in `flush`.
    """

    def __init__(self, token_bytes: Callable[[int], bytes], *, strip_first_space: bool) -> None:
        self._token_bytes = token_bytes
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._at_start = strip_first_space

    def push(self, token_id: int) -> str:
        """The text that is certain after this token; often empty."""
        piece = self._token_bytes(token_id)
        if self._at_start and piece:
            piece = piece.removeprefix(b" ")
            self._at_start = False
        return self._decoder.decode(piece)

    def flush(self) -> str:
        """The rest: U+FFFD for a character that was never finished. The decoder is then as new, past its start."""
        rest = self._decoder.decode(b"", final=True)
        self._decoder.reset()
        return rest
