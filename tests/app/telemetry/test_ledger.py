"""What the window knows of an engine follows from its events, however they come."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from app.telemetry import ledger as module
from app.telemetry.ledger import Ledger
from app.telemetry.sides import Sides
from tests.app.telemetry.timelines import ASKED_S, Handoff, local, newest_first, nothing_yet, slot, snapshot

NOW_S = ASKED_S + 20.0
SMALL = Handoff(n_prompt=1025, n_chunks=2, n_layers=4, rows_bytes=8_000_000, state_bytes=600_000)

# Of two nodes with the starter model: a prompt that was prefilled remotely, and a short one that was not.
RECORDED = Path(__file__).with_name("recorded_events.json")


def heard(*events: tuple[str, dict[str, Any]], model: str = "m") -> Ledger:
    found = Ledger(model)
    for name, data in events:
        found.hear(name, data, NOW_S)
    return found


def test_a_request_is_followed_from_its_asking_to_its_end() -> None:
    ledger = heard(snapshot(), *SMALL.until_chunk(1))
    ((_, record),) = newest_first(ledger)
    assert ledger.is_handing_over
    assert (record.state, record.is_over, record.told["n_prompt_tokens_processed"]) == (
        "prefill_remote",
        False,
        512,
    )
    assert [(chunk.first, chunk.stop, len(chunk.layers)) for chunk in record.in_order] == [(0, 512, 4)]

    for name, data in SMALL.events():
        ledger.hear(name, data, NOW_S)
    ((_, record),) = newest_first(ledger)
    assert not ledger.is_handing_over
    assert record.is_over and record.is_remote and record.told["handoff"]["tail_ms"] > 0
    assert [(chunk.first, chunk.stop, len(chunk.layers)) for chunk in record.in_order] == [
        (0, 512, 4),
        (512, 1024, 4),
    ]
    assert record.span_ms == pytest.approx(record.told["ended_ms"])


def test_events_may_come_twice() -> None:
    once = heard(snapshot(), *SMALL.events())
    twice = heard(snapshot(), *SMALL.events(), *SMALL.events(), snapshot(SMALL.ended()))
    assert twice.records == once.records
    assert twice.goodput.series(NOW_S) == once.goodput.series(NOW_S)


def test_of_what_ran_before_the_layers_are_asked_for() -> None:
    ledger = heard(snapshot(SMALL.ended(), local("chat-8", ASKED_S + 5)))
    (_, short), (key, long) = newest_first(ledger)
    assert (short.lacks_layers, long.lacks_layers, long.has_layers) == (False, True, False)
    ledger.add_detail(key, {"chunks": [SMALL.chunk(0), SMALL.chunk(1)]})
    assert (long.lacks_layers, long.has_layers) == (False, True)


def test_the_rate_of_the_cable_is_what_came_when() -> None:
    ledger = heard(snapshot(), *SMALL.events())
    series = ledger.goodput.series(NOW_S)
    assert len(series) == module.SERIES_S / module.STEP_S - 1
    assert -60.0 <= series[0][0] < series[-1][0] < 0.0
    n_bytes = sum(SMALL.chunk(index)["bytes"] for index in range(2))
    assert sum(rate for _, rate in series) * module.STEP_S == pytest.approx(n_bytes)
    assert [-20.0 <= at < -19.0 for at, rate in series if rate] and not ledger.goodput.now(NOW_S)
    assert ledger.goodput.now(ASKED_S + 0.75, over_s=0.75) * 0.75 == pytest.approx(n_bytes)
    assert not ledger.goodput.is_empty(NOW_S) and ledger.goodput.is_empty(NOW_S + 61)


def test_a_slot_has_the_speed_of_what_it_does() -> None:
    ledger = Ledger("m")
    for step, (state, n_processed, n_decoded) in enumerate(
        [("prefill_remote", 0, 0), ("prefill_remote", 400, 0), ("decode", 1024, 3), ("decode", 1024, 15)]
    ):
        told = slot(
            0, state, n_prompt_tokens=1025, n_prompt_tokens_processed=n_processed, n_decoded=n_decoded
        )
        ledger.hear("slots", {"slots": [told, slot(1)]}, NOW_S + step * 0.5)
        speeds = [each.tokens_per_s for each in ledger.slots]
        assert speeds == [(None, 800.0, None, 24.0)[step], None]
    assert ledger.slots[0].progress == pytest.approx(1024 / 1025)


def test_the_speed_of_a_prompt_is_that_of_its_chunks() -> None:
    """Between two chunks nothing grows, and no slower is it prefilled."""
    ledger = Ledger("m")
    speeds = []
    for at_s, n_processed in ((0, 0), (5, 0), (10, 500), (12, 500), (19, 500), (20, 1000), (60, 1000)):
        told = slot(0, "prefill_remote", n_prompt_tokens=2000, n_prompt_tokens_processed=n_processed)
        ledger.hear("slots", {"slots": [told]}, NOW_S + at_s)
        speeds.append(ledger.slots[0].tokens_per_s)
    assert speeds == [None, None, 50.0, 50.0, 50.0, 50.0, 10.0]


def test_an_answer_grows_while_it_is_written() -> None:
    """Slots tell of it, and requests only once it has ended."""
    first = SMALL.timeline(
        "decode", prefilled_ms=700.0, first_token_ms=740.0, last_token_ms=740.0, n_decoded=1
    )
    ledger = heard(snapshot(), *SMALL.until_chunk(2), ("request", first))
    ((_, record),) = newest_first(ledger)
    decoding = slot(0, "decode", id_task="chat-7", n_decoded=25)
    ledger.hear("slots", {"slots": [decoding]}, NOW_S + 2)
    assert (record.n_decoded, record.last_token_ms) == (25, pytest.approx(2740.0))
    ledger.hear("slots", {"slots": [decoding]}, NOW_S + 3)
    assert record.last_token_ms == pytest.approx(2740.0)
    assert record.told["n_decoded"] == 1
    ledger.hear("request", SMALL.ended(), NOW_S + 4)
    assert (record.n_decoded, record.last_token_ms) == (312, SMALL.ended()["last_token_ms"])


def test_time_goes_on_for_a_request_that_runs() -> None:
    """By this computer's clock, from what was heard last: the other one's may be an hour off."""
    ledger = heard(snapshot(), *SMALL.until_chunk(1))
    ((_, record),) = newest_first(ledger)
    chunk_ms = SMALL.chunk(0)["at_ms"]
    assert record.age_ms(NOW_S) == pytest.approx(chunk_ms)
    assert record.age_ms(NOW_S + 5) == pytest.approx(chunk_ms + 5000)
    ledger.hear("request", SMALL.ended(), NOW_S + 6)
    assert record.age_ms(NOW_S + 60) == record.span_ms == pytest.approx(SMALL.ended()["ended_ms"])


def test_a_request_reaches_to_where_it_was_given_up() -> None:
    fallback = {"reason": "peer_lost", "detail": "", "at_ms": 9_000.0}
    given_up = SMALL.timeline("prefill_local", n_chunks=1, fallback=fallback)
    ((_, record),) = newest_first(heard(snapshot(), *SMALL.until_chunk(1), ("request", given_up)))
    assert record.span_ms == 9_000.0


def test_a_request_keeps_the_sides_that_it_began_with() -> None:
    ledger = heard(snapshot(), *SMALL.events())
    before, after = Sides(worker="spark", decoder="studio"), Sides(worker="studio", decoder="spark")
    ledger.sides = before
    ledger.hear("request", nothing_yet("chat-8", ASKED_S + 30, 5), NOW_S + 30)
    ledger.sides = after
    ledger.hear("request", local("chat-8", ASKED_S + 30), NOW_S + 31)
    ledger.hear("request", nothing_yet("chat-9", ASKED_S + 40, 5), NOW_S + 40)
    assert [record.sides for _, record in newest_first(ledger)][:2] == [after, before]


def test_what_an_engine_was_doing_ends_with_it() -> None:
    ledger = heard(snapshot(), *SMALL.until_chunk(1))
    ledger.leave("its engine ended")
    ((_, record),) = newest_first(ledger)
    assert (record.state, record.told["outcome"], record.told["error"]) == (
        "ended",
        "failed",
        "its engine ended",
    )
    assert ledger.slots == []

    # the next engine counts anew, and means another request by the same number
    ledger.hear(*snapshot(nothing_yet("chat-7", ASKED_S + 60, 5)), NOW_S + 60)
    assert [record.told["n_prompt_tokens"] for _, record in newest_first(ledger)] == [5, 1025]


def test_a_chunk_of_a_request_that_is_not_known_is_nothing() -> None:
    chunk = {"id": "chat-9", "slot": 0, "n_prompt_tokens": 5, **SMALL.chunk(0)}
    assert heard(("chunk", chunk), ("lost", {"events": 3})).records == {}


def test_history_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_RECORDS", 5)
    monkeypatch.setattr(module, "MAX_WITH_LAYERS", 2)
    ledger = heard(snapshot())
    for number in range(8):
        for name, data in Handoff(
            request_id=f"chat-{number}", asked_s=ASKED_S + 9 * number, n_prompt=1025, n_chunks=2, n_layers=4
        ).events():
            ledger.hear(name, data, NOW_S)
    records = [record for _, record in newest_first(ledger)]
    assert [record.request_id for record in records] == [f"chat-{number}" for number in (7, 6, 5, 4, 3)]
    assert [record.has_layers for record in records] == [True, True, False, False, False]


def test_what_two_real_computers_told() -> None:
    ledger = Ledger("smollm2-135m")
    for name, data in json.loads(RECORDED.read_text()):
        ledger.hear(name, data, NOW_S)
    short, long = [record for _, record in newest_first(ledger)][:2]
    assert not short.is_remote and short.in_order and not short.in_order[0].remote
    assert long.is_remote and long.is_over
    assert sum(chunk.n_tokens for chunk in long.in_order) == long.told["n_prompt_tokens"] - 1
    assert sum(chunk.n_bytes for chunk in long.in_order) == long.told["handoff"]["bytes"]
    assert all(len(chunk.layers) == 30 for chunk in long.in_order)
