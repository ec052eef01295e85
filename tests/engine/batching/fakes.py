"""A model, a cache and a worker that are small, exact, and as strict as the real ones about who writes what when.

A cached row stands for everything before it: row p is a hash of row p-1 and token p. Logits depend on all rows of a
sequence, so a row that is missing, stale or another sequence's changes what is answered.
"""

from __future__ import annotations

import threading
import time
import zlib
from dataclasses import dataclass, field
from types import SimpleNamespace

import numpy as np
import torch

from engine.batching.chunks import equal_chunks
from engine.batching.loop import EngineLoop
from engine.batching.remote import RouteConfig
from engine.batching.request import Failed, Finished, Request, SamplingParams, Token
from engine.cache.prefix import PrefixCache
from engine.cache.spec import Landing, LayerKind
from engine.handoff import client_events as handoff
from engine.handoff.rates import PrefillRates
from engine.handoff.telemetry import pack_layers
from engine.wire.client import LayerArrival

N_VOCAB = 260
END = 256
LETTERS = range(97, 123)
TIMEOUT_S = 10.0
SLOT_BYTES = 1 << 20
BYTES_A_TOKEN = 4

# What the worker says of each chunk.
N_LAYERS = 2
COMPUTE_MS = 10.0


def next_row(row: int, token: int) -> int:
    return zlib.crc32(token.to_bytes(4, "little"), row)


def rows_of(tokens) -> list[int]:
    rows, row = [], 0
    for token in tokens:
        row = next_row(row, token)
        rows.append(row)
    return rows


class FakeLayer:
    """Its rows, as whoever keeps them sees them."""

    def __init__(self, rows: torch.Tensor) -> None:
        self.k = self.v = rows

    def keeps(self, length: int) -> bool:
        return True


class FakeSequence:
    """One slot. With `window`, nothing usable lands before the final commit, and making room loses what was there."""

    def __init__(self, slot: int, n_ctx: int, *, window: bool = False) -> None:
        self.slot = slot
        self.n_ctx = n_ctx
        self.tokens: list[int] = []
        self.rows = torch.zeros(n_ctx, dtype=torch.int64)
        self.layers = [FakeLayer(self.rows)]
        self.lent_until = 0
        self._window = window
        self._lost = False

    @property
    def length(self) -> int:
        return len(self.tokens)

    def reusable(self, prompt) -> int:
        common = 0
        for held, wanted in zip(self.tokens, prompt, strict=False):
            if held != wanted:
                break
            common += 1
        return 0 if self._lost else common

    def truncate(self, length: int) -> None:
        assert length <= self.length
        if length == 0:
            self.reset()
        del self.tokens[length:]

    def reset(self) -> None:
        self.tokens = []
        self._lost = False

    def adopt(self, tokens) -> None:
        self.tokens = list(tokens)
        self._lost = False

    def extend(self, tokens) -> None:
        for token in tokens:
            at = self.length
            assert at >= self.lent_until, "the courier may still write here"
            self.rows[at] = next_row(int(self.rows[at - 1]) if at else 0, token)
            self.tokens.append(token)

    def prepare_landing(self, start: int, stop: int) -> tuple[Landing, ...]:
        assert start == self.length
        self._lost = self._window
        return (
            Landing(
                layer=0,
                kind=LayerKind.ATTENTION,
                first=start,
                stop=stop,
                k_offset=self.slot * SLOT_BYTES,
                v_offset=self.slot * SLOT_BYTES,
                k_row_bytes=4,
                v_row_bytes=4,
                state_offset=0,
                state_bytes=0,
            ),
        )

    def land(self, prompt, end: int, *, final: bool, place: int | None = None) -> None:
        if final or place is not None or not self._window:
            self.tokens.extend(prompt[self.length : end])
            self._lost = False


class FakePool:
    def __init__(self, *, n_slots: int, n_ctx: int, window: bool = False) -> None:
        self.spec = SimpleNamespace(n_ctx=n_ctx, n_slots=n_slots)
        self.sequences = [FakeSequence(slot, n_ctx, window=window) for slot in range(n_slots)]

    def sequence(self, slot: int) -> FakeSequence:
        return self.sequences[slot]


@dataclass
class Step:
    """What one forward pass was asked for: (slot, first, stop) of its chunk, and the slots that decoded."""

    prefill: tuple[int, int, int] | None
    decode: list[int]


class FakeModel:
    """Deterministic. `choose(tokens)` may name the next token; otherwise it is a letter out of the rows' hash.

    After `hold()` each forward pass waits for `allow()`; `fail_next` raises once.
    """

    def __init__(self, choose=None, n_vocab: int = N_VOCAB) -> None:
        self.spec = SimpleNamespace(n_vocab=n_vocab)
        self.steps: list[Step] = []
        self.fail_next: Exception | None = None
        self.fail_when = lambda step: False
        self._choose = choose
        self._gate: threading.Semaphore | None = None
        self._entered = threading.Semaphore(0)

    def hold(self) -> None:
        self._gate = threading.Semaphore(0)

    def allow(self, n_steps: int = 1) -> None:
        self._gate.release(n_steps)

    def release(self) -> None:
        """Let all steps run freely again."""
        gate, self._gate = self._gate, None
        gate.release(1000)

    def wait_entered(self) -> None:
        """Return once a forward pass is waiting at the gate (each one counts once)."""
        assert self._entered.acquire(timeout=TIMEOUT_S)

    def forward(self, prefill, decode):
        chunk = None
        if prefill:
            (segment,) = prefill
            assert segment.n_logits == 0
            first = segment.sequence.length
            chunk = (segment.sequence.slot, first, first + len(segment.tokens))
        step = Step(prefill=chunk, decode=[segment.sequence.slot for segment in decode])
        self.steps.append(step)
        if self._gate is not None:
            gate = self._gate
            self._entered.release()
            assert gate.acquire(timeout=TIMEOUT_S)
        if self.fail_next is not None and self.fail_when(step):
            error, self.fail_next = self.fail_next, None
            raise error
        for segment in (*prefill, *decode):
            segment.sequence.extend(segment.tokens)
        if not decode:
            return torch.empty(0, self.spec.n_vocab)
        return torch.stack([self._logits(segment.sequence) for segment in decode])

    def _logits(self, sequence: FakeSequence):
        rows = sequence.rows[: sequence.length].numpy().astype(np.uint32)
        seed = zlib.crc32(rows.tobytes())
        logits = torch.from_numpy(
            np.random.default_rng(seed).standard_normal(self.spec.n_vocab, dtype=np.float32)
        )
        logits[LETTERS.start : LETTERS.stop] += 8
        if self._choose is not None:
            logits[self._choose(sequence.tokens)] += 100
        return logits


class Bytes:
    """A stream decoder for a vocabulary of bytes; ids above 255 stand for no text."""

    def __init__(self) -> None:
        self._held = b""

    def push(self, token_id: int) -> str:
        if token_id > 255:
            return ""
        self._held += bytes([token_id])
        try:
            text = self._held.decode()
        except UnicodeDecodeError as error:
            if error.reason == "unexpected end of data":
                return ""
            text = self._held.decode("utf-8", "replace")
        self._held = b""
        return text

    def flush(self) -> str:
        held, self._held = self._held, b""
        return held.decode("utf-8", "replace")


@dataclass
class _Asked:
    request_id: int
    tokens: list[int]
    first: int
    stop: int
    chunk_tokens: int
    chunks: list[tuple[int, int]]
    cancelled: bool = False
    events: list = field(default_factory=list)


LINK_SETUP = handoff.LinkSetup(
    data_streams=1,
    receive_asked_bytes=32 << 20,
    receive_granted_bytes=8 << 20,
    send_asked_bytes=32 << 20,
    send_granted_bytes=4 << 20,
)


class FakeClient:
    """A worker's client under the test's hand: `commit`, `finish`, `fail` and `release` are what the peer does.

    It writes into the pool's sequences as a courier would, only between start and release. With `automatic` the whole
    of each handoff happens at once.
    """

    def __init__(self, pool: FakePool, *, automatic: bool = False) -> None:
        self.ready = True
        self.refuse: Exception | None = None
        self.warmed: list[list[int]] = []
        self.asked: dict[int, _Asked] = {}
        self.asked_for = threading.Semaphore(0)
        self.cancelled = threading.Semaphore(0)
        self.changed = threading.Condition()
        self._pool = pool
        self._automatic = automatic
        self._events: list = []
        self._wakeup = lambda: None
        self._slots: dict[int, FakeSequence] = {}
        self._lock = threading.Lock()

    # What the engine loop calls.

    def status(self):
        if self.ready:
            return handoff.ClientStatus(ready=True, peer="192.168.1.20:7118", setup=LINK_SETUP)
        return handoff.ClientStatus(ready=False, note="the worker is away")

    def on_wakeup(self, wakeup) -> None:
        self._wakeup = wakeup

    def warm(self, tokens) -> None:
        self.warmed.append(list(tokens))

    def start(self, request_id, tokens, start, stop, landings, chunk_tokens, *, reuse=True) -> None:
        if self.refuse is not None:
            raise self.refuse
        (landing,) = landings
        sequence = self._pool.sequences[landing.k_offset // SLOT_BYTES]
        assert sequence.tokens == tokens[:start] and not sequence.lent_until
        sequence.lent_until = stop
        self._slots[request_id] = sequence
        self.asked[request_id] = _Asked(
            request_id=request_id,
            tokens=list(tokens),
            first=start,
            stop=stop,
            chunk_tokens=chunk_tokens,
            chunks=equal_chunks(start, stop, chunk_tokens),
        )
        self.asked_for.release()
        with self.changed:
            self.changed.notify_all()
        if self._automatic:
            for _ in range(len(self.asked[request_id].chunks)):
                self.commit(request_id)
            self.finish(request_id)

    def poll(self) -> list:
        with self._lock:
            events, self._events = self._events, []
        return events

    def cancel(self, request_id: int) -> None:
        if request_id in self._slots:
            self.asked[request_id].cancelled = True
            self.cancelled.release()
            with self.changed:
                self.changed.notify_all()

    # What the test makes the worker do.

    def wait_asked(self) -> int:
        assert self.asked_for.acquire(timeout=TIMEOUT_S)
        return max(self.asked)

    def commit(self, request_id: int, *, written_only: bool = False) -> None:
        """The next chunk arrives; with `written_only` its rows do, but no commit."""
        asked = self.asked[request_id]
        first, stop = asked.chunks.pop(0)
        sequence = self._slots[request_id]
        sequence.rows[first:stop] = torch.tensor(rows_of(asked.tokens)[first:stop])
        if not written_only:
            n_bytes = BYTES_A_TOKEN * (stop - asked.first)
            self._tell(
                handoff.Committed(
                    request_id=request_id,
                    first=first,
                    stop=stop,
                    final=not asked.chunks,
                    payload_bytes=n_bytes,
                    compute_ms=COMPUTE_MS,
                    computed_s=time.monotonic(),
                    layers=self.layers_of(first, stop),
                )
            )

    def layers_of(self, first: int, stop: int) -> bytes:
        """Each queued a millisecond before its first byte came, and that one before its last."""
        now_us = time.monotonic_ns() // 1000
        return pack_layers(
            LayerArrival(
                layer=layer,
                queued_us=now_us - 2000,
                first_byte_us=now_us - 1000,
                last_byte_us=now_us,
                payload_bytes=BYTES_A_TOKEN * (stop - first) // N_LAYERS,
            )
            for layer in range(N_LAYERS)
        )

    def finish(self, request_id: int) -> None:
        self._slots.pop(request_id).lent_until = 0
        asked = self.asked[request_id]
        n_chunks = len(equal_chunks(asked.first, asked.stop, asked.chunk_tokens))
        self._tell(
            handoff.Finished(
                request_id=request_id,
                payload_bytes=4096,
                overlap=0.75,
                tail_ms=1.5,
                compute_ms=COMPUTE_MS * n_chunks,
                receive_ms=8.0,
                wire_bytes=2800,
                codec="lossless",
                codec_reason="it was sooner",
            )
        )

    def change_link(self, *, ready: bool, code: str = "") -> None:
        self.ready = ready
        self._tell(handoff.LinkChanged(status=self.status(), code=code))

    def fail(self, request_id: int, code: str = "peer_lost") -> None:
        """A lost peer is away until the test says that it is `ready` again."""
        self.ready = self.ready and code != "peer_lost"
        self._tell(handoff.Failed(request_id=request_id, code=code, message="the cable was pulled"))

    def release(self, request_id: int, *, scribble: bool = True) -> None:
        """Nothing can come any more; until now anything could, into whatever was not committed."""
        sequence = self._slots.pop(request_id)
        asked = self.asked[request_id]
        if scribble and asked.chunks:
            at = asked.chunks[0][0]
            sequence.rows[at : asked.stop] = 7
        sequence.lent_until = 0
        self._tell(handoff.Released(request_id=request_id))

    def _tell(self, event) -> None:
        with self._lock:
            self._events.append(event)
        self._wakeup()


class Answer:
    """A sink that collects one request's events and can be waited for."""

    def __init__(self) -> None:
        self.events: list = []
        self._changed = threading.Condition()

    def __call__(self, event) -> None:
        with self._changed:
            self.events.append(event)
            self._changed.notify_all()

    def wait_for(self, condition) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: condition(self), timeout=TIMEOUT_S), self.events

    @property
    def last(self):
        """Finished or Failed, once it has come."""
        self.wait_for(lambda answer: answer.events and isinstance(answer.events[-1], Finished | Failed))
        return self.events[-1]

    @property
    def tokens(self) -> list[int]:
        return [event.token_id for event in self.events if isinstance(event, Token)]

    @property
    def text(self) -> str:
        return "".join(event.text for event in self.events if isinstance(event, Token | Finished))


class Bench:
    """An engine loop over the fakes, with the shortest way to ask it something."""

    def __init__(
        self,
        *,
        n_slots=2,
        n_ctx=256,
        chunk_tokens=8,
        worker=False,
        automatic=False,
        window=False,
        choose=None,
        prefix_bytes=0,
        **loop,
    ) -> None:
        self.model = FakeModel(choose)
        self.pool = FakePool(n_slots=n_slots, n_ctx=n_ctx, window=window)
        self.client = FakeClient(self.pool, automatic=automatic) if worker else None
        self.prefixes = PrefixCache(self.pool, budget_bytes=prefix_bytes)
        self.loop = EngineLoop(
            model=self.model,
            pool=self.pool,
            new_decoder=Bytes,
            end_ids=frozenset({END}),
            client=self.client,
            chunk_tokens=chunk_tokens,
            route=loop.pop("route", None) or RouteConfig(rates=PrefillRates(), min_tokens=16),
            prefixes=self.prefixes,
            **loop,
        )
        self._n_asked = 0

    def __enter__(self):
        self.loop.start()
        return self

    def __exit__(self, *_) -> None:
        if self.model._gate is not None:
            self.model.release()
        self.loop.close(TIMEOUT_S)
        self.prefixes.close()

    def ask(
        self, prompt, *, max_tokens=8, prefill="auto", slot=None, name=None, answer=None, **sampling
    ) -> Answer:
        answer = answer or Answer()
        self._n_asked += 1
        answer.request_id = name or f"r{self._n_asked}"
        tokens = tuple(prompt.encode() if isinstance(prompt, str) else prompt)
        self.loop.submit(
            Request(
                request_id=answer.request_id,
                tokens=tokens,
                sink=answer,
                sampling=SamplingParams(**({"temperature": 0, "max_tokens": max_tokens} | sampling)),
                prefill=prefill,
                slot=slot,
            )
        )
        return answer

    def alone(self, prompt, **asked) -> list[int]:
        """The tokens of an engine that does nothing else."""
        with Bench(n_slots=1) as bench:
            answer = bench.ask(prompt, **asked)
            assert isinstance(answer.last, Finished)
            return answer.tokens
