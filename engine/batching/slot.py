"""A slot: one place where one sequence at a time is answered. State and bookkeeping, no tensors, no clocks."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field


class SlotState(enum.Enum):
    """What a slot is doing; its tokens stay cached while it is idle."""

    IDLE = "idle"
    # A prefix that was kept elsewhere is being brought here.
    RESTORING = "restoring"
    PREFILL_LOCAL = "prefill_local"
    PREFILL_REMOTE = "prefill_remote"
    DECODE = "decode"
    # Someone else may still write here: neither the engine nor another request may touch the memory yet.
    RELEASING = "releasing"


_ALLOWED = {
    SlotState.IDLE: {
        SlotState.RESTORING,
        SlotState.PREFILL_LOCAL,
        SlotState.PREFILL_REMOTE,
        SlotState.DECODE,
    },
    SlotState.RESTORING: {
        SlotState.PREFILL_LOCAL,
        SlotState.PREFILL_REMOTE,
        SlotState.DECODE,
        SlotState.RELEASING,
    },
    SlotState.PREFILL_LOCAL: {SlotState.DECODE, SlotState.PREFILL_REMOTE, SlotState.IDLE},
    SlotState.PREFILL_REMOTE: {
        SlotState.DECODE,
        SlotState.PREFILL_LOCAL,
        SlotState.RELEASING,
        SlotState.IDLE,
    },
    SlotState.DECODE: {SlotState.IDLE, SlotState.RELEASING},
    SlotState.RELEASING: {SlotState.IDLE, SlotState.PREFILL_LOCAL, SlotState.DECODE},
}


class IllegalStep(RuntimeError):
    """A slot was asked for a step that its state does not allow: a mistake in Baton, never a user's."""


@dataclass(kw_only=True)
class Slot:
    """One slot's place in the plan.

    `request_id` is its request, or None; `chunks` are the (first, stop) positions still to be prefilled here;
    `last_used` orders idle slots by age; `lent` is True while the courier, or who restores a prefix, may write into the
    slot's memory.
    """

    index: int
    state: SlotState = SlotState.IDLE
    request_id: str | None = None
    chunks: list[tuple[int, int]] = field(default_factory=list)
    last_used: int = 0
    lent: bool = False

    def move(self, state: SlotState) -> None:
        if state not in _ALLOWED[self.state]:
            raise IllegalStep(f"slot {self.index} cannot go from {self.state.value} to {state.value}")
        self.state = state
