"""How far a prompt is, by the endpoint's events."""

from __future__ import annotations

from typing import Any

import pytest

from app.chats.models import Computers
from app.chats.progress import PrefillProgress


def timeline(**fields: Any) -> dict[str, Any]:
    return {
        "id": "chatcmpl-1-0",
        "state": "prefill_remote",
        "started_ms": 100.0,
        "first_token_ms": None,
        "ended_ms": None,
        "n_prompt_tokens": 2000,
        "n_cached_tokens": 500,
        "n_prompt_tokens_processed": 500,
        "fallback": None,
        **fields,
    }


def chunk(stop: int, at_ms: float, prefill: str = "remote", id_: str = "chatcmpl-1-0") -> dict[str, Any]:
    return {
        "id": id_,
        "n_prompt_tokens": 2000,
        "first": stop - 500,
        "stop": stop,
        "prefill": prefill,
        "at_ms": at_ms,
        "compute_ms": 400.0,
    }


@pytest.fixture
def progress() -> PrefillProgress:
    return PrefillProgress("chatcmpl-1-0", Computers(decoder="studio", worker="spark"))


def test_nothing_is_known_before_the_first_event(progress: PrefillProgress) -> None:
    assert progress.prefill is None


def test_chunks_of_the_other_computer(progress: PrefillProgress) -> None:
    assert progress.hear("snapshot", {"requests": [timeline(id="another"), timeline()]})
    assert progress.prefill is not None and progress.prefill.done == 500
    assert progress.prefill.tokens_per_s is None and progress.prefill.left_s is None
    assert progress.hear("chunk", chunk(1000, 600.0))
    told = progress.prefill
    assert (told.done, told.arrived, told.total, told.where, told.is_remote) == (
        1000,
        1000,
        2000,
        "spark",
        True,
    )
    assert told.tokens_per_s == pytest.approx(1000.0)
    assert told.left_s == pytest.approx(1.0)


def test_other_requests_are_none_of_its_business(progress: PrefillProgress) -> None:
    assert not progress.hear("chunk", chunk(1000, 600.0, id_="chatcmpl-2-0"))
    assert not progress.hear("slots", {"slots": []})
    assert not progress.hear("snapshot", {"requests": [timeline(id="another")]})
    assert progress.prefill is None


def test_a_chunk_alone_is_enough(progress: PrefillProgress) -> None:
    progress.hear("chunk", chunk(500, 600.0, prefill="local"))
    told = progress.prefill
    assert told is not None and (told.done, told.where, told.is_remote) == (500, "studio", False)
    assert told.tokens_per_s == pytest.approx(1250.0)


def test_a_worker_that_was_given_up_is_said(progress: PrefillProgress) -> None:
    progress.hear("request", timeline(state="prefill_local", fallback={"detail": "the connection broke"}))
    told = progress.prefill
    assert told is not None and told.where == "studio"
    assert told.note == "spark could not go on: the connection broke. studio does."


def test_where_the_other_computer_decodes_this_one_is_its_worker() -> None:
    there = Computers(decoder="spark", worker="studio", decodes_here=False)
    progress = PrefillProgress("chatcmpl-1-0", there)
    progress.hear("chunk", chunk(1000, 600.0))
    assert progress.prefill is not None
    assert (progress.prefill.where, progress.prefill.is_remote) == ("studio", False)
    progress.hear("chunk", chunk(1500, 900.0, prefill="local"))
    assert (progress.prefill.where, progress.prefill.is_remote) == ("spark", True)


def test_it_is_over_with_the_first_token(progress: PrefillProgress) -> None:
    progress.hear("chunk", chunk(1000, 600.0))
    progress.hear("request", timeline(first_token_ms=900.0))
    assert progress.is_over and progress.prefill is None
