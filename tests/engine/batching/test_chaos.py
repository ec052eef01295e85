"""Many requests, cancels and a worker that fails at any point, in any order: every answer is what it is alone."""

import random
import threading

import pytest

from engine.batching.request import Finished, FinishReason
from tests.engine.batching.fakes import TIMEOUT_S, Bench

TEXT = "it was the best of times, it was the worst of times, it was the age of wisdom, " * 3


class Worker:
    """Does one random thing to one live handoff at a time, on its own thread."""

    def __init__(self, client, seed) -> None:
        self._client = client
        self._rng = random.Random(seed)
        self._over: set[int] = set()
        self._failed: set[int] = set()
        self._stopping = False
        self._thread = threading.Thread(target=self._run)

    def __enter__(self):
        self._thread.start()

    def __exit__(self, *_) -> None:
        with self._client.changed:
            self._stopping = True
            self._client.changed.notify_all()
        self._thread.join(TIMEOUT_S)
        assert not self._thread.is_alive()

    def _live(self) -> list[int]:
        return [number for number in list(self._client.asked) if number not in self._over]

    def _run(self) -> None:
        while True:
            with self._client.changed:
                self._client.changed.wait_for(lambda: self._live() or self._stopping)
            live = self._live()
            if not live:
                return
            self._act(self._rng.choice(live))

    def _act(self, number: int) -> None:
        asked = self._client.asked[number]
        if number in self._failed or asked.cancelled:
            self._client.release(number)
            self._over.add(number)
        elif not asked.chunks:
            self._client.finish(number)
            self._over.add(number)
        elif self._rng.random() < 0.05:
            self._client.fail(number)
            self._failed.add(number)
        else:
            self._client.commit(number)


def play(seed: int, n_requests: int) -> None:
    rng = random.Random(seed)
    window = rng.random() < 0.3
    # None, room for a prompt or two, and room for all.
    prefix_bytes = rng.choice([0, 8000, 1 << 20])
    with (
        Bench(
            n_slots=3, n_ctx=400, chunk_tokens=16, worker=True, window=window, prefix_bytes=prefix_bytes
        ) as bench,
        Worker(bench.client, seed),
    ):
        asked = []
        for _ in range(n_requests):
            start = rng.randrange(3)
            prompt = TEXT[start : start + rng.randrange(1, 200)] + rng.choice(["", "!", "?"])
            limit = rng.randrange(1, 20)
            answer = bench.ask(
                prompt,
                max_tokens=limit,
                prefill=rng.choice(["auto", "local", "remote"]),
                slot=rng.choice([None, None, 1]),
                cache_prompt=rng.random() < 0.9,
            )
            asked.append((prompt, limit, answer))
            if rng.random() < 0.2:
                bench.loop.cancel(rng.choice(asked)[2].request_id)
            if rng.random() < 0.3:
                assert isinstance(rng.choice(asked)[2].last, Finished)
        for prompt, limit, answer in asked:
            if answer.last.reason is not FinishReason.CANCELLED:
                assert answer.tokens == bench.alone(prompt, max_tokens=limit), (prompt, answer.events)
        assert bench.prefixes.status().n_bytes <= prefix_bytes
        assert bench.ask(TEXT[:50], prefill="local").last.reason is FinishReason.LENGTH


@pytest.mark.parametrize("seed", range(4))
def test_chaos_sample(seed, caplog):
    play(seed, 30)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(1000, 1100))
def test_chaos(seed, caplog):
    play(seed, 150)
