"""Codes of failures: one for every error, in one spelling, and all of them explained."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from engine import errors
from engine.errors import BatonError, HostError, PeerLost, PromptTooLong, ProtocolError
from engine.handoff.failure import FailureCode, Going, failure_code
from engine.handoff.route import RouteReason
from engine.wire.compatibility import Incompatible
from engine.wire.messages import Code

PAGE = Path(__file__).parents[3] / "docs" / "endpoint.md"

# What the worker may say of a request, or break while one runs; the others end a link before it can be asked.
_OF_A_REQUEST = {
    *(Code.BUSY, Code.TOO_LONG, Code.BAD_TOKENS, Code.CODEC, Code.OUT_OF_MEMORY, Code.WORKER_FAILED),
    Code.PROTOCOL,
}


def made(kind: type[BatonError]) -> BatonError:
    return kind(n_prompt_tokens=1, n_ctx=1) if kind is PromptTooLong else kind("x")


ALL = [
    made(kind) for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, BatonError)
]


@pytest.mark.parametrize("error", ALL, ids=lambda error: type(error).__name__)
def test_every_error_has_a_code_in_snake_case(error: BatonError) -> None:
    code = failure_code(error)
    assert code in {*FailureCode, *Code}
    assert code is not FailureCode.INTERNAL
    assert re.fullmatch(r"[a-z]+(_[a-z]+)*", code.value)


def test_the_nearest_code_counts() -> None:
    assert failure_code(Going("it was stopped")) is FailureCode.LINK_CLOSED
    assert failure_code(PeerLost("gone")) is FailureCode.PEER_LOST
    assert failure_code(ProtocolError("nonsense")) is Code.PROTOCOL
    assert failure_code(Incompatible(Code.MODEL, "another")) is Code.MODEL
    assert failure_code(HostError("no room")) is FailureCode.HOST_FAILED
    assert failure_code(KeyError("x")) is FailureCode.INTERNAL


def test_the_page_explains_every_reason_and_no_other() -> None:
    reasons = PAGE.read_text(encoding="utf-8").partition("### Reasons")[2]
    explained = re.findall(r"^\| `([a-z_]+)` \|", reasons, re.MULTILINE)
    assert len(set(explained)) == len(explained)
    assert set(explained) == {*RouteReason, *FailureCode, *_OF_A_REQUEST}
