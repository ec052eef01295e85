import math

import numpy as np
import pytest
import torch

from engine.batching.request import SamplingParams
from engine.batching.sampler import Sampled, Sampler, sample_rows, top_k
from engine.errors import HostError


def rows(*values):
    return torch.tensor(values, dtype=torch.float32)


def draws(params, logits, n=2000, history=()):
    sampler = Sampler(params)
    row = np.asarray(logits, dtype=np.float32)
    return [sampler.sample(row, list(history)).token_id for _ in range(n)]


def test_greedy_takes_the_highest_of_each_row():
    sampler = Sampler(SamplingParams(temperature=0))
    result = sample_rows(rows([0, 3, 1], [5, 3, 1]), [sampler, sampler], [[], []])
    assert result == [Sampled(token_id=1, logprobs=None), Sampled(token_id=0, logprobs=None)]


def test_greedy_never_takes_a_banned_token():
    sampler = Sampler(SamplingParams(temperature=0), banned=frozenset({1}))
    assert sample_rows(rows([0, 3, 1]), [sampler], [[]])[0].token_id == 2


def test_a_row_that_is_not_a_number_fails_alone():
    greedy = Sampler(SamplingParams(temperature=0))
    warm = Sampler(SamplingParams(temperature=1))
    nan = math.nan
    result = sample_rows(rows([nan] * 3, [nan] * 3, [0, 1, 0]), [greedy, warm, greedy], [[], [], []])
    assert isinstance(result[0], HostError)
    assert isinstance(result[1], HostError)
    assert result[2].token_id == 1


@pytest.mark.parametrize(
    "settings",
    [
        {"temperature": 1e-308},
        {"temperature": 100.0},
        {"repeat_penalty": 0.01},
        {"repeat_penalty": 100.0, "presence_penalty": 100.0, "frequency_penalty": 100.0},
        {"min_p": 1e-320, "top_k": 0},
        {"top_p": 1e-320, "typical_p": 1e-320, "min_p": 0.0, "top_k": 0},
        {"logit_bias": {0: 100.0, 1: -100.0, 2: -math.inf}},
    ],
    ids=str,
)
def test_no_setting_at_its_limit_overflows(settings):
    row = np.random.default_rng(1).standard_normal(5000, dtype=np.float32) * 30
    sampler = Sampler(SamplingParams(seed=1, **settings))
    # A warning would be an error here.
    assert 0 <= sampler.sample(row, [1, 2, 3, 3]).token_id < 5000


@pytest.mark.parametrize("size", [5, 1024, 2048, 5000, 151936])
def test_top_k_is_torchs(size):
    row = torch.randn(size, generator=torch.Generator().manual_seed(size))
    for k in (1, 3, 40, 256, 300):
        if k > size:
            continue
        ids, values = top_k(row.numpy(), k)
        expected = torch.topk(row, k)
        assert values.tolist() == expected.values.tolist()
        assert ids.tolist() == expected.indices.tolist()


def test_top_k_of_equals_takes_the_lowest_ids():
    ids, _ = top_k(np.zeros(5000, dtype=np.float32), 3)
    assert ids.tolist() == [0, 1, 2]


def test_the_same_seed_draws_the_same_whatever_else_shares_the_step():
    logits = torch.randn(3, 400, generator=torch.Generator().manual_seed(1))
    alone, together = [], []
    sampler = Sampler(SamplingParams(seed=5, temperature=1.5))
    for _ in range(50):
        alone.append(sample_rows(logits[1:2], [sampler], [[]])[0].token_id)
    samplers = [Sampler(SamplingParams(seed=seed, temperature=1.5)) for seed in (4, 5, 6)]
    for _ in range(50):
        together.append(sample_rows(logits, samplers, [[], [], []])[1].token_id)
    assert alone == together
    assert len(set(alone)) > 3


def test_draws_follow_the_softmax():
    logits = [0.0, 1.0, 2.0]
    params = SamplingParams(seed=1, temperature=1, top_k=0, top_p=1, min_p=0)
    counts = np.bincount(draws(params, logits, 20000), minlength=3) / 20000
    assert counts == pytest.approx(torch.softmax(torch.tensor(logits), 0).numpy(), abs=0.02)


def test_temperature_sharpens():
    logits = [0.0, 1.0]
    params = SamplingParams(seed=1, temperature=0.25, top_k=0, top_p=1, min_p=0)
    share = np.mean(draws(params, logits, 20000))
    assert share == pytest.approx(1 / (1 + math.exp(-4)), abs=0.01)


PLAIN = {"seed": 3, "temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
SHARES = np.log([0.5, 0.25, 0.15, 0.07, 0.03])


@pytest.mark.parametrize(
    ("change", "allowed"),
    [
        ({}, {0, 1, 2, 3, 4}),
        ({"top_k": 2}, {0, 1}),
        ({"top_p": 0.8}, {0, 1, 2}),
        ({"top_p": 0.0}, {0}),
        ({"min_p": 0.2}, {0, 1, 2}),
        ({"min_p": 1.0}, {0}),
        ({"top_k": 2, "top_p": 0.6}, {0}),
        ({"top_p": 0.72, "min_p": 0.2}, {0, 1}),
        ({"top_p": 0.95, "min_p": 0.4}, {0, 1}),
        ({"typical_p": 0.2}, {1}),
    ],
)
def test_filters_leave_what_they_should(change, allowed):
    assert set(draws(SamplingParams(**(PLAIN | change)), SHARES, 3000)) == allowed


@pytest.mark.parametrize(
    "change", [{"top_p": 0.9}, {"top_p": 0.999}, {"min_p": 0.02, "top_p": 0.9}, {"min_p": 0.1}]
)
def test_filters_over_a_large_vocabulary_equal_the_plain_way(change):
    row = torch.randn(6000, generator=torch.Generator().manual_seed(2)).numpy() * 3
    params = SamplingParams(**(PLAIN | change))
    p = np.exp(row.astype(np.float64))
    order = np.argsort(-p)
    p = p[order] / p.sum()
    kept = min(int(np.searchsorted(np.cumsum(p), params.top_p)) + 1, p.size)
    kept = min(kept, int(np.sum(p >= params.min_p * p[0])))
    ids, _ = Sampler(params)._filter(row)
    assert ids.tolist() == order[:kept].tolist()


def test_repetition_is_divided_or_multiplied_by_sign():
    params = SamplingParams(temperature=0, repeat_penalty=2.0)
    assert draws(params, [4.0, 3.0], 1, history=[0]) == [1]
    assert draws(params, [-1.0, -1.5], 1, history=[0]) == [1]


def test_only_the_last_tokens_are_penalised():
    params = SamplingParams(temperature=0, presence_penalty=2.0, repeat_last_n=2)
    assert draws(params, [4.0, 3.0, 0, 0, 0, 0], 1, history=[0, 5, 5]) == [0]
    assert draws(params, [4.0, 3.0, 0, 0, 0, 0], 1, history=[0, 5]) == [1]


def test_frequency_counts_each_time():
    params = SamplingParams(temperature=0, frequency_penalty=0.4)
    assert draws(params, [4.0, 3.0], 1, history=[0, 0]) == [0]
    assert draws(params, [4.0, 3.0], 1, history=[0, 0, 0]) == [1]


def test_logit_bias_adds_and_bans():
    assert draws(SamplingParams(temperature=0, logit_bias={1: 2.0}), [4.0, 3.0], 1) == [1]
    assert set(draws(SamplingParams(seed=1, logit_bias={0: -math.inf}), [4.0, 3.0], 100)) == {1}


def test_logprobs_are_of_the_model_before_any_setting():
    sampler = Sampler(SamplingParams(temperature=0, logit_bias={2: 9.0}, top_logprobs=2))
    result = sampler.sample(np.array([1.0, 2.0, 0.0], dtype=np.float32), [])
    expected = torch.log_softmax(torch.tensor([1.0, 2.0, 0.0]), 0).tolist()
    assert result.token_id == 2
    assert result.logprobs.chosen.logprob == pytest.approx(expected[2], abs=1e-6)
    assert [top.token_id for top in result.logprobs.top] == [1, 0]
    assert [top.logprob for top in result.logprobs.top] == pytest.approx([expected[1], expected[0]], abs=1e-6)


def test_no_alternatives_when_none_are_asked_for():
    result = Sampler(SamplingParams(top_logprobs=0)).sample(np.array([1.0, 2.0], dtype=np.float32), [])
    assert result.logprobs.top == ()
