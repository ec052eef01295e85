"""What programs asked the endpoint lately, for who watches it: when, of which model, how much, and how it ended.

Of a request there is nothing that anybody wrote, and of its answer nothing but the counts at its end.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from enum import StrEnum

import msgspec

from engine.batching.feed import Feed

KEPT_REQUESTS = 200

# The end of an answer has its counts; what is before it is not kept.
_TAIL_BYTES = 8192

# In a text of an answer these have a \ before their quotes.
_COUNTS = re.compile(
    rb'(?<!\\)"(prompt_n|cache_n|predicted_n|prompt_tokens|completion_tokens)":\s*(\d{1,12})'
)
_PREFILL = re.compile(rb'(?<!\\)"prefill":\s*"(local|remote)"')


class Stage(StrEnum):
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    LEFT = "left"  # by its client, before its end


class RecentRequest(msgspec.Struct, kw_only=True):
    """One request. `n_prompt` counts what was cached, too; counts are None where no answer told them.

    `prefill` is local, remote or "" where it is not known; `computer` has answered it, "" for this one. `status` is
    None until there is one.
    """

    number: int
    at: float
    method: str
    path: str
    model: str = ""
    computer: str = ""
    stage: Stage = Stage.RUNNING
    status: int | None = None
    n_prompt: int | None = None
    n_cached: int | None = None
    n_decoded: int | None = None
    prefill: str = ""
    duration_s: float | None = None


class RecentRequests:
    """The last ones; `feed` has each anew when it begins, gets its status, and ends. On one event loop."""

    def __init__(
        self, *, clock: Callable[[], float] = time.monotonic, wall: Callable[[], float] = time.time
    ) -> None:
        self.feed: Feed[RecentRequest] = Feed(keep=3 * KEPT_REQUESTS)
        self._clock, self._wall = clock, wall
        self._kept: dict[int, RecentRequest] = {}
        self._n = 0

    def all(self) -> list[RecentRequest]:
        """The oldest first."""
        return list(self._kept.values())

    def begin(self, method: str, path: str, model: str) -> Watch:
        self._n += 1
        request = RecentRequest(number=self._n, at=self._wall(), method=method, path=path, model=model)
        self._kept[self._n] = request
        if len(self._kept) > KEPT_REQUESTS:
            del self._kept[next(iter(self._kept))]
        watch = Watch(request, self.feed.say, self._clock)
        watch.tell()
        return watch


class Watch:
    """Follows one request to its end."""

    def __init__(
        self, request: RecentRequest, say: Callable[[RecentRequest], None], clock: Callable[[], float]
    ) -> None:
        self._request, self._say, self._clock = request, say, clock
        self._began_at = clock()
        self._tail = b""

    def tell(self) -> None:
        self._say(msgspec.structs.replace(self._request))

    def answered(self, status: int, *, model: str, computer: str) -> None:
        """The answer begins; `model` is the one that gives it, "" where that is not known."""
        self._request.status, self._request.computer = status, computer
        self._request.model = model or self._request.model
        self.tell()

    def part(self, data: bytes) -> None:
        self._tail = (self._tail + data)[-_TAIL_BYTES:]

    def end(self, stage: Stage, status: int | None = None) -> None:
        """The first end counts."""
        request = self._request
        if request.stage is not Stage.RUNNING:
            return
        request.status = request.status if status is None else status
        if stage is Stage.DONE and request.status is not None and request.status >= 400:
            stage = Stage.FAILED
        request.stage = stage
        request.duration_s = self._clock() - self._began_at
        self._count()
        self.tell()

    def _count(self) -> None:
        told = {name.decode(): int(count) for name, count in _COUNTS.findall(self._tail)}
        request = self._request
        request.n_decoded = told.get("completion_tokens", told.get("predicted_n"))
        request.n_cached = told.get("cache_n")
        if "prompt_n" in told:
            request.n_prompt = told["prompt_n"] + told.get("cache_n", 0)
        else:
            request.n_prompt = told.get("prompt_tokens")
        if found := _PREFILL.findall(self._tail):
            request.prefill = found[-1].decode()
        self._tail = b""
