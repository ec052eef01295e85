"""The gated feed-forward layer: down(act(gate(x)) * up(x)), in several forms of the gated half."""

from __future__ import annotations

import enum
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from engine.kernels.packed import PackedMatrix
from engine.kernels.packed_gemv import Ending
from engine.layers.linear import BlockedLinear, Linear, PackedProduct
from engine.layers.norm import RMSNorm


class Activation(enum.Enum):
    """What the gate goes through; GELU is the tanh form that ggml evaluates."""

    SILU = "silu"
    GELU = "gelu"


# oneDNN's name of each activation, and of its algorithm.
_ONEDNN_NAMES = {Activation.SILU: ("swish", ""), Activation.GELU: ("gelu", "tanh")}


class Gated(Protocol):
    """act(gate(x)) * up(x): x [T, K] -> [T, F], its norm first where it was given one."""

    def __call__(self, x: Tensor) -> Tensor: ...


class JoinedGate:
    """Gate and up as one matrix of 2F rows, gate first."""

    def __init__(self, gate_up: Linear, activation: Activation) -> None:
        self._gate_up = gate_up
        self._activation = activation

    def __call__(self, x: Tensor) -> Tensor:
        gate, up = self._gate_up(x).chunk(2, dim=-1)
        if self._activation is Activation.SILU:
            return F.silu(gate).mul_(up)
        return F.gelu(gate, approximate="tanh").mul_(up)


class BlockedGate:
    """With oneDNN on a CPU: activation and product are done inside the two matrix products. `gate` holds the norm."""

    def __init__(self, gate: BlockedLinear, up: BlockedLinear, activation: Activation) -> None:
        self._gate = gate
        self._up = up
        self._activation, self._algorithm = _ONEDNN_NAMES[activation]

    def __call__(self, x: Tensor) -> Tensor:
        x = self._gate.operand(x)
        gate = torch.ops.mkldnn._linear_pointwise(
            x, self._gate.weight, self._gate.bias, self._activation, [], self._algorithm
        )
        return torch.ops.mkldnn._linear_pointwise.binary(x, gate, self._up.weight, self._up.bias, "mul")


class PackedGate:
    """Packed on a CPU: blocks of 32 rows of gate and of up alternate in one matrix, and one call does it all."""

    def __init__(
        self, matrix: PackedMatrix, activation: Activation, norm: RMSNorm, *, rounding: bool = False
    ) -> None:
        self._product = PackedProduct(
            matrix, normed=norm.fused(), ending=Ending(activation.value), rounding=rounding
        )

    def __call__(self, x: Tensor) -> Tensor:
        return self._product(x.contiguous())


class GatedMLP:
    """The whole layer; the result has the type that `down` gives."""

    def __init__(self, gated: Gated, down: Linear) -> None:
        self._gated = gated
        self._down = down

    def __call__(self, x: Tensor) -> Tensor:
        return self._down(self._gated(x))

    def add_to(self, x: Tensor) -> Tensor:
        """x + layer(x); x float32 [T, d] may be overwritten."""
        return self._down.add_to(x, self._gated(x))
