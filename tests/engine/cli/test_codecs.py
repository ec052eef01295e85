"""`--codec`, with real processes and a real model: what the answer is, and what is told of its handoff."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.engine.cli.test_telemetry import TIMEOUT_S, ask, events, metrics, running, until

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="engines share no memory there")


def answer_and_handoff(url: str) -> tuple[list[int], dict[str, Any]]:
    """The tokens of an answer whose prompt the worker prefilled, and the handoff's figures when they are known."""
    with httpx.stream("GET", url + "/events", timeout=TIMEOUT_S) as response:
        told = events(response)
        answer = ask(url, return_tokens=True)
        seen = until(told, event="request", state="ended")
        while (end := seen[-1][1])["handoff"]["tail_ms"] is None:
            seen += until(told, event="request", state="ended")
    assert answer["timings"]["handoff"]["prefill"] == "remote"
    return answer["tokens"], end["handoff"]


@pytest.mark.parametrize("codec", ["lossless", "int8"])
def test_an_answer_by_each_codec(smollm2_path: Path, tmp_path: Path, codec: str) -> None:
    with running(smollm2_path, tmp_path, "--codec", codec) as (url, _, _):
        tokens, handoff = answer_and_handoff(url)
        assert (handoff["codec"], handoff["codec_reason"]) == (codec, f"--codec {codec} was set")
        here = ask(url, return_tokens=True, prefill="local")
        found = metrics(url)
    assert len(tokens) == len(here["tokens"]) == 12
    share = handoff["wire_bytes"] / handoff["bytes"]
    if codec == "lossless":
        assert tokens == here["tokens"]
        assert 0.6 < share < 0.75
    else:
        # A byte for each value of two, and four for each head of 64; the length of each block is next to nothing.
        assert share == pytest.approx((64 + 4) / 128, rel=1e-3)
    assert found["baton_handoff_wire_bytes_total",] == handoff["wire_bytes"]
    assert found["baton_handoff_bytes_total",] == handoff["bytes"]
