"""Tiny model files, written once a run, and models loaded from them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from engine.models.base import Model
from engine.models.registry import WeightsMode, load_model
from tests.engine.models.tiny import Quant, write_tiny

SEED = 7

TinyFile = Callable[..., Path]
TinyModel = Callable[..., Model]


@pytest.fixture(scope="session")
def tiny_file(tmp_path_factory: pytest.TempPathFactory) -> TinyFile:
    """`tiny_file(name, quant)`: the path of a tiny model."""
    folder = tmp_path_factory.mktemp("tiny")
    made: dict[tuple[str, Quant], Path] = {}

    def get(name: str, quant: Quant = Quant.F32) -> Path:
        if (name, quant) not in made:
            made[name, quant] = write_tiny(name, folder / f"{name}-{quant}.gguf", SEED, quant=quant)
        return made[name, quant]

    return get


@pytest.fixture(scope="session")
def tiny_model(tiny_file: TinyFile) -> TinyModel:
    """`tiny_model(name, quant, weights)`: a loaded model; in float32 unless told otherwise."""
    loaded: dict[tuple[str, Quant, WeightsMode], Model] = {}

    def get(name: str, quant: Quant = Quant.F32, weights: WeightsMode = WeightsMode.FLOAT32) -> Model:
        key = (name, quant, weights)
        if key not in loaded:
            loaded[key] = load_model(tiny_file(name, quant), device="cpu", weights=weights)
        return loaded[key]

    return get
