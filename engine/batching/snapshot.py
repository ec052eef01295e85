"""What an engine loop tells of itself when asked: plain numbers, for status pages. No torch."""

from __future__ import annotations

from dataclasses import dataclass

from engine.cache.blocks import PrefixStatus
from engine.handoff.client_events import ClientStatus


@dataclass(frozen=True, kw_only=True)
class SlotSnapshot:
    """What one slot is doing; counts in tokens. `n_cached` are held in its cache, `n_processed` are of the prompt's.

    `prefill` is "remote" or "local" while a request is in the slot.
    """

    slot: int
    state: str
    request_id: str | None
    n_ctx: int
    n_cached: int
    n_prompt: int
    n_processed: int
    n_generated: int
    prefill: str | None


@dataclass(frozen=True, kw_only=True)
class RouteSnapshot:
    """How prompts are routed: the policy, from how many tokens on the worker is sooner (None: not known, or never), and
    tokens a second either way by the length of the prompts they were seen with."""

    policy: str
    crossover_tokens: int | None
    local_tps: dict[int, float]
    remote_tps: dict[int, float]


@dataclass(frozen=True, kw_only=True)
class LoopSnapshot:
    """The queue, all slots, the worker, and how often each reason for a prefill's place was given since the start.

    `worker` is None where none is configured, `prefixes` where nothing is kept beside the slots.
    """

    slots: tuple[SlotSnapshot, ...]
    n_queued: int
    reasons: dict[str, int]
    worker: ClientStatus | None
    route: RouteSnapshot
    prefixes: PrefixStatus | None
