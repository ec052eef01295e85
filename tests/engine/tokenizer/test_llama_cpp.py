"""Token for token the same as llama.cpp: on texts that tokenizers get wrong, and on random ones."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from engine.gguf.reader import GGUFFile
from engine.tokenizer import Tokenizer
from engine.tokenizer.pretokenize import PRE_TOKENIZERS
from tests.engine.tokenizer.corpus import NASTY, random_texts
from tests.engine.tokenizer.record_golden import GOLDEN, NAMES

# Where llama.cpp simplifies the model's own rules: it cuts words before combining marks, as letters only.
MARKS_APART = ("tekken", "gpt-4o")


def check(path: Path, texts: list[str]) -> None:
    llama_cpp = pytest.importorskip("tests.engine.tokenizer.llama_cpp", reason="xllamacpp is not installed")
    with GGUFFile.open(path) as file:
        tokenizer = Tokenizer.from_metadata(file.metadata)
    with llama_cpp.llama_cpp(path) as oracle:
        for special in (False, True):
            for text, theirs in zip(texts, oracle.tokenize_all(texts, special=special), strict=True):
                ours = tokenizer.encode(text, add_special=special, parse_special=special)
                assert ours == theirs, f"{text!a} with special={special}"


def test_smollm2(smollm2_path):
    check(smollm2_path, [*NASTY, *random_texts(1, 100)])


def test_qwen(qwen_path):
    check(qwen_path, [*NASTY, *random_texts(2, 50)])


def test_gemma(gemma_path):
    check(gemma_path, [*NASTY, *random_texts(3, 20)])


@pytest.mark.soak
@pytest.mark.parametrize("model", ["smollm2_path", "qwen_path", "gemma_path"])
def test_many_random_texts(model, request):
    check(request.getfixturevalue(model), random_texts(4, 20_000))


@pytest.fixture(scope="module")
def starter(smollm2_path):
    with GGUFFile.open(smollm2_path) as file:
        return dict(file.metadata)


@pytest.mark.parametrize("name", NAMES)
def test_pre_tokenizers_as_recorded(name, starter):
    tokenizer = Tokenizer.from_metadata({**starter, "tokenizer.ggml.pre": name})
    golden = json.loads((GOLDEN / f"{name}.json").read_text())
    assert len(golden) == len(NASTY), "the corpus has changed: record_golden must run again"
    for text, theirs in zip(NASTY, golden, strict=True):
        if name in MARKS_APART and any(0x300 <= ord(character) < 0x370 for character in text):
            continue
        assert tokenizer.encode(text, add_special=False, parse_special=False) == theirs, ascii(text)


def test_every_set_of_rules_is_recorded():
    recorded = {PRE_TOKENIZERS[name].patterns for name in NAMES}
    assert {rules.patterns for rules in PRE_TOKENIZERS.values()} == recorded
