"""What the tokenizer promises beside being like llama.cpp's: refusals, ends, bytes, streams, and no slow corners."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.errors import InvalidRequest, ModelFileError, UnsupportedModel
from engine.gguf.reader import GGUFFile
from engine.tokenizer import Tokenizer
from tests.engine.tokenizer.corpus import NASTY
from tests.engine.tokenizer.small import bpe_metadata, spm_metadata

BPE = Tokenizer.from_metadata(bpe_metadata())
SPM = Tokenizer.from_metadata(spm_metadata())
SPM_WITHOUT_PREFIX = Tokenizer.from_metadata(spm_metadata(add_space_prefix=False))
ALL = (BPE, SPM, SPM_WITHOUT_PREFIX)


def texts_of(tokenizer: Tokenizer, ids: list[int]) -> list[str]:
    return [tokenizer.token_text(index) for index in ids]


def encode(tokenizer: Tokenizer, text: str, *, add: bool = False, parse: bool = False) -> list[str]:
    return texts_of(tokenizer, tokenizer.encode(text, add_special=add, parse_special=parse))


# --- BPE


def test_bpe_merges_within_words_only():
    assert encode(BPE, "hello world") == ["hello", "Ġw", "o", "r", "l", "d"]


def test_control_tokens_in_text_only_when_parsed():
    assert encode(BPE, "a<|im_end|>b", parse=True) == ["a", "<|im_end|>", "b"]
    assert "<|im_end|>" not in encode(BPE, "a<|im_end|>b")


def test_user_defined_tokens_are_always_found():
    assert encode(BPE, "a<think>b") == ["a", "<think>", "b"]


def test_bos_only_when_asked_and_wanted():
    adds = Tokenizer.from_metadata(bpe_metadata(add_bos_token=True, add_eos_token=True))
    assert encode(adds, "o", add=True) == ["<|endoftext|>", "o", "<|im_end|>"]
    assert encode(adds, "o") == ["o"]
    assert encode(BPE, "o", add=True) == ["o"]


def test_llama3_adds_bos_where_the_file_does_not_say():
    llama3 = Tokenizer.from_metadata(bpe_metadata(pre="llama-bpe", add_bos_token=None))
    assert llama3.adds_bos
    assert encode(llama3, "", add=True) == ["<|endoftext|>"]
    assert not Tokenizer.from_metadata(bpe_metadata(add_bos_token=None)).adds_bos


def test_merges_without_a_token_are_left_out():
    merges = bpe_metadata()["tokenizer.ggml.merges"]
    odd = Tokenizer.from_metadata(bpe_metadata(merges=["q u", *merges]))
    assert encode(odd, "hello qu") == ["hello", "Ġ", "q", "u"]


def test_a_byte_without_a_token_still_parts_its_neighbours():
    base = bpe_metadata()
    tokens = ["[none]" if token == "x" else token for token in base["tokenizer.ggml.tokens"]]
    tokenizer = Tokenizer.from_metadata(bpe_metadata(tokens=tokens))
    assert encode(tokenizer, "hxe he") == ["h", "e", "Ġ", "he"]


# --- SPM


def test_spm_takes_the_best_score_first_and_a_space_before_the_text():
    assert encode(SPM, "hello world", add=True) == ["<s>", "▁", "hello", "▁world"]
    assert encode(SPM_WITHOUT_PREFIX, "hello world") == ["hello", "▁world"]


def test_spm_puts_the_space_after_every_control_token():
    assert encode(SPM, "hello<start>hello", parse=True) == ["▁", "hello", "<start>", "▁", "hello"]


def test_spm_falls_back_to_bytes():
    assert encode(SPM_WITHOUT_PREFIX, "é\n") == ["<0xC3>", "<0xA9>", "<0x0A>"]


def test_spm_never_makes_control_or_byte_tokens_out_of_text():
    assert "<start>" not in encode(SPM_WITHOUT_PREFIX, "<start>")
    assert "<0x41>" not in encode(SPM_WITHOUT_PREFIX, "<0x41>")


def test_spm_takes_its_own_space_off_again():
    ids = SPM.encode("hello world", add_special=True, parse_special=False)
    assert SPM.decode(ids) == "hello world"
    assert SPM.decode(ids, continues=True) == " hello world"
    assert SPM.decode(SPM.encode("  hello", add_special=False, parse_special=False)) == "  hello"


# --- ends and kinds


def test_end_ids_hold_every_end_but_markup():
    assert set(texts_of(BPE, sorted(BPE.end_ids))) == {"<|endoftext|>", "<|im_end|>"}
    assert set(texts_of(SPM, sorted(SPM.end_ids))) == {"</s>"}


def test_markup_that_looks_like_an_end_is_text():
    ids = BPE.encode("a</s>", add_special=False, parse_special=True)
    assert texts_of(BPE, ids) == ["a", "</s>"]
    assert BPE.decode(ids) == "a</s>"
    assert not BPE.is_control(ids[1])


def test_the_end_of_a_message_is_not_the_end_of_a_harmony_answer():
    base = bpe_metadata()
    marks = ["<|return|>", "<|call|>", "<|end|>", "<|channel|>"]
    tokens = [*base["tokenizer.ggml.tokens"], *marks]
    harmony = Tokenizer.from_metadata(
        bpe_metadata(tokens=tokens, token_type=[*base["tokenizer.ggml.token_type"], 3, 3, 3, 3])
    )
    ends = set(texts_of(harmony, sorted(harmony.end_ids)))
    assert {"<|return|>", "<|call|>"} <= ends
    assert "<|end|>" not in ends
    assert not harmony.is_control(tokens.index("<|channel|>"))


def test_ends_of_the_real_files(smollm2_path):
    with GGUFFile.open(smollm2_path) as file:
        tokenizer = Tokenizer.from_metadata(file.metadata)
    assert {"<|im_end|>", "<|endoftext|>"} <= set(texts_of(tokenizer, sorted(tokenizer.end_ids)))
    assert tokenizer.is_control(tokenizer.eos_id)
    assert tokenizer.n_vocab == 49152


# --- refusals


def test_unknown_kinds_are_refused_by_name():
    with pytest.raises(UnsupportedModel, match=r"'rwkv'.*gpt2, llama"):
        Tokenizer.from_metadata({"tokenizer.ggml.model": "rwkv"})
    with pytest.raises(UnsupportedModel, match=r"'novel'.*llama-bpe"):
        Tokenizer.from_metadata(bpe_metadata(pre="novel"))


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({}, "names no tokenizer"),
        ({"tokenizer.ggml.model": "gpt2"}, "no vocabulary"),
        (bpe_metadata(tokens=["a", "a"], token_type=[1, 1]), "twice"),
        (bpe_metadata(tokens="abc"), "not a list"),
        (bpe_metadata(tokens=[1, 2]), "not a list of strings"),
        (bpe_metadata(token_type=[1]), "1 entries"),
        (bpe_metadata(token_type=["x"] * 300), "not a list of numbers"),
        (bpe_metadata(merges=[]), "no merges"),
        (bpe_metadata(merges=["ab"]), "two parts"),
        (spm_metadata(scores=[0.0]), "1 entries"),
    ],
)
def test_broken_metadata_is_refused(metadata, message):
    with pytest.raises(ModelFileError, match=message):
        Tokenizer.from_metadata(metadata)


def test_special_ids_outside_the_vocabulary_count_as_none():
    tokenizer = Tokenizer.from_metadata(bpe_metadata(bos_token_id=2**32 - 1, add_bos_token=True))
    assert tokenizer.bos_id is None
    assert encode(tokenizer, "o", add=True) == ["o"]


@pytest.mark.parametrize("tokenizer", ALL)
def test_lone_surrogates_are_refused(tokenizer):
    with pytest.raises(InvalidRequest, match="character 2"):
        tokenizer.encode("ab\ud83d", add_special=False, parse_special=False)


@pytest.mark.parametrize("token_id", [-1, BPE.n_vocab])
def test_ids_outside_the_vocabulary_are_refused(token_id):
    with pytest.raises(InvalidRequest, match="not in the vocabulary"):
        BPE.decode([token_id])


# --- digest


def test_the_digest_changes_with_what_changes_ids():
    base = bpe_metadata()
    merges = base["tokenizer.ggml.merges"]
    variants = [
        base,
        bpe_metadata(pre="smollm"),
        bpe_metadata(merges=merges[::-1]),
        bpe_metadata(bos_token_id=0),
        bpe_metadata(eos_token_id=0),
        bpe_metadata(add_bos_token=True),
        bpe_metadata(token_type=[*base["tokenizer.ggml.token_type"][:-1], 3]),
        bpe_metadata(tokens=[*base["tokenizer.ggml.tokens"][:-1], "<thunk>"]),
        spm_metadata(),
        spm_metadata(scores=[0.0] * 300),
        spm_metadata(add_space_prefix=False),
    ]
    digests = [Tokenizer.from_metadata(variant).digest for variant in variants]
    assert len(set(digests)) == len(variants)
    assert Tokenizer.from_metadata(bpe_metadata()).digest == digests[0]


# --- decoding


@pytest.mark.parametrize("tokenizer", ALL)
@pytest.mark.parametrize("text", NASTY, ids=ascii)
def test_decoding_gives_the_text_back(tokenizer, text):
    ids = tokenizer.encode(text, add_special=True, parse_special=False)
    expected = text.replace("▁", " ") if tokenizer is not BPE else text
    assert tokenizer.decode(ids) == expected


def test_control_tokens_are_written_only_when_asked():
    ids = BPE.encode("a<|im_end|>b", add_special=False, parse_special=True)
    assert BPE.decode(ids) == "ab"
    assert BPE.decode(ids, special=True) == "a<|im_end|>b"


def stream(tokenizer: Tokenizer, ids: list[int], **flags: bool) -> list[str]:
    decoder = tokenizer.stream_decoder(**flags)
    return [*(decoder.push(index) for index in ids), decoder.flush()]


@settings(max_examples=300, deadline=None)
@given(
    tokenizer=st.sampled_from(ALL),
    choices=st.lists(st.integers(0, 10_000), max_size=40),
    special=st.booleans(),
    continues=st.booleans(),
)
def test_a_stream_joined_is_the_decoding(tokenizer, choices, special, continues):
    ids = [choice % tokenizer.n_vocab for choice in choices]
    flags = {"special": special, "continues": continues}
    assert "".join(stream(tokenizer, ids, **flags)) == tokenizer.decode(ids, **flags)


@settings(max_examples=200, deadline=None)
@given(
    tokenizer=st.sampled_from(ALL),
    text=st.text(st.characters(exclude_categories=["Cs"], exclude_characters="▁")),
)
def test_a_stream_of_good_text_never_shows_a_broken_character(tokenizer, text):
    ids = tokenizer.encode(text, add_special=False, parse_special=False)
    pieces = stream(tokenizer, ids)
    assert "".join(pieces) == text
    assert "\ufffd" in text or not any("\ufffd" in piece for piece in pieces)


def test_a_character_comes_whole_and_a_broken_one_at_the_end():
    ids = BPE.encode("\U0001f600", add_special=False, parse_special=False)
    assert stream(BPE, ids) == ["", "", "", "\U0001f600", ""]
    assert stream(BPE, ids[:3]) == ["", "", "", "\ufffd"]
    assert stream(BPE, [*ids[:2], *BPE.encode("o", add_special=False, parse_special=False)]) == [
        "",
        "",
        "\ufffdo",
        "",
    ]


# --- long inputs


LONG = {
    "one letter": "a" * 200_000,
    "spaces before a word": " " * 200_000 + "x",
    "lines": "\n" * 200_000,
    "one sign": "=" * 200_000,
    "Han": "\u4e00" * 100_000,
    "digits": "7" * 200_000,
    "words": "the quick brown fox; " * 10_000,
    "control tokens": "<|im_end|>" * 20_000,
    "almost control tokens": "<|im_end|" * 20_000,
}


@pytest.mark.parametrize("name", LONG)
def test_long_inputs_neither_crash_nor_crawl(name, smollm2):
    ids = smollm2.encode(LONG[name], add_special=False, parse_special=True)
    assert smollm2.decode(ids, special=True) == LONG[name]


@pytest.mark.parametrize(
    "pre", ["default", "tekken", "gpt-4o", "deepseek-llm", "deepseek-coder", "deepseek-v3"]
)
def test_no_pre_tokenizer_crawls(pre):
    tokenizer = Tokenizer.from_metadata(bpe_metadata(pre=pre))
    for name in ("one letter", "spaces before a word", "lines", "one sign"):
        text = LONG[name]
        assert tokenizer.decode(tokenizer.encode(text, add_special=False, parse_special=False)) == text


@pytest.fixture(scope="module")
def smollm2(smollm2_path):
    with GGUFFile.open(smollm2_path) as file:
        return Tokenizer.from_metadata(file.metadata)
