"""Which request gets which slot, and what the next step computes. Pure policy: no tensors, no clocks, no sockets.

A request's life: queued, then in a slot: prefill (local chunk by chunk, or remote) up to its last token, then decode,
whose first row is that last token. Local and remote prefill thus leave the same work in the same form to the decode
rows.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from engine.batching.chunks import equal_chunks
from engine.batching.slot import IllegalStep, Slot, SlotState

DEFAULT_CHUNK_TOKENS = 512

# A cached prefix counts only if it saves this share of the prompt, and if it is either long or most of what the slot
# holds. All chats of a model begin alike: otherwise each new one would overwrite the newest instead of the oldest.
MIN_PROMPT_SHARE = 0.1
MIN_HELD_SHARE = 0.5
LONG_PREFIX_TOKENS = 64


class Caches(Protocol):
    """The caches of all slots, as far as the choice of a slot needs them; counts in tokens."""

    def held(self, slot: int) -> int:
        """How many tokens the slot holds."""

    def reusable(self, slot: int, tokens: Sequence[int]) -> int:
        """How many first tokens of `tokens` the slot's cache can go on from."""


@dataclass(frozen=True, kw_only=True)
class Waiting:
    """A queued request: `prompt` is its tokens, `slot` the only slot it wants or None, `reuse` whether it may keep a
    cached prefix."""

    request_id: str
    prompt: list[int]
    slot: int | None = None
    reuse: bool = True


@dataclass(frozen=True, kw_only=True)
class Assignment:
    """`waiting` has got `slot`, whose cache holds `cached` tokens of its prompt (at most all but the last)."""

    waiting: Waiting
    slot: int
    cached: int


@dataclass(frozen=True, kw_only=True)
class ChunkPlan:
    """Positions [first, stop) of the prompt in `slot` are to be prefilled."""

    slot: int
    first: int
    stop: int


@dataclass(frozen=True, kw_only=True)
class StepPlan:
    """One forward pass: at most one chunk of one prompt, and one row for each slot that decodes."""

    prefill: ChunkPlan | None
    decode: tuple[int, ...]


class Scheduler:
    """The queue and all slots. The caller tells what happened; `plan` says what to compute next."""

    def __init__(self, *, n_slots: int, chunk_tokens: int = DEFAULT_CHUNK_TOKENS) -> None:
        self.slots = tuple(Slot(index=index) for index in range(n_slots))
        self.chunk_tokens = chunk_tokens
        self._queue: deque[Waiting] = deque()
        self._uses = 0
        self._turn = 0

    @property
    def n_queued(self) -> int:
        return len(self._queue)

    @property
    def n_prefilling_tokens(self) -> int:
        """How many tokens wait to be prefilled here, over all slots."""
        return sum(stop - first for slot in self.slots for first, stop in slot.chunks)

    @property
    def has_idle_slot(self) -> bool:
        return any(slot.state is SlotState.IDLE for slot in self.slots)

    def enqueue(self, waiting: Waiting) -> None:
        self._queue.append(waiting)

    def withdraw(self, request_id: str) -> bool:
        """Take a request out of the queue; False when it is not there."""
        for waiting in self._queue:
            if waiting.request_id == request_id:
                self._queue.remove(waiting)
                return True
        return False

    def assign(self, caches: Caches) -> Assignment | None:
        """Give the oldest request that can have one a slot, still idle until `begin` is called; None when none can.

        First come, first served, but a request pinned to a busy slot lets others pass.
        """
        for waiting in self._queue:
            idle = [slot for slot in self.slots if slot.state is SlotState.IDLE]
            if not idle:
                return None
            if waiting.slot is not None:
                idle = [slot for slot in idle if slot.index == waiting.slot]
            if idle:
                self._queue.remove(waiting)
                return self._pick(waiting, idle, caches)
        return None

    def restore(self, slot: int, request_id: str) -> None:
        """`slot` is `request_id`'s, and lent until `released` to who brings a prefix of its prompt; `begin` follows."""
        chosen = self.slots[slot]
        chosen.move(SlotState.RESTORING)
        chosen.lent = True
        chosen.request_id = request_id

    def begin(self, slot: int, request_id: str, *, remote: bool, start: int, stop: int) -> None:
        """`slot` works for `request_id` from now on: positions [start, stop) are missing before its last token."""
        chosen = self.slots[slot]
        self._uses += 1
        chosen.last_used = self._uses
        if remote:
            chosen.move(SlotState.PREFILL_REMOTE)
            chosen.lent = True
        else:
            self._prefill_here(chosen, start, stop)
        chosen.request_id = request_id

    def chunk_done(self, slot: int) -> None:
        """The planned chunk of `slot` is in its cache."""
        chosen = self.slots[slot]
        chosen.chunks.pop(0)
        if not chosen.chunks:
            chosen.move(SlotState.DECODE)

    def remote_done(self, slot: int) -> None:
        """All that was asked of the worker has been committed."""
        self.slots[slot].move(SlotState.DECODE)

    def remote_failed(self, slot: int) -> None:
        """The worker will send no more. Until `released` the slot waits; then `resume_here` goes on."""
        self.slots[slot].move(SlotState.RELEASING)

    def released(self, slot: int) -> None:
        """Nobody else will write into `slot` any more."""
        chosen = self.slots[slot]
        chosen.lent = False
        if chosen.state is SlotState.RELEASING and chosen.request_id is None:
            chosen.move(SlotState.IDLE)

    def resume_here(self, slot: int, *, start: int, stop: int) -> None:
        """Prefill positions [start, stop) locally after a handoff that failed, or could not begin."""
        chosen = self.slots[slot]
        if chosen.lent:
            raise IllegalStep(f"slot {slot} is still lent")
        self._prefill_here(chosen, start, stop)

    def rest_of_prefill(self, slot: int) -> tuple[int, int] | None:
        """The positions [first, stop) that `slot` is still to prefill here; None where there are none."""
        chunks = self.slots[slot].chunks
        return (chunks[0][0], chunks[-1][1]) if chunks else None

    def hand_over(self, slot: int) -> None:
        """The worker does the rest of the prefill that `slot` has begun here."""
        chosen = self.slots[slot]
        chosen.chunks.clear()
        chosen.move(SlotState.PREFILL_REMOTE)
        chosen.lent = True

    def finish(self, slot: int) -> None:
        """The slot's request is over, whatever its state: idle, once nobody else has the memory."""
        chosen = self.slots[slot]
        chosen.request_id = None
        chosen.chunks.clear()
        if not chosen.lent:
            chosen.move(SlotState.IDLE)
        elif chosen.state is not SlotState.RELEASING:
            chosen.move(SlotState.RELEASING)

    def plan(self) -> StepPlan | None:
        """The next forward pass, or None when there is nothing to compute.

        Prefilling slots take turns chunk by chunk, so that a short prompt need not wait for a long one's end.
        """
        decode = tuple(slot.index for slot in self.slots if slot.state is SlotState.DECODE)
        prefilling = [slot for slot in self.slots if slot.state is SlotState.PREFILL_LOCAL]
        chunk = None
        if prefilling:
            slot = next((slot for slot in prefilling if slot.index >= self._turn), prefilling[0])
            self._turn = slot.index + 1
            chunk = ChunkPlan(slot=slot.index, first=slot.chunks[0][0], stop=slot.chunks[0][1])
        if chunk is None and not decode:
            return None
        return StepPlan(prefill=chunk, decode=decode)

    def _pick(self, waiting: Waiting, idle: list[Slot], caches: Caches) -> Assignment:
        """The slot with the longest prefix worth keeping, else the least recently used."""
        # The last token is always evaluated: its logits are the answer's first.
        wanted = waiting.prompt[:-1] if waiting.reuse else []
        kept = {slot.index: caches.reusable(slot.index, wanted) if wanted else 0 for slot in idle}
        best = max(idle, key=lambda slot: (kept[slot.index], -slot.last_used))
        if not _is_worth_keeping(kept[best.index], caches.held(best.index), len(waiting.prompt)):
            best = min(idle, key=lambda slot: slot.last_used)
        return Assignment(waiting=waiting, slot=best.index, cached=kept[best.index])

    def _prefill_here(self, slot: Slot, start: int, stop: int) -> None:
        slot.chunks = equal_chunks(start, stop, self.chunk_tokens)
        state = SlotState.PREFILL_LOCAL if slot.chunks else SlotState.DECODE
        if slot.state is not state:
            slot.move(state)


def _is_worth_keeping(kept: int, held: int, n_prompt: int) -> bool:
    if kept < MIN_PROMPT_SHARE * n_prompt:
        return False
    return kept >= LONG_PREFIX_TOKENS or kept >= MIN_HELD_SHARE * held
