"""From a model file to layers: builds every matrix in the form that its use asks for.

A loader makes one form. A model is built once for each form it needs; the forms share the file's mapped bytes, and the
packed ones their matrices. Knows tensor names only as given.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar, cast

import torch
from torch import Tensor

from engine.device import Device
from engine.gguf.reader import GGUFFile
from engine.gguf.types import GGMLType
from engine.gguf.unpack import Codes, codes, dequantise
from engine.kernels import jit
from engine.kernels.arena import Arena
from engine.kernels.packed import BLOCK_ROWS, CodeBits, PackedMatrix, pack
from engine.kernels.repack import Part, Repacking
from engine.layers.linear import (
    BlockedLinear,
    DenseLinear,
    DequantLinear,
    Int4Linear,
    Int8Linear,
    Linear,
    PackedLinear,
)
from engine.layers.mlp import Activation, BlockedGate, Gated, JoinedGate, PackedGate
from engine.layers.norm import RMSNorm

_FLOAT_TYPES = (GGMLType.F32, GGMLType.F16, GGMLType.BF16)
_FOUR_BIT = (GGMLType.Q4_0, GGMLType.Q4_1, GGMLType.Q4_K)

# torch's int4 products take rows by so many; a matrix of another size goes to the int8 product.
_INT4_ROWS = 8

# What remains (rare types, unquantised tensors in packed form) is rounded to 8 bits by groups of this size.
_REQUANTISED_GROUP = 32

# Values that take longer to unpack than threads take to start.
_WORTH_THREADS = 1 << 16


T = TypeVar("T")


class Form(enum.StrEnum):
    """What a set of layers is for."""

    GEMM = "gemm"
    """Dense, in the device's GEMM type: many rows."""
    UNPACKING = "unpacking"
    """Many rows without a dense copy: unpacked from the file on each call."""
    PACKED = "packed"
    """The file's codes: few rows."""
    ROUNDING = "rounding"
    """The file's codes for many rows, which are rounded to 8 bits: a CPU with `packed_gemm`."""
    REFERENCE = "reference"
    """Dense float32."""


class SharedWeights:
    """What the packed forms of one model have in common: each matrix is made once, whichever form asks first.

    While `gathering`, matrices for the CPU's kernels are handed out before they hold anything, and `fill` makes up for
    it in one go.
    """

    def __init__(self, *, gathering: bool = False) -> None:
        self.arena = Arena()
        self.gathering = gathering
        self._repacking = Repacking(self.arena.empty)
        self._made: dict[tuple[str, ...], Any] = {}

    def get(self, names: tuple[str, ...], make: Callable[[], T]) -> T:
        """What `make()` gave for these `names` the first time."""
        if names not in self._made:
            self._made[names] = make()
        return cast("T", self._made[names])

    def repacked(
        self, parts: list[Part], *, interleave: bool, on_filled: Callable[[], None]
    ) -> PackedMatrix | None:
        """As `Repacking.add`, and filled unless `gathering`."""
        matrix = self._repacking.add(parts, interleave=interleave, on_filled=on_filled)
        return matrix if self.gathering or self._repacking.run() else None

    def fill(self) -> bool:
        """Fill what was gathered, and gather no more. False when that cannot be done: all has to be made again."""
        self.gathering = False
        return self._repacking.run()


class WeightLoader:
    """Builds layers from the tensors of `file` in one `form`. `on_bytes(n)` is told of file bytes dealt with.

    Loaders of one model are given the same `shared`; not from several threads at once.
    """

    def __init__(
        self,
        file: GGUFFile,
        device: Device,
        form: Form,
        on_bytes: Callable[[int], None] | None = None,
        shared: SharedWeights | None = None,
    ) -> None:
        self._file = file
        self._device = device
        self._on_bytes = on_bytes
        self._shared = shared or SharedWeights()
        self.form = form
        self.rows_stand_alone = True
        """Whether every product made so far gives a row the same numbers whatever rows are computed with it. Ours do;
        a library picks its way of adding up by the number of rows."""

    @property
    def device(self) -> torch.device:
        return self._device.torch_device

    def has(self, name: str) -> bool:
        return f"{name}.weight" in self._file.tensors

    def vector(self, name: str) -> Tensor:
        """The 1-D tensor `name` in float32."""
        info = self._file.tensors[name]
        values = dequantise(self._file.tensor_bytes(name), info.type, info.shape)
        return values.to(self.device)

    def norm(self, name: str, eps: float, *, order: Tensor | None = None) -> RMSNorm:
        weight = self.vector(f"{name}.weight")
        if order is not None:
            weight = weight[order.to(weight.device)]
        return RMSNorm(weight, eps)

    def linear(
        self, *names: str, norm: RMSNorm | None = None, orders: Mapping[str, Tensor] | None = None
    ) -> Linear:
        """The matrices `names`, one below the other, as one; `orders` gives new row orders for some.

        `norm` is what the input goes through first. A bias is taken along where the file has one, zero for the others.
        """
        orders = orders or {}
        if self.form in (Form.PACKED, Form.ROUNDING):
            return self._packed(names, orders, self._bias(names, orders), norm)
        self._told(names)
        self.rows_stand_alone = False
        bias = self._bias(names, orders)
        match self.form:
            case Form.GEMM:
                weight = self._dense(names, orders, self._device.gemm_dtype)
                if self._is_blocked:
                    return BlockedLinear(weight, bias, norm)
                return DenseLinear(weight.to(self.device), bias, norm)
            case Form.REFERENCE:
                return DenseLinear(self._dense(names, orders, torch.float32).to(self.device), bias, norm)
            case Form.UNPACKING:
                dtype = self._device.gemm_dtype
                n_bytes = sum(self._file.tensors[f"{name}.weight"].n_bytes for name in names)
                return DequantLinear(
                    lambda: self._dense(names, orders, dtype).to(self.device), n_bytes, bias, norm
                )

    def gated(self, gate: str, up: str, activation: Activation, norm: RMSNorm) -> Gated:
        """act(gate(x)) * up(x) for x through `norm`."""
        if self.form is Form.GEMM and self._is_blocked:
            gate_layer, up_layer = self.linear(gate, norm=norm), self.linear(up)
            if isinstance(gate_layer, BlockedLinear) and isinstance(up_layer, BlockedLinear):
                return BlockedGate(gate_layer, up_layer, activation)
        n_rows = self._file.tensors[f"{gate}.weight"].shape[0]
        has_bias = any(f"{name}.bias" in self._file.tensors for name in (gate, up))
        if self._packs_for_kernels((gate, up)) and n_rows % BLOCK_ROWS == 0 and not has_bias:
            matrix = self._matrix((gate, up), {}, interleave=True)
            return PackedGate(matrix, activation, norm, rounding=self.form is Form.ROUNDING)
        return JoinedGate(self.linear(gate, up, norm=norm), activation)

    def embedding(self, name: str) -> Embedding:
        """The rows of matrix `name` by number."""
        return Embedding(
            self._rows(f"{name}.weight"), self._file.tensors[f"{name}.weight"].type, self._device
        )

    @property
    def _is_blocked(self) -> bool:
        return self._device.kind == "cpu" and self._device.gemm_dtype is torch.bfloat16

    def _told(self, names: tuple[str, ...]) -> None:
        if self._on_bytes is not None:
            self._on_bytes(sum(self._file.tensors[f"{name}.weight"].n_bytes for name in names))

    def _rows(self, name: str, order: Tensor | None = None) -> Tensor:
        """The bytes of matrix `name`, uint8 [N, bytes of a row]."""
        info = self._file.tensors[name]
        rows = torch.frombuffer(self._file.tensor_bytes(name), dtype=torch.uint8).view(info.shape[0], -1)
        return rows if order is None else rows[order]

    def _bias(self, names: tuple[str, ...], orders: Mapping[str, Tensor]) -> Tensor | None:
        if not any(f"{name}.bias" in self._file.tensors for name in names):
            return None
        parts = []
        for name in names:
            if f"{name}.bias" in self._file.tensors:
                bias = self.vector(f"{name}.bias")
            else:
                bias = torch.zeros(self._file.tensors[f"{name}.weight"].shape[0], device=self.device)
            parts.append(bias[orders[name].to(bias.device)] if name in orders else bias)
        return torch.cat(parts)

    def _dense(self, names: tuple[str, ...], orders: Mapping[str, Tensor], dtype: torch.dtype) -> Tensor:
        infos = [self._file.tensors[f"{name}.weight"] for name in names]
        weight = torch.empty(sum(info.shape[0] for info in infos), infos[0].shape[1], dtype=dtype)
        first = 0
        for name, info in zip(names, infos, strict=True):
            rows = self._rows(f"{name}.weight", orders.get(name))
            _dequantise_side_by_side(rows, info.type, weight[first : first + info.shape[0]])
            first += info.shape[0]
        return weight

    def _packs_for_kernels(self, names: tuple[str, ...]) -> bool:
        types = {self._file.tensors[f"{name}.weight"].type for name in names}
        on_cpu = self._device.kind == "cpu" and jit.available()
        return self.form in (Form.PACKED, Form.ROUNDING) and on_cpu and not types & set(_FLOAT_TYPES)

    def _packed(
        self,
        names: tuple[str, ...],
        orders: Mapping[str, Tensor],
        bias: Tensor | None,
        norm: RMSNorm | None,
    ) -> Linear:
        types = {self._file.tensors[f"{name}.weight"].type for name in names}
        if types & set(_FLOAT_TYPES):
            dtype = torch.bfloat16 if self._device.kind == "cpu" else self._device.vector_dtype

            def dense() -> Tensor:
                self._told(names)
                return self._dense(names, orders, dtype).to(self.device)

            self.rows_stand_alone = False
            return DenseLinear(self._shared.get(names, dense), bias, norm)
        if self._packs_for_kernels(names):
            matrix = self._matrix(names, orders)
            return PackedLinear(matrix, bias, norm, rounding=self.form is Form.ROUNDING)
        self._told(names)
        self.rows_stand_alone = False
        parts = [self._codes(name, orders.get(name)) for name in names]
        n_rows = sum(part.q.shape[0] for part in parts)
        if types <= set(_FOUR_BIT) and self._device.kind != "cpu" and n_rows % _INT4_ROWS == 0:
            return self._int4(parts, bias, norm)
        codes, scales = _row_scaled(parts)
        dtype = torch.bfloat16 if self._device.kind == "cpu" else self._device.vector_dtype
        return Int8Linear(codes.to(self.device), scales.to(self.device, dtype), bias, norm)

    def _matrix(
        self, names: tuple[str, ...], orders: Mapping[str, Tensor], *, interleave: bool = False
    ) -> PackedMatrix:
        """For the CPU's kernels; what `Repacking` has no rule for goes through torch."""

        def make() -> PackedMatrix:
            parts = [
                Part(
                    rows=self._rows(f"{name}.weight"),
                    kind=self._file.tensors[f"{name}.weight"].type,
                    order=orders.get(name),
                )
                for name in names
            ]
            matrix = self._shared.repacked(parts, interleave=interleave, on_filled=lambda: self._told(names))
            if matrix is not None:
                return matrix
            self._told(names)
            return _pack_parts([self._codes(name, orders.get(name)) for name in names], interleave=interleave)

        return self._shared.get(names, make)

    def _int4(self, parts: list[Codes], bias: Tensor | None, norm: RMSNorm | None) -> Linear:
        q, scale_and_zero = _int4_operands(parts, self._device.vector_dtype)
        # CUDA's operator takes 2, 4 or 8 inner tiles of 16 columns, the more the better; Metal's has no choice but 2.
        sizes = (8, 4, 2) if self._device.kind == "cuda" else (2,)
        inner_tiles = next(n for n in sizes if q.shape[1] % (16 * n) == 0)
        pairs = (q[:, ::2] << 4 | q[:, 1::2]).to(self.device)
        packed = torch.ops.aten._convert_weight_to_int4pack(pairs, inner_tiles)
        return Int4Linear(packed, scale_and_zero.to(self.device), bias, norm)

    def _codes(self, name: str, order: Tensor | None) -> Codes:
        info = self._file.tensors[f"{name}.weight"]
        rows = self._rows(f"{name}.weight", order)
        try:
            return codes(rows, info.type, info.shape)
        except ValueError:
            return _requantised(dequantise(rows, info.type, info.shape))


def _dequantise_side_by_side(rows: Tensor, kind: GGMLType, out: Tensor) -> None:
    """Unpack `rows` uint8 [N, bytes of a row] into `out` [N, K], a stretch of rows on each core.

    Unpacking is thousands of operations too short for torch to split by itself.
    """
    if out.numel() < _WORTH_THREADS:
        dequantise(rows, kind, out.shape, out=out)
        return
    stretch = -(-rows.shape[0] // torch.get_num_threads())

    def unpack_from(first: int) -> None:
        # The mode belongs to a thread, and what was made in it may only be filled in it.
        with torch.inference_mode(out.is_inference()):
            part = out[first : first + stretch]
            dequantise(rows[first : first + stretch], kind, part.shape, out=part)

    # The threads end here: OpenMP keeps a team for each that lives, and with more teams than cores it lets a team's
    # threads fall asleep between two calls, which costs a decode step a third of its speed.
    with ThreadPoolExecutor(torch.get_num_threads(), thread_name_prefix="unpack") as pool:
        list(pool.map(unpack_from, range(0, rows.shape[0], stretch)))


class Embedding:
    """Rows of a quantised matrix, unpacked when asked for. `rows` uint8 [V, bytes of a row], in host memory."""

    def __init__(self, rows: Tensor, kind: GGMLType, device: Device) -> None:
        self._rows = rows
        self._kind = kind
        self._device = device
        self._width = rows.shape[1] // kind.type_size * kind.block_size

    def __call__(self, tokens: list[int]) -> Tensor:
        """float32 [T, d]."""
        rows = self._rows[torch.tensor(tokens)]
        return dequantise(rows, self._kind, (len(tokens), self._width)).to(self._device.torch_device)


def _pack_parts(parts: list[Codes], *, interleave: bool = False) -> PackedMatrix:
    """The parts one below the other; with `interleave` two parts' blocks of 32 rows alternate."""
    bits, offset, merged = _merge(parts)

    def arranged(rows: Tensor) -> Tensor:
        if not interleave:
            return rows
        return rows.unflatten(0, (2, -1, BLOCK_ROWS)).transpose(0, 1).flatten(0, 2)

    minimum = arranged(merged.minimum) if merged.minimum is not None else None
    return pack(
        arranged(merged.q), arranged(merged.scale), minimum, bits=bits, group=merged.group, offset=offset
    )


def _merge(parts: list[Codes]) -> tuple[CodeBits, int, Codes]:
    """One set of codes below the other: (bits, offset, codes), as narrow as all of them allow."""
    group = min(part.group for part in parts)
    has_minimum = any(part.minimum is not None for part in parts)
    signed = [part.q.dtype is torch.int8 for part in parts]
    low = min(int(part.q.min()) for part in parts)
    high = max(int(part.q.max()) for part in parts)
    scale = torch.cat([part.scale.repeat_interleave(part.group // group, 1) for part in parts])
    minimum = None
    if has_minimum:
        minimum = torch.cat(
            [
                (
                    part.minimum if part.minimum is not None else torch.zeros_like(part.scale)
                ).repeat_interleave(part.group // group, 1)
                for part in parts
            ]
        )
    q = torch.cat([part.q.to(torch.int8) for part in parts])
    if not any(signed) and high < 32:
        bits = CodeBits.B4 if high < 16 else CodeBits.B5
        return bits, 0, Codes(q=q.view(torch.uint8), scale=scale, minimum=minimum, group=group)
    if not has_minimum and low >= -16 and high < 16:
        return CodeBits.B5, -16, Codes(q=(q + 16).view(torch.uint8), scale=scale, minimum=None, group=group)
    return CodeBits.B8, 0, Codes(q=q, scale=scale, minimum=minimum, group=group)


def _requantised(weight: Tensor) -> Codes:
    """float32 [N, K] rounded to 8 bits by groups."""
    groups = weight.unflatten(1, (-1, _REQUANTISED_GROUP))
    scale = groups.abs().amax(-1) / 127
    q = (groups / scale.clamp_min(1e-30).unsqueeze(-1)).round().to(torch.int8)
    return Codes(q=q.flatten(1), scale=scale, minimum=None, group=_REQUANTISED_GROUP)


def _values(part: Codes) -> Tensor:
    values = part.q.float().unflatten(1, (-1, part.group)) * part.scale.unsqueeze(-1)
    if part.minimum is not None:
        values += part.minimum.unsqueeze(-1)
    return values.flatten(1)


def _row_scaled(parts: list[Codes]) -> tuple[Tensor, Tensor]:
    """int8 [N, K] and float32 [N]: one scale a row."""
    values = torch.cat([_values(part) for part in parts])
    scales = values.abs().amax(1).clamp_min(1e-30) / 127
    return (values / scales.unsqueeze(1)).round().to(torch.int8), scales


def _int4_operands(parts: list[Codes], dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """uint8 [N, K] codes and [K/32, N, 2] scale and zero, where weight = (code - 8) * scale + zero."""
    q = torch.cat([part.q for part in parts])
    scale = torch.cat([part.scale for part in parts])
    zero = torch.cat(
        [part.minimum if part.minimum is not None else torch.zeros_like(part.scale) for part in parts]
    )
    both = torch.stack((scale, zero + 8 * scale), dim=-1).transpose(0, 1)
    return q, both.contiguous().to(dtype)
