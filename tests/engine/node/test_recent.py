"""What is kept of the requests that the endpoint answered: counts and ends, and nothing that anybody wrote."""

from __future__ import annotations

import json

import pytest

from engine.node.recent import KEPT_REQUESTS, RecentRequests, Stage

TIMINGS = {"cache_n": 300, "prompt_n": 28, "predicted_n": 7, "handoff": {"prefill": "remote", "detail": ""}}


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def test_a_streamed_answer_is_told_three_times() -> None:
    clock = Clock()
    recent = RecentRequests(clock=clock, wall=lambda: 5.0)
    watch = recent.begin("POST", "/v1/chat/completions", "")
    watch.answered(200, model="small", computer="")
    for part in (b'data: {"choices": [{"text": "w"}]}\n\n' * 1000, b"data: {}\n\n"):
        watch.part(part)
    watch.part(b"data: " + json.dumps({"timings": TIMINGS}).encode() + b"\n\ndata: [DONE]\n\n")
    clock.now_s = 2.5
    watch.end(Stage.DONE)
    watch.end(Stage.LEFT)
    told = [numbered.item for numbered in recent.feed.after(0, at_most=10) or []]
    assert [(one.stage, one.status, one.model) for one in told] == [
        (Stage.RUNNING, None, ""),
        (Stage.RUNNING, 200, "small"),
        (Stage.DONE, 200, "small"),
    ]
    last = told[-1]
    assert (last.n_prompt, last.n_cached, last.n_decoded) == (328, 300, 7)
    assert (last.prefill, last.at, last.duration_s) == ("remote", 5.0, 2.5)
    assert recent.all() == [last]


def test_what_an_answer_says_is_not_taken_for_its_counts() -> None:
    recent = RecentRequests()
    watch = recent.begin("POST", "/v1/completions", "small")
    watch.answered(200, model="small", computer="spark")
    text = json.dumps({"text": '"completion_tokens": 99, "prefill": "remote"', "usage": {"prompt_tokens": 4}})
    watch.part(text.encode())
    watch.end(Stage.DONE)
    (kept,) = recent.all()
    assert (kept.n_prompt, kept.n_decoded, kept.prefill, kept.computer) == (4, None, "", "spark")


@pytest.mark.parametrize(
    ("status", "stage", "ends"),
    [(400, Stage.DONE, Stage.FAILED), (200, Stage.LEFT, Stage.LEFT), (200, Stage.DONE, Stage.DONE)],
)
def test_how_it_ended(status: int, stage: Stage, ends: Stage) -> None:
    recent = RecentRequests()
    watch = recent.begin("POST", "/v1/completions", "small")
    watch.answered(status, model="small", computer="")
    watch.end(stage)
    assert recent.all()[0].stage is ends


def test_the_last_ones_are_kept_and_no_more() -> None:
    recent = RecentRequests()
    for _ in range(KEPT_REQUESTS + 3):
        recent.begin("POST", "/v1/completions", "small")
    kept = recent.all()
    assert [kept[0].number, kept[-1].number, len(kept)] == [4, KEPT_REQUESTS + 3, KEPT_REQUESTS]
