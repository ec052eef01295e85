"""y = x W^T, in the forms that weights take. Every form has the same call: x [T, K] -> [T, N].

Dense forms hold W as numbers of the computing type and suit many rows (prefill, GEMM). Packed forms keep the model
file's own codes and suit the few rows of a decode step, which are bound by memory. `DequantLinear` holds nothing
beyond the file: it unpacks on each call, for models whose dense copy does not fit.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from engine.kernels.packed_gemv import PackedMatrix, gemv


class Linear(Protocol):
    """One matrix product; `n_bytes` is what it reads each time."""

    n_bytes: int

    def __call__(self, x: Tensor) -> Tensor: ...


class DenseLinear:
    """W [N, K] in the type that x has; bias [N] or None."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self.weight = weight
        self.bias = bias.to(weight.dtype) if bias is not None else None
        self.n_bytes = weight.nbytes

    def __call__(self, x: Tensor) -> Tensor:
        return F.linear(x.to(self.weight.dtype), self.weight, self.bias)


class BlockedLinear:
    """A bfloat16 W in oneDNN's own blocked order on a CPU: the same product, 3 to 6 % faster than a plain matrix."""

    # The order depends a little on the number of rows expected.
    _EXPECTED_ROWS = 512

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self.weight = torch.ops.mkldnn._reorder_linear_weight(weight, self._EXPECTED_ROWS)
        self.bias = bias.to(weight.dtype) if bias is not None else None
        self.n_bytes = weight.nbytes

    def __call__(self, x: Tensor) -> Tensor:
        return torch.ops.mkldnn._linear_pointwise(
            x.to(torch.bfloat16), self.weight, self.bias, "none", [], ""
        )


class PackedLinear:
    """The file's codes with float32 activations on a CPU."""

    def __init__(self, matrix: PackedMatrix, bias: Tensor | None = None) -> None:
        self.matrix = matrix
        self.bias = bias
        self.n_bytes = matrix.n_bytes

    def __call__(self, x: Tensor) -> Tensor:
        y = gemv(x.float(), self.matrix)
        return y if self.bias is None else y.add_(self.bias)


class DequantLinear:
    """Unpacks W by `unpack()` -> [N, K] on each call, then multiplies; no copy is kept."""

    def __init__(self, unpack: Callable[[], Tensor], n_bytes: int, bias: Tensor | None = None) -> None:
        self._unpack = unpack
        self.bias = bias
        self.n_bytes = n_bytes

    def __call__(self, x: Tensor) -> Tensor:
        weight = self._unpack()
        bias = self.bias.to(weight.dtype) if self.bias is not None else None
        return F.linear(x.to(weight.dtype), weight, bias)


class Int4Linear:
    """torch's int4 product, groups of 32, for CUDA and MPS: W as `_convert_weight_to_int4pack` keeps it.

    `scale_and_zero` [K/32, N, 2]: weight = (code - 8) * scale + zero.
    """

    def __init__(self, packed: Tensor, scale_and_zero: Tensor, bias: Tensor | None = None) -> None:
        self.packed = packed
        self.scale_and_zero = scale_and_zero
        self.bias = bias
        self.n_bytes = packed.nbytes + scale_and_zero.nbytes

    def __call__(self, x: Tensor) -> Tensor:
        y = torch.ops.aten._weight_int4pack_mm(
            x.to(self.scale_and_zero.dtype), self.packed, 32, self.scale_and_zero
        )
        return y if self.bias is None else y.add_(self.bias)


class Int8Linear:
    """torch's int8 product with one scale a row, for CUDA and MPS: weight = code * scale."""

    def __init__(self, codes: Tensor, scales: Tensor, bias: Tensor | None = None) -> None:
        self.codes = codes
        self.scales = scales
        self.bias = bias
        self.n_bytes = codes.nbytes + scales.nbytes

    def __call__(self, x: Tensor) -> Tensor:
        y = torch.ops.aten._weight_int8pack_mm(x.to(self.scales.dtype), self.codes, self.scales)
        return y if self.bias is None else y.add_(self.bias)
