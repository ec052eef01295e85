"""What iperf3 says, read."""

from __future__ import annotations

import json

import pytest

from engine.bench.ceiling import received_gbps
from engine.errors import HostError


def test_the_rate_is_what_was_received() -> None:
    said = {"end": {"sum_sent": {"bits_per_second": 9.9e9}, "sum_received": {"bits_per_second": 9.8e9}}}
    assert received_gbps(json.dumps(said)) == pytest.approx(9.8)


@pytest.mark.parametrize(
    ("said", "sentence"),
    [
        (json.dumps({"start": {}, "error": "unable to connect"}), "unable to connect"),
        ("", "no report"),
        ("[]", "no report"),
        (json.dumps({"end": {}}), "no report"),
    ],
)
def test_what_it_cannot_say_is_an_error(said: str, sentence: str) -> None:
    with pytest.raises(HostError, match=sentence):
        received_gbps(said)
