"""Merging for vocabularies of kind `llama` (SentencePiece BPE): scores instead of merges, bytes as a fallback.

Two neighbours merge when their joined text is a token, the best score first. The library wants a list of pairs,
so every way to split a token into two tokens becomes a pair, in the order of the token's score. Where tokens share
a score SentencePiece merges the leftmost first and the library the first listed; real vocabularies share none.
"""

from __future__ import annotations

from tokenizers import Tokenizer, models

from engine.tokenizer.vocabulary import TokenType, Vocabulary

SPACE = "▁"  # SentencePiece's sign for a space

# Control and user-defined tokens are cut out before merging, or must not come from plain text at all; a byte token
# is not its text.
_MERGED_TYPES = frozenset({TokenType.NORMAL, TokenType.UNUSED, TokenType.UNDEFINED})


def build_spm(vocabulary: Vocabulary) -> Tokenizer:
    """A tokenizer for text without special tokens whose spaces are already written as `SPACE`."""
    index_of = {text: index for index, text in enumerate(vocabulary.tokens)}
    unknown = vocabulary.tokens[vocabulary.unknown_id] if vocabulary.unknown_id is not None else None
    model = models.BPE(index_of, _pairs(vocabulary), byte_fallback=True, fuse_unk=False, unk_token=unknown)
    return Tokenizer(model)


def piece_bytes(piece: str) -> bytes:
    return piece.replace(SPACE, " ").encode("utf-8", "surrogatepass")


def _pairs(vocabulary: Vocabulary) -> list[tuple[str, str]]:
    types, scores = vocabulary.types, vocabulary.scores
    indices = [index for index, kind in enumerate(types) if kind in _MERGED_TYPES]
    indices.sort(key=scores.__getitem__, reverse=True)
    pieces = [vocabulary.tokens[index] for index in indices]
    known = set(pieces)
    return [
        (left, right)
        for piece in pieces
        for cut in range(1, len(piece))
        if (right := piece[cut:]) in known and (left := piece[:cut]) in known
    ]
