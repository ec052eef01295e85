"""Which prefixes are kept beside the slots, and which goes first when room is short. Pure bookkeeping, no torch.

A prefix is a chain of blocks. A block stands for BLOCK_TOKENS positions, or fewer where a sequence ended; its key is a
hash of its tokens and of the key before it, so that equal keys mean equal prompts up to there. What a block holds in
memory is its maker's business. Not safe for threads.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

# Fewer tokens would be more to look after, more would lose more of a prompt that goes another way within a block.
BLOCK_TOKENS = 256

_KEY_BYTES = 16

Content = TypeVar("Content")


@dataclass(kw_only=True, eq=False)
class Block(Generic[Content]):
    """One link of a chain. `is_end` says that a sequence can go on from its last position.

    `last_used` orders blocks by age; `after` are those that follow it, by their keys.
    """

    key: bytes
    before: Block[Content] | None
    tokens: list[int]
    content: Content
    n_bytes: int
    is_end: bool
    last_used: int
    after: dict[bytes, Block[Content]] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Prefix(Generic[Content]):
    """The first `length` tokens of a prompt, in these blocks; of the last one perhaps only a part."""

    length: int
    blocks: tuple[Block[Content], ...]


@dataclass(frozen=True, kw_only=True)
class PrefixStatus:
    """What is kept, positions that prefixes share counted once, and how many bytes may be."""

    n_bytes: int
    budget_bytes: int
    n_tokens: int


class BlockIndex(Generic[Content]):
    """All blocks, in at most `budget_bytes`.

    With `any_length` a sequence can go on from any position of a block; else only from the end of one that says so.
    """

    def __init__(self, *, budget_bytes: int, any_length: bool) -> None:
        self.budget_bytes = budget_bytes
        self.n_bytes = 0
        self._any_length = any_length
        self._first: dict[bytes, Block[Content]] = {}
        self._blocks: dict[bytes, Block[Content]] = {}
        self._uses = 0

    def status(self) -> PrefixStatus:
        n_tokens = sum(len(block.tokens) for block in self._blocks.values())
        return PrefixStatus(n_bytes=self.n_bytes, budget_bytes=self.budget_bytes, n_tokens=n_tokens)

    def find(self, tokens: list[int]) -> Prefix[Content]:
        """The longest prefix of `tokens` that a sequence can go on from. Changes nothing."""
        chain = self._chain(tokens)
        length = sum(len(block.tokens) for block in chain)
        while True:
            rest = tokens[length : length + BLOCK_TOKENS]
            part, common = self._best_part(chain[-1] if chain else None, rest)
            if part is not None:
                chain.append(part)
                length += common
                break
            if not chain or self._any_length or chain[-1].is_end:
                break
            length -= len(chain.pop().tokens)
        return Prefix(length=length, blocks=tuple(chain))

    def use(self, prefix: Prefix[Content]) -> None:
        """It was used now: what it needs goes last."""
        self._touch(prefix.blocks[-1] if prefix.blocks else None)

    def missing(self, tokens: list[int]) -> tuple[Block[Content] | None, int]:
        """Where to go on so that all of `tokens` are kept: after that block, from that position on.

        The position is the number of tokens where nothing is missing. What is there already counts as used.
        """
        chain = self._chain(tokens)
        length = sum(len(block.tokens) for block in chain)
        if not self._any_length and length == len(tokens) and chain and not chain[-1].is_end:
            length -= len(chain.pop().tokens)
        before = chain[-1] if chain else None
        self._touch(before)
        rest = tokens[length : length + BLOCK_TOKENS]
        if 0 < len(rest) < BLOCK_TOKENS:
            part, common = self._best_part(before, rest)
            if part is not None and common == len(rest):
                self._touch(part)
                return before, len(tokens)
        return before, length

    def make_room(self, n_bytes: int, keep: Block[Content] | None) -> bool:
        """Give up blocks, the ones not used for longest first, until `n_bytes` fit; never `keep` or one before it.

        False where they cannot fit.
        """
        while self.n_bytes + n_bytes > self.budget_bytes:
            ends = [block for block in self._blocks.values() if not block.after and block is not keep]
            if not ends:
                return False
            self._remove(min(ends, key=lambda block: block.last_used))
        return True

    def add(
        self,
        before: Block[Content] | None,
        tokens: list[int],
        content: Content,
        *,
        n_bytes: int,
        is_end: bool,
    ) -> Block[Content]:
        """A new block after `before`; room has been made for it. Parts that it makes superfluous go."""
        key = _key(before, tokens)
        siblings = self._after(before)
        old = siblings.get(key)
        for part in list(siblings.values()):
            is_needed = part.after or (part.is_end and not self._any_length)
            if not is_needed and part.tokens == tokens[: len(part.tokens)]:
                self._remove(part)
        self._uses += 1
        block = Block(
            key=key,
            before=before,
            tokens=tokens,
            content=content,
            n_bytes=n_bytes,
            is_end=is_end,
            last_used=self._uses,
            after=old.after if old is not None else {},
        )
        if key in siblings:
            self.n_bytes -= siblings[key].n_bytes
        for later in block.after.values():
            later.before = block
        siblings[key] = self._blocks[key] = block
        self.n_bytes += n_bytes
        return block

    def _after(self, block: Block[Content] | None) -> dict[bytes, Block[Content]]:
        return self._first if block is None else block.after

    def _chain(self, tokens: list[int]) -> list[Block[Content]]:
        """The whole blocks that `tokens` begin with."""
        chain: list[Block[Content]] = []
        for first in range(0, len(tokens) - BLOCK_TOKENS + 1, BLOCK_TOKENS):
            before = chain[-1] if chain else None
            block = self._after(before).get(_key(before, tokens[first : first + BLOCK_TOKENS]))
            if block is None:
                break
            chain.append(block)
        return chain

    def _best_part(
        self, before: Block[Content] | None, tokens: list[int]
    ) -> tuple[Block[Content] | None, int]:
        """Of the blocks after `before`, the one that shares most with `tokens`, and how many; None where none does.

        Unless any length will do, only a block that is shared whole, up to an end, is of use.
        """
        best, most = None, 0
        for block in self._after(before).values():
            common = common_prefix(block.tokens, tokens)
            if not self._any_length and (not block.is_end or common < len(block.tokens)):
                continue
            if common > most:
                best, most = block, common
        return best, most

    def _touch(self, block: Block[Content] | None) -> None:
        self._uses += 1
        while block is not None:
            block.last_used = self._uses
            block = block.before

    def _remove(self, block: Block[Content]) -> None:
        del self._after(block.before)[block.key]
        del self._blocks[block.key]
        self.n_bytes -= block.n_bytes


def _key(before: Block[Content] | None, tokens: list[int]) -> bytes:
    digest = hashlib.blake2b(before.key if before is not None else b"", digest_size=_KEY_BYTES)
    digest.update(array("q", tokens).tobytes())
    return digest.digest()


def common_prefix(held: Sequence[int], prompt: Sequence[int]) -> int:
    """How many first tokens two sequences share."""
    limit = min(len(held), len(prompt))
    if held[:limit] == prompt[:limit]:
        return limit
    return next(index for index in range(limit) if held[index] != prompt[index])
