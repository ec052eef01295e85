"""Vocabularies small enough to write down: one of each kind."""

from __future__ import annotations

from typing import Any

from engine.tokenizer.bpe import BYTE_OF_CHARACTER

_LETTERS = {byte: character for character, byte in BYTE_OF_CHARACTER.items()}


def bpe_metadata(**changes: Any) -> dict[str, Any]:
    """All bytes, a few merges, ChatML's marks, one user-defined token and `</s>` as text; `changes` by short key."""
    tokens = [_LETTERS[byte] for byte in range(256)]
    merges = ["h e", "l l", "he ll", "hell o", "Ġ w"]
    tokens += [merge.replace(" ", "") for merge in merges]
    tokens.append("</s>")
    specials = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<think>"]
    types = [1] * len(tokens) + [3, 3, 3, 4]
    tokens += specials
    metadata: dict[str, Any] = {
        "model": "gpt2",
        "pre": "qwen2",
        "tokens": tokens,
        "token_type": types,
        "merges": merges,
        "bos_token_id": tokens.index("<|endoftext|>"),
        "eos_token_id": tokens.index("<|im_end|>"),
        "add_bos_token": False,
    }
    metadata.update(changes)
    return _prefixed(metadata)


def spm_metadata(**changes: Any) -> dict[str, Any]:
    """Bytes, single letters, and "hello" and "▁world" with what leads to them; scores fall with the index."""
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    types = [2, 3, 3] + [6] * 256
    words = [
        "▁",
        *"helowrd",
        "he",
        "ll",
        "hell",
        "hello",
        "▁w",
        "or",
        "▁wor",
        "ld",
        "▁world",
        "▁▁",
        "<start>",
    ]
    tokens += words
    types += [1] * (len(words) - 1) + [3]
    metadata: dict[str, Any] = {
        "model": "llama",
        "tokens": tokens,
        "token_type": types,
        "scores": [-float(index) for index in range(len(tokens))],
        "bos_token_id": 1,
        "eos_token_id": 2,
        "unknown_token_id": 0,
    }
    metadata.update(changes)
    return _prefixed(metadata)


def _prefixed(metadata: dict[str, Any]) -> dict[str, Any]:
    return {f"tokenizer.ggml.{name}": value for name, value in metadata.items() if value is not None}
