"""The least number of tokens of a text: never more than there are, and near enough to be of use."""

from __future__ import annotations

import base64
import json
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.errors import PromptTooLong
from engine.gguf.reader import GGUFFile
from engine.tokenizer import Tokenizer
from engine.tokenizer.tokenizer import EXACT_CHARS
from tests.engine.tokenizer.corpus import NASTY, random_texts
from tests.engine.tokenizer.small import bpe_metadata, spm_metadata


def lossy_bpe() -> Tokenizer:
    """Without tokens for x and for the first byte of many characters."""
    lacking = {"x": "[none]", "\u00c3": "[no lead]", "1": "[no one]"}
    tokens = [lacking.get(token, token) for token in bpe_metadata()["tokenizer.ggml.tokens"]]
    return Tokenizer.from_metadata(bpe_metadata(tokens=tokens))


def spm_without_bytes() -> Tokenizer:
    """Whatever has no token is one unknown token a character."""
    whole = spm_metadata()
    kept = [0, 1, 2, *range(259, len(whole["tokenizer.ggml.tokens"]))]
    names = ("tokens", "token_type", "scores")
    return Tokenizer.from_metadata(
        spm_metadata(**{name: [whole[f"tokenizer.ggml.{name}"][index] for index in kept] for name in names})
    )


SMALL = {
    "bpe": Tokenizer.from_metadata(bpe_metadata()),
    "bpe that lacks bytes": lossy_bpe(),
    "spm": Tokenizer.from_metadata(spm_metadata()),
    "spm without bytes": spm_without_bytes(),
}

PROSE = "In a relay race four runners share one distance, and each of them hands a baton to the next. " * 20


def n_tokens(tokenizer: Tokenizer, text: str) -> int:
    return len(tokenizer.encode(text, add_special=False, parse_special=True))


@pytest.fixture(scope="module", params=["smollm2_path", "qwen_path", "gemma_path"])
def real(request) -> Tokenizer:
    with GGUFFile.open(request.getfixturevalue(request.param)) as file:
        return Tokenizer.from_metadata(file.metadata)


@pytest.mark.parametrize("tokenizer", SMALL.values(), ids=SMALL)
@settings(max_examples=150, deadline=None)
@given(
    st.lists(
        st.sampled_from(
            [
                "hello",
                " world",
                "x",
                " x",
                "1",
                " ",
                "\n",
                "\u2581",
                "\u00e9",
                " \u00e9",
                "<|im_end|>",
                "</s>",
                ".",
            ]
        )
        | st.text(max_size=3),
        max_size=12,
    )
)
def test_no_text_has_fewer_tokens(tokenizer, parts):
    text = "".join(part.encode("utf-8", "ignore").decode() for part in parts)
    assert tokenizer.least_tokens(text) <= n_tokens(tokenizer, text)


def test_no_text_of_a_real_vocabulary_has_fewer_tokens(real):
    spelled = [
        real.token_bytes(index, special=True).decode("utf-8", "ignore") for index in range(real.n_vocab)
    ]
    longest = sorted(spelled, key=len)[-50:]
    for text in (
        *NASTY,
        *random_texts(8, 200),
        *longest,
        *(" ".join(longest[n:]) for n in (0, 25, 45)),
        PROSE,
    ):
        assert real.least_tokens(text) <= n_tokens(real, text)
        assert real.least_tokens(text * 50) <= n_tokens(real, text * 50)


def test_the_bound_is_near_for_what_people_send(real):
    numbers = json.dumps([{"id": index, "name": f"n{index}"} for index in range(500)], separators=(",", ":"))
    noise = base64.b64encode(random.Random(1).randbytes(10_000)).decode()
    for text, share in ((PROSE, 0.7), (numbers, 0.08), (noise, 0.06)):
        assert real.least_tokens(text) >= share * n_tokens(real, text)


def test_only_what_cannot_fit_is_refused_unseen(real):
    text = PROSE * (EXACT_CHARS // len(PROSE) + 1)
    least = real.least_tokens(text)
    real.check_fits(text, least + 1)
    real.check_fits(text[:EXACT_CHARS], 1)
    with pytest.raises(PromptTooLong, match=f"at least {least} tokens") as caught:
        real.check_fits(text, least)
    assert (caught.value.n_prompt_tokens, caught.value.n_ctx) == (least, least)


def test_half_a_character_can_be_measured():
    assert SMALL["bpe"].least_tokens("\ud800") >= 0
