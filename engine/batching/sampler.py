"""One token out of a row of logits. Knows nothing of requests, slots or text.

The order of the steps is llama-server's: bias, penalties, top-k, typical, top-p, min-p, temperature, draw. Rows are
worked on as NumPy arrays on the CPU, whose vectorised passes over a vocabulary of 150k take about ten microseconds
each where torch needs several hundred; only a greedy row never leaves its device.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from engine.batching.request import Logprobs, SamplingParams, TokenLogprob
from engine.errors import HostError

if TYPE_CHECKING:
    from torch import Tensor

Floats = NDArray[np.float32]

# Width of the blocks whose maxima give the first bound in `top_k`; wide enough for one fast pass, far more than k.
_BLOCK_COLUMNS = 1024

# Up to here `top_k` needs no sort of the whole row.
MAX_FAST_K = _BLOCK_COLUMNS // 4


@dataclass(frozen=True, kw_only=True, slots=True)
class Sampled:
    """The token chosen for a row, and its probabilities where asked for."""

    token_id: int
    logprobs: Logprobs | None


class Sampler:
    """One request's sampler: its settings and its own random numbers.

    What it draws depends on the seed, the row and how many tokens it drew before, on nothing else. Tokens of
    `banned` are never chosen.
    """

    def __init__(self, params: SamplingParams, *, banned: frozenset[int] = frozenset()) -> None:
        self.params = params
        self.banned = banned
        self.is_plain_greedy = params.is_plain_greedy
        self._random = random.Random(params.seed)
        bias = dict(params.logit_bias) | dict.fromkeys(banned, -math.inf)
        self._bias_ids = np.array(list(bias.keys()), dtype=np.int64)
        self._bias = np.array(list(bias.values()), dtype=np.float32)

    def sample(self, logits: Floats, history: Sequence[int]) -> Sampled:
        """Choose from `logits` [V]; `history` is the sequence so far, prompt included. Raises HostError for NaN."""
        adjusted = self._adjust(logits, history)
        token = int(adjusted.argmax()) if self.params.temperature == 0.0 else self._draw(adjusted)
        if math.isnan(adjusted[token]):
            raise not_a_number()
        return Sampled(token_id=token, logprobs=self._logprobs(logits, token))

    def _adjust(self, logits: Floats, history: Sequence[int]) -> Floats:
        """`logits` with bias and penalties; the row itself where there are none."""
        params = self.params
        if not params.penalty_window and not self._bias_ids.size:
            return logits
        adjusted = logits.copy()
        if self._bias_ids.size:
            adjusted[self._bias_ids] += self._bias
        if params.penalty_window:
            counts = Counter(history[-params.penalty_window :])
            ids = np.fromiter(counts.keys(), dtype=np.int64, count=len(counts))
            times = np.fromiter(counts.values(), dtype=np.float32, count=len(counts))
            seen = adjusted[ids]
            seen = np.where(seen > 0, seen / params.repeat_penalty, seen * params.repeat_penalty)
            adjusted[ids] = seen - times * params.frequency_penalty - params.presence_penalty
        return adjusted

    def _draw(self, logits: Floats) -> int:
        ids, values = self._filter(logits)
        with np.errstate(over="ignore"):  # at a temperature next to 0: minus infinity is what it means
            scaled = (values - values.max()).astype(np.float64) / self.params.temperature
        cumulative = np.exp(scaled).cumsum()
        at = int(cumulative.searchsorted(self._random.random() * cumulative[-1], side="right"))
        return int(ids[min(at, len(ids) - 1)])

    def _filter(self, logits: Floats) -> tuple[NDArray[np.int64], Floats]:
        """The ids that may be drawn and their logits; likeliest first wherever a filter is on."""
        params = self.params
        k = params.top_k if 0 < params.top_k < logits.size else logits.size
        ids, values = self._candidates(logits, k)
        n_all = ids.size
        if params.typical_p < 1.0:
            ids, values = _typical(ids, values, params.typical_p)
        if params.top_p < 1.0:
            # Min-p may have shortened the list; the shares are still those of the whole one.
            whole = logits if n_all < k else values
            kept = _top_p(values, whole, params.top_p)
            ids, values = ids[:kept], values[:kept]
        if params.min_p > 0.0:
            kept = int(np.count_nonzero(values >= values[0] + math.log(params.min_p)))
            ids, values = ids[:kept], values[:kept]
        return ids, values

    def _candidates(self, logits: Floats, k: int) -> tuple[NDArray[np.int64], Floats]:
        """The `k` likeliest. Where that is all of them, a sort would take 20 ms: fewer, if the filters allow it."""
        params = self.params
        if k == logits.size and params.typical_p == 1.0:
            if params.min_p > 0.0:
                ids = np.flatnonzero(logits >= logits.max() + math.log(params.min_p))
                if not ids.size:
                    raise not_a_number()
                return _sorted(logits, ids, k)
            if params.top_p == 1.0:
                return np.arange(k), logits
            ids, values = top_k(logits, MAX_FAST_K)
            if ids.size < k and _top_p(values, logits, params.top_p) < ids.size:
                return ids, values
        return top_k(logits, k)

    def _logprobs(self, logits: Floats, token: int) -> Logprobs | None:
        n_top = self.params.top_logprobs
        if n_top is None:
            return None
        log_total = _log_sum_exp(logits)
        top: tuple[TokenLogprob, ...] = ()
        if n_top:
            ids, values = top_k(logits, n_top)
            top = tuple(
                TokenLogprob(token_id=int(id_), logprob=float(value - log_total))
                for id_, value in zip(ids, values, strict=True)
            )
        return Logprobs(
            chosen=TokenLogprob(token_id=token, logprob=float(logits[token] - log_total)), top=top
        )


def sample_rows(
    logits: Tensor, samplers: Sequence[Sampler], histories: Sequence[Sequence[int]]
) -> list[Sampled | HostError]:
    """Choose one token for each row of `logits` [B, V], float32 on any device; a row that fails fails alone."""
    if logits.device.type != "cpu":
        if all(sampler.is_plain_greedy and not sampler.banned for sampler in samplers):
            best = logits.max(dim=-1)
            return [
                not_a_number() if math.isnan(value) else Sampled(token_id=token, logprobs=None)
                for token, value in zip(best.indices.tolist(), best.values.tolist(), strict=True)
            ]
        logits = logits.cpu()
    rows: Floats = logits.numpy()
    return [
        _sample_row(row, sampler, history)
        for row, sampler, history in zip(rows, samplers, histories, strict=True)
    ]


def top_k(logits: Floats, k: int) -> tuple[NDArray[np.int64], Floats]:
    """Ids and values of the `k` highest of `logits` [V], highest first, lower ids first among equals."""
    n_rows = logits.size // _BLOCK_COLUMNS
    if k >= logits.size or k > MAX_FAST_K or n_rows < 2:
        return _sorted(logits, np.arange(logits.size), k)
    # The k-th highest of the column maxima is no higher than the k-th highest of all.
    maxima = logits[: n_rows * _BLOCK_COLUMNS].reshape(n_rows, _BLOCK_COLUMNS).max(axis=0)
    bound = np.partition(maxima, -k)[-k]
    ids = np.flatnonzero(logits >= bound)
    if ids.size < k:
        raise not_a_number()
    return _sorted(logits, ids, k)


def not_a_number() -> HostError:
    return HostError(
        "the model's output is not a number: the model file may be damaged, or its values too large for the chosen "
        "weights; try --weights float32"
    )


def _sample_row(row: Floats, sampler: Sampler, history: Sequence[int]) -> Sampled | HostError:
    try:
        if sampler.is_plain_greedy:
            token = int(row.argmax())
            if math.isnan(row[token]):
                return not_a_number()
            if token not in sampler.banned:
                return Sampled(token_id=token, logprobs=None)
        return sampler.sample(row, history)
    except HostError as error:
        return error


def _sorted(logits: Floats, ids: NDArray[np.int64], k: int) -> tuple[NDArray[np.int64], Floats]:
    values = logits[ids]
    order = np.argsort(-values, kind="stable")[:k]
    return ids[order], values[order]


def _typical(ids: NDArray[np.int64], values: Floats, typical_p: float) -> tuple[NDArray[np.int64], Floats]:
    """Locally typical sampling: those whose surprise is nearest to the expected one, up to a share of `typical_p`."""
    log_p = values - _log_sum_exp(values)
    p = np.exp(log_p)
    entropy = -float(np.sum(p * np.where(p > 0, log_p, 0)))
    order = np.argsort(np.abs(-log_p - entropy), kind="stable")
    n_kept = int(np.searchsorted(np.cumsum(p[order], dtype=np.float64), typical_p, side="right")) + 1
    kept = np.sort(order[:n_kept])
    return ids[kept], values[kept]


def _top_p(values: Floats, whole: Floats, top_p: float) -> int:
    """How many of `values`, highest first, make up a share of at least `top_p` of `whole`."""
    shares = np.exp(values - values[0]).cumsum(dtype=np.float64)
    total = shares[-1] if whole is values else np.exp(whole - values[0]).sum(dtype=np.float64)
    return min(int(shares.searchsorted(top_p * float(total), side="left")) + 1, values.size)


def _log_sum_exp(values: Floats) -> float:
    highest = float(values.max())
    return highest + math.log(float(np.sum(np.exp(values - highest), dtype=np.float64)))
