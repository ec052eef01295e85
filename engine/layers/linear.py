"""y = x W^T, in the forms that weights take. Every form has the same calls.

Dense forms hold W as numbers of the computing type and suit many rows (prefill, GEMM). The packed form keeps the
model file's own codes: with float32 activations for the few rows of a decode step, which are bound by memory, and with
8-bit ones for many rows where the processor multiplies those fastest. `DequantLinear` holds nothing beyond the file: it
unpacks on each call, for models whose dense copy does not fit. A layer may be given the norm that its input goes
through first, so that a form can do both at once.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import cached_property, partial

import torch
import torch.nn.functional as F
from torch import Tensor

from engine.kernels.packed import BLOCK_ROWS, PackedMatrix
from engine.kernels.packed_gemm import Gemm
from engine.kernels.packed_gemv import MAX_ROWS, Ending, Gemv, Normed
from engine.layers.norm import RMSNorm


class Linear(ABC):
    """One matrix product; `n_bytes` is what it reads each time."""

    n_bytes: int

    @abstractmethod
    def __call__(self, x: Tensor) -> Tensor:
        """x [T, K] -> [T, N], in the form's own type."""

    def add_to(self, residual: Tensor, x: Tensor) -> Tensor:
        """`residual` float32 [T, N] plus the product of x [T, K]; `residual` may be overwritten."""
        return residual + self(x)


class DenseLinear(Linear):
    """W [N, K] in the type it computes in; bias [N] or None."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None, norm: RMSNorm | None = None) -> None:
        self.weight = weight
        self.bias = bias.to(weight.dtype) if bias is not None else None
        self.norm = norm
        self.n_bytes = weight.nbytes

    def __call__(self, x: Tensor) -> Tensor:
        x = self.norm(x) if self.norm is not None else x
        return F.linear(x.to(self.weight.dtype), self.weight, self.bias)


class BlockedLinear(Linear):
    """A bfloat16 W in oneDNN's own blocked order on a CPU: the same product, 3 to 6 % faster than a plain matrix."""

    # The order depends a little on the number of rows expected.
    _EXPECTED_ROWS = 512

    def __init__(self, weight: Tensor, bias: Tensor | None = None, norm: RMSNorm | None = None) -> None:
        self.weight = torch.ops.mkldnn._reorder_linear_weight(weight, self._EXPECTED_ROWS)
        self.bias = bias.to(weight.dtype) if bias is not None else None
        self.norm = norm
        self.n_bytes = weight.nbytes

    def operand(self, x: Tensor) -> Tensor:
        """What is multiplied: x normalised, in bfloat16."""
        x = self.norm(x) if self.norm is not None else x
        return x.to(torch.bfloat16)

    def __call__(self, x: Tensor) -> Tensor:
        return torch.ops.mkldnn._linear_pointwise(self.operand(x), self.weight, self.bias, "none", [], "")


class PackedLinear(Linear):
    """The file's codes on a CPU, with float32 activations; with `rounding`, more than a few rows are rounded to 8 bits
    first."""

    def __init__(
        self,
        matrix: PackedMatrix,
        bias: Tensor | None = None,
        norm: RMSNorm | None = None,
        *,
        rounding: bool = False,
    ) -> None:
        self.matrix = matrix
        self.n_bytes = matrix.n_bytes
        padding = matrix.n_blocks * BLOCK_ROWS - matrix.n_rows
        self._is_padded = padding > 0
        bias = F.pad(bias, (0, padding)) if bias is not None else None
        normed = norm.fused() if norm is not None else None
        self._product = partial(PackedProduct, matrix, normed=normed, bias=bias, rounding=rounding)

    def __call__(self, x: Tensor) -> Tensor:
        y = self._store(_plain(x))
        return y[:, : self.matrix.n_rows].contiguous() if self._is_padded else y

    def add_to(self, residual: Tensor, x: Tensor) -> Tensor:
        if self._is_padded or not residual.is_contiguous():
            return residual + self(x)
        return self._add(_plain(x), residual)

    # A matrix is used in one of the two ways only.

    @cached_property
    def _store(self) -> PackedProduct:
        return self._product(ending=Ending.STORE)

    @cached_property
    def _add(self) -> PackedProduct:
        return self._product(ending=Ending.ADD)


class PackedProduct:
    """One packed matrix's kernels: `Gemv` for few rows, and with `rounding` `Gemm` for more."""

    def __init__(
        self,
        matrix: PackedMatrix,
        *,
        normed: Normed | None = None,
        bias: Tensor | None = None,
        ending: Ending,
        rounding: bool,
    ) -> None:
        self._few = Gemv(matrix, normed=normed, bias=bias, ending=ending)
        self._many = Gemm(matrix, normed=normed, bias=bias, ending=ending) if rounding else self._few

    def __call__(self, x: Tensor, out: Tensor | None = None) -> Tensor:
        """As `Gemv`'s."""
        return (self._many if x.shape[0] > MAX_ROWS else self._few)(x, out)


def _plain(x: Tensor) -> Tensor:
    return x if x.dtype is torch.float32 and x.is_contiguous() else x.float().contiguous()


class DequantLinear(Linear):
    """Unpacks W by `unpack()` -> [N, K] on each call, then multiplies; no copy is kept."""

    def __init__(
        self,
        unpack: Callable[[], Tensor],
        n_bytes: int,
        bias: Tensor | None = None,
        norm: RMSNorm | None = None,
    ) -> None:
        self._unpack = unpack
        self.bias = bias
        self.norm = norm
        self.n_bytes = n_bytes

    def __call__(self, x: Tensor) -> Tensor:
        return DenseLinear(self._unpack(), self.bias, self.norm)(x)


class Int4Linear(Linear):
    """torch's int4 product, groups of 32, for CUDA and MPS: W as `_convert_weight_to_int4pack` keeps it.

    `scale_and_zero` [K/32, N, 2]: weight = (code - 8) * scale + zero.
    """

    def __init__(
        self, packed: Tensor, scale_and_zero: Tensor, bias: Tensor | None = None, norm: RMSNorm | None = None
    ) -> None:
        self.packed = packed
        self.scale_and_zero = scale_and_zero
        self.bias = bias
        self.norm = norm
        self.n_bytes = packed.nbytes + scale_and_zero.nbytes

    def __call__(self, x: Tensor) -> Tensor:
        x = self.norm(x) if self.norm is not None else x
        y = torch.ops.aten._weight_int4pack_mm(
            x.to(self.scale_and_zero.dtype), self.packed, 32, self.scale_and_zero
        )
        return y if self.bias is None else y.add_(self.bias)


class Int8Linear(Linear):
    """torch's int8 product with one scale a row, for CUDA and MPS: weight = code * scale."""

    def __init__(
        self, codes: Tensor, scales: Tensor, bias: Tensor | None = None, norm: RMSNorm | None = None
    ) -> None:
        self.codes = codes
        self.scales = scales
        self.bias = bias
        self.norm = norm
        self.n_bytes = codes.nbytes + scales.nbytes

    def __call__(self, x: Tensor) -> Tensor:
        x = self.norm(x) if self.norm is not None else x
        y = torch.ops.aten._weight_int8pack_mm(x.to(self.scales.dtype), self.codes, self.scales)
        return y if self.bias is None else y.add_(self.bias)
