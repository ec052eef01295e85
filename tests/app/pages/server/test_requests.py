"""Rows of the recent requests."""

from __future__ import annotations

from typing import Any

from app.pages.server.requests import MAX_ROWS, RequestList, row_of

DONE = {
    "number": 1,
    "at": 1.0,
    "method": "POST",
    "path": "/v1/chat/completions",
    "model": "small",
    "computer": "",
    "stage": "done",
    "status": 200,
    "n_prompt": 12_310,
    "n_cached": 11_904,
    "n_decoded": 240,
    "prefill": "remote",
    "duration_s": 3.21,
}


def told(**more: Any) -> dict[str, Any]:
    return {**DONE, **more}


def test_a_row_says_what_was_asked_and_how_it_ended() -> None:
    row = row_of(DONE)
    assert (row.what, row.model, row.prompt, row.answer, row.took) == (
        "chat/completions",
        "small",
        "12,310 (11,904)",
        "240",
        "3.2 s",
    )
    assert (row.place, row.status, row.tone) == ("remote", "200", "local")


def test_what_is_not_known_is_empty() -> None:
    running = row_of(
        told(
            stage="running",
            status=None,
            n_prompt=None,
            n_cached=None,
            n_decoded=None,
            prefill="",
            duration_s=None,
        )
    )
    assert (running.prompt, running.answer, running.took, running.place, running.status) == (
        "",
        "",
        "",
        "",
        "",
    )


def test_a_prompt_that_was_there_was_prefilled_nowhere() -> None:
    assert row_of(told(n_cached=12_309, prefill="local")).place == "cached"


def test_failures_stand_out_and_waiting_is_none() -> None:
    tones = [
        row_of(told(stage=stage, status=status)).tone for stage, status in (("failed", 400), ("failed", 503))
    ]
    assert tones == ["danger", "warning"]
    assert row_of(told(stage="left")).tone == "warning"
    assert row_of(told(duration_s=0.02)).took == "20 ms"


def test_the_newest_is_first_and_each_is_there_once() -> None:
    requests = RequestList()
    requests.begin([told(number=1, stage="running")])
    requests.add([told(number=2), told(number=1)])
    assert [(row.number, row.stage) for row in requests.rows()] == [(2, "done"), (1, "done")]
    requests.add([told(number=number) for number in range(MAX_ROWS + 5)])
    assert len(requests.rows()) == MAX_ROWS and requests.rows()[0].number == MAX_ROWS + 4
    requests.begin([])
    assert requests.rows() == []
