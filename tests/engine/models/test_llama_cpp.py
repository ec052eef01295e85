"""Greedy answers of real models against llama.cpp's; where they part, both tokens were as good as equally probable.

llama.cpp rounds activations to 8 bits and its cache to 16, so its numbers are not quite those of the file; our float32
reference says how much was between the two tokens. xllamacpp is a generic build, good for tokens and not for times.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import xllamacpp

from engine.cache.spec import KVType
from engine.gguf.reader import GGUFFile
from engine.layers.step import Segment
from engine.models.base import Model
from engine.models.registry import WeightsMode, load_model
from engine.tokenizer.tokenizer import Tokenizer
from tests.engine.models.running import greedy, new_sequence, prefill

# Log-probability between the best token and llama.cpp's choice; the worst seen is 0.22.
NEAR_TIE = 0.3
# The same for our own default form, which keeps activations in float32 when it decodes; the worst seen is below 0.001.
OWN_NEAR_TIE = 0.05

N_ANSWER = 32
PROMPTS = (
    "The capital of France is",
    "def fibonacci(n):\n    ",
    "Once upon a time, in a small village by the sea, there lived",
)


@dataclass(frozen=True, kw_only=True)
class Answer:
    prompt: list[int]
    tokens: list[int]


@contextmanager
def llama_cpp(path: Path) -> Iterator[str]:
    """The URL of a llama.cpp server for the model, in this process."""
    parameters = xllamacpp.CommonParams()
    parameters.model.path = str(path)
    parameters.n_ctx = 512
    # Its threads spin: with more, whoever else wants a core makes it many times slower.
    parameters.cpuparams.n_threads = parameters.cpuparams_batch.n_threads = 1
    parameters.n_parallel = 1
    parameters.warmup = False
    parameters.verbosity = -1
    server = xllamacpp.Server(parameters)
    yield server.listening_address
    del server


def answers_of_llama_cpp(path: Path, prompts: list[list[int]]) -> list[Answer]:
    settings = {
        "n_predict": N_ANSWER,
        "temperature": 0.0,
        "return_tokens": True,
        "cache_prompt": False,
        "ignore_eos": True,
    }
    answers = []
    with llama_cpp(path) as url:
        for prompt in prompts:
            reply = httpx.post(f"{url}/completion", json={"prompt": prompt, **settings}, timeout=120)
            reply.raise_for_status()
            answers.append(Answer(prompt=prompt, tokens=reply.json()["tokens"]))
    return answers


def check(path: Path, n_prompts: int) -> None:
    file = GGUFFile.open(path)
    tokenizer = Tokenizer.from_metadata(file.metadata)
    prompts = [tokenizer.encode(text, add_special=True, parse_special=False) for text in PROMPTS[:n_prompts]]
    theirs = answers_of_llama_cpp(path, prompts)
    ours = our_answers(load_model(file, device="cpu", weights=WeightsMode.AUTO, prefill=False), prompts)
    reference = load_model(file, device="cpu", weights=WeightsMode.FLOAT32)
    for answer, our_tokens in zip(theirs, ours, strict=True):
        check_answer(reference, answer, our_tokens)


def our_answers(model: Model, prompts: list[list[int]]) -> list[list[int]]:
    """Greedy answers in the default form and cache."""
    answers = []
    for prompt in prompts:
        sequence = new_sequence(model, kv_type=KVType.BF16)
        prefill(model, sequence, prompt, chunk=512)
        answers.append(greedy(model, sequence, prompt[-1], N_ANSWER))
    return answers


def check_answer(reference: Model, theirs: Answer, ours: list[int]) -> None:
    """Every token of llama.cpp's is the best or nearly; ours is, up to where the two part."""
    assert len(theirs.tokens) == len(ours) == N_ANSWER
    segment = Segment(
        sequence=new_sequence(reference), tokens=[*theirs.prompt, *theirs.tokens[:-1]], n_logits=N_ANSWER
    )
    logits = reference.forward([segment], []).log_softmax(-1)
    for place, (their_token, our_token) in enumerate(zip(theirs.tokens, ours, strict=True)):
        best = float(logits[place].max())
        assert best - float(logits[place, their_token]) < NEAR_TIE, f"llama.cpp parts from us at {place}"
        if theirs.tokens[:place] == ours[:place]:
            assert best - float(logits[place, our_token]) < OWN_NEAR_TIE, f"our own form errs at {place}"


def test_smollm2(smollm2_path: Path) -> None:
    check(smollm2_path, 3)


def test_qwen(qwen_path: Path) -> None:
    check(qwen_path, 1)


def test_gemma(gemma_path: Path) -> None:
    check(gemma_path, 1)
