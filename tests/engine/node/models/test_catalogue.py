"""The catalogue: what it promises about every model, and how its text is read."""

from __future__ import annotations

import re

import pytest

from engine.errors import ModelNotFound
from engine.node.models.catalogue import HubSource, WheelSource, find_model, load_catalogue, parse_catalogue
from tests.conftest import GEMMA_FILE, QWEN_FILE, SMOLLM2_FILE

ENTRY = """
[[model]]
name = "a"
title = "A"
architecture = "llama"
quantization = "Q8_0"
licence = "MIT"
file = "a.gguf"
size_bytes = 12

[[model.source]]
kind = "wheels"
parts = 3
requirement = "a-part{n}==1"
member = "a/{n:02}-{i}.bin"
sha256 = "00"
checked = true
"""


def test_it_has_the_starter_and_the_three_others() -> None:
    files = {name: model.file for name, model in load_catalogue().items()}
    assert files["smollm2-135m"] == SMOLLM2_FILE
    assert files["qwen2.5-coder-0.5b"] == QWEN_FILE
    assert files["gemma3-270m"] == GEMMA_FILE
    assert len(files) == len(set(files.values())) == 4


@pytest.mark.parametrize("model", load_catalogue().values(), ids=lambda model: model.name)
def test_every_model_comes_from_the_hub_first_and_has_a_verified_second_source(model) -> None:
    hub, wheels = model.sources
    assert isinstance(hub, HubSource)
    assert isinstance(wheels, WheelSource)
    assert wheels.checked
    assert re.fullmatch("[0-9a-f]{64}", wheels.sha256)
    assert hub.sha256 is None or re.fullmatch("[0-9a-f]{64}", hub.sha256)
    # what is promised without a digest must at least be marked
    assert hub.sha256 is not None or not hub.checked


def test_parts_are_counted_from_one_and_from_zero() -> None:
    (source,) = parse_catalogue(ENTRY)["a"].sources
    assert [(part.requirement, part.member) for part in source.parts] == [
        ("a-part1==1", "a/01-0.bin"),
        ("a-part2==1", "a/02-1.bin"),
        ("a-part3==1", "a/03-2.bin"),
    ]


@pytest.mark.parametrize(
    "text",
    [
        ENTRY + ENTRY,
        ENTRY.replace('kind = "wheels"', 'kind = "torrent"'),
        ENTRY.replace("size_bytes = 12", ""),
        ENTRY.replace("checked = true", ""),
        ENTRY + "colour = 3",
        "",
    ],
    ids=["twice", "kind", "no size", "no checked", "surplus", "empty"],
)
def test_an_unsound_catalogue_is_refused(text: str) -> None:
    with pytest.raises((KeyError, TypeError, ValueError)):
        parse_catalogue(text)


def test_an_unknown_name_is_answered_with_the_known_ones() -> None:
    with pytest.raises(ModelNotFound, match=r"gpt-5.*smollm2-135m.*gemma3-270m"):
        find_model("gpt-5")


def test_an_empty_name_is_called_empty() -> None:
    with pytest.raises(ModelNotFound, match=r"name is empty: choose one of smollm2-135m"):
        find_model(" ")
