"""A prompt prefilled in one cache and moved to another byte by byte goes on as if it had been prefilled there.

The courier is played here: it copies what the sender's `spans` name to where the receiver's landings say, and nothing
else. The two pools differ in slots, context and slot number, so that no address is right by chance.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from dataclasses import dataclass

import pytest
import torch

from engine.batching.chunks import equal_chunks
from engine.cache import spec as cache_spec
from engine.cache.sequence import SequencePool, SequenceState
from engine.cache.spec import KVType, Landing, LayerKind
from engine.device import Device
from engine.layers.step import Segment
from engine.models.base import Model
from engine.models.registry import WeightsMode
from tests.engine.models.conftest import TinyModel
from tests.engine.models.running import append, greedy, new_pool, prefill, random_tokens
from tests.engine.models.tiny import Quant

FAMILIES = ("llama", "qwen2", "qwen3", "gemma3")
CHUNK = 24
LENGTHS = (1, 2, CHUNK - 1, CHUNK, CHUNK + 1, 4 * CHUNK + 5)
N_ANSWER = 8
N_CTX = 256


@dataclass(frozen=True, kw_only=True)
class FarDevice(Device):
    """A CPU that cannot map a cache into shared memory, as a GPU cannot."""

    @property
    def shares_host_memory(self) -> bool:
        return False


CPU = Device(torch_device=torch.device("cpu"), gemm_dtype=torch.bfloat16, vector_dtype=torch.float32)
FAR = FarDevice(torch_device=torch.device("cpu"), gemm_dtype=torch.bfloat16, vector_dtype=torch.float32)


@dataclass(frozen=True, kw_only=True)
class Setting:
    """The weights, their file's types and the cache's type that belong together."""

    quant: Quant
    weights: WeightsMode
    kv_type: KVType


FLOAT32 = Setting(quant=Quant.F32, weights=WeightsMode.FLOAT32, kv_type=KVType.F32)
DEFAULT = Setting(quant=Quant.MIXED_32, weights=WeightsMode.AUTO, kv_type=KVType.BF16)


@dataclass
class Side:
    """A pool, its memory and the slot that is used."""

    pool: SequencePool
    memory: memoryview
    sequence: SequenceState

    def hold(self, model: Model, tokens: list[int]) -> None:
        """Bring the sequence to exactly these tokens by local prefill."""
        sequence = self.sequence
        sequence.truncate(sequence.reusable(tokens))
        prefill(model, sequence, [*tokens, 0], chunk=CHUNK)


def side(
    model: Model, setting: Setting, *, n_slots: int, slot: int, n_ctx: int, device: Device = CPU
) -> Side:
    pool, memory = new_pool(model, n_ctx=n_ctx, n_slots=n_slots, kv_type=setting.kv_type, device=device)
    return Side(pool=pool, memory=memory, sequence=pool.sequence(slot))


def worker_side(model: Model, setting: Setting, *, device: Device = CPU) -> Side:
    return side(model, setting, n_slots=2, slot=0, n_ctx=N_CTX + 64, device=device)


def decode_side(model: Model, setting: Setting, *, device: Device = CPU) -> Side:
    return side(model, setting, n_slots=3, slot=1, n_ctx=N_CTX, device=device)


def hand_over(
    model: Model,
    worker: Side,
    decode: Side,
    prompt: list[int],
    *,
    fail_after: int | None = None,
    checkpoints: Collection[int] = (),
) -> int:
    """Prefill all but the last token of `prompt` at the worker's and move it; returns the bytes moved.

    With `fail_after`, that many chunks are committed and half of the next is written before the worker falls silent.
    Chunks in `checkpoints` bring windows too.
    """
    start, stop = decode.sequence.length, len(prompt) - 1
    landings = decode.sequence.prepare_landing(start, stop)
    worker.hold(model, prompt[:start])
    moved, next_place = 0, 0
    for index, (first, end) in enumerate(equal_chunks(start, stop, CHUNK)):
        final, fails = end == stop, index == fail_after
        sent: dict[int, bytes] = {}
        is_checkpoint = index in checkpoints
        place = next_place if is_checkpoint or (final and checkpoints) else None

        def on_layer(
            layer: int,
            first: int = first,
            end: int = end,
            final: bool = final,
            sent: dict[int, bytes] = sent,
            is_checkpoint: bool = is_checkpoint,
        ) -> None:
            bounds = {"final": final, "start": start, "stop": stop}
            worker.sequence.flush_out(layer, first, end, **bounds)
            spans = worker.sequence.spans(layer, first, end, **bounds)
            if is_checkpoint and not spans:
                spans = worker.pool.set_aside(worker.sequence.slot, layer, end)
            sent[layer] = b"".join(worker.memory[offset : offset + size] for offset, size in spans)

        segment = Segment(sequence=worker.sequence, tokens=prompt[first:end], n_logits=0, on_layer=on_layer)
        model.forward([segment], [])
        assert list(sent) == list(range(len(landings)))
        for landing in landings:
            if fails and landing.layer >= len(landings) // 2:
                break
            if is_checkpoint and landing.kind is LayerKind.WINDOW:
                landing = dataclasses.replace(landing, first=end - (landing.stop - landing.first), stop=end)
            if place and landing.kind is LayerKind.WINDOW:
                assert landing.spare_rows
                landing = dataclasses.replace(
                    landing,
                    k_offset=landing.k_offset + landing.spare_rows * landing.k_row_bytes,
                    v_offset=landing.v_offset + landing.spare_rows * landing.v_row_bytes,
                )
            moved += write(decode, landing, sent[landing.layer], first, end, final=final or is_checkpoint)
        if fails:
            return moved
        decode.sequence.land(prompt, end, final=final, place=place)
        if place is not None:
            next_place = 1 - place
    return moved


def write(decode: Side, landing: Landing, data: bytes, first: int, end: int, *, final: bool) -> int:
    """What the receiving courier does with one layer's part of a chunk."""
    if landing.kind is LayerKind.WINDOW:
        if not final:
            assert not data
            return 0
        first, end = landing.first, landing.stop
    assert landing.first <= first <= end <= landing.stop
    n_k = (end - first) * landing.k_row_bytes
    assert len(data) == n_k + (end - first) * landing.v_row_bytes
    region = decode.pool.spec.regions(decode.sequence.slot)[landing.layer]
    for offset, row_bytes, part, begin in (
        (landing.k_offset, landing.k_row_bytes, data[:n_k], region.k_offset),
        (landing.v_offset, landing.v_row_bytes, data[n_k:], region.v_offset),
    ):
        at = offset + (first - landing.first) * row_bytes
        assert begin <= at
        assert at + len(part) <= begin + region.rows * row_bytes
        decode.memory[at : at + len(part)] = part
    return len(data)


@pytest.fixture(params=[*FAMILIES, "gemma3-sliding"])
def name(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """A family; once with so little room beyond the window that its rows move with nearly every chunk."""
    family, _, sliding = request.param.partition("-")
    if sliding:
        monkeypatch.setattr(cache_spec, "WINDOW_SLACK_ROWS", 3)
    return family


@pytest.mark.parametrize("setting", [FLOAT32, DEFAULT], ids=["float32", "default"])
def test_remote_and_local_prefill_give_the_same_answer(
    name: str, setting: Setting, tiny_model: TinyModel
) -> None:
    """Bit for bit: both prefill in the same chunks."""
    model = tiny_model(name, setting.quant, setting.weights)
    worker, local, remote = (
        worker_side(model, setting),
        decode_side(model, setting),
        decode_side(model, setting),
    )
    for length in LENGTHS:
        prompt = random_tokens(length, model.spec.n_vocab, seed=length)
        for each in (worker, local, remote):
            each.sequence.truncate(0)
        prefill(model, local.sequence, prompt, chunk=CHUNK)
        hand_over(model, worker, remote, prompt)
        assert remote.sequence.tokens == local.sequence.tokens == prompt[:-1]
        found, expected = (append(model, s.sequence, prompt[-1:], decode=True) for s in (remote, local))
        assert torch.equal(found, expected)
        first = int(found.argmax())
        assert greedy(model, remote.sequence, first, N_ANSWER) == greedy(
            model, local.sequence, first, N_ANSWER
        )


@pytest.mark.parametrize("n_cached", [3, CHUNK, 2 * CHUNK + 7])
@pytest.mark.parametrize("setting", [FLOAT32, DEFAULT], ids=["float32", "default"])
def test_with_a_cached_prefix(name: str, setting: Setting, n_cached: int, tiny_model: TinyModel) -> None:
    """The prefix comes from an earlier prompt and its answer; the worker has to compute its own."""
    model = tiny_model(name, setting.quant, setting.weights)
    n_vocab = model.spec.n_vocab
    worker, local, remote = (
        worker_side(model, setting),
        decode_side(model, setting),
        decode_side(model, setting),
    )
    for length in LENGTHS:
        turn = random_tokens(n_cached, n_vocab, seed=n_cached)
        for each in (local, remote):
            each.sequence.truncate(0)
            prefill(model, each.sequence, turn[:-2], chunk=CHUNK)
            append(model, each.sequence, turn[-3:], decode=True)
        prompt = [*turn, *random_tokens(length, n_vocab, seed=length)]
        assert remote.sequence.reusable(prompt[:-1]) == n_cached
        prefill(model, local.sequence, prompt, chunk=CHUNK)
        hand_over(model, worker, remote, prompt)
        assert remote.sequence.tokens == prompt[:-1]
        assert greedy(model, remote.sequence, prompt[-1], N_ANSWER) == greedy(
            model, local.sequence, prompt[-1], N_ANSWER
        )


def test_a_second_turn_goes_on_from_what_was_handed_over(name: str, tiny_model: TinyModel) -> None:
    """Prompt, answer, and a next prompt that begins with both, handed over again."""
    model = tiny_model(name)
    worker, remote = worker_side(model, FLOAT32), decode_side(model, FLOAT32)
    prompt = random_tokens(50, model.spec.n_vocab, seed=1)
    for turn in range(3):
        remote.sequence.truncate(remote.sequence.reusable(prompt[:-1]))
        if turn:
            assert remote.sequence.length >= len(prompt) - 31
        hand_over(model, worker, remote, prompt)
        answer = greedy(model, remote.sequence, prompt[-1], N_ANSWER)
        alone = decode_side(model, FLOAT32)
        prefill(model, alone.sequence, prompt, chunk=CHUNK)
        assert answer == greedy(model, alone.sequence, prompt[-1], N_ANSWER)
        prompt = [*prompt, *answer, *random_tokens(30, model.spec.n_vocab, seed=turn)]


@pytest.mark.parametrize("n_cached", [0, 17])
@pytest.mark.parametrize("fail_after", [0, 2])
def test_local_prefill_after_a_broken_handoff(
    name: str, fail_after: int, n_cached: int, tiny_model: TinyModel
) -> None:
    """What was committed counts where the cache can go on from it; half-written rows do no harm."""
    model = tiny_model(name)
    worker, broken, alone = (
        worker_side(model, FLOAT32),
        decode_side(model, FLOAT32),
        decode_side(model, FLOAT32),
    )
    prompt = random_tokens(4 * CHUNK + 5, model.spec.n_vocab, seed=2)
    broken.hold(model, prompt[:n_cached])
    hand_over(model, worker, broken, prompt, fail_after=fail_after)
    kept = broken.sequence.reusable(prompt[:-1])
    if name != "gemma3":
        chunks = equal_chunks(n_cached, len(prompt) - 1, CHUNK)
        assert kept == (chunks[fail_after - 1][1] if fail_after else n_cached)
    else:
        assert kept in (0, n_cached)
    broken.sequence.truncate(kept)
    prefill(model, broken.sequence, prompt, chunk=CHUNK)
    prefill(model, alone.sequence, prompt, chunk=CHUNK)
    assert greedy(model, broken.sequence, prompt[-1], N_ANSWER) == greedy(
        model, alone.sequence, prompt[-1], N_ANSWER
    )


@pytest.mark.parametrize("n_cached", [0, 17])
@pytest.mark.parametrize(
    ("checkpoints", "fail_after", "kept"),
    [((1,), 2, 1), ((1,), 3, 1), ((0, 2), 3, 2), ((0, 1), 1, 0), ((0, 1, 2), 2, 1), ((0, 1), 4, 1)],
)
@pytest.mark.parametrize(("here", "there"), [(CPU, CPU), (FAR, CPU), (CPU, FAR)])
def test_windows_that_came_on_the_way_are_gone_on_from(
    checkpoints: tuple[int, ...],
    fail_after: int,
    kept: int,
    n_cached: int,
    here: Device,
    there: Device,
    tiny_model: TinyModel,
) -> None:
    """A worker that falls silent costs no more than what came after its last checkpoint."""
    model = tiny_model("gemma3")
    worker, broken, alone = (
        worker_side(model, FLOAT32, device=here),
        decode_side(model, FLOAT32, device=there),
        decode_side(model, FLOAT32),
    )
    prompt = random_tokens(n_cached + 4 * CHUNK + 5, model.spec.n_vocab, seed=2)
    broken.hold(model, prompt[:n_cached])
    hand_over(model, worker, broken, prompt, fail_after=fail_after, checkpoints=checkpoints)
    chunks = equal_chunks(n_cached, len(prompt) - 1, CHUNK)
    assert broken.sequence.reusable(prompt[:-1]) == chunks[kept][1]
    broken.sequence.truncate(chunks[kept][1])
    prefill(model, broken.sequence, prompt, chunk=CHUNK)
    prefill(model, alone.sequence, prompt, chunk=CHUNK)
    assert broken.sequence.tokens == alone.sequence.tokens
    assert greedy(model, broken.sequence, prompt[-1], N_ANSWER) == greedy(
        model, alone.sequence, prompt[-1], N_ANSWER
    )


@pytest.mark.parametrize("checkpoints", [(0,), (1, 2), (0, 1, 2)])
def test_checkpoints_on_the_way_change_no_answer(checkpoints: tuple[int, ...], tiny_model: TinyModel) -> None:
    """Bit for bit, with the last window in either place."""
    model = tiny_model("gemma3")
    worker, alone, remote = (make(model, FLOAT32) for make in (worker_side, decode_side, decode_side))
    prompt = random_tokens(4 * CHUNK + 5, model.spec.n_vocab, seed=2)
    prefill(model, alone.sequence, prompt, chunk=CHUNK)
    hand_over(model, worker, remote, prompt, checkpoints=checkpoints)
    assert remote.sequence.tokens == alone.sequence.tokens
    found, expected = (append(model, s.sequence, prompt[-1:], decode=True) for s in (remote, alone))
    assert torch.equal(found, expected)
    first = int(found.argmax())
    assert greedy(model, remote.sequence, first, N_ANSWER) == greedy(model, alone.sequence, first, N_ANSWER)


@pytest.mark.parametrize("n_cached", [0, CHUNK + 3])
def test_devices_whose_memory_others_cannot_see(name: str, n_cached: int, tiny_model: TinyModel) -> None:
    """The cache lies on the device and is copied to and from the shared block; same numbers, on either side."""
    model = tiny_model(name)
    prompt = random_tokens(4 * CHUNK + 5, model.spec.n_vocab, seed=3)
    alone = decode_side(model, FLOAT32)
    prefill(model, alone.sequence, prompt, chunk=CHUNK)
    expected = append(model, alone.sequence, prompt[-1:], decode=True)
    for here, there in ((FAR, FAR), (FAR, CPU), (CPU, FAR)):
        worker, remote = worker_side(model, FLOAT32, device=here), decode_side(model, FLOAT32, device=there)
        remote.hold(model, prompt[:n_cached])
        hand_over(model, worker, remote, prompt)
        found = append(model, remote.sequence, prompt[-1:], decode=True)
        torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)
        if n_cached == 0:
            assert torch.equal(found, expected)


def test_only_what_is_needed_is_moved(name: str, tiny_model: TinyModel) -> None:
    """Attention layers move each position once; sliding ones only the last window."""
    model = tiny_model(name)
    worker, remote = worker_side(model, FLOAT32), decode_side(model, FLOAT32)
    prompt = random_tokens(90, model.spec.n_vocab, seed=4)
    expected = 0
    for layer in model.spec.layers:
        n_rows = layer.window - 1 if layer.kind is LayerKind.WINDOW else len(prompt) - 1
        expected += n_rows * layer.row_bytes(KVType.F32)
    assert hand_over(model, worker, remote, prompt) == expected
