"""What is asked of the engine and what it tells while it answers: plain messages, checked when they are made.

Knows nothing of HTTP, of tensors or of time; the server makes a `Request`, the engine loop sends `Event`s to its
sink.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from engine.errors import BatonError, InvalidRequest
from engine.handoff.rates import Prediction
from engine.handoff.route import RequestKind
from engine.numbers import number_text

# A penalty looks at no more than this many tokens back: beyond, one request could slow every step of the others.
MAX_REPEAT_LAST_N = 4096

# More stop strings than this make holding text back dearer than a decode step.
MAX_STOPS = 64

# Characters of one stop string; text is held back for as long as a stop may still come.
MAX_STOP_CHARS = 4096

# As the OpenAI API: at most this many alternatives beside each token.
MAX_TOP_LOGPROBS = 20

# Biased tokens of one request.
MAX_LOGIT_BIAS = 4096

# As the OpenAI API: what is added to a logit; far enough to ban or to force a token, and to overflow nothing.
MAX_BIAS = 100.0

MAX_TOP_K = 1 << 20

# Logits are divided by it: much less, and they overflow.
MIN_REPEAT_PENALTY = 0.01

_SEED_BITS = 64


class PrefillChoice(enum.StrEnum):
    """Where the client wants its prompt to be prefilled; `auto` leaves it to the route."""

    AUTO = "auto"
    LOCAL = "local"
    REMOTE = "remote"


class FinishReason(enum.StrEnum):
    """Why an answer ended, in OpenAI's words but for `cancelled`, which no client gets to see."""

    STOP = "stop"
    LENGTH = "length"
    CANCELLED = "cancelled"


@dataclass(frozen=True, kw_only=True)
class SamplingParams:
    """How tokens are chosen and where the answer ends. Names as OpenAI's and llama-server's, defaults as the latter's.

    `temperature` 0 is greedy. `top_k` 0, `top_p` 1, `min_p` 0 and `typical_p` 1 switch each filter off.
    `repeat_last_n` is how many of the last tokens, prompt included, the three penalties look at: 0 none, -1 as many
    as allowed. `logit_bias` maps token ids to what is added to their logit, -100 to 100, or minus infinity to ban.
    `seed` None is a new one each time. `max_tokens` None runs to the end of the context. `top_logprobs` None asks
    for no probabilities, a number for the chosen token's and for that many alternatives.

    Raises InvalidRequest naming the field.
    """

    temperature: float = 0.8
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.05
    typical_p: float = 1.0
    repeat_penalty: float = 1.0
    repeat_last_n: int = 64
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    seed: int | None = None
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False
    max_tokens: int | None = None
    cache_prompt: bool = True
    top_logprobs: int | None = None

    def __post_init__(self) -> None:
        _check_range("temperature", self.temperature, 0.0, 100.0)
        _check_range("top_k", self.top_k, 0, MAX_TOP_K)
        _check_range("top_p", self.top_p, 0.0, 1.0)
        _check_range("min_p", self.min_p, 0.0, 1.0)
        _check_range("typical_p", self.typical_p, 0.0, 1.0)
        _check_range("repeat_penalty", self.repeat_penalty, MIN_REPEAT_PENALTY, 100.0)
        _check_range("repeat_last_n", self.repeat_last_n, -1, MAX_REPEAT_LAST_N)
        _check_range("presence_penalty", self.presence_penalty, -100.0, 100.0)
        _check_range("frequency_penalty", self.frequency_penalty, -100.0, 100.0)
        if self.seed is not None:
            _check_range("seed", self.seed, -(1 << (_SEED_BITS - 1)), (1 << _SEED_BITS) - 1)
        if self.max_tokens is not None:
            _check_range("max_tokens", self.max_tokens, 0, None)
        if self.top_logprobs is not None:
            _check_range("top_logprobs", self.top_logprobs, 0, MAX_TOP_LOGPROBS)
        self._check_stops()
        self._check_bias()

    @property
    def penalty_window(self) -> int:
        """How many of the last tokens the penalties look at; 0 when no penalty is on."""
        if self.repeat_penalty == 1.0 and self.presence_penalty == 0.0 and self.frequency_penalty == 0.0:
            return 0
        return MAX_REPEAT_LAST_N if self.repeat_last_n < 0 else self.repeat_last_n

    @property
    def is_plain_greedy(self) -> bool:
        """Whether the highest logit, as it comes from the model, is the answer and nothing else is asked for."""
        return (
            self.temperature == 0.0
            and not self.penalty_window
            and not self.logit_bias
            and self.top_logprobs is None
        )

    def _check_stops(self) -> None:
        if len(self.stop) > MAX_STOPS:
            raise InvalidRequest(
                f"stop holds {len(self.stop)} strings, at most {MAX_STOPS} are allowed", param="stop"
            )
        for stop in self.stop:
            if not 1 <= len(stop) <= MAX_STOP_CHARS:
                raise InvalidRequest(
                    f"a stop string has {len(stop)} characters, 1 to {MAX_STOP_CHARS} are allowed",
                    param="stop",
                )

    def _check_bias(self) -> None:
        if len(self.logit_bias) > MAX_LOGIT_BIAS:
            raise InvalidRequest(
                f"logit_bias holds {len(self.logit_bias)} tokens, at most {MAX_LOGIT_BIAS} are allowed",
                param="logit_bias",
            )
        for token, bias in self.logit_bias.items():
            if token < 0:
                raise InvalidRequest(f"logit_bias names token {token}: ids start at 0", param="logit_bias")
            if bias != -math.inf and not -MAX_BIAS <= bias <= MAX_BIAS:
                raise InvalidRequest(
                    f"logit_bias of token {token} is {bias:g}: it must be {-MAX_BIAS:g} to {MAX_BIAS:g}, or false to "
                    "ban the token",
                    param="logit_bias",
                )


Sink = Callable[["Event"], None]


@dataclass(frozen=True, kw_only=True, eq=False)
class Request:
    """One prompt to be continued.

    `sink` gets the request's events, in order, on the engine's own thread: it must not block and must not raise.
    `slot` pins the request to one slot.
    """

    request_id: str
    tokens: tuple[int, ...]
    sink: Sink
    sampling: SamplingParams = field(default_factory=SamplingParams)
    prefill: PrefillChoice = PrefillChoice.AUTO
    slot: int | None = None
    kind: RequestKind = RequestKind.TEXT


@dataclass(frozen=True, kw_only=True)
class Handoff:
    """Where the prompt was prefilled and what that moved.

    `prefill` is "remote", or "local" where at least a part was prefilled here; `reason` is a code (of
    `handoff.route.RouteReason`, `handoff.failure.FailureCode` or `wire.messages.Code`), `detail` its sentence. For a
    remote prefill, also one that fell back half way: `bytes` of the chunks that came whole, and `remote_tokens`
    prefilled by the worker and used here, never without bytes. `overlap` is the share of bytes received before the
    worker's compute ended (0 to 1) and `tail_ms` the time from there to the last commit; None when it did not run to
    its end, or the answer came to its own end first. `predicted` is what the route expected, None where it knew too
    little.
    """

    prefill: str
    reason: str
    detail: str
    bytes: int = 0
    remote_tokens: int = 0
    overlap: float | None = None
    tail_ms: float | None = None
    predicted: Prediction | None = None


@dataclass(frozen=True, kw_only=True)
class Timings:
    """Counts in tokens and times in milliseconds, named as llama-server names them.

    `cache_n` tokens were reused, `prompt_n` were evaluated (here or by the worker), `predicted_n` were generated.
    `prompt_ms` runs from the slot's start to the first token, `predicted_ms` from there to the last; `queue_ms` is
    the wait for a free slot.
    """

    cache_n: int
    prompt_n: int
    prompt_ms: float
    predicted_n: int
    predicted_ms: float
    queue_ms: float
    handoff: Handoff | None

    @property
    def prompt_per_token_ms(self) -> float:
        return _ratio(self.prompt_ms, self.prompt_n)

    @property
    def prompt_per_second(self) -> float:
        return _ratio(self.prompt_n * 1000.0, self.prompt_ms)

    @property
    def predicted_per_token_ms(self) -> float:
        return _ratio(self.predicted_ms, self.predicted_n)

    @property
    def predicted_per_second(self) -> float:
        return _ratio(self.predicted_n * 1000.0, self.predicted_ms)


@dataclass(frozen=True, kw_only=True)
class Usage:
    """Counts in tokens; `cached_tokens` of the prompt's were not evaluated again."""

    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int


@dataclass(frozen=True, kw_only=True)
class TokenLogprob:
    """A token and the natural logarithm of its probability."""

    token_id: int
    logprob: float


@dataclass(frozen=True, kw_only=True)
class Logprobs:
    """The chosen token's probability and the likeliest ones', before any sampling setting."""

    chosen: TokenLogprob
    top: tuple[TokenLogprob, ...]


@dataclass(frozen=True, kw_only=True)
class Started:
    """A slot has taken the request: `cached_tokens` of its `prompt_tokens` are there already."""

    request_id: str
    slot: int
    prompt_tokens: int
    cached_tokens: int


@dataclass(frozen=True, kw_only=True)
class Progress:
    """Prefill has come further. `processed` of `total` prompt tokens are done, the `cached` ones included."""

    request_id: str
    total: int
    cached: int
    processed: int
    time_ms: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Token:
    """One generated token and the text that became certain with it, often empty."""

    request_id: str
    token_id: int
    text: str
    logprobs: Logprobs | None = None


@dataclass(frozen=True, kw_only=True)
class Finished:
    """The answer's end. `text` is what was still held back; `stop` the stop string that ended it, never sent.

    `truncated` when the context, not `max_tokens`, was the limit.
    """

    request_id: str
    reason: FinishReason
    text: str
    stop: str | None
    truncated: bool
    usage: Usage
    timings: Timings


@dataclass(frozen=True, kw_only=True)
class Failed:
    """The request ended without its answer; `error` can be shown to the user."""

    request_id: str
    error: BatonError


Event = Started | Progress | Token | Finished | Failed


def _check_range(name: str, value: float, low: float, high: float | None) -> None:
    # Asked so that NaN is outside.
    if not value >= low or (high is not None and not value <= high):
        most = "" if high is None else f" and at most {number_text(high)}"
        raise InvalidRequest(
            f"{name} is {number_text(value)}: it must be at least {number_text(low)}{most}", param=name
        )


def _ratio(over: float, under: float) -> float:
    """A quotient that JSON can hold: 0 where nothing was counted or no time passed."""
    return over / under if under > 0 else 0.0
