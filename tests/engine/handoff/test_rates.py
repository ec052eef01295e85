"""Speeds learned from prompts, and what is made of them."""

import json
import random

import pytest

from engine.handoff.rates import PrefillRates, SpeedByLength


def speed(*seen):
    learned = SpeedByLength()
    for n_tokens, seconds in seen:
        learned.observe(n_tokens, seconds)
    return learned


def rates(local, remote):
    return PrefillRates(local=speed(*local), remote=speed(*remote))


def test_nothing_is_known_at_first():
    assert speed().predict(100) is None
    assert not speed().is_known
    assert PrefillRates().predict(100) is None
    assert PrefillRates().crossover() is None
    assert rates([(100, 1.0)], []).predict(100) is None
    assert rates([(100, 1.0)], []).crossover() is None


def test_one_length_stands_for_all():
    learned = speed((1000, 2.0))
    for n_tokens in (1, 16, 1000, 100_000, 1 << 24):
        assert learned.predict(n_tokens) == pytest.approx(n_tokens * 0.002)


def test_between_two_lengths_the_speed_lies_between():
    learned = speed((100, 1.0), (6400, 6.4))
    assert learned.predict(90) == pytest.approx(0.9)
    assert learned.predict(7000) == pytest.approx(7.0)
    per_token = [learned.predict(n_tokens) / n_tokens for n_tokens in (100, 128, 256, 512, 1024, 2048, 6000)]
    assert per_token == sorted(per_token, reverse=True)
    assert per_token[1] < 0.01 and per_token[-2] > 0.001


def test_the_newest_count_most():
    learned = speed(*[(1000, 1.0)] * 20)
    for _ in range(8):
        learned.observe(1000, 4.0)
    assert 3.5 < learned.predict(1000) < 4.0


def test_what_waits_and_what_shares_counts():
    both = rates([(1000, 1.0)], [(1000, 0.25)])
    assert both.predict(1000).local_s == pytest.approx(1.0)
    assert both.predict(1000, local_backlog=2000).local_s == pytest.approx(3.0)
    assert both.predict(1000, remote_in_flight=3).remote_s == pytest.approx(1.0)


def test_the_crossover():
    """Remote pays 100 ms a prompt and is ten times as fast: sooner from about 111 tokens on."""
    lengths = [1 << exponent for exponent in range(5, 15)]
    both = rates(
        [(n_tokens, n_tokens / 1000) for n_tokens in lengths],
        [(n_tokens, 0.1 + n_tokens / 10_000) for n_tokens in lengths],
    )
    assert 80 < both.crossover() < 160
    for n_tokens in (both.crossover(), 1000, 10_000):
        prediction = both.predict(n_tokens)
        assert prediction.remote_s < prediction.local_s
    assert rates([(1000, 1.0)], [(1000, 2.0)]).crossover() is None
    assert rates([(1000, 1.0)], [(1000, 0.5)]).crossover() == 16


def test_a_worker_is_not_given_up_too_soon_nor_for_ever():
    both = rates([(1000, 1.0)], [])
    for prompt in range(3):
        assert both.remote_is_stale(100.0 + prompt)
        both.observe_remote(1000, 5.0, now=100.0 + prompt)
    assert not both.remote_is_stale(103.0)
    assert both.remote_is_stale(900.0)


def test_kept_as_json():
    both = rates([(100, 1.0), (5000, 9.0)], [(300, 0.5)])
    both.observe_remote(300, 0.5, now=12345.5)
    again = PrefillRates.from_json(json.loads(json.dumps(both.to_json())))
    assert again == both


def test_whatever_stands_there_instead_is_left_out():
    draw = random.Random(7)
    good = PrefillRates(local=speed((100, 1.0))).to_json()
    pieces = [
        None,
        1,
        -1.0,
        0.0,
        float("nan"),
        float("inf"),
        "x",
        [],
        {},
        {"5": 1.0},
        {"99": 1.0},
        {"5": "x"},
    ]
    for _ in range(500):
        data = dict(good)
        for key in ("local", "remote", "remote_at", "remote_prompts", "other"):
            if draw.random() < 0.7:
                data[key] = draw.choice(pieces)
        found = PrefillRates.from_json(data)
        for way in (found.local, found.remote):
            assert way.predict(1000) is None or 0 < way.predict(1000) < float("inf")
        assert found.remote_at >= 0 or found.remote_at == -1.0
    for data in pieces:
        assert PrefillRates.from_json(data).predict(10) is None
