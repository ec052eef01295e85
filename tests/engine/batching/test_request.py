import math

import pytest

from engine.batching.request import SamplingParams, Timings
from engine.errors import InvalidRequest


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", -0.1),
        ("temperature", math.nan),
        ("top_k", -1),
        ("top_p", 1.1),
        ("min_p", -0.5),
        ("typical_p", 2.0),
        ("repeat_penalty", 0.0),
        ("repeat_penalty", 1e-38),
        ("repeat_last_n", -2),
        ("repeat_last_n", 1 << 20),
        ("presence_penalty", 1000.0),
        ("frequency_penalty", -1000.0),
        ("seed", 1 << 64),
        ("max_tokens", -1),
        ("top_logprobs", 21),
        ("stop", ("",)),
        ("stop", ("x",) * 65),
        ("logit_bias", {-1: 1.0}),
        ("logit_bias", {1: math.inf}),
        ("logit_bias", {1: math.nan}),
        ("logit_bias", {1: 1e308}),
        ("logit_bias", {1: 100.5}),
        ("logit_bias", {1: -101.0}),
    ],
)
def test_a_field_out_of_range_is_refused_by_name(field, value):
    with pytest.raises(InvalidRequest, match=field if field != "stop" else "stop") as caught:
        SamplingParams(**{field: value})
    assert caught.value.param == field


def test_a_bias_may_reach_openais_limits_and_a_ban_goes_beyond():
    bias = {1: 100.0, 2: -100.0, 3: -math.inf}
    assert SamplingParams(logit_bias=bias).logit_bias == bias


def test_a_large_number_is_written_whole():
    with pytest.raises(InvalidRequest, match=r"seed is 18446744073709551616: it must be .*at most \d+$"):
        SamplingParams(seed=1 << 64)


def test_a_number_beyond_all_floats_is_no_fault_of_ours():
    assert SamplingParams(max_tokens=10**400).max_tokens == 10**400


def test_defaults_are_llama_servers():
    params = SamplingParams()
    assert (params.temperature, params.top_k, params.top_p, params.min_p) == (0.8, 40, 0.95, 0.05)
    assert params.penalty_window == 0


def test_the_penalty_window_is_open_only_with_a_penalty():
    assert SamplingParams(repeat_penalty=1.1).penalty_window == 64
    assert SamplingParams(repeat_penalty=1.1, repeat_last_n=0).penalty_window == 0
    assert SamplingParams(presence_penalty=1.0, repeat_last_n=-1).penalty_window == 4096


def test_rates_are_numbers_even_when_no_time_passed():
    timings = Timings(
        cache_n=0, prompt_n=4, prompt_ms=2.0, predicted_n=1, predicted_ms=0.0, queue_ms=0.0, handoff=None
    )
    assert timings.prompt_per_second == 2000.0
    assert timings.prompt_per_token_ms == 0.5
    assert timings.predicted_per_second == 0.0
