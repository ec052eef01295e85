"""Which architectures are known, and loading a model file as one of them."""

from __future__ import annotations

import enum
import os
from collections.abc import Callable
from dataclasses import replace
from types import ModuleType

from engine.device import Device, choose_device
from engine.errors import ModelFileError
from engine.gguf.reader import GGUFFile
from engine.kernels import packed_gemm
from engine.layers.weights import Form, SharedWeights, WeightLoader
from engine.models import gemma3, llama, qwen2, qwen3
from engine.models.base import Model, Stack
from engine.models.shapes import check_shapes
from engine.models.spec import read_spec

FAMILIES: dict[str, ModuleType] = {module.ARCHITECTURE: module for module in (llama, qwen2, qwen3, gemma3)}

# A dense copy is kept only where it leaves this share of the free memory to the cache and to others.
_FREE_SHARE_FOR_WEIGHTS = 0.6


class WeightsMode(enum.StrEnum):
    """`auto` picks by device and memory; `bf16` computes everything dense, `packed` keeps no dense copy;
    `float32` is the reference: weights, cache and activations in float32."""

    AUTO = "auto"
    BF16 = "bf16"
    PACKED = "packed"
    FLOAT32 = "float32"


# Rounding rows to 8 bits makes a CPU's prefill 1.4 times as fast as bfloat16 and saves the dense copy, at two to three
# times its error. Smaller models are fast enough, and their narrow layers average less of the error away.
_ROUNDS_FROM = 300_000_000

Progress = Callable[[int, int], None]


def load_model(
    path: str | os.PathLike[str] | GGUFFile,
    *,
    device: Device | str = "auto",
    weights: WeightsMode = WeightsMode.AUTO,
    prefill: bool = True,
    decode: bool = True,
    on_progress: Progress | None = None,
) -> Model:
    """Load a model and build the forms asked for; the other is built on first use.

    `on_progress(done, total)` is told of file bytes dealt with, over all forms. Raises ModelNotFound, ModelFileError,
    UnsupportedModel or InvalidRequest (device).
    """
    file = path if isinstance(path, GGUFFile) else GGUFFile.open(path)
    return begin_loading(
        file, device=device, weights=weights, prefill=prefill, decode=decode, on_progress=on_progress
    )()


def begin_loading(
    file: GGUFFile,
    *,
    device: Device | str = "auto",
    weights: WeightsMode = WeightsMode.AUTO,
    prefill: bool = True,
    decode: bool = True,
    on_progress: Progress | None = None,
) -> Callable[[], Model]:
    """`load_model` in two steps: what Python has to do comes first.

    Call the result once; on a thread of its own it keeps no other from running where the weights are packed for a CPU,
    which is where loading takes the processor and not the disk.
    """
    device = choose_device(device) if isinstance(device, str) else device
    spec = read_spec(file.metadata)
    family = FAMILIES[spec.architecture]
    check_shapes(file, spec)
    forms = _forms(file, device, weights)
    # Both packed forms are made of the same matrices.
    alike = forms[True] is forms[False] or forms[True] is Form.ROUNDING
    progress = _Counter(on_progress, file, n_forms=1 if alike else prefill + decode)

    def build(shared: SharedWeights) -> Model:
        def stack_of(many_rows: bool) -> Stack:
            try:
                loader = WeightLoader(file, device, forms[many_rows], progress.add, shared)
                stack: Stack = family.stack(loader, spec)
                return replace(stack, rows_stand_alone=loader.rows_stand_alone)
            except KeyError as error:
                raise ModelFileError(
                    f"{file.paths[0]}: the model has no tensor {error.args[0]!a}; "
                    "download it again, or convert it anew"
                ) from error

        model = Model(
            spec, device, stack_of, one_form=forms[True] is forms[False], settle=shared.arena.join_pages
        )
        model.prepare(prefill=prefill, decode=decode)
        return model

    gathered = SharedWeights(gathering=True)
    model = build(gathered)
    # Where one matrix refuses, each is tried by itself.
    return lambda: model if gathered.fill() else build(SharedWeights())


class _Counter:
    """Adds up bytes for a progress callback."""

    def __init__(self, on_progress: Progress | None, file: GGUFFile, *, n_forms: int) -> None:
        self._on_progress = on_progress
        self._total = max(1, n_forms) * sum(info.n_bytes for info in file.tensors.values())
        self._done = 0

    def add(self, n_bytes: int) -> None:
        self._done = min(self._total, self._done + n_bytes)
        if self._on_progress is not None:
            self._on_progress(self._done, self._total)


def _forms(file: GGUFFile, device: Device, weights: WeightsMode) -> dict[bool, Form]:
    """The form for many rows (True) and for few (False)."""
    match weights:
        case WeightsMode.FLOAT32:
            return {True: Form.REFERENCE, False: Form.REFERENCE}
        case WeightsMode.BF16:
            return {True: Form.GEMM, False: Form.GEMM}
    n_weights = sum(info.n_elements for info in file.tensors.values())
    no_copy = _without_a_copy(device)
    if weights is WeightsMode.PACKED or (no_copy is Form.ROUNDING and n_weights >= _ROUNDS_FROM):
        return {True: no_copy, False: Form.PACKED}
    dense_bytes = n_weights * device.gemm_dtype.itemsize
    fits = dense_bytes + file.n_bytes < _FREE_SHARE_FOR_WEIGHTS * device.available_bytes()
    return {True: Form.GEMM if fits else no_copy, False: Form.PACKED}


def _without_a_copy(device: Device) -> Form:
    """The form for many rows that needs no dense copy of the weights."""
    if device.kind != "cpu":
        return Form.PACKED
    return Form.ROUNDING if packed_gemm.available() else Form.UNPACKING
