"""The row of the latest log lines: from the node and its engines, with their levels, without secrets, and bounded."""

from __future__ import annotations

import logging
from pathlib import Path

from engine.node.reporting.log_feed import LogFeed
from engine.node.reporting.logs import RotatingLog


def said(feed: LogFeed, n: int = 100) -> list[tuple[str, str, str]]:
    return [(line.source, line.level, line.text) for line in feed.last_lines(n)[1]]


def test_what_an_engine_writes_comes_with_its_level_and_where_it_is_from(tmp_path: Path) -> None:
    feed = LogFeed()
    log = RotatingLog(tmp_path / "serve-small.log", on_line=feed.write)
    log.write("2026-01-02 03:04:05,678 WARNING engine.loop: a chunk was lost\n")
    log.write("Traceback (most recent call last):\n")
    log.close()
    assert said(feed) == [
        ("serve-small", "warning", "engine.loop: a chunk was lost"),
        ("serve-small", "info", "Traceback (most recent call last):"),
    ]


def test_what_the_node_logs_is_a_line_each_at_its_level() -> None:
    feed = LogFeed()
    logger = logging.getLogger("engine.test_log_feed")
    logger.propagate = False
    logger.addHandler(handler := feed.handler())
    try:
        logger.error("it is %s", "broken")
        try:
            raise ValueError("what 'somebody' wrote")
        except ValueError:
            logger.exception("a mistake")
    finally:
        logger.removeHandler(handler)
    lines = said(feed)
    assert lines[0] == ("node", "error", "engine.test_log_feed: it is broken")
    assert len(lines) > 3 and {level for _, level, _ in lines} == {"error"}
    assert lines[-1][2] == "ValueError: what '...' wrote"


def test_secrets_are_not_in_it() -> None:
    feed = LogFeed()
    feed.write("serve-small", f"asked with Bearer {'k' * 20} and {'x' * 43}")
    (line,) = said(feed)
    assert "kkkk" not in line[2] and "xxxx" not in line[2] and line[2].startswith("asked with")


def test_it_keeps_the_last_lines_and_no_more() -> None:
    feed = LogFeed(keep=5)
    for number in range(12):
        feed.write("node", f"line {number}")
    place, lines = feed.last_lines(100)
    assert place == 12
    assert [line.text for line in lines] == [f"line {number}" for number in range(7, 12)]
    assert [line.text for line in feed.last_lines(2)[1]] == ["line 10", "line 11"]
    assert LogFeed().last_lines(5) == (0, [])
