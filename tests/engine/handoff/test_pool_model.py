"""Prompts of a real model, several at once over real couriers, give what each gives when it is prefilled at home."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest
import torch

from engine.cache.prefix import PrefixCache
from engine.cache.sequence import SequencePool
from engine.cache.spec import CacheSpec, KVType
from engine.handoff.client_events import Committed, Failed, Finished
from engine.handoff.codec_choice import CodecPolicy
from engine.handoff.model_prefiller import ModelPrefiller
from engine.handoff.shared import SharedMemory
from engine.models.base import Model
from engine.models.registry import WeightsMode, load_model
from engine.node.trust.identity import Identity
from engine.wire.messages import Code, Role
from tests.engine.handoff.pairs import ClientSide, WorkerSide, courier_config, identity
from tests.engine.models.running import append, greedy, new_pool, prefill, random_tokens
from tests.engine.models.tiny import Quant, write_tiny

CHUNK = 24
N_SLOTS = 5
LENGTHS = (97, 30, 6, 150)


@dataclass
class Sides:
    """Both ends, their pools in the memory that the couriers fill, and who computes on the worker."""

    model: Model
    client: ClientSide
    pool: SequencePool
    prefiller: ModelPrefiller

    def ask(self, request: int, prompt: list[int]) -> None:
        stop = len(prompt) - 1
        landings = self.pool.sequence(request).prepare_landing(0, stop)
        self.client.opened.start(request, prompt, 0, stop, landings, CHUNK)

    def end(self, request: int, prompt: list[int]) -> Finished | Failed | None:
        """How it ended, with all that was committed in its sequence."""
        end = self.client.wait_end(request)
        for event in self.client.events:
            if isinstance(event, Committed) and event.request_id == request:
                sequence = self.pool.sequence(request)
                sequence.land(prompt, event.stop, final=event.final, place=event.place)
        return end

    def check(self, request: int, prompt: list[int]) -> None:
        """Bit for bit what prefilling it alone would have given, and the same answer."""
        spec = self.pool.spec
        alone = new_pool(self.model, n_ctx=spec.n_ctx, kv_type=spec.kv_type)[0].sequence(0)
        prefill(self.model, alone, prompt, chunk=CHUNK)
        remote = self.pool.sequence(request)
        assert remote.tokens == alone.tokens
        found, expected = (append(self.model, side, prompt[-1:], decode=True) for side in (remote, alone))
        assert torch.equal(found, expected)
        first = int(found.argmax())
        assert greedy(self.model, remote, first, 6) == greedy(self.model, alone, first, 6)


def sequences_of(memory: SharedMemory, model: Model, spec: CacheSpec) -> SequencePool:
    return SequencePool(spec, model.device, memory.buffer)


@contextlib.contextmanager
def joined(tmp_path: Path, model: Model, codec: CodecPolicy = CodecPolicy.AUTO) -> Iterator[Sides]:
    spec = model.spec.cache_spec(kv_type=KVType.BF16, n_ctx=192, n_slots=N_SLOTS)
    client = ClientSide(tmp_path / "client", spec)
    memory = SharedMemory.create(spec.total_bytes() + spec.checkpoint_bytes())
    pool = sequences_of(memory, model, spec)
    prefiller = ModelPrefiller(model, pool, PrefixCache(pool, budget_bytes=0))
    worker = WorkerSide(
        folder=tmp_path / "worker",
        identity=Identity.load_or_create(tmp_path / "worker"),
        memory=memory,
        prefiller=prefiller,  # type: ignore[arg-type]
        n_prefill=4,
        pass_tokens=3 * CHUNK,
    )
    same = {"identity": identity(spec), "max_prompt_tokens": spec.n_ctx}
    try:
        config = courier_config(Role.PREFILL, worker.folder, client.identity.fingerprint, **same)
        port = worker.start(msgspec.structs.replace(config, listen="127.0.0.1:0"))
        config = courier_config(Role.DECODE, client.folder, worker.identity.fingerprint, **same)
        client.start(msgspec.structs.replace(config, dial=f"127.0.0.1:{port}", codec=codec))
        client.wait_ready()
        yield Sides(
            model=model,
            client=client,
            pool=sequences_of(client.memory, model, spec),
            prefiller=prefiller,
        )
    finally:
        client.stop()
        worker.stop()
        for block in (client.memory, memory):
            block.close_descriptor()


@pytest.fixture(scope="module", params=["qwen3-packed", "qwen3-bf16", "gemma3-packed", "llama-auto"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Model:
    name, weights = request.param.split("-")
    quant = Quant.Q4_K_M if weights == "packed" else Quant.MIXED_32
    path = write_tiny(name, tmp_path_factory.mktemp("pool") / "tiny.gguf", 7, quant=quant)
    return load_model(path, device="cpu", weights=WeightsMode(weights))


@pytest.fixture
def sides(model: Model, tmp_path: Path) -> Iterator[Sides]:
    with joined(tmp_path, model) as both:
        yield both


@pytest.fixture(scope="module", params=["qwen3", "gemma3"])
def mixed_model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Model:
    path = write_tiny(request.param, tmp_path_factory.mktemp("codec") / "tiny.gguf", 7, quant=Quant.MIXED_32)
    return load_model(path, device="cpu", weights=WeightsMode.AUTO)


def prompts_of(model: Model, n_prompts: int) -> dict[int, list[int]]:
    """By request, which is also the slot that it lands in."""
    return {
        number: random_tokens(n_tokens, model.spec.n_vocab, seed=n_tokens)
        for number, n_tokens in enumerate(LENGTHS[:n_prompts], start=1)
    }


@pytest.mark.parametrize("n_prompts", [2, 4])
def test_at_once_as_alone(sides: Sides, n_prompts: int) -> None:
    prompts = prompts_of(sides.model, n_prompts)
    for request, prompt in prompts.items():
        sides.ask(request, prompt)
    for request, prompt in prompts.items():
        assert isinstance(sides.end(request, prompt), Finished)
    for request, prompt in prompts.items():
        sides.check(request, prompt)


def test_one_fails_and_one_is_cancelled_while_the_others_go_on(sides: Sides) -> None:
    """A token that is not in the vocabulary is found out before it can take a pass down."""
    prompts = prompts_of(sides.model, 4)
    prompts[2][7] = sides.model.spec.n_vocab
    for request, prompt in prompts.items():
        sides.ask(request, prompt)
    sides.client.opened.cancel(4)
    failed = sides.end(2, prompts[2])
    assert isinstance(failed, Failed) and failed.code == Code.BAD_TOKENS and "no token" in failed.message
    for request in (1, 3):
        assert isinstance(sides.end(request, prompts[request]), Finished)
        sides.check(request, prompts[request])
    sides.client.wait_end(4)


@pytest.mark.parametrize("codec", [CodecPolicy.RAW, CodecPolicy.LOSSLESS, CodecPolicy.INT8])
def test_a_codec_changes_the_answer_only_where_it_may(
    tmp_path: Path, mixed_model: Model, codec: CodecPolicy
) -> None:
    with joined(tmp_path, mixed_model, codec) as sides:
        ((request, prompt),) = prompts_of(mixed_model, 1).items()
        sides.ask(request, prompt)
        done = sides.end(request, prompt)
        assert isinstance(done, Finished)
        if codec is not CodecPolicy.INT8:
            sides.check(request, prompt)
            return
        assert done.wire_bytes < 0.75 * done.payload_bytes
        spec = sides.pool.spec
        alone = new_pool(model, n_ctx=spec.n_ctx, kv_type=spec.kv_type)[0].sequence(0)
        prefill(model, alone, prompt, chunk=CHUNK)
        remote = sides.pool.sequence(request)
        assert remote.tokens == alone.tokens
        found, expected = (append(model, side, prompt[-1:], decode=True) for side in (remote, alone))
        assert not torch.equal(found, expected)
        assert (found - expected).abs().max() < 0.05 * expected.std()
        assert len(greedy(model, remote, int(found.argmax()), 6)) == 6
