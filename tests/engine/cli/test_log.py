"""What an engine's log and its news of the other computer leave out: what was said a moment ago."""

from __future__ import annotations

import argparse
import io
import json
import logging
import threading
import time
from pathlib import Path

import pytest

from engine.cli.log import OnceInAWhile, log_to, log_to_stderr, tell
from engine.cli.serve import LinkWatch
from engine.cli.worker import LinkNews
from engine.node.reporting.logs import node_log_handler
from engine.repeats import Repeats
from tests.engine.test_repeats import Clock


def test_a_line_is_not_logged_again_and_again() -> None:
    clock = Clock()
    passing = OnceInAWhile(Repeats(60.0, clock))

    def log(text: str, *args: object) -> str | None:
        record = logging.LogRecord("engine", logging.WARNING, "", 0, text, args, None)
        return record.getMessage() if passing.filter(record) else None

    assert log("the courier ended with %d", 1) == "the courier ended with 1"
    assert [log("the courier ended with %d", 1) for _ in range(3)] == [None] * 3
    assert log("the courier ended with %d", 2) == "the courier ended with 2"
    clock.now += 60
    assert log("the courier ended with %d", 1) == "the courier ended with 1 (and 3 more like it before)"
    assert log("100% sure") == "100% sure"


def test_a_file_hears_what_standard_error_does(tmp_path: Path, capsys) -> None:
    handler = node_log_handler(tmp_path / "logs" / "node.log")
    root, own = logging.getLogger(), logging.getLogger("engine")
    before, level = list(root.handlers), own.level
    log_to_stderr()
    log_to(handler)
    try:
        for _ in range(3):
            logging.getLogger("engine.node.daemon").info("the node of %s is up", "this computer")
        logging.getLogger("zeroconf").info("not said")
        try:
            raise KeyError("a word of a prompt")
        except KeyError:
            logging.getLogger("engine.node.daemon").exception("a mistake")
    finally:
        for added in set(root.handlers) - set(before):
            root.removeHandler(added)
            added.close()
        own.setLevel(level)
    text = (tmp_path / "logs" / "node.log").read_text()
    assert text == capsys.readouterr().err
    assert text.splitlines()[0].endswith("INFO engine.node.daemon: the node of this computer is up")
    assert text.splitlines()[1].endswith("ERROR engine.node.daemon: a mistake")
    assert text.splitlines()[-1] == "KeyError: '...'"


def test_a_worker_says_once_why_nobody_is_there(capsys) -> None:
    clock = Clock()
    news = LinkNews(argparse.Namespace(json=False), Repeats(600.0, clock))
    for note in ("refused", "refused", "not trusted", "refused", "not trusted", ""):
        news.say(note)
    assert capsys.readouterr().err.splitlines() == [
        "Not connected: refused",
        "Not connected: not trusted",
        "The other computer is connected",
    ]
    for minutes in range(0, 25, 5):
        clock.now = 1000.0 + 60 * minutes
        news.say("refused")
    assert capsys.readouterr().err.splitlines() == ["Not connected: refused"] * 3


def test_a_workers_events_are_as_few(capsys) -> None:
    news = LinkNews(argparse.Namespace(json=True))
    for note in ("refused", "refused", ""):
        news.say(note)
    events = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert events == [{"link": False, "note": "refused"}, {"link": True, "note": ""}]


def test_serve_says_what_changes_about_its_worker() -> None:
    clock = Clock()
    watch = LinkWatch(Repeats(600.0, clock), known="not yet")
    seen = [
        *(
            (False, "not yet"),
            (False, "refused"),
            (False, "refused"),
            (False, "not found"),
            (False, "refused"),
        ),
        *((True, ""), (True, ""), (False, "refused"), (True, "")),
    ]
    assert [watch.is_news(*state) for state in seen] == [
        *(False, True, False, True, False),
        *(True, False, True, True),
    ]
    assert watch.is_news(False, "refused")
    clock.now += 599
    assert not watch.is_news(False, "refused")
    clock.now += 1
    assert watch.is_news(False, "refused")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device here that is always full")
def test_news_that_cannot_be_written_are_lost_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    went_on = False
    with pytest.raises(OSError), Path("/dev/full").open("w", encoding="utf-8") as stream:
        monkeypatch.setattr("sys.stderr", stream)
        LinkNews(argparse.Namespace(json=False)).say("the cable is out")
        went_on = True  # what the stream still has raises where it is closed
    assert went_on


def test_lines_of_several_threads_stay_whole() -> None:
    """Whoever started this process reads each of them as an object."""
    stream = _SlowStream()

    def tell_many(number: int) -> None:
        for _ in range(50):
            tell(json.dumps({"number": number}), stream)

    threads = [threading.Thread(target=tell_many, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    lines = stream.getvalue().splitlines()
    assert sorted(json.loads(line)["number"] for line in lines) == sorted(list(range(4)) * 50)


class _SlowStream(io.StringIO):
    """Lets another thread go on after each piece that is written."""

    def write(self, text: str) -> int:
        written = super().write(text)
        time.sleep(0)
        return written
