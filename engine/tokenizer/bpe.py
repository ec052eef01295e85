"""Merging for vocabularies of kind `gpt2`: words of bytes, each byte written as a printable character."""

from __future__ import annotations

from collections.abc import Sequence

from tokenizers import Tokenizer, models

from engine.errors import ModelFileError
from engine.tokenizer.pretokenize import PreTokenizer
from engine.tokenizer.vocabulary import Vocabulary


def _byte_alphabet() -> dict[str, int]:
    """The character that stands for each byte: itself where printable in Latin-1, else from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    alphabet = {chr(byte): byte for byte in printable}
    hidden = [byte for byte in range(256) if chr(byte) not in alphabet]
    alphabet.update({chr(0x100 + index): byte for index, byte in enumerate(hidden)})
    return alphabet


BYTE_OF_CHARACTER = _byte_alphabet()


def build_bpe(vocabulary: Vocabulary, rules: PreTokenizer) -> Tokenizer:
    """A tokenizer for text without special tokens; raises ModelFileError for merges that make no sense.

    Bytes that the vocabulary lacks get ids from its length on, to be left out: the library would leave them out
    before merging, and merge their neighbours.
    """
    index_of = {text: index for index, text in enumerate(vocabulary.tokens)}
    for character in BYTE_OF_CHARACTER:
        index_of.setdefault(character, len(index_of))
    if not vocabulary.merges:
        raise ModelFileError("the model file holds no merges (tokenizer.ggml.merges): convert it again")
    pairs = _pairs(vocabulary.merges)
    try:
        model = _model(index_of, pairs, rules)
    except Exception:  # the library raises no narrower class
        known = [(a, b) for a, b in pairs if a in index_of and b in index_of and a + b in index_of]
        if len(known) == len(pairs):
            raise
        model = _model(index_of, known, rules)
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = rules.build()
    return tokenizer


def piece_bytes(piece: str) -> bytes:
    """Bytes of a token's text; characters outside the byte alphabet stand for themselves."""
    try:
        return bytes([BYTE_OF_CHARACTER[character] for character in piece])
    except KeyError:
        return b"".join(
            bytes([BYTE_OF_CHARACTER[character]])
            if character in BYTE_OF_CHARACTER
            else character.encode("utf-8", "surrogatepass")
            for character in piece
        )


def missing_bytes(vocabulary: Vocabulary) -> bytes:
    """Bytes that have no token of their own, and are left out of an encoding unless a longer token covers them."""
    known = set(vocabulary.tokens)
    return bytes(byte for character, byte in BYTE_OF_CHARACTER.items() if character not in known)


def _model(index_of: dict[str, int], pairs: list[tuple[str, str]], rules: PreTokenizer) -> models.BPE:
    return models.BPE(index_of, pairs, ignore_merges=rules.whole_words)


def _pairs(merges: Sequence[str]) -> list[tuple[str, str]]:
    # A part may itself begin with a space, never hold one further on.
    pairs = [merge.partition(" ")[::2] if merge[:1] != " " else _split_later(merge) for merge in merges]
    for merge, pair in zip(merges, pairs, strict=True):
        if not all(pair):
            raise ModelFileError(f"the merge {merge[:40]!r} in the model file does not have two parts")
    return pairs


def _split_later(merge: str) -> tuple[str, str]:
    first, _, second = merge[1:].partition(" ")
    return " " + first, second
