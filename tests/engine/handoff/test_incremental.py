"""Turns of chats over real couriers: only what is missing is computed and sent, and answers are what they are alone."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from engine.batching.loop import EngineLoop
from engine.batching.remote import RouteConfig
from engine.batching.request import Finished, Request, SamplingParams
from engine.batching.timeline import Timeline
from engine.cache.prefix import PrefixCache
from engine.cache.sequence import SequencePool
from engine.cache.spec import CacheSpec, KVType
from engine.handoff.checkpoints import Checkpoints
from engine.handoff.model_prefiller import ModelPrefiller
from engine.handoff.rates import PrefillRates
from engine.handoff.route import RoutePolicy
from engine.handoff.shared import SharedMemory
from engine.models.base import Model
from engine.models.registry import WeightsMode, load_model
from engine.node.trust.identity import Identity
from engine.wire.geometry import HandoffPlan
from engine.wire.messages import Role, layer_shapes
from tests.engine.batching.fakes import Answer, Bytes
from tests.engine.handoff.pairs import TIMEOUT_S, ClientSide, WorkerSide, courier_config, identity
from tests.engine.models.running import new_pool, random_tokens
from tests.engine.models.tiny import Quant, write_tiny

CHUNK = 64
N_CTX = 1600
BUDGET = 1 << 28
ANSWER_TOKENS = 6


class Watched(ModelPrefiller):
    """Notes what each sequence held when it was let go of, and counts what is computed."""

    def __init__(self, model: Model, pool: SequencePool, prefixes: PrefixCache) -> None:
        super().__init__(model, pool, prefixes)
        self.pool = pool
        self.prefixes = prefixes
        self.n_computed = 0
        self.released: list[list[int]] = []
        self.changed = threading.Condition()

    def compute(self, parts) -> None:  # type: ignore[no-untyped-def]
        super().compute(parts)
        self.n_computed += sum(part.end - part.first for part in parts)

    def release(self, sequence: int) -> None:
        super().release(sequence)
        with self.changed:
            self.released.append(list(self.pool.sequence(sequence).tokens))
            self.changed.notify_all()

    def wait_holds(self, tokens: list[int]) -> None:
        """Return once a sequence was let go of that held these."""

        def has_held() -> bool:
            return any(one[: len(tokens)] == tokens for one in self.released)

        with self.changed:
            assert self.changed.wait_for(has_held, TIMEOUT_S), [len(one) for one in self.released]


class Ends:
    """A decode engine and a worker with a tiny model, a slot each; either can be started anew with an empty cache."""

    def __init__(self, model: Model, folder: Path) -> None:
        self.model = model
        self.spec: CacheSpec = model.spec.cache_spec(kv_type=KVType.BF16, n_ctx=N_CTX, n_slots=1)
        self._client_side = ClientSide(folder / "client", self.spec)
        self._worker_folder = folder / "worker"
        self._worker_identity = Identity.load_or_create(self._worker_folder)
        self._n_asked = 0
        self.worker_side: WorkerSide | None = None
        self.loop: EngineLoop | None = None

    def start_worker(self) -> None:
        """Again on the port that it had, where it had one."""
        port = 0
        if self.worker_side is not None:
            port = self.worker_side.port or 0
            self.worker_side.stop()
            self.prefiller.prefixes.close()
        memory = SharedMemory.create(self.spec.total_bytes() + self.spec.checkpoint_bytes())
        pool = SequencePool(self.spec, self.model.device, memory.buffer)
        self.prefiller = Watched(self.model, pool, PrefixCache(pool, budget_bytes=BUDGET))
        self.worker_side = WorkerSide(
            folder=self._worker_folder,
            identity=self._worker_identity,
            memory=memory,
            prefiller=self.prefiller,  # type: ignore[arg-type]
        )
        config = self._config(Role.PREFILL, self._worker_folder, self._client_side.identity.fingerprint)
        self.worker_side.start(msgspec.structs.replace(config, listen=f"127.0.0.1:{port}"))

    def wait_linked_anew(self) -> None:
        """Return once the client has lost the link and has it again; the loop takes the news of it."""
        status = self._client_side.opened.status
        deadline_s = time.monotonic() + TIMEOUT_S
        for is_up in (False, True):
            while status().ready is not is_up:
                assert time.monotonic() < deadline_s
                threading.Event().wait(0.005)

    def start_client(self) -> None:
        assert self.worker_side is not None
        self.stop_client()
        side = self._client_side
        side.memory = SharedMemory.create(self.spec.total_bytes())
        config = self._config(Role.DECODE, side.folder, self._worker_identity.fingerprint)
        side.start(msgspec.structs.replace(config, dial=f"127.0.0.1:{self.worker_side.port}"))
        side.wait_ready()
        pool = SequencePool(self.spec, self.model.device, side.memory.buffer)
        self.prefixes = PrefixCache(pool, budget_bytes=BUDGET)
        self.loop = EngineLoop(
            model=self.model,
            pool=pool,
            new_decoder=Bytes,
            end_ids=frozenset(),
            client=side.opened,
            chunk_tokens=CHUNK,
            route=RouteConfig(rates=PrefillRates(), policy=RoutePolicy.ALWAYS, min_tokens=16),
            prefixes=self.prefixes,
        )
        self.loop.start()

    def stop_client(self) -> None:
        if self.loop is not None:
            self.loop.close()
            self.prefixes.close()
            self._client_side.stop()
            self.loop = None

    def close(self) -> None:
        self.stop_client()
        if self.worker_side is not None:
            self.worker_side.stop()
            self.prefiller.prefixes.close()

    def _config(self, role: Role, folder: Path, fingerprint: str):  # type: ignore[no-untyped-def]
        return courier_config(
            role, folder, fingerprint, identity=identity(self.spec), max_prompt_tokens=N_CTX
        )

    def ask(self, prompt: list[int], **asked: object) -> tuple[list[int], Timeline]:
        """The answer to a prompt, and what is known of the request when all of it is over."""
        assert self.loop is not None
        self._n_asked += 1
        answer, request_id = Answer(), f"r{self._n_asked}"
        sampling = {"temperature": 0, "max_tokens": ANSWER_TOKENS} | asked
        self.loop.submit(
            Request(
                request_id=request_id,
                tokens=tuple(prompt),
                sink=answer,
                sampling=SamplingParams(**sampling),  # type: ignore[arg-type]
            )
        )
        assert isinstance(answer.last, Finished)
        timeline = self.loop.journal.timelines.of_slot(0)
        assert timeline is not None and timeline.request_id == request_id
        return answer.tokens, timeline

    def alone(self, prompt: list[int]) -> list[int]:
        """The answer of an engine that has no worker and has never been asked anything."""
        loop = EngineLoop(
            model=self.model,
            pool=new_pool(self.model, n_ctx=N_CTX, kv_type=KVType.BF16)[0],
            new_decoder=Bytes,
            end_ids=frozenset(),
            chunk_tokens=CHUNK,
        )
        loop.start()
        answer = Answer()
        sampling = SamplingParams(temperature=0, max_tokens=ANSWER_TOKENS)
        loop.submit(Request(request_id="alone", tokens=tuple(prompt), sink=answer, sampling=sampling))
        assert isinstance(answer.last, Finished)
        loop.close()
        return answer.tokens

    def check(self, prompt: list[int], tokens: list[int]) -> None:
        """A window layer's numbers depend on how a prompt was cut, and with them near ties of a model of noise."""
        if self.any_length:
            assert tokens == self.alone(prompt)

    @property
    def any_length(self) -> bool:
        return not any(layer.window for layer in self.spec.layers)

    def bytes_of(self, first: int, stop: int) -> int:
        """What a client that has `first` tokens lacks of `stop`."""
        plan = HandoffPlan.cut(
            layers=layer_shapes(self.spec),
            kv_type=self.spec.kv_type,
            first=first,
            stop=stop,
            chunk_tokens=CHUNK,
        )
        return sum(part.payload_bytes for chunk in range(len(plan.chunks)) for part in plan.parts(chunk))

    def new_text(self, n_tokens: int) -> list[int]:
        self._n_asked += 1
        return random_tokens(n_tokens, self.model.spec.n_vocab, seed=self._n_asked)


@pytest.fixture(scope="module", params=["qwen3", "gemma3"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Model:
    path = write_tiny(
        request.param, tmp_path_factory.mktemp("incremental") / "tiny.gguf", 7, quant=Quant.Q4_K_M
    )
    return load_model(path, device="cpu", weights=WeightsMode.PACKED)


@pytest.fixture
def ends(model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Ends]:
    # They are sent beside what is lacking, when the link is idle.
    monkeypatch.setattr(Checkpoints, "is_due", lambda self, chunk: False)
    both = Ends(model, tmp_path)
    both.start_worker()
    both.start_client()
    try:
        yield both
    finally:
        both.close()


def test_the_second_turn_brings_what_is_new_and_nothing_else(ends: Ends) -> None:
    prompt = ends.new_text(500)
    answer, _ = ends.ask(prompt)
    # all but the answer's last token, which nobody has computed
    held = [*prompt, *answer[:-1]]
    ends.prefiller.wait_holds(held)
    n_computed = ends.prefiller.n_computed
    assert n_computed == len(held)
    prompt = [*prompt, *answer, *ends.new_text(200)]
    tokens, timeline = ends.ask(prompt)
    ends.check(prompt, tokens)
    assert (timeline.n_cached, timeline.n_reused_there) == (len(held), len(held))
    assert timeline.bytes == ends.bytes_of(len(held), len(prompt) - 1)
    assert timeline.n_remote == len(prompt) - 1 - len(held)
    ends.prefiller.wait_holds([*prompt, *tokens[:-1]])
    assert ends.prefiller.n_computed - n_computed == len(prompt) + len(tokens) - 1 - len(held)


def test_chats_take_turns_in_one_slot(ends: Ends) -> None:
    """Whose slot and whose sequence went to the other finds all of its last turn kept on both ends."""
    chats = [ends.new_text(400), ends.new_text(330), ends.new_text(290)]
    held = [0, 0, 0]
    for turn in range(3):
        for number, prompt in enumerate(chats):
            tokens, timeline = ends.ask(prompt)
            ends.check(prompt, tokens)
            assert timeline.n_cached == held[number], (turn, number)
            assert timeline.bytes == ends.bytes_of(held[number], len(prompt) - 1)
            ends.prefiller.wait_holds([*prompt, *tokens[:-1]])
            held[number] = len(prompt) + len(tokens) - 1
            chats[number] = [*prompt, *tokens, *ends.new_text(100)]


def test_an_edit_in_the_middle_and_another_answer(ends: Ends) -> None:
    first = ends.new_text(300)
    answer, _ = ends.ask(first)
    ends.prefiller.wait_holds([*first, *answer[:-1]])
    second = [*first, *answer, *ends.new_text(300)]
    answer, _ = ends.ask(second)
    ends.prefiller.wait_holds([*second, *answer[:-1]])
    # the same prompt once more: all but its last token is there
    tokens, timeline = ends.ask(second)
    assert tokens == answer and timeline.n_cached == len(second) - 1 and timeline.bytes == 0
    edited = [*second[:400], *ends.new_text(250)]
    tokens, timeline = ends.ask(edited)
    ends.check(edited, tokens)
    kept = 400 if ends.any_length else len(first) + ANSWER_TOKENS - 1
    assert timeline.n_cached == kept
    assert timeline.bytes == ends.bytes_of(kept, len(edited) - 1)


def test_a_worker_that_was_started_anew_computes_what_it_lost_and_sends_what_is_new(ends: Ends) -> None:
    prompt = ends.new_text(400)
    answer, _ = ends.ask(prompt)
    ends.start_worker()
    ends.wait_linked_anew()
    prompt = [*prompt, *answer, *ends.new_text(150)]
    tokens, timeline = ends.ask(prompt)
    ends.check(prompt, tokens)
    held = len(prompt) - 150 - 1
    assert (timeline.n_cached, timeline.n_reused_there) == (held, 0)
    assert timeline.bytes == ends.bytes_of(held, len(prompt) - 1)
    assert ends.prefiller.n_computed >= len(prompt) - 1


def test_an_engine_that_was_started_anew_gets_what_the_worker_has(ends: Ends) -> None:
    prompt = ends.new_text(700)
    answer, _ = ends.ask(prompt)
    held = [*prompt, *answer[:-1]]
    ends.prefiller.wait_holds(held)
    ends.start_client()
    n_computed = ends.prefiller.n_computed
    prompt = [*held, *ends.new_text(90)]
    tokens, timeline = ends.ask(prompt)
    ends.check(prompt, tokens)
    assert (timeline.n_cached, timeline.n_reused_there) == (0, len(held))
    assert timeline.bytes == ends.bytes_of(0, len(prompt) - 1)
    ends.prefiller.wait_holds([*prompt, *tokens[:-1]])
    assert ends.prefiller.n_computed - n_computed == len(prompt) + len(tokens) - 1 - len(held)


def test_all_that_is_asked_for_is_there_already(ends: Ends) -> None:
    """A worker that has nothing to compute sends all the same."""
    prompt = ends.new_text(700)
    answer, _ = ends.ask(prompt)
    ends.prefiller.wait_holds([*prompt, *answer[:-1]])
    ends.start_client()
    n_computed = ends.prefiller.n_computed
    asked = [*prompt, answer[0]]
    tokens, timeline = ends.ask(asked)
    if ends.any_length:
        assert tokens[:-1] == answer[1:] and timeline.n_reused_there == len(prompt)
        assert ends.prefiller.n_computed == n_computed
    assert timeline.bytes == ends.bytes_of(0, len(prompt))


def test_without_cache_nothing_is_reused_anywhere(ends: Ends) -> None:
    prompt = ends.new_text(300)
    answer, _ = ends.ask(prompt)
    ends.prefiller.wait_holds([*prompt, *answer[:-1]])
    n_computed = ends.prefiller.n_computed
    tokens, timeline = ends.ask(prompt, cache_prompt=False)
    assert tokens == answer
    assert (timeline.n_cached, timeline.n_reused_there) == (0, 0)
    assert ends.prefiller.n_computed - n_computed >= len(prompt) - 1


def test_whoever_asks_while_the_worker_works_ahead_is_served_first(ends: Ends) -> None:
    """What is computed ahead gives way after a small piece, and goes on when the worker is idle again."""
    reached, gate = threading.Event(), threading.Event()
    compute: Callable[..., None] = ends.prefiller.compute
    spans: list[tuple[int, int]] = []

    def slow(parts) -> None:  # type: ignore[no-untyped-def]
        if parts[0].first >= 300 and not gate.is_set():
            reached.set()
            assert gate.wait(TIMEOUT_S)
        spans.extend((part.first, part.end) for part in parts)
        compute(parts)

    warmed = ends.new_text(900)
    ends.prefiller.compute = slow  # type: ignore[method-assign]
    ends._client_side.opened.warm(warmed)
    assert reached.wait(TIMEOUT_S)
    other = ends.new_text(200)
    assert ends.loop is not None
    answer = Answer()
    sampling = SamplingParams(temperature=0, max_tokens=0)
    ends.loop.submit(Request(request_id="other", tokens=tuple(other), sink=answer, sampling=sampling))
    worker = ends.worker_side.worker if ends.worker_side is not None else None
    assert worker is not None
    with worker._changed:
        assert worker._changed.wait_for(lambda: worker._jobs, TIMEOUT_S)
    gate.set()
    assert isinstance(answer.last, Finished)
    ends.prefiller.wait_holds(warmed)
    _, asked_at = (at for at, (first, _) in enumerate(spans) if first == 0)
    assert max(end for _, end in spans[:asked_at]) < 600
