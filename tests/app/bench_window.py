"""How soon the window is there and how smooth it stays: `python -m tests.app.bench_window`.

First the time from the program's start until its window has been painted, and until the page in it has, with a node
that runs and without, and the memory of it once each page has been open. Then, in this process: a probe in the event
loop finds the longest time in which the window did nothing else, while 200 tokens a second stream into an empty
conversation, into one of 50,000 tokens, and behind Telemetry, which shows a handoff as it goes on; and the time until a
conversation of 50,000 tokens shows its end. Each time is told twice: as a person waits, and how much of it the window's
thread computed, which other programs on a busy computer add nothing to.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

os.environ.setdefault("QT_QPA_PLATFORM", "offscreen")

import httpx
from PySide6.QtCore import QCoreApplication, QEventLoop, QObject, QTimer
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication

from app.context import Context
from app.look.look import Look
from app.pages.catalogue import PAGES
from app.pages.chat.page import ChatPage
from app.pages.chat.transcript.model import Shown, Stats
from app.pages.chat.transcript.view import Transcript
from app.telemetry.ledger import Ledger
from app.window import MainWindow
from tests.app.telemetry.timelines import Event, Handoff, slot, snapshot
from tests.app.two_computers import MODEL, pretend, two_computers
from tests.engine.node.nodes import NodeProcess

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


@dataclass(frozen=True, kw_only=True)
class Start:
    """Until the window was painted, and what of it its process computed; until the page in it was; then its memory, 0
    where nobody asked."""

    wall_s: float
    computed_s: float
    page_s: float
    rss_bytes: float = 0
    own_bytes: float = 0


def starts(folder: Path, n: int, *, with_node: bool) -> list[Start]:
    """The program's start so many times, each time with a node that runs, or without one."""
    found = []
    for number in range(n):
        node = NodeProcess(folder / f"{with_node}-{number}", "studio", "--port", "0", "--node-port", "0")
        kept = node.folder / "config" / "baton" / "window.json"
        kept.parent.mkdir(parents=True)
        kept.write_text(json.dumps({"setup": {"is_over": True}}))
        if with_node:
            with node:
                found.append(_start(node, looks_at_all=number == 0))
        else:
            found.append(_start(node, looks_at_all=False))
            _end_node(node)
    return found


def _start(node: NodeProcess, *, looks_at_all: bool) -> Start:
    words = [sys.executable, "-m", "tests.app.shown_window", *(["--pages"] if looks_at_all else [])]
    began_s = time.perf_counter()
    environment = {**node.environment, "QT_QPA_PLATFORM": os.environ["QT_QPA_PLATFORM"]}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # a user's Python keeps what it has compiled
    window = subprocess.Popen(words, env=environment, stdout=subprocess.PIPE)
    assert window.stdout is not None
    try:
        told = json.loads(window.stdout.readline())
        wall_s = time.perf_counter() - began_s
        window.stdout.readline()
        page_s = time.perf_counter() - began_s
        memory = json.loads(window.stdout.readline()) if looks_at_all else {}
    finally:
        window.terminate()
        window.wait()
        window.stdout.close()
    return Start(
        wall_s=wall_s,
        computed_s=told["computed_s"],
        page_s=page_s,
        rss_bytes=memory.get("rss_bytes", 0),
        own_bytes=memory.get("uss_bytes", 0),
    )


def _end_node(node: NodeProcess) -> None:
    """The window has begun one, which outlives it."""
    note = node.folder / "cache" / "baton" / "node" / "node.json"
    for _ in range(200):
        with contextlib.suppress(OSError, httpx.HTTPError, ValueError):
            if note.exists() and node.ask_control("POST", "/stop").is_success:
                return
        time.sleep(0.1)


def watching(seconds: float) -> Taken:
    """The longest times blocked while Telemetry shows a handoff as it goes on, and an answer streams behind it."""
    with tempfile.TemporaryDirectory() as folder, two_computers(Path(folder)) as context:
        window = MainWindow(context, PAGES)
        window.resize(1280, 800)
        window.go("chat")
        chat = window.page("chat")
        assert isinstance(chat, ChatPage)
        window.go("telemetry")
        window.show()
        events = _handoffs(context)
        timer = QTimer(interval=25)
        timer.timeout.connect(lambda: _tell(context, next(events)))
        timer.start()
        QTest.qWait(1000)  # what is made once is made
        taken = streaming(chat.transcript, seconds)
        timer.stop()
        window.hide()
        window.end()
        return taken


def _tell(context: Context, events: list[Event]) -> None:
    for name, data in events:
        context.feeds.ledgers[MODEL].hear(name, data, time.time())
        context.feeds.changed.emit(MODEL, str(data.get("id", "")))


def _handoffs(context: Context) -> Iterator[list[Event]]:
    """What comes every 25 ms: long prompts one after the other, with a chunk of 64 layers every 300 ms."""
    pretend(context)
    context.feeds.ledgers.setdefault(MODEL, Ledger(MODEL))
    _tell(context, [snapshot()])
    for number in range(1000):
        running = Handoff(request_id=f"chat-{number}", asked_s=time.time(), n_chunks=20)
        for step, event in enumerate(running.events()):
            done = {"n_prompt_tokens": 28_800, "n_prompt_tokens_processed": 1440 * step}
            yield [event]
            for beat in range(12):
                yield (
                    [("slots", {"slots": [slot(0, "prefill_remote", **done), slot(1)]})] if beat == 6 else []
                )


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


def measure_starts(n: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        for with_node in (True, False):
            found = starts(Path(folder), n, with_node=with_node)
            middle = sorted(found, key=lambda start: start.wall_s)[len(found) // 2]
            words = "with a node that runs" if with_node else "which starts a node"
            spread = f"{min(one.wall_s for one in found):.2f} to {max(one.wall_s for one in found):.2f} s"
            computed_s = statistics.median(one.computed_s for one in found)
            page_s = statistics.median(one.page_s for one in found)
            print(
                f"start {words}: {middle.wall_s:.2f} s ({spread}), {computed_s:.2f} s computing; "
                f"with its page {page_s:.2f} s"
            )
            if found[0].rss_bytes:
                own = f"{found[0].own_bytes / 2**20:.0f} MiB of its own"
                print(f"memory with all pages opened: {found[0].rss_bytes / 2**20:.0f} MiB, {own}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=20.0, help="how long to stream, each time")
    parser.add_argument("--starts", type=int, default=5, help="how often the program is started, in each way")
    args = parser.parse_args()
    measure_starts(args.starts)
    application = QApplication(sys.argv[:1])
    Look(application)
    transcript = Transcript()
    transcript.resize(*_SIZE)
    transcript.show()
    gc.freeze()  # as the program does
    print(f"Telemetry while an answer streams: longest block {watching(args.seconds)}")
    print(f"a window at rest: longest block {resting(args.seconds)}")
    print(f"stream into an empty conversation: longest block {streaming(transcript, args.seconds)}")
    for n_messages in (200, 1):
        messages = conversation(n_messages)
        shown = "200 messages" if n_messages == 200 else "one message"
        print(f"open 50,000 tokens in {shown}: {opening(transcript, messages)}")
        print(f"stream at its end: longest block {streaming(transcript, args.seconds)}")


if __name__ == "__main__":
    main()
