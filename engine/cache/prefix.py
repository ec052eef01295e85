"""Prefixes kept beside the slots, so that a chat whose slot went to another one need not be computed again.

Rows move between a sequence and the kept blocks on a thread of their own, a layer of a block at a time: whoever
computes never waits for it. While a sequence is being saved or restored nobody else may write what `is_saving` tells.
"""

from __future__ import annotations

import ctypes
import functools
import logging
import queue
import threading
from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from engine.cache.blocks import BLOCK_TOKENS, BlockIndex, Prefix, PrefixStatus
from engine.cache.window import WindowCache

if TYPE_CHECKING:
    from engine.cache.sequence import LayerCache, SequencePool, SequenceState

log = logging.getLogger(__name__)

# Fewer tokens are computed again sooner than they are brought.
_MIN_RESTORED_TOKENS = 64

# By layer: the K and V of a block's positions, or at a sequence's end what a window layer sees from there.
_Kept = list[tuple[Tensor, Tensor] | None]

KeptPrefix = Prefix[_Kept]


@dataclass(frozen=True, kw_only=True)
class Restored:
    """The first `length` tokens of what was asked for are in the slot now, which is nobody else's any more."""

    slot: int
    length: int


class PrefixCache:
    """Keeps what the sequences of `pool` held, in at most `budget_bytes`; with 0 nothing is kept.

    `on_done` is called on the thread that copies, whenever `poll` has something. The methods are for any thread.
    """

    def __init__(
        self, pool: SequencePool, *, budget_bytes: int, on_done: Callable[[], None] = lambda: None
    ) -> None:
        self.on_done = on_done
        self._pool = pool
        self._any_length = not any(isinstance(layer, WindowCache) for layer in pool.sequence(0).layers)
        self._index: BlockIndex[_Kept] = BlockIndex(budget_bytes=budget_bytes, any_length=self._any_length)
        self._lock = threading.Lock()
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._saving: defaultdict[int, list[int]] = defaultdict(list)
        self._restored: deque[Restored] = deque()
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="prefixes", daemon=True)
        if budget_bytes:
            self._thread.start()

    def close(self, timeout_s: float = 1.0) -> None:
        """End after the copy that is being made."""
        self._closing = True
        self._jobs.put(None)
        if self._thread.ident is not None:
            self._thread.join(timeout_s)

    def status(self) -> PrefixStatus:
        with self._lock:
            return self._index.status()

    def find(self, tokens: list[int]) -> KeptPrefix:
        """The longest kept prefix of `tokens`."""
        with self._lock:
            return self._index.find(tokens)

    def save(self, slot: int, *lengths: int) -> None:
        """Keep what the slot's sequence holds, as far as that is not kept already.

        `lengths` rise; only models that cannot go on from any position need the ones before the last.
        """
        tokens = self._pool.sequence(slot).tokens
        if not self._index.budget_bytes:
            return
        for length in lengths[-1:] if self._any_length else lengths:
            held = tokens[:length]
            with self._lock:
                self._saving[slot].append(length)
            self._jobs.put(functools.partial(self._save, slot, held))

    def is_saving(self, slot: int, start: int) -> bool:
        """Whether rows from position `start` on may not be written to yet."""
        with self._lock:
            return any(length > start or not self._any_length for length in self._saving[slot])

    def bring(self, slot: int, tokens: list[int], held: int) -> bool:
        """Have a kept prefix of `tokens` brought to the slot, where that is well longer than the `held` first of them.

        What is being saved of the slot is waited for too. False where there is nothing to wait for; else as `restore`.
        """
        prefix = self.find(tokens)
        if prefix.length < held + _MIN_RESTORED_TOKENS:
            if not self.is_saving(slot, held):
                return False
            prefix = self.find([])
        self.restore(slot, prefix, held)
        return True

    def restore(self, slot: int, prefix: KeptPrefix, held: int) -> None:
        """Bring `prefix` into the slot, which has the first `held` tokens of it or of a longer one.

        It is the slot's after all that is being saved of it, and `poll` then tells how many tokens it holds. Until then
        it is not to be touched.
        """
        self._jobs.put(functools.partial(self._restore, slot, prefix, held))

    def poll(self) -> list[Restored]:
        """What has been restored since the last call."""
        restored = []
        while self._restored:
            restored.append(self._restored.popleft())
        return restored

    def _run(self) -> None:
        with torch.inference_mode():
            while (job := self._jobs.get()) is not None:
                job()

    def _save(self, slot: int, tokens: list[int]) -> None:
        try:
            self._keep(self._pool.sequence(slot), tokens)
        except Exception as error:  # whatever it is, the slot must not wait for it for ever
            log.warning("a prefix of %d tokens could not be kept: %s", len(tokens), error)
        finally:
            with self._lock:
                self._saving[slot].remove(len(tokens))

    def _keep(self, sequence: SequenceState, tokens: list[int]) -> None:
        if not tokens or not all(layer.keeps(len(tokens)) for layer in sequence.layers):
            return
        with self._lock:
            before, first = self._index.missing(tokens)
        while first < len(tokens) and not self._closing:
            end = min(first + BLOCK_TOKENS, len(tokens))
            is_end = end == len(tokens)
            parts = [_rows(layer, first, end, is_end=is_end) for layer in sequence.layers]
            n_bytes = sum(k.nbytes + v.nbytes for k, v in filter(None, parts))
            with self._lock:
                if not self._index.make_room(n_bytes, before):
                    return
            kept = _copy(parts, n_bytes)
            with self._lock:
                before = self._index.add(before, tokens[first:end], kept, n_bytes=n_bytes, is_end=is_end)
            first = end

    def _restore(self, slot: int, prefix: KeptPrefix, held: int) -> None:
        length = max(held, prefix.length)
        try:
            if prefix.length > held:
                self._bring(self._pool.sequence(slot), prefix, held)
                with self._lock:
                    self._index.use(prefix)
        except Exception as error:
            log.warning("a kept prefix of %d tokens could not be brought back: %s", prefix.length, error)
            length = 0
        self._restored.append(Restored(slot=slot, length=length))
        self.on_done()

    def _bring(self, sequence: SequenceState, prefix: KeptPrefix, held: int) -> None:
        first = 0
        for block in prefix.blocks:
            end = min(first + len(block.tokens), prefix.length)
            for layer, kept in zip(sequence.layers, block.content, strict=True):
                if kept is None or end <= held:
                    continue
                if isinstance(layer, WindowCache):
                    if block is prefix.blocks[-1]:
                        _copy_each(layer.go_on_from(end), kept)
                    continue
                start = max(first, held)
                _copy_each(
                    (layer.k[start:end], layer.v[start:end]),
                    (kept[0][start - first : end - first], kept[1][start - first : end - first]),
                )
            first = end


def _rows(layer: LayerCache, first: int, end: int, *, is_end: bool) -> tuple[Tensor, Tensor] | None:
    if isinstance(layer, WindowCache):
        return layer.state(end) if is_end else None
    return layer.k[first:end], layer.v[first:end]


def _copy(parts: _Kept, n_bytes: int) -> _Kept:
    """Copies in one piece of this computer's memory."""
    block = torch.empty(n_bytes, dtype=torch.uint8)
    kept: _Kept = []
    at = 0
    for part in parts:
        if part is None:
            kept.append(None)
            continue
        copies = []
        for rows in part:
            copies.append(block[at : at + rows.nbytes].view(rows.dtype).view(rows.shape))
            at += rows.nbytes
        _copy_each((copies[0], copies[1]), part)
        kept.append((copies[0], copies[1]))
    return kept


def _copy_each(targets: tuple[Tensor, Tensor], sources: tuple[Tensor, Tensor]) -> None:
    for target, source in zip(targets, sources, strict=True):
        if target.device.type == source.device.type == "cpu":
            # Not torch's: on this thread it would take a team of threads from those that compute.
            ctypes.memmove(target.data_ptr(), source.data_ptr(), source.nbytes)
        else:
            target.copy_(source)
