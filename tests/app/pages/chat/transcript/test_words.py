"""The short lines around an answer."""

from __future__ import annotations

import pytest

from app.pages.chat.transcript.model import Prefill, Shown, Stats
from app.pages.chat.transcript.words import (
    milliseconds,
    prefill_lead,
    prefill_parts,
    seconds,
    stats_line,
    stats_parts,
    thought,
)


def test_all_that_is_known_of_an_answer() -> None:
    stats = Stats(
        first_token_s=0.94,
        tokens_per_s=24.81,
        n_reused=11904,
        n_prompt=12310,
        prefilled_on="spark",
        is_remote=True,
        tail_ms=2.0,
        saved_s=4.1,
    )
    assert stats_line(stats) == (
        "0.9 s to first token · 24.8 tok/s · reused 11,904 of 12,310 · prefilled on spark · tail 2 ms · saved 4.1 s"
    )
    assert [part.text for part in stats_parts(stats) if part.is_remote] == [
        "prefilled on spark",
        "tail 2 ms",
        "saved 4.1 s",
    ]


def test_what_is_not_known_is_left_out() -> None:
    assert stats_line(Stats()) == ""
    assert stats_line(Stats(tokens_per_s=9.96)) == "10.0 tok/s"
    assert stats_line(Stats(n_prompt=300)) == "prompt of 300 tokens"
    here = stats_parts(Stats(prefilled_on="studio"))
    assert [(part.text, part.is_remote) for part in here] == [("prefilled on studio", False)]


def test_a_handoff_that_was_not_worth_it_says_so() -> None:
    assert stats_line(Stats(saved_s=-1.5)) == "cost 1.5 s"
    assert stats_line(Stats(saved_s=0.01)) == ""


@pytest.mark.parametrize(
    ("shown", "words"),
    [
        (Shown(id="", role="assistant", text="", reasoning="a", is_live=True), "Thinking"),
        (Shown(id="", role="assistant", text="b", reasoning="a", reasoning_s=8.2), "Thought for 8 s"),
        (Shown(id="", role="assistant", text="b", reasoning="a", reasoning_s=0.2), "Thought for 1 s"),
        (Shown(id="", role="assistant", text="b", reasoning="a", reasoning_s=83), "Thought for 1 min 23 s"),
        (Shown(id="", role="assistant", text="b", reasoning="a"), "Thoughts"),
    ],
)
def test_how_long_it_thought(shown: Shown, words: str) -> None:
    assert thought(shown) == words


def test_how_far_a_prompt_is() -> None:
    prefill = Prefill(
        done=12300, arrived=11900, total=28800, tokens_per_s=1833.3, left_s=9.2, where="spark", is_remote=True
    )
    assert prefill_lead(prefill) == "Reading the prompt on spark: 12,300 of 28,800 tokens"
    assert [part.text for part in prefill_parts(prefill)] == [
        "11,900 arrived here",
        "1,833 tok/s",
        "9 s left",
    ]
    assert prefill_lead(Prefill(done=0, arrived=0, total=0)) == "Reading the prompt"
    assert prefill_parts(Prefill(done=1, arrived=1, total=2)) == []


def test_spans_of_time() -> None:
    assert [seconds(one) for one in (0.042, 0.94, 12.34, 59.6, 120)] == [
        "0.04 s",
        "0.9 s",
        "12.3 s",
        "1 min",
        "2 min",
    ]
    assert [milliseconds(one) for one in (0.9, 2.04, 2.1, 31.6, 1264)] == [
        "0.9 ms",
        "2 ms",
        "2.1 ms",
        "32 ms",
        "1.3 s",
    ]
