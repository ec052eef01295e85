"""How smooth the chat stays: `python -m tests.app.bench_window`.

A probe in the event loop finds the longest time in which the window did nothing else, while 200 tokens a second stream
into an empty conversation and into one of 50,000 tokens; the time until that one shows its end; and the memory held.
Each time is told twice: as a person waits, and how much of it the window's thread computed, which other programs on a
busy computer add nothing to.
"""

from __future__ import annotations

import argparse
import gc
import os
import random
import sys
import time
from dataclasses import dataclass

os.environ.setdefault("QT_QPA_PLATFORM", "offscreen")

import psutil
from PySide6.QtCore import QCoreApplication, QEventLoop, QObject, QTimer
from PySide6.QtWidgets import QApplication

from app.look.look import Look
from app.pages.chat.transcript.model import Shown, Stats
from app.pages.chat.transcript.view import Transcript

TOKENS_PER_S = 200
N_LETTERS = 200_000  # of 50,000 tokens
_SIZE = (1040, 748)

_TEXT = (
    "the cache of a prompt streams layer by layer over the cable while the next layer is still being computed so that "
    "decoding may start a moment after the last chunk has arrived and nobody waits"
)
_WORDS = _TEXT.split()


def markdown(n_letters: int, seed: int = 1) -> str:
    """Text such as a model writes: headings, paragraphs, lists, code, tables and formulas."""
    pick = random.Random(seed)
    parts: list[str] = []
    size = 0
    while size < n_letters:
        part = _PARTS[pick.randrange(len(_PARTS))](pick)
        parts.append(part)
        size += len(part) + 2
    return "\n\n".join(parts)[:n_letters]


def _sentence(pick: random.Random) -> str:
    words = pick.choices(_WORDS, k=pick.randint(8, 24))
    if pick.random() < 0.3:
        words[2] = f"**{words[2]}**"
    if pick.random() < 0.3:
        words[5] = f"`{words[5]}`"
    if pick.random() < 0.1:
        words[4] = "$x_i^2 \\le \\frac{1}{2}$"
    return " ".join(words).capitalize() + "."


def _paragraph(pick: random.Random) -> str:
    return " ".join(_sentence(pick) for _ in range(pick.randint(2, 6)))


def _list(pick: random.Random) -> str:
    return "\n".join(f"- {_sentence(pick)}" for _ in range(pick.randint(3, 8)))


def _code(pick: random.Random) -> str:
    lines = [
        f"    {pick.choice(_WORDS)} = [{pick.randint(0, 99)}, '{pick.choice(_WORDS)}']  # {pick.choice(_WORDS)}"
        for _ in range(pick.randint(4, 40))
    ]
    return "\n".join(
        ["```python", f"def {pick.choice(_WORDS)}_it(x: int) -> str:", *lines, "    return str(x)", "```"]
    )


def _table(pick: random.Random) -> str:
    rows = [f"| {pick.choice(_WORDS)} | {pick.randint(0, 9999)} | {pick.choice(_WORDS)} |" for _ in range(6)]
    return "\n".join(["| word | tokens | way |", "|---|--:|:-:|", *rows])


_PARTS = (
    lambda pick: f"## {' '.join(pick.choices(_WORDS, k=4)).capitalize()}",
    _paragraph,
    _paragraph,
    _paragraph,
    _list,
    _code,
    _table,
)


@dataclass(frozen=True, kw_only=True)
class Taken:
    """A span of time, and what of it this thread computed."""

    wall_ms: float
    computed_ms: float

    def __str__(self) -> str:
        return f"{self.wall_ms:.0f} ms, {self.computed_ms:.0f} ms computing"


class Clock:
    def __init__(self) -> None:
        self._start_s = time.perf_counter(), time.thread_time()

    def taken(self) -> Taken:
        """Since it was made."""
        wall_s, computed_s = time.perf_counter() - self._start_s[0], time.thread_time() - self._start_s[1]
        return Taken(wall_ms=wall_s * 1000, computed_ms=computed_s * 1000)


class Probe(QObject):
    """The longest times between two turns of the event loop while it runs."""

    def __init__(self) -> None:
        super().__init__()
        self._wall_ms = self._computed_ms = 0.0
        self._clock = Clock()
        self._timer = QTimer(self, interval=0)
        self._timer.timeout.connect(self._tick)
        self._timer.start()

    def _tick(self) -> None:
        taken = self._clock.taken()
        self._wall_ms = max(self._wall_ms, taken.wall_ms)
        self._computed_ms = max(self._computed_ms, taken.computed_ms)
        self._clock = Clock()

    def stop(self) -> Taken:
        self._timer.stop()
        return Taken(wall_ms=self._wall_ms, computed_ms=self._computed_ms)


def conversation(n_messages: int) -> list[Shown]:
    """200 KB in that many messages, answers and questions in turn."""
    each = N_LETTERS // n_messages
    return [
        Shown(
            id=f"m{index}",
            role="assistant" if index % 2 or n_messages == 1 else "user",
            text=markdown(each, seed=index),
            stats=Stats(first_token_s=0.9, tokens_per_s=24.8, prefilled_on="spark", is_remote=True),
        )
        for index in range(n_messages)
    ]


def opening(transcript: Transcript, messages: list[Shown]) -> Taken:
    """Until the end of the conversation has been painted."""
    clock = Clock()
    transcript.show_all(messages)
    transcript.repaint()
    QCoreApplication.sendPostedEvents()
    transcript.viewport().repaint()
    return clock.taken()


def streaming(transcript: Transcript, seconds: float) -> Taken:
    """The longest times blocked while an answer streams in."""
    transcript.add(Shown(id="live", role="assistant", text="", is_live=True))
    text = markdown(int(TOKENS_PER_S * 4 * (seconds + 1)), seed=99)
    start_s, sent = time.perf_counter(), 0
    loop = QEventLoop()

    def feed() -> None:
        nonlocal sent
        n_tokens = int((time.perf_counter() - start_s) * TOKENS_PER_S)
        for at in range(sent, n_tokens):
            transcript.append("live", text[at * 4 : at * 4 + 4])
        sent = n_tokens
        if time.perf_counter() - start_s > seconds:
            loop.quit()

    timer = QTimer(interval=5)
    timer.timeout.connect(feed)
    timer.start()
    probe = Probe()
    loop.exec()
    timer.stop()
    transcript.show_all(transcript.shown[:-1])
    return probe.stop()


def resting(seconds: float) -> Taken:
    """What the computer itself takes away: the longest times while the window has nothing to do."""
    loop, probe = QEventLoop(), Probe()
    QTimer.singleShot(int(seconds * 1000), loop.quit)
    loop.exec()
    return probe.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=20.0, help="how long to stream, each time")
    args = parser.parse_args()
    application = QApplication(sys.argv[:1])
    Look(application)
    transcript = Transcript()
    transcript.resize(*_SIZE)
    transcript.show()
    gc.freeze()  # as the program does
    print(f"a window at rest: longest block {resting(args.seconds)}")
    print(f"stream into an empty conversation: longest block {streaming(transcript, args.seconds)}")
    for n_messages in (200, 1):
        messages = conversation(n_messages)
        shown = "200 messages" if n_messages == 200 else "one message"
        print(f"open 50,000 tokens in {shown}: {opening(transcript, messages)}")
        print(f"stream at its end: longest block {streaming(transcript, args.seconds)}")
    print(f"memory of the process: {psutil.Process().memory_info().rss / 2**20:.0f} MiB")


if __name__ == "__main__":
    main()
