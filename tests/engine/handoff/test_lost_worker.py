"""A model with sliding windows loses its worker midway: real couriers and engine loop, and an answer as if alone."""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest

from engine.batching.chunks import equal_chunks
from engine.batching.loop import EngineLoop
from engine.batching.remote import RouteConfig
from engine.batching.request import Finished, Handoff, Progress, Request, SamplingParams
from engine.cache.prefix import PrefixCache
from engine.cache.sequence import SequencePool
from engine.cache.spec import CacheSpec, KVType
from engine.handoff.checkpoints import Checkpoints
from engine.handoff.codec_choice import CodecPolicy
from engine.handoff.failure import FailureCode
from engine.handoff.model_prefiller import ModelPrefiller
from engine.handoff.prefill_worker import PrefillWorker
from engine.handoff.prefiller import Part
from engine.handoff.rates import PrefillRates
from engine.handoff.shared import SharedMemory
from engine.models.base import Model
from engine.models.registry import WeightsMode, load_model
from engine.node.trust.identity import Identity
from engine.wire.messages import Role
from tests.engine.batching import fakes
from tests.engine.batching.fakes import Answer, Bytes
from tests.engine.handoff.pairs import TIMEOUT_S, ClientSide, WorkerSide, courier_config, identity
from tests.engine.models.running import random_tokens
from tests.engine.models.tiny import Quant, write_tiny

N_ANSWER = 8
N_CHUNKS = 6


class HeldPrefiller(ModelPrefiller):
    """Computes a pass when it is allowed to."""

    def __init__(self, model: Model, pool: SequencePool) -> None:
        super().__init__(model, pool, PrefixCache(pool, budget_bytes=0))
        self.allowed = threading.Semaphore(0)
        self.entered = threading.Semaphore(0)

    def compute(self, parts: list[Part]) -> None:
        self.entered.release()
        assert self.allowed.acquire(timeout=TIMEOUT_S)
        super().compute(parts)


@dataclass
class Sides:
    """An engine loop, its worker, and the prompt that the one asks the other for."""

    loop: EngineLoop
    worker: WorkerSide
    prefiller: HeldPrefiller
    spec: CacheSpec
    prompt: list[int]
    chunks: list[tuple[int, int]]

    def ask(self) -> Answer:
        return ask(self.loop, self.prompt)

    def whole_bytes(self, *, n_checkpoints: int) -> int:
        """Of a handoff of all of the prompt."""
        n_tokens = len(self.prompt) - 1
        states = (1 + n_checkpoints) * self.spec.checkpoint_bytes()
        return n_tokens * self.spec.bytes_per_token() + states

    def compute(self, answer: Answer, n_chunks: int) -> None:
        """Let the worker compute so many, one by one: the client has each, and the worker knows of checkpoints."""
        worker = self.worker.worker
        assert worker is not None
        for _, end in self.chunks[:n_chunks]:
            self.prefiller.allowed.release()
            committed(answer, end)
            self._wait_acknowledged(worker, end)

    def _wait_acknowledged(self, worker: PrefillWorker, end: int) -> None:
        def is_known() -> bool:
            aside = worker._set_aside
            return aside is None or self.chunks[aside[1]][1] > end

        with worker._changed:
            assert worker._changed.wait_for(is_known, TIMEOUT_S)

    def kill_courier(self) -> None:
        assert self.worker.worker is not None and self.worker.worker.courier_pid is not None
        os.kill(self.worker.worker.courier_pid, signal.SIGKILL)


def ask(loop: EngineLoop, prompt: list[int]) -> Answer:
    answer = Answer()
    sampling = SamplingParams(temperature=0, max_tokens=N_ANSWER, ignore_eos=True)
    loop.submit(
        Request(request_id="one", tokens=tuple(prompt), sink=answer, sampling=sampling, prefill="auto")
    )
    return answer


def committed(answer: Answer, position: int) -> None:
    """Wait until the prompt has come so far."""
    answer.wait_for(lambda a: any(isinstance(e, Progress) and e.processed >= position for e in a.events))


def finished(answer: Answer) -> tuple[list[int], Handoff]:
    last = answer.last
    assert isinstance(last, Finished) and last.timings.handoff is not None
    return answer.tokens, last.timings.handoff


def new_loop(model: Model, pool: SequencePool, chunk_tokens: int, client: ClientSide | None) -> EngineLoop:
    return EngineLoop(
        model=model,
        pool=pool,
        new_decoder=Bytes,
        end_ids=frozenset(),
        client=client.opened if client is not None else None,
        chunk_tokens=chunk_tokens,
        route=RouteConfig(rates=PrefillRates(), min_tokens=1),
    )


@contextlib.contextmanager
def joined(
    tmp_path: Path, model: Model, chunk_tokens: int, codec: CodecPolicy = CodecPolicy.AUTO
) -> Iterator[Sides]:
    n_prompt = N_CHUNKS * chunk_tokens
    spec = model.spec.cache_spec(kv_type=KVType.BF16, n_ctx=n_prompt + 2 * N_ANSWER, n_slots=1)
    client = ClientSide(tmp_path / "client", spec)
    memory = SharedMemory.create(spec.total_bytes() + spec.checkpoint_bytes())
    prefiller = HeldPrefiller(model, SequencePool(spec, model.device, memory.buffer))
    worker = WorkerSide(
        folder=tmp_path / "worker",
        identity=Identity.load_or_create(tmp_path / "worker"),
        memory=memory,
        prefiller=prefiller,  # type: ignore[arg-type]
    )
    same = {"identity": identity(spec), "max_prompt_tokens": spec.n_ctx, "codec": codec}
    loop = None
    try:
        config = courier_config(Role.PREFILL, worker.folder, client.identity.fingerprint, **same)
        port = worker.start(msgspec.structs.replace(config, listen="127.0.0.1:0"))
        config = courier_config(Role.DECODE, client.folder, worker.identity.fingerprint, **same)
        client.start(msgspec.structs.replace(config, dial=f"127.0.0.1:{port}"))
        client.wait_ready()
        pool = SequencePool(spec, model.device, client.memory.buffer)
        loop = new_loop(model, pool, chunk_tokens, client)
        loop.start()
        prompt = random_tokens(n_prompt, model.spec.n_vocab, seed=5)
        chunks = equal_chunks(0, n_prompt - 1, chunk_tokens)
        yield Sides(loop=loop, worker=worker, prefiller=prefiller, spec=spec, prompt=prompt, chunks=chunks)
    finally:
        prefiller.allowed.release(1000)
        if loop is not None:
            loop.close(TIMEOUT_S)
        client.stop()
        worker.stop()
        for block in (client.memory, memory):
            block.close_descriptor()


def alone(model: Model, prompt: list[int], chunk_tokens: int) -> list[int]:
    """The answer of an engine without a worker."""
    spec: CacheSpec = model.spec.cache_spec(kv_type=KVType.BF16, n_ctx=len(prompt) + 2 * N_ANSWER, n_slots=1)
    pool = SequencePool(spec, model.device, memoryview(bytearray(spec.total_bytes())))
    loop = new_loop(model, pool, chunk_tokens, None)
    loop.start()
    try:
        return finished(ask(loop, prompt))[0]
    finally:
        loop.close(TIMEOUT_S)


def make_due(monkeypatch: pytest.MonkeyPatch, *chunks: int) -> None:
    """Checkpoints with these chunks, however fast this computer is."""
    monkeypatch.setattr(Checkpoints, "is_due", lambda self, chunk: chunk in chunks)


@functools.cache
def tiny(folder: Path) -> Model:
    path = write_tiny("gemma3", folder / "tiny.gguf", 7, quant=Quant.MIXED_32)
    return load_model(path, device="cpu", weights=WeightsMode.AUTO)


@pytest.fixture
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    """With a window of 11, which chunks of 24 hold whole."""
    return tiny(tmp_path_factory.getbasetemp())


def lose_worker(
    tmp_path: Path, model: Model, chunk_tokens: int, *, n_computed: int, kept: int | None
) -> None:
    """Kill it after so many chunks; all up to the end of chunk `kept` is used, and the answer is as if alone."""
    with joined(tmp_path, model, chunk_tokens) as sides:
        answer = sides.ask()
        sides.compute(answer, n_computed)
        sides.kill_courier()
        sides.worker.stop()
        tokens, handoff = finished(answer)
        assert (handoff.prefill, handoff.reason) == ("local", FailureCode.PEER_LOST)
        assert handoff.remote_tokens == (0 if kept is None else sides.chunks[kept][1])
        assert handoff.bytes > 0
        (timeline,) = sides.loop.journal.timelines.recent()
        assert timeline.n_remote == handoff.remote_tokens
        assert tokens == alone(model, sides.prompt, chunk_tokens)


@pytest.mark.parametrize(
    ("checkpoints", "n_computed", "kept"), [((2,), 4, 2), ((1, 3), 5, 3), ((4,), 4, None)]
)
def test_the_rest_is_prefilled_from_the_last_checkpoint(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    tiny_model: Model,
    checkpoints: tuple[int, ...],
    n_computed: int,
    kept: int | None,
) -> None:
    make_due(monkeypatch, *checkpoints)
    lose_worker(tmp_path, tiny_model, 24, n_computed=n_computed, kept=kept)


def test_a_real_model_goes_on_from_its_last_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gemma_path: Path
) -> None:
    """With a window of 512, which the third chunk of 192 is the first to fill."""
    monkeypatch.setattr(fakes, "TIMEOUT_S", 120.0)
    make_due(monkeypatch, 2)
    model = load_model(gemma_path, device="cpu", weights=WeightsMode.AUTO)
    lose_worker(tmp_path, model, 192, n_computed=4, kept=2)


def test_a_worker_that_comes_back_gets_what_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tiny_model: Model
) -> None:
    make_due(monkeypatch, 2)
    with joined(tmp_path, tiny_model, 24) as sides:
        answer = sides.ask()
        sides.compute(answer, 4)
        sides.kill_courier()
        sides.prefiller.allowed.release(1000)
        tokens, handoff = finished(answer)
        assert handoff.remote_tokens >= sides.chunks[2][1]
        assert tokens == alone(tiny_model, sides.prompt, 24)


@pytest.mark.parametrize("codec", [CodecPolicy.RAW, CodecPolicy.LOSSLESS])
def test_checkpoints_on_the_way_change_no_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tiny_model: Model, codec: CodecPolicy
) -> None:
    make_due(monkeypatch, 1, 3)
    with joined(tmp_path, tiny_model, 24, codec) as sides:
        answer = sides.ask()
        sides.compute(answer, N_CHUNKS)
        tokens, handoff = finished(answer)
        assert handoff.remote_tokens == len(sides.prompt) - 1
        assert handoff.bytes == sides.whole_bytes(n_checkpoints=2)
        assert tokens == alone(tiny_model, sides.prompt, 24)


def test_a_cancelled_checkpoint_makes_room_for_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tiny_model: Model
) -> None:
    make_due(monkeypatch, 2)
    with joined(tmp_path, tiny_model, 24) as sides:
        answer = sides.ask()
        sides.compute(answer, 2)
        # The third chunk waits to be computed, and has its room.
        for _ in range(3):
            assert sides.prefiller.entered.acquire(timeout=TIMEOUT_S)
        assert sides.worker.worker is not None and sides.worker.worker._set_aside is not None
        sides.loop.cancel("one")
        assert isinstance(answer.last, Finished)
        sides.prefiller.allowed.release(1000)
        # Of another prompt, or the worker would have some of it already.
        _, handoff = finished(ask(sides.loop, sides.prompt[::-1]))
        assert handoff.bytes == sides.whole_bytes(n_checkpoints=1)
