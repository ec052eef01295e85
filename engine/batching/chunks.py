"""How a prompt is cut into chunks: equal ones, with no short last one. Pure arithmetic."""

from __future__ import annotations


def equal_chunks(start: int, stop: int, chunk_tokens: int) -> list[tuple[int, int]]:
    """Cut positions [start, stop) into the fewest chunks of at most `chunk_tokens`, equal to within one token.

    Equal chunks let every layer's transfer hide behind as much compute as any other: a short last chunk would
    leave the tail of its predecessor uncovered. Local and remote prefill use the same cut, so that both compute
    the same numbers. Returns [(first, end), ...] in order; empty when there is nothing to do.
    """
    total = stop - start
    if total <= 0:
        return []
    n_chunks = -(-total // chunk_tokens)
    base, longer = divmod(total, n_chunks)
    chunks = []
    first = start
    for index in range(n_chunks):
        end = first + base + (1 if index < longer else 0)
        chunks.append((first, end))
        first = end
    return chunks
