"""Turns the bytes of a tensor into a torch tensor, or into integer codes and scales for a packer.

Works through chunks that stay in a core's cache: no float32 copy of a whole tensor is ever made on the way to
a smaller type. Runs on the device that holds the bytes. How each type lays out its blocks is in `blocks`;
where the bytes come from is not known here.

Torch lets go of the interpreter lock while it computes, so callers may unpack tensors, or rows of one, in
threads.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.errors import UnsupportedModel
from engine.gguf.blocks import LAYOUTS
from engine.gguf.types import GGMLType

# Elements a step: on a CPU its codes and float32 values stay near a core; fewer, and the calls themselves would count.
CPU_STEP_ELEMENTS = 512 * 1024
DEVICE_STEP_ELEMENTS = 1 << 25
# Scales are few, so they are unpacked for this many steps at once.
STEPS_A_STRETCH = 4

_PLAIN: dict[GGMLType, torch.dtype] = {
    GGMLType.F32: torch.float32,
    GGMLType.F16: torch.float16,
    GGMLType.BF16: torch.bfloat16,
    GGMLType.F64: torch.float64,
    GGMLType.I8: torch.int8,
    GGMLType.I16: torch.int16,
    GGMLType.I32: torch.int32,
    GGMLType.I64: torch.int64,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Codes:
    """A tensor's exact integer codes: value[..., k] = scale[..., k // group] * q[..., k] + minimum[..., k //
    group].

    `q`: [..., K] contiguous; `scale`: float32 [..., K / group]; `minimum`: likewise, or None where it is zero
    throughout. Evaluated in float32 in that order (product, then sum) this is bit for bit what `dequantise`
    gives.

        type                   q                    group  minimum
        Q4_0                   uint8, 0..15         32     -8 * scale
        Q4_1, Q4_K             uint8, 0..15         32     yes (any sign in Q4_1, mostly <= 0 in Q4_K)
        Q5_0                   int8, -16..15        32     None
        Q5_1, Q5_K             uint8, 0..31         32     yes
        Q8_0                   int8, -128..127      32     None
        Q6_K                   int8, -32..31        16     None
        Q2_K                   uint8, 0..3          16     yes
        Q3_K                   int8, -4..3          16     None
        IQ4_NL, IQ4_XS, MXFP4  int8, 16 values      32     None
    """

    q: Tensor
    scale: Tensor
    minimum: Tensor | None
    group: int


def dequantise(
    data: memoryview | Tensor,
    kind: GGMLType,
    shape: Sequence[int],
    *,
    dtype: torch.dtype = torch.float32,
    out: Tensor | None = None,
) -> Tensor:
    """The values of a tensor of type `kind`, rounded to `dtype`, or to that of `out`, from exact float32
    ones.

    `data`: the tensor's bytes, or a whole number of its rows', as a buffer or a uint8 tensor. `shape`: that
    of the result, whose last dimension is a whole number of blocks. `out`: contiguous, of `shape`, of any
    float type; it is filled and returned. Raises UnsupportedModel for a type that nothing here can unpack,
    ValueError when `data`, `shape` and `out` do not fit each other.
    """
    raw = _raw_blocks(data, kind, shape)
    if out is None:
        out = torch.empty(tuple(shape), dtype=dtype, device=raw.device)
    elif tuple(out.shape) != tuple(shape) or not out.is_contiguous():
        raise ValueError(f"out is {tuple(out.shape)}, contiguous: {out.is_contiguous()}, for {tuple(shape)}")
    if kind in _PLAIN:
        out.copy_(raw.view(_PLAIN[kind]).view(tuple(shape)))
    elif kind in LAYOUTS:
        _fill(out.view(-1, kind.block_size), raw, kind)
    else:
        _fill_by_gguf(out.view(-1, kind.block_size), raw, kind)
    return out


def codes(data: memoryview | Tensor, kind: GGMLType, shape: Sequence[int]) -> Codes:
    """The integer codes, scales and minimums of a quantised tensor; arguments as for `dequantise`.

    Raises ValueError for a type that has no such form (see Codes).
    """
    layout = LAYOUTS.get(kind)
    if layout is None:
        raise ValueError(f"{kind.name} has no integer codes")
    raw = _raw_blocks(data, kind, shape)
    scale, minimum = layout.scales(raw)
    q = torch.empty(raw.shape[0], kind.block_size, dtype=layout.q, device=raw.device)
    for first, stop in _steps(raw, kind):
        q[first:stop] = layout.codes(raw[first:stop])
    *outer, width = shape
    grouped = (*outer, width // layout.group)
    return Codes(
        q=q.view(tuple(shape)),
        scale=scale.view(grouped),
        minimum=None if minimum is None else minimum.view(grouped),
        group=layout.group,
    )


def _raw_blocks(data: memoryview | Tensor, kind: GGMLType, shape: Sequence[int]) -> Tensor:
    """`data` as uint8 [n_blocks, type_size], shared with it where it can be."""
    if isinstance(data, Tensor):
        raw = data.reshape(-1)
        if raw.dtype is not torch.uint8:
            raise ValueError(f"data is {raw.dtype}, not uint8")
        if raw.storage_offset() % 8:
            raw = raw.clone()  # so that it can be viewed as wider integers
    else:
        # torch shares only what may be written to; a read-only buffer costs a copy
        raw = torch.frombuffer(bytearray(data) if data.readonly else data, dtype=torch.uint8)
    if not shape or shape[-1] % kind.block_size:
        raise ValueError(f"shape {tuple(shape)} is not whole blocks of {kind.block_size} ({kind.name})")
    n_blocks = math.prod(shape) // kind.block_size
    if raw.numel() != n_blocks * kind.type_size:
        raise ValueError(
            f"{raw.numel()} bytes for shape {tuple(shape)} of {kind.name}, which takes {n_blocks * kind.type_size}"
        )
    return raw.view(n_blocks, kind.type_size)


def _steps(raw: Tensor, kind: GGMLType, n_steps: int = 1) -> list[tuple[int, int]]:
    """Cut the blocks into stretches of `n_steps` steps: [(first, stop), ...]."""
    elements = CPU_STEP_ELEMENTS if raw.device.type == "cpu" else DEVICE_STEP_ELEMENTS
    length = max(1, elements // kind.block_size) * n_steps
    n_blocks = raw.shape[0]
    return [(first, min(first + length, n_blocks)) for first in range(0, n_blocks, length)]


def _fill(out: Tensor, raw: Tensor, kind: GGMLType) -> None:
    """Unpack all blocks into `out` [n_blocks, block_size]."""
    layout = LAYOUTS[kind]
    scratch = None
    if out.dtype is not torch.float32:
        longest = max((stop - first for first, stop in _steps(raw, kind)), default=0)
        scratch = torch.empty(longest, kind.block_size, dtype=torch.float32, device=out.device)
    for start, end in _steps(raw, kind, STEPS_A_STRETCH):
        scale, minimum = layout.scales(raw[start:end])
        for first, stop in _steps(raw[start:end], kind):
            target = out[start + first : start + stop]
            values = target if scratch is None else scratch[: stop - first]
            values.copy_(layout.codes(raw[start + first : start + stop]))
            grouped = values.view(stop - first, -1, layout.group)
            grouped.mul_(scale[first:stop].unsqueeze(2))
            if minimum is not None:
                grouped.add_(minimum[first:stop].unsqueeze(2))
            if scratch is not None:
                target.copy_(values)


def _fill_by_gguf(out: Tensor, raw: Tensor, kind: GGMLType) -> None:
    """Unpack with the `gguf` package: slower, for types that are rare."""
    try:
        from gguf import GGMLQuantizationType, quants
    except ImportError:
        raise UnsupportedModel(
            f"tensors of type {kind.name} need the Python package gguf; install it, or choose another quantisation"
        ) from None
    for first, stop in _steps(raw, kind):
        try:
            values = quants.dequantize(raw[first:stop].cpu().numpy(), GGMLQuantizationType(kind.value))
        except (NotImplementedError, ValueError):
            raise UnsupportedModel(
                f"tensors of type {kind.name} cannot be unpacked; choose another quantisation of the model"
            ) from None
        out[first:stop].copy_(torch.from_numpy(values))
