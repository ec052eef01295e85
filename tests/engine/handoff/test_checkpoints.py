"""When a checkpoint is worth sending: bytes and times go in, yes or no comes out."""

from __future__ import annotations

from engine.handoff.checkpoints import Checkpoints

LAYERS = 4
FRAME_BYTES = 1000
CHUNK_US = 1000


class Prompt:
    """A prompt of `n_chunks`, each of 4 frames of 1,000 bytes pushed over 1,000 us; a checkpoint has 2,000 bytes.

    The client has a chunk `lag_us` after its last frame was pushed.
    """

    def __init__(self, *, n_chunks: int = 40, first_chunk: int = 1, n_bytes: int = 2000) -> None:
        self.checkpoints = Checkpoints(n_bytes=n_bytes, first_chunk=first_chunk, n_chunks=n_chunks)
        self.n_chunks = n_chunks
        self.made: list[int] = []
        self._now_us = 0

    def run(self, *, lag_us: int, behind: int = 0) -> list[int]:
        """All chunks, the acknowledgement of each coming `behind` chunks later; returns which became checkpoints."""
        pushed_us: dict[int, int] = {}
        for chunk in range(self.n_chunks):
            due = chunk - 1 - behind
            if due >= 0:
                self.checkpoints.acknowledged(due, at_us=pushed_us[due] + lag_us)
            if self.checkpoints.is_due(chunk):
                self.checkpoints.begun(chunk)
                self.made.append(chunk)
            for _ in range(LAYERS):
                self._now_us += CHUNK_US // LAYERS
                self.checkpoints.pushed(chunk, FRAME_BYTES, at_us=self._now_us)
            pushed_us[chunk] = self._now_us
            self.checkpoints.computed(took_us=CHUNK_US)
        return self.made


def test_on_a_fast_link_as_many_as_the_budget_holds() -> None:
    """Half of what the chunks take: 4,000 bytes of them pay for one of 2,000."""
    assert Prompt(n_bytes=8000).run(lag_us=10) == list(range(4, 38, 4))


def test_none_before_it_can_be_one_and_none_at_the_end() -> None:
    made = Prompt(first_chunk=7, n_chunks=12).run(lag_us=10)
    assert made == [7, 8, 9, 10]


def test_none_where_the_link_is_behind() -> None:
    assert Prompt().run(lag_us=10, behind=1) != []
    assert Prompt().run(lag_us=10, behind=2) == []


def test_none_where_the_chunks_take_half_of_the_link() -> None:
    """Every 250 us a frame is to be sent, which takes 125 us."""
    assert Prompt().run(lag_us=125) == []


def test_on_a_link_with_little_to_spare_none_that_would_not_be_through_at_the_end() -> None:
    """10,000 bytes a chunk can be sent, 5,000 may, and 4,000 are the chunk's own: a checkpoint of 8,000 takes 8."""
    assert Prompt(n_bytes=8000).run(lag_us=100) == [4, 8, 12, 16, 20, 24, 28]
    assert Prompt(n_bytes=8000, n_chunks=12).run(lag_us=100) == []


def test_a_checkpoint_says_nothing_of_the_links_speed() -> None:
    checkpoints = Checkpoints(n_bytes=100, first_chunk=0, n_chunks=40)
    checkpoints.pushed(0, 1000, at_us=0)
    checkpoints.computed(took_us=1000)
    checkpoints.acknowledged(0, at_us=10)
    assert checkpoints.is_due(1)
    checkpoints.begun(1)
    checkpoints.pushed(1, 1000, at_us=1000)
    checkpoints.acknowledged(1, at_us=100_000)
    assert checkpoints.is_due(2)


def test_nothing_is_known_before_the_first_acknowledgement() -> None:
    checkpoints = Checkpoints(n_bytes=100, first_chunk=0, n_chunks=40)
    checkpoints.pushed(0, 1000, at_us=0)
    checkpoints.computed(took_us=1000)
    assert not checkpoints.is_due(1)
