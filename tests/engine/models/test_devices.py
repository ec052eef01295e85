"""Every form for GPUs runs through on tensors without data: operations exist, shapes fit, and no two devices mix.

torch pretends here that a third device, neither CPU nor real, is the GPU; what its operators say to mixed devices
is what they would say there. Numbers need the hardware.
"""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from engine.cache.sequence import SequencePool
from engine.cache.spec import KVType
from engine.device import Device, device_of
from engine.gguf.reader import GGUFFile
from engine.layers.linear import DenseLinear, DequantLinear, Int4Linear, Int8Linear
from engine.layers.step import Segment
from engine.layers.weights import Form, WeightLoader
from engine.models.registry import WeightsMode, load_model
from tests.engine.models.conftest import TinyFile
from tests.engine.models.tiny import Quant

# `llama` in its variant with biases: frequency factors are read back from the device, and there is nothing to read.
NAMES = ("llama-biased", "qwen2", "qwen3", "gemma3")
CASES = [
    *((name, "cuda", Quant.Q4_0, WeightsMode.AUTO) for name in NAMES),
    ("llama-biased", "mps", Quant.MIXED_32, WeightsMode.AUTO),
    ("gemma3", "mps", Quant.MIXED_32, WeightsMode.AUTO),
    ("qwen3", "cuda", Quant.F32, WeightsMode.FLOAT32),
    ("qwen2", "cuda", Quant.MIXED_32, WeightsMode.BF16),
    ("qwen3", "mps", Quant.Q4_K_M, WeightsMode.PACKED),
]


@dataclass(frozen=True, kw_only=True)
class PretendedGPU(Device):
    """torch's device without data under the name of a GPU."""

    name: str

    @property
    def kind(self) -> str:
        return self.name

    def available_bytes(self) -> int:
        return 1 << 40


def pretended(name: str) -> PretendedGPU:
    real = device_of(name)
    return PretendedGPU(
        torch_device=torch.device("meta"),
        gemm_dtype=real.gemm_dtype,
        vector_dtype=real.vector_dtype,
        name=name,
    )


@pytest.mark.parametrize(("name", "gpu", "quant", "weights"), CASES, ids=str)
def test_a_forward_pass(name: str, gpu: str, quant: Quant, weights: WeightsMode, tiny_file: TinyFile) -> None:
    """First chunks without logits; then later ones, short ones and decode rows of several sequences."""
    with FakeTensorMode(allow_non_fake_inputs=True):
        model = load_model(tiny_file(name, quant), device=pretended(gpu), weights=weights)
        kv_type = KVType.F32 if weights is WeightsMode.FLOAT32 else KVType.BF16
        spec = model.spec.cache_spec(kv_type=kv_type, n_ctx=96, n_slots=4)
        pool = SequencePool(spec, model.device, memoryview(bytearray(spec.total_bytes())))
        a, b, c, d = (pool.sequence(slot) for slot in range(4))
        first = [Segment(sequence=a, tokens=list(range(40)), n_logits=0)]
        model.forward([*first, Segment(sequence=c, tokens=[3, 4], n_logits=0)], [])
        logits = model.forward(
            [Segment(sequence=a, tokens=list(range(30)), n_logits=2), Segment(sequence=b, tokens=[5, 6])],
            [Segment(sequence=c, tokens=[1]), Segment(sequence=d, tokens=[2])],
        )
        assert logits.shape == (5, model.spec.n_vocab)
        assert (logits.device.type, logits.dtype) == ("meta", torch.float32)


def test_mixed_devices_are_noticed() -> None:
    """The test above can fail."""
    with FakeTensorMode(allow_non_fake_inputs=True):
        here, there = torch.zeros(4, 4), torch.zeros(4, 4, device="meta")
        for mixed in (
            lambda: here + there,
            lambda: torch.nn.functional.linear(there, here),
            lambda: there @ here,
        ):
            with pytest.raises(RuntimeError, match="device"):
                mixed()


@pytest.mark.parametrize("gpu", ["cuda", "mps"])
def test_what_four_bit_products_can_take(gpu: str, tiny_file: TinyFile) -> None:
    """Rows by eights, columns by whole inner tiles: other shapes get fewer tiles, or the int8 product."""
    device = pretended(gpu)
    with FakeTensorMode(allow_non_fake_inputs=True):
        for name, quant in (("qwen2", Quant.Q4_0), ("llama", Quant.Q4_0)):
            file = GGUFFile.open(tiny_file(name, quant))
            load = WeightLoader(file, device, Form.PACKED)
            for tensor, info in file.tensors.items():
                if len(info.shape) < 2 or tensor.startswith("blk.1"):
                    continue
                n_rows, n_cols = info.shape
                layer = load.linear(tensor.removesuffix(".weight"))
                if n_rows % 8:
                    assert isinstance(layer, Int8Linear)
                else:
                    assert isinstance(layer, Int4Linear)
                    # Eight codes a word, none left over.
                    assert layer.packed.numel() * 8 == n_rows * n_cols
                x = torch.zeros(2, n_cols, device="meta")
                assert layer(x).shape == (2, n_rows)


@pytest.mark.parametrize("gpu", ["cuda", "mps"])
def test_forms_of_a_gpu(gpu: str, tiny_file: TinyFile) -> None:
    """Which class serves which form there."""
    file = GGUFFile.open(tiny_file("qwen2", Quant.MIXED_32))
    name = "blk.0.attn_q"
    with FakeTensorMode(allow_non_fake_inputs=True):
        found = {
            form: type(WeightLoader(file, pretended(gpu), form).linear(name))
            for form in Form
            if form is not Form.ROUNDING
        }
    assert found == {
        Form.GEMM: DenseLinear,
        Form.UNPACKING: DequantLinear,
        Form.PACKED: Int8Linear,
        Form.REFERENCE: DenseLinear,
    }
