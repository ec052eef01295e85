"""Figures, decisions and exports, as they are read."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable

import pytest

from app.telemetry import figures
from app.telemetry.decision import decision, facts
from app.telemetry.export import COLUMNS, as_csv, as_json
from app.telemetry.ledger import Ledger, Record
from tests.app.telemetry.timelines import ASKED_S, Handoff, local, newest_first, nothing_yet, snapshot

LONG = Handoff()


@pytest.mark.parametrize(
    ("written", "value", "text"),
    [
        (figures.size, 1_107_000_000, "1.1 GB"),
        (figures.size, 302_000, "302 KB"),
        (figures.size, 0, "0 B"),
        (figures.memory, 192 << 30, "192 GB"),
        (figures.memory, 7 << 30, "7.0 GB"),
        (figures.rate, 1.2125e9, "9.7 Gb/s"),
        (figures.rate, 5e6, "40 Mb/s"),
        (figures.rate, 0, "0.0 Gb/s"),
        (figures.duration, 2.06, "2.1 ms"),
        (figures.duration, 320, "320 ms"),
        (figures.duration, 8_420, "8.4 s"),
        (figures.duration, 125_000, "2 min 5 s"),
        (figures.duration, 7_500_000, "2 h 5 min"),
        (figures.passed, 12.7, "12 s"),
        (figures.passed, 65.2, "1 min 5 s"),
        (figures.passed, 312.9, "5 min 12 s"),
        (figures.passed, -0.2, "0 s"),
        (figures.count, 28_800, "28,800"),
        (figures.share, 0.9996, "99.9%"),
        (figures.share, 1, "100%"),
        (figures.speed, 24.83, "24.8 tok/s"),
        (figures.speed, 1_010.2, "1,010 tok/s"),
    ],
)
def test_a_figure_has_its_unit_and_no_idle_digits(
    written: Callable[[float | None], str], value: float, text: str
) -> None:
    assert written(value) == text
    if written not in (figures.memory, figures.passed):
        assert written(None) == figures.DASH


def records() -> list[tuple[str, Record]]:
    ledger = Ledger("m")
    for name, data in (snapshot(local("chat-1", ASKED_S - 60)), *LONG.events()):
        ledger.hear(name, data, ASKED_S + 40)
    return [("m", record) for _, record in newest_first(ledger)]


def test_a_decision_says_both_ways() -> None:
    (_, long), (_, short) = records()
    assert (
        decision(long, "spark", "studio") == "Prefilled on spark: predicted 17.3 s, against 84 s on studio."
    )
    assert (
        decision(short, "spark", "studio")
        == "Prefilled on studio: predicted 140 ms, against 190 ms on spark."
    )
    waits = Record(request_id="chat-2", told=nothing_yet("chat-2", ASKED_S, 5))
    assert "waits for a slot" in decision(waits, "spark", "studio")
    gone = Record(request_id="chat-2", told={**waits.told, "state": "ended", "outcome": "cancelled"})
    assert decision(gone, "spark", "studio") == "It ended before it got a slot."
    asked = Record(
        request_id="chat-1", told={**short.told, "route": {**short.told["route"], "reason": "no_worker"}}
    )
    assert decision(asked, "spark", "studio").endswith(
        "no other computer was ready to prefill for this model."
    )


def test_facts_are_those_of_the_handoff() -> None:
    (_, long), (_, short) = records()
    told = {fact.name: (fact.value, fact.note) for fact in facts(long, "spark", "studio", 1.7)}
    assert told["Tail"] == ("3.0 ms", "the cable allows 1.7 ms")
    assert told["Handed over"] == ("1.1 GB", "1.1 GB on the cable")
    assert told["Overlap"] == ("99.9%", "arrived during prefill")
    assert told["Answer"] == ("312 tokens", "24.8 tok/s")
    assert [fact.name for fact in facts(short, "spark", "studio", None)] == [
        "First token",
        "Prompt",
        "Answer",
    ]


def test_a_fallback_comes_first_with_its_reason() -> None:
    (_, long), _ = records()
    fallback = {"reason": "peer_lost", "detail": "the connection to the worker broke", "at_ms": 7_620.0}
    lost = Record(request_id="chat-7", told={**long.told, "fallback": fallback})
    first = facts(lost, "spark", "studio", None)[0]
    assert (first.name, first.tone) == ("Fallback", "warning")
    assert (
        first.value == "spark gave up after 7.6 s; studio went on"
        and "connection to the worker" in first.note
    )
    assert decision(lost, "spark", "studio").startswith("Sent to spark")
    # one that began here, and went over later, was not sent anywhere when it began
    told = {
        **lost.told,
        "route": {"prefill": "local", "reason": "no_worker", "detail": "", "predicted": None},
    }
    began_here = Record(request_id="chat-7", told=told)
    assert decision(began_here, "spark", "studio").startswith("Prefilled on studio")


def test_what_still_runs_is_told_as_such() -> None:
    ledger = Ledger("m")
    for name, data in (snapshot(), *LONG.until_chunk(3)):
        ledger.hear(name, data, ASKED_S + 2)
    ((_, record),) = newest_first(ledger)
    assert decision(record, "spark", "studio").startswith("Prefilling on spark: predicted")
    assert "Answer" not in [fact.name for fact in facts(record, "spark", "studio", None)]
    record.n_decoded = 1
    answer = facts(record, "spark", "studio", None)[-1]
    assert (answer.name, answer.value, answer.note) == ("Answer", "1 token", "")


def test_json_has_all_of_it() -> None:
    long, short = json.loads(as_json(records()))
    assert (long["model"], len(long["chunks"]), len(long["chunks"][0]["layers"])) == ("m", 57, 64)
    assert long["chunks"][56] == LONG.chunk(56)
    assert short["route"]["reason"] == "local_sooner"


def test_csv_has_a_line_for_each() -> None:
    long, short = csv.DictReader(io.StringIO(as_csv(records()), newline=""))
    assert tuple(long) == COLUMNS
    assert (long["prefill"], long["handoff_bytes"]) == ("remote", str(LONG.ended()["handoff"]["bytes"]))
    assert (short["prefill"], short["handoff_bytes"], short["predicted_local_ms"]) == ("local", "", "140.0")
    assert long["asked"].startswith("2026-09-2")
