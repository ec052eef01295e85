"""Local or remote prefill? One predicate, with the reason for its answer. No sockets, no clocks, no torch."""

from __future__ import annotations

import enum
from dataclasses import dataclass

# A handoff costs a few round trips and, on the worker, a queue: below this many tokens to compute, the computer that
# asks is done sooner by itself. Measured rates will take this constant's place.
MIN_REMOTE_TOKENS = 256


class RouteReason(enum.StrEnum):
    """Why a prompt is prefilled where it is."""

    ASKED_LOCAL = "asked_local"
    ASKED_REMOTE = "asked_remote"
    LONG_PROMPT = "long_prompt"
    SHORT_PROMPT = "short_prompt"
    NOTHING_TO_PREFILL = "nothing_to_prefill"
    NOT_PLAIN_TEXT = "not_plain_text"
    NO_WORKER = "no_worker"
    WORKER_NOT_READY = "worker_not_ready"


@dataclass(frozen=True, kw_only=True)
class Decision:
    """`remote` or not, the reason's code, and a sentence for the user."""

    remote: bool
    reason: RouteReason
    sentence: str


def choose(
    *,
    asked: str,
    has_worker: bool,
    worker_ready: bool,
    worker_note: str,
    uncached_tokens: int,
    plain_text: bool = True,
    min_remote_tokens: int = MIN_REMOTE_TOKENS,
) -> Decision:
    """Decide for one prompt.

    `asked` is the request's "auto", "local" or "remote"; `has_worker` whether one is configured at all,
    `worker_ready` whether it is connected and its model, cache layout and protocol fit, `worker_note` what to say if
    not; `uncached_tokens` those still to be computed before the last one. "remote" is a wish: it goes unfulfilled
    with a reason, never with an error.
    """
    if asked == "local":
        return _local(RouteReason.ASKED_LOCAL, "the request asked for local prefill")
    if not plain_text:
        return _local(RouteReason.NOT_PLAIN_TEXT, "only plain text generation can be prefilled by the worker")
    if uncached_tokens <= 0:
        return _local(RouteReason.NOTHING_TO_PREFILL, "all of the prompt but its last token was cached")
    if not has_worker:
        return _local(RouteReason.NO_WORKER, "no worker is configured: start Baton with --peer to use one")
    if not worker_ready:
        return _local(RouteReason.WORKER_NOT_READY, worker_note or "the worker is not connected")
    if asked == "remote":
        return Decision(
            remote=True, reason=RouteReason.ASKED_REMOTE, sentence="the request asked for remote prefill"
        )
    if uncached_tokens < min_remote_tokens:
        return _local(
            RouteReason.SHORT_PROMPT,
            f"{uncached_tokens} tokens to prefill are fewer than the {min_remote_tokens} that a handoff is worth",
        )
    return Decision(
        remote=True,
        reason=RouteReason.LONG_PROMPT,
        sentence=f"{uncached_tokens} tokens to prefill are worth a handoff",
    )


def _local(reason: RouteReason, sentence: str) -> Decision:
    return Decision(remote=False, reason=reason, sentence=sentence)
