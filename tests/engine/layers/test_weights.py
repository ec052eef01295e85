"""Every form that the loader makes of a matrix multiplies as the file's values do."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from gguf import GGMLQuantizationType, GGUFWriter, quants
from torch import Tensor

from engine.device import Device, device_of
from engine.gguf.reader import GGUFFile
from engine.kernels import packed_gemm
from engine.layers.linear import BlockedLinear, DenseLinear, DequantLinear, Int8Linear, Linear, PackedLinear
from engine.layers.mlp import Activation, BlockedGate, GatedMLP, JoinedGate, PackedGate
from engine.layers.weights import Form, SharedWeights, WeightLoader
from tests.engine.models.running import MULTIPLIES_BFLOAT16

N_COLS = 96
ROWS = {"wide": 64, "narrow": 20, "odd": 37}
KINDS = ("F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0")
# Largest error relative to the largest product.
TOLERANCE = {
    Form.REFERENCE: 2e-6,
    Form.PACKED: 8e-4,
    Form.ROUNDING: 1e-2,
    Form.GEMM: 1e-2,
    Form.UNPACKING: 1e-2,
}
PACKED_FORMS = (Form.PACKED, Form.ROUNDING)
FORMS = [
    pytest.param(
        form,
        marks=pytest.mark.skipif(
            form is Form.ROUNDING and not packed_gemm.available(), reason="no AVX-512 VNNI here"
        ),
    )
    for form in Form
]


def drawn(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@dataclass(frozen=True, kw_only=True)
class Matrices:
    """A file of matrices `<kind>.<rows>`, and what they hold once unpacked."""

    file: GGUFFile
    values: dict[str, Tensor]
    biases: dict[str, Tensor]
    norm: Tensor


@pytest.fixture(scope="module")
def matrices(tmp_path_factory: pytest.TempPathFactory) -> Matrices:
    path = tmp_path_factory.mktemp("weights") / "matrices.gguf"
    rng = np.random.default_rng(5)
    writer = GGUFWriter(path, "none")
    values, biases = {}, {}
    for kind_name in KINDS:
        kind = GGMLQuantizationType[kind_name]
        for rows_name, n_rows in ROWS.items():
            name = f"{kind_name}.{rows_name}"
            # Rows of very different size, as real matrices have.
            sizes = 10.0 ** rng.uniform(-2, 0, (n_rows, 1))
            stored = quants.quantize((rng.standard_normal((n_rows, N_COLS)) * sizes).astype(np.float32), kind)
            writer.add_tensor(f"{name}.weight", stored, raw_dtype=kind)
            values[name] = torch.from_numpy(np.ascontiguousarray(quants.dequantize(stored, kind)))
            if rows_name != "narrow":
                biases[name] = torch.from_numpy(rng.standard_normal(n_rows).astype(np.float32))
                writer.add_tensor(f"{name}.bias", biases[name].numpy())
    for name, shape in (("gate", (64, N_COLS)), ("up", (64, N_COLS)), ("down", (N_COLS, 64))):
        stored = quants.quantize(
            rng.standard_normal(shape).astype(np.float32) * 0.2, GGMLQuantizationType.Q8_0
        )
        writer.add_tensor(f"{name}.weight", stored, raw_dtype=GGMLQuantizationType.Q8_0)
        values[name] = torch.from_numpy(quants.dequantize(stored, GGMLQuantizationType.Q8_0))
    norm = torch.from_numpy((1 + 0.3 * rng.standard_normal(N_COLS)).astype(np.float32))
    writer.add_tensor("norm.weight", norm.numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return Matrices(file=GGUFFile.open(path), values=values, biases=biases, norm=norm)


def loader(matrices: Matrices, form: Form, device: Device | None = None) -> WeightLoader:
    return WeightLoader(matrices.file, device or device_of("cpu"), form)


def check(
    layer: Linear, expected_of: Tensor, bias: Tensor | float, form: Form, norm: Tensor | None = None
) -> None:
    """`layer` against W x + b, for one row and for several, and added to a residual."""
    for n_rows in (1, 7):
        x = drawn(n_rows, N_COLS, seed=n_rows)
        seen = F.rms_norm(x, (N_COLS,), norm, 1e-5) if norm is not None else x
        expected = seen @ expected_of.t() + bias
        # Each row of W has its own size, so that the small ones are held to the same standard.
        bound = TOLERANCE[form] * (seen.abs() @ expected_of.abs().t() + 1e-3)
        assert ((layer(x).float() - expected).abs() <= bound + torch.as_tensor(bias).abs() * 2**-8).all()
        residual = drawn(n_rows, expected_of.shape[0], seed=9)
        total = layer.add_to(residual.clone(), x)
        assert total.dtype is torch.float32
        torch.testing.assert_close(total, residual + layer(x).float(), atol=1e-5, rtol=1e-5)


CLASSES: dict[Form, type[Linear]] = {
    Form.REFERENCE: DenseLinear,
    Form.GEMM: BlockedLinear if MULTIPLIES_BFLOAT16 else DenseLinear,
    Form.UNPACKING: DequantLinear,
    Form.PACKED: PackedLinear,
    Form.ROUNDING: PackedLinear,
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", KINDS)
def test_single_matrices(kind: str, form: Form, matrices: Matrices) -> None:
    for rows_name in ROWS:
        name = f"{kind}.{rows_name}"
        layer = loader(matrices, form).linear(name)
        unquantised = form in PACKED_FORMS and kind in ("F32", "F16", "BF16")
        assert type(layer) is (DenseLinear if unquantised else CLASSES[form])
        bias = matrices.biases.get(name, 0.0)
        check(layer, matrices.values[name], bias, Form.GEMM if unquantised else form)


@pytest.mark.parametrize("kind", KINDS)
def test_stretches_unpacked_side_by_side(
    kind: str, matrices: Matrices, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As large matrices are: a stretch of rows for each thread, the last one shorter, or none left for it."""
    monkeypatch.setattr("engine.layers.weights._WORTH_THREADS", 0)
    for n_threads, rows_name in ((3, "odd"), (16, "narrow")):
        torch.set_num_threads(n_threads)
        try:
            found = loader(matrices, Form.REFERENCE).linear(f"{kind}.{rows_name}")
        finally:
            torch.set_num_threads(1)
        check(
            found,
            matrices.values[f"{kind}.{rows_name}"],
            matrices.biases.get(f"{kind}.{rows_name}", 0.0),
            Form.REFERENCE,
        )


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    "kinds",
    [("Q4_0", "Q4_1", "Q4_0"), ("Q5_0", "Q5_0", "Q8_0"), ("Q5_1", "Q4_0", "Q5_1"), ("Q4_1", "Q5_0", "Q8_0")],
    ids=str,
)
def test_matrices_of_different_types_joined(
    kinds: tuple[str, str, str], form: Form, matrices: Matrices
) -> None:
    """With a norm before, biases of some, and other row orders for two of them."""
    names = [f"{kind}.{rows}" for kind, rows in zip(kinds, ("wide", "narrow", "odd"), strict=True)]
    orders = {
        names[0]: torch.randperm(64, generator=torch.Generator().manual_seed(1)),
        names[1]: torch.arange(19, -1, -1),
    }
    load = loader(matrices, form)
    layer = load.linear(*names, norm=load.norm("norm", 1e-5), orders=orders)
    weights = [matrices.values[name] for name in names]
    biases = [
        matrices.biases.get(name, torch.zeros(weight.shape[0]))
        for name, weight in zip(names, weights, strict=True)
    ]
    for index, name in enumerate(names):
        if name in orders:
            weights[index], biases[index] = weights[index][orders[name]], biases[index][orders[name]]
    check(layer, torch.cat(weights), torch.cat(biases), form, matrices.norm)


@pytest.mark.parametrize("activation", Activation)
@pytest.mark.parametrize("form", FORMS)
def test_gated_layers(form: Form, activation: Activation, matrices: Matrices) -> None:
    load = loader(matrices, form)
    gated = load.gated("gate", "up", activation, load.norm("norm", 1e-5))
    blocked = BlockedGate if MULTIPLIES_BFLOAT16 else JoinedGate
    kind = {Form.GEMM: blocked, **dict.fromkeys(PACKED_FORMS, PackedGate)}.get(form, JoinedGate)
    assert type(gated) is kind
    layer = GatedMLP(gated, load.linear("down"))
    for n_rows in (1, 6):
        x = drawn(n_rows, N_COLS, seed=n_rows)
        seen = F.rms_norm(x, (N_COLS,), matrices.norm, 1e-5)
        gate, up = seen @ matrices.values["gate"].t(), seen @ matrices.values["up"].t()
        act = F.silu(gate) if activation is Activation.SILU else F.gelu(gate, approximate="tanh")
        expected = (act * up) @ matrices.values["down"].t()
        error = (layer(x.clone()).float() - expected).abs().max() / expected.abs().max()
        # Two products one after the other.
        assert float(error) < 2 * TOLERANCE[form]
        torch.testing.assert_close(layer.add_to(x.clone()), x + layer(x).float(), atol=1e-4, rtol=1e-4)


def test_processors_without_our_kernels(matrices: Matrices, monkeypatch: pytest.MonkeyPatch) -> None:
    """torch's own 8-bit product serves, with one scale a row."""
    monkeypatch.setattr("engine.kernels.jit.available", lambda: False)
    layer = loader(matrices, Form.PACKED).linear("Q4_1.wide")
    assert isinstance(layer, Int8Linear)
    x = drawn(3, N_COLS, seed=1)
    expected = x @ matrices.values["Q4_1.wide"].t() + matrices.biases["Q4_1.wide"]
    error = (layer(x).float() - expected).abs() / (x.abs() @ matrices.values["Q4_1.wide"].abs().t() + 1)
    assert float(error.max()) < 1e-2


def test_packed_forms_share_their_matrices(matrices: Matrices) -> None:
    """And unquantised weights, which neither packs."""
    shared = SharedWeights()
    device = device_of("cpu")
    few, many = (WeightLoader(matrices.file, device, form, shared=shared) for form in PACKED_FORMS)
    packed, again = few.linear("Q5_0.odd"), many.linear("Q5_0.odd")
    assert isinstance(packed, PackedLinear)
    assert isinstance(again, PackedLinear)
    assert packed.matrix is again.matrix
    dense, once_more = few.linear("F16.wide"), many.linear("F16.wide")
    assert isinstance(dense, DenseLinear)
    assert isinstance(once_more, DenseLinear)
    assert dense.weight is once_more.weight


def test_rows_of_an_embedding(matrices: Matrices) -> None:
    for kind in KINDS:
        embedding = loader(matrices, Form.PACKED).embedding(f"{kind}.odd")
        found = embedding([36, 0, 5, 5])
        assert found.dtype is torch.float32
        torch.testing.assert_close(found, matrices.values[f"{kind}.odd"][[36, 0, 5, 5]], atol=1e-6, rtol=1e-6)


def test_bytes_told(matrices: Matrices) -> None:
    told: list[int] = []
    load = WeightLoader(matrices.file, device_of("cpu"), Form.PACKED, told.append)
    load.linear("Q4_0.wide", "Q8_0.odd")
    assert sum(told) == sum(
        matrices.file.tensors[f"{name}.weight"].n_bytes for name in ("Q4_0.wide", "Q8_0.odd")
    )
