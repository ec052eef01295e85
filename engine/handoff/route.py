"""Local or remote prefill? One predicate, with the reason for its answer. No sockets, no clocks, no torch."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from engine.handoff.rates import Prediction

# A handoff costs a few round trips and, on the worker, a queue: until both ways have been measured, fewer tokens than
# these are prefilled here.
MIN_REMOTE_TOKENS = 256

# So few are done here within a decode step or two, whatever was measured of longer ones.
FEW_TOKENS = 32


class RoutePolicy(enum.StrEnum):
    """What requests that leave it open get: whichever is sooner, the worker whenever it can, or this computer."""

    AUTO = "auto"
    ALWAYS = "always"
    NEVER = "never"


class RequestKind(enum.StrEnum):
    """What a prompt is computed for."""

    TEXT = "text"
    EMBEDDING = "embedding"
    RERANK = "rerank"


class RouteReason(enum.StrEnum):
    """Why a prompt is prefilled where it is."""

    ASKED_LOCAL = "asked_local"
    ASKED_REMOTE = "asked_remote"
    SET_LOCAL = "set_local"
    SET_REMOTE = "set_remote"
    LOCAL_SOONER = "local_sooner"
    REMOTE_SOONER = "remote_sooner"
    LONG_PROMPT = "long_prompt"
    SHORT_PROMPT = "short_prompt"
    NOTHING_TO_PREFILL = "nothing_to_prefill"
    EMBEDDING = "embedding"
    RERANK = "rerank"
    # Kept for requests that there are none of yet.
    ADAPTER_MISSING = "adapter_missing"
    IMAGES = "images"
    DRAFT_MODEL = "draft_model"
    NO_WORKER = "no_worker"
    WORKER_NOT_READY = "worker_not_ready"


@dataclass(frozen=True, kw_only=True)
class Decision:
    """`remote` or not, the reason's code, a sentence for the user, and what was predicted, where it was."""

    remote: bool
    reason: RouteReason
    sentence: str
    prediction: Prediction | None = None


def reason_to_stay(kind: RequestKind) -> tuple[RouteReason, str] | None:
    """Why the worker cannot prefill such a request, whatever else holds: a code and a sentence. None where it can.

    By the request alone: what is loaded besides, such as a projector for images, keeps no text from the worker.
    """
    match kind:
        case RequestKind.TEXT:
            return None
        case RequestKind.EMBEDDING:
            return (
                RouteReason.EMBEDDING,
                "an embedding is no KV cache, and that is all that a worker hands over",
            )
        case RequestKind.RERANK:
            return RouteReason.RERANK, "a ranking is no KV cache, and that is all that a worker hands over"


def choose(
    *,
    asked: str,
    policy: RoutePolicy = RoutePolicy.AUTO,
    has_worker: bool,
    worker_ready: bool,
    worker_note: str,
    uncached_tokens: int,
    kind: RequestKind = RequestKind.TEXT,
    prediction: Prediction | None = None,
    stale: bool = False,
    min_remote_tokens: int = MIN_REMOTE_TOKENS,
) -> Decision:
    """Decide for one prompt.

    `asked` is the request's "auto", "local" or "remote", and `policy` what holds for "auto"; `has_worker` whether one
    is configured at all, `worker_ready` whether it is connected and its model, cache layout and protocol fit,
    `worker_note` what to say if not; `uncached_tokens` those still to be computed before the last one. `prediction` is
    for those; `stale` says that the worker's part of it is old and worth measuring again. "remote" is a wish: it goes
    unfulfilled with a reason, never with an error.
    """
    if asked == "local":
        return _local(RouteReason.ASKED_LOCAL, "the request asked for local prefill", prediction)
    if (kept := reason_to_stay(kind)) is not None:
        return _local(*kept)
    if uncached_tokens <= 0:
        return _local(RouteReason.NOTHING_TO_PREFILL, "all of the prompt but its last token was cached")
    if not has_worker:
        return _local(RouteReason.NO_WORKER, "no other computer prefills for this one")
    if asked == "auto" and policy is RoutePolicy.NEVER:
        return _local(RouteReason.SET_LOCAL, "--route never keeps all prefill on this computer", prediction)
    if not worker_ready:
        return _local(RouteReason.WORKER_NOT_READY, worker_note or "the worker is not connected")
    if asked == "remote":
        return _remote(RouteReason.ASKED_REMOTE, "the request asked for remote prefill", prediction)
    if policy is RoutePolicy.ALWAYS:
        return _remote(RouteReason.SET_REMOTE, "--route always sends every prompt to the worker", prediction)
    return _sooner(uncached_tokens, prediction, stale=stale, min_remote_tokens=min_remote_tokens)


def _sooner(n_tokens: int, prediction: Prediction | None, *, stale: bool, min_remote_tokens: int) -> Decision:
    if n_tokens < min(FEW_TOKENS, min_remote_tokens):
        return _local(
            RouteReason.SHORT_PROMPT,
            f"{n_tokens} tokens to prefill are done here before a handoff could begin",
            prediction,
        )
    if prediction is not None:
        expected = f"{_seconds(prediction.remote_s)} at the worker, {_seconds(prediction.local_s)} here"
        if prediction.remote_s < prediction.local_s:
            return _remote(RouteReason.REMOTE_SOONER, f"expected: {expected}", prediction)
        if not stale:
            return _local(RouteReason.LOCAL_SOONER, f"expected: {expected}", prediction)
    if n_tokens < min_remote_tokens:
        return _local(
            RouteReason.SHORT_PROMPT,
            f"{n_tokens} tokens to prefill are fewer than the {min_remote_tokens} that a handoff is worth",
            prediction,
        )
    return _remote(RouteReason.LONG_PROMPT, f"{n_tokens} tokens to prefill are worth a handoff", prediction)


def _seconds(seconds: float) -> str:
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"


def _local(reason: RouteReason, sentence: str, prediction: Prediction | None = None) -> Decision:
    return Decision(remote=False, reason=reason, sentence=sentence, prediction=prediction)


def _remote(reason: RouteReason, sentence: str, prediction: Prediction | None) -> Decision:
    return Decision(remote=True, reason=reason, sentence=sentence, prediction=prediction)
