"""Takes what a model thinks apart from what it says. Text in as it streams, both out; no input or output."""

from __future__ import annotations

_OPEN, _CLOSE = "<think>", "</think>"


class Thinking:
    """`text` and `reasoning` are all so far. Thought stands between <think> and </think> before the answer.

    Some templates write the first mark into the prompt: then all before a </think> that nobody opened was thought,
    where that begins a line.
    """

    def __init__(self, text: str = "", reasoning: str = "") -> None:
        """What there is already, of an answer that goes on."""
        self.text, self.reasoning = text, reasoning
        self._held = ""
        self._is_inside = False
        self._is_over = bool(text)

    @property
    def is_thinking(self) -> bool:
        return self._is_inside

    def add_reasoning(self, piece: str) -> None:
        """What the server told apart by itself."""
        self.reasoning += piece

    def add(self, piece: str) -> None:
        """The next piece of the answer, of any length."""
        held = self._held + piece
        self._held = ""
        if self._is_inside:
            self._inside(held)
        elif self._is_over:
            self._say(held)
        else:
            self._before(held)

    def end(self) -> None:
        """Nothing comes any more: half a mark was no mark."""
        held, self._held = self._held, ""
        if self._is_inside:
            self.reasoning += held
        else:
            self.text += held

    def _before(self, held: str) -> None:
        """No mark has been seen yet."""
        if not self.text and (begun := held.lstrip()) != held:
            held = begun
        if not self.text and not self.reasoning:
            if held.startswith(_OPEN):
                self._is_inside = True
                self._inside(held.removeprefix(_OPEN))
                return
            if held and _OPEN.startswith(held):
                self._held = held
                return
        if (at := held.find(_CLOSE)) >= 0 and _ends_line(thought := self.text + held[:at]):
            self.reasoning += thought.strip("\n")
            self.text = ""
            self._say(held[at + len(_CLOSE) :])
            return
        kept = _begun(held, _CLOSE)
        self.text += held[: len(held) - kept]
        self._held = held[len(held) - kept :]

    def _inside(self, held: str) -> None:
        if (at := held.find(_CLOSE)) >= 0:
            self.reasoning = (self.reasoning + held[:at]).strip("\n")
            self._is_inside = False
            self._say(held[at + len(_CLOSE) :])
            return
        kept = _begun(held, _CLOSE)
        thought = held[: len(held) - kept]
        self.reasoning += thought if self.reasoning else thought.lstrip("\n")
        self._held = held[len(held) - kept :]

    def _say(self, held: str) -> None:
        """The answer begins where something else than a line break comes, and is not searched for marks any more."""
        self._is_over = True
        self.text += held if self.text else held.lstrip("\n")


def _ends_line(text: str) -> bool:
    return not text or text.endswith("\n")


def _begun(text: str, mark: str) -> int:
    """How many characters at the end of the text may be the beginning of the mark."""
    for length in range(min(len(mark) - 1, len(text)), 0, -1):
        if text.endswith(mark[:length]):
            return length
    return 0
