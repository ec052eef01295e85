"""A model's vocabulary as its GGUF metadata tells it: tokens, their kinds, and which of them end an answer.

Reads and checks; it neither splits text nor decodes it.
"""

from __future__ import annotations

import enum
import hashlib
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from engine.errors import ModelFileError, UnsupportedModel

# A vocabulary beyond this is a broken file; the largest in use hold about 262 thousand tokens.
MAX_TOKENS = 2_000_000

# No vocabulary in use has a token of more than a few hundred bytes.
MAX_TOKEN_BYTES = 65_536


class VocabularyKind(enum.StrEnum):
    """Names of `tokenizer.ggml.model` that Baton knows."""

    BPE = "gpt2"
    SPM = "llama"


class TokenType(enum.IntEnum):
    """Numbers in `tokenizer.ggml.token_type`."""

    UNDEFINED = 0
    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


# Files often mark only one token as the end; a model may answer with any of these. Without them an answer runs on.
END_TEXTS = frozenset(
    {
        "<|eot_id|>",
        "<|eom_id|>",
        "<|im_end|>",
        "<|end|>",
        "<|return|>",
        "<|call|>",
        "<|calls|>",
        "<|flush|>",
        "<|endoftext|>",
        "<|end_of_text|>",
        "<end_of_turn>",
        "<end_of_utterance>",
        "<eos>",
        "</s>",
        "<EOT>",
        "_<EOT>",
        "[EOT]",
        "[EOS]",
        "<turn|>",
        "<|tool_response>",
        "<｜end▁of▁sentence｜>",
        "[e~[",
    }
)

# Tags of a page, too: where the file does not call this token a control token, it is text and ends nothing.
MARKUP_TEXT = "</s>"

# A model that fills in the middle of a file goes on with these when the middle is done.
FIM_END_TEXTS = frozenset(
    {
        "<|fim_pad|>",
        "<fim-pad>",
        "<fim_pad>",
        "<PAD>",
        "[PAD]",
        "<|fim_repo|>",
        "<|repo_name|>",
        "<fim-repo>",
        "<REPO>",
        "<reponame>",
        "<|file_sep|>",
    }
)

# Marks inside a file to be filled; control tokens whatever the file says.
FIM_TEXTS = frozenset(
    {
        "<|fim_prefix|>",
        "<fim-prefix>",
        "<fim_prefix>",
        "<｜fim▁begin｜>",
        "<PRE>",
        "▁<PRE>",
        "<|code_prefix|>",
        "<|prefix|>",
        "<|fim_suffix|>",
        "<fim-suffix>",
        "<fim_suffix>",
        "<｜fim▁hole｜>",
        "<SUF>",
        "▁<SUF>",
        "<|code_suffix|>",
        "<|suffix|>",
        "<|fim_middle|>",
        "<fim-middle>",
        "<fim_middle>",
        "<｜fim▁end｜>",
        "<MID>",
        "▁<MID>",
        "<|code_middle|>",
        "<|middle|>",
    }
)

# The harmony format's structure is part of the answer's text.
HARMONY_TEXTS = frozenset({"<|channel|>", "<|message|>", "<|start|>", "<|constrain|>"})


@dataclass(frozen=True, kw_only=True)
class Vocabulary:
    """Tokens of one model; index is id. `scores` only for SPM, `read_merges()` ("left right") only for BPE.

    `markup_ids` are tokens of plain text that are looked for like control tokens where those are.
    """

    kind: VocabularyKind
    pre: str
    tokens: tuple[str, ...]
    types: tuple[int, ...]
    scores: tuple[float, ...]
    read_merges: Callable[[], tuple[str, ...]]
    bos_id: int | None
    eos_id: int | None
    unknown_id: int | None
    end_ids: frozenset[int]
    markup_ids: frozenset[int]
    add_bos: bool | None
    add_eos: bool
    add_space_prefix: bool

    @cached_property
    def merges(self) -> tuple[str, ...]:
        """Read when first asked for, as nothing but encoding needs them. Raises ModelFileError."""
        return self.read_merges()

    def digest(self) -> str:
        """sha256 over everything that decides which ids a text becomes."""
        sha = hashlib.sha256(b"baton tokenizer 1\n")
        flags = (self.add_bos, self.add_eos, self.add_space_prefix)
        ids = (self.bos_id, self.eos_id, self.unknown_id, sorted(self.end_ids))
        sha.update(repr((str(self.kind), self.pre, ids, flags)).encode())
        _hash_strings(sha, self.tokens)
        _hash_strings(sha, self.merges)
        sha.update(array("i", self.types).tobytes())
        sha.update(array("f", self.scores).tobytes())
        return sha.hexdigest()


def read_vocabulary(metadata: Mapping[str, Any]) -> Vocabulary:
    """The vocabulary in a GGUF file's metadata.

    Raises UnsupportedModel for a tokenizer of another kind, ModelFileError where the metadata contradicts itself.
    """
    kind = _kind(metadata)
    tokens = _strings(metadata, "tokenizer.ggml.tokens")
    if not tokens:
        raise ModelFileError("the model file holds no vocabulary (tokenizer.ggml.tokens): convert it again")
    if len(tokens) > MAX_TOKENS:
        raise ModelFileError(f"the vocabulary has {len(tokens)} tokens, more than the {MAX_TOKENS} allowed")
    if len(max(tokens, key=len)) > MAX_TOKEN_BYTES:
        raise ModelFileError(f"the vocabulary has a token of more than {MAX_TOKEN_BYTES} characters")
    index_of = dict(zip(tokens, range(len(tokens)), strict=True))
    if "" in index_of:
        tokens = tuple(text or f"[EMPTY_{index}]" for index, text in enumerate(tokens))
        index_of = dict(zip(tokens, range(len(tokens)), strict=True))
    if len(index_of) != len(tokens):
        raise ModelFileError("the vocabulary lists a token twice: the model file is broken, convert it again")
    types = list(_numbers(metadata, "tokenizer.ggml.token_type", len(tokens), int, TokenType.NORMAL))
    bos_id, eos_id, unknown_id = _special_ids(metadata, kind, len(tokens))
    markup = _markup_ids(index_of, types, eos_id)
    ends = _end_ids(metadata, index_of, types, eos_id, markup)
    add_bos = metadata.get("tokenizer.ggml.add_bos_token")
    return Vocabulary(
        kind=kind,
        pre=str(metadata.get("tokenizer.ggml.pre") or "default"),
        tokens=tokens,
        types=tuple(types),
        scores=(
            _numbers(metadata, "tokenizer.ggml.scores", len(tokens), float, 0.0)
            if kind is VocabularyKind.SPM
            else ()
        ),
        read_merges=lambda: _strings(metadata, "tokenizer.ggml.merges") if kind is VocabularyKind.BPE else (),
        bos_id=bos_id,
        eos_id=eos_id,
        unknown_id=unknown_id,
        end_ids=ends,
        markup_ids=markup,
        add_bos=None if add_bos is None else bool(add_bos),
        add_eos=bool(metadata.get("tokenizer.ggml.add_eos_token", False)),
        add_space_prefix=kind is VocabularyKind.SPM
        and bool(metadata.get("tokenizer.ggml.add_space_prefix", True)),
    )


def _kind(metadata: Mapping[str, Any]) -> VocabularyKind:
    name = metadata.get("tokenizer.ggml.model")
    if name is None:
        raise ModelFileError("the model file names no tokenizer (tokenizer.ggml.model): convert it again")
    try:
        return VocabularyKind(name)
    except ValueError:
        known = ", ".join(kind.value for kind in VocabularyKind)
        raise UnsupportedModel(f"the model's tokenizer is of kind {name!r}; Baton knows: {known}") from None


def _special_ids(
    metadata: Mapping[str, Any], kind: VocabularyKind, n_tokens: int
) -> tuple[int | None, int | None, int | None]:
    """Ids of bos, eos and unknown; those an SPM file leaves out are 1, 2 and 0 by convention."""
    defaults: tuple[int | None, ...] = (1, 2, 0) if kind is VocabularyKind.SPM else (None, None, None)
    names = ("bos", "eos", "unknown")
    bos, eos, unknown = (
        _special_id(metadata, name, n_tokens, default) for name, default in zip(names, defaults, strict=True)
    )
    return bos, eos, unknown


def _special_id(
    metadata: Mapping[str, Any], name: str, n_tokens: int, default: int | None = None
) -> int | None:
    value = metadata.get(f"tokenizer.ggml.{name}_token_id")
    if value is None:
        return default if default is not None and default < n_tokens else None
    if not isinstance(value, int) or not 0 <= value < n_tokens:
        # Written by old converters for "none", often as 2**32 - 1.
        return default if default is not None and default < n_tokens else None
    return value


def _markup_ids(index_of: Mapping[str, int], types: Sequence[int], eos_id: int | None) -> frozenset[int]:
    token_id = index_of.get(MARKUP_TEXT)
    if token_id is None or token_id == eos_id or types[token_id] != TokenType.NORMAL:
        return frozenset()
    return frozenset({token_id})


def _end_ids(
    metadata: Mapping[str, Any],
    index_of: Mapping[str, int],
    types: list[int],
    eos_id: int | None,
    markup: frozenset[int],
) -> frozenset[int]:
    """Ids that end an answer; corrects in `types` those that a file calls text though they are marks."""
    known = (END_TEXTS | FIM_END_TEXTS | FIM_TEXTS) & index_of.keys()
    marks = {text: index_of[text] for text in known if index_of[text] not in markup}
    for token_id in marks.values():
        types[token_id] = TokenType.CONTROL
    for text in HARMONY_TEXTS & index_of.keys():
        types[index_of[text]] = TokenType.USER_DEFINED
    ends = {token_id for text, token_id in marks.items() if text not in FIM_TEXTS}
    for name in ("eos", "eot", "eom"):
        special = eos_id if name == "eos" else _special_id(metadata, name, len(types))
        if special is not None:
            ends.add(special)
    if "<|end|>" in marks and (
        marks.keys() >= {"<|return|>", "<|call|>"} or marks.keys() >= {"<|flush|>", "<|calls|>"}
    ):
        # Ends one message of an answer there, not the answer.
        ends.discard(marks["<|end|>"])
        types[marks["<|end|>"]] = TokenType.USER_DEFINED
    if marks.keys() >= {"<|tool_response>", MARKUP_TEXT}:
        ends.discard(marks[MARKUP_TEXT])
        types[marks[MARKUP_TEXT]] = TokenType.NORMAL
    return frozenset(ends)


def _strings(metadata: Mapping[str, Any], key: str) -> tuple[str, ...]:
    values = metadata.get(key, ())
    if isinstance(values, str | bytes) or not isinstance(values, Sequence):
        raise ModelFileError(f"{key} in the model file is not a list: convert the model again")
    strings = tuple(values)
    kinds = set(map(type, strings))
    if kinds == {bytes}:
        # Some files hold tokens that are not UTF-8 on their own; keep the others usable.
        return tuple([value.decode("utf-8", "backslashreplace") for value in strings])
    if not kinds <= {str}:
        raise ModelFileError(f"{key} in the model file is not a list of strings: convert the model again")
    return strings


def _numbers(
    metadata: Mapping[str, Any], key: str, count: int, kind: type, default: float
) -> tuple[Any, ...]:
    values = metadata.get(key)
    if values is None:
        return (kind(default),) * count
    try:
        # Numeric arrays of a header are memoryviews of the right type already.
        numbers = tuple(values.tolist() if isinstance(values, memoryview) else map(kind, values))
    except (TypeError, ValueError):
        raise ModelFileError(
            f"{key} in the model file is not a list of numbers: convert the model again"
        ) from None
    if len(numbers) < count:
        raise ModelFileError(f"{key} has {len(numbers)} entries for {count} tokens: the model file is broken")
    return numbers[:count]


def _hash_strings(sha: Any, strings: Sequence[str]) -> None:
    encoded = [text.encode("utf-8", "surrogatepass") for text in strings]
    sha.update(len(encoded).to_bytes(8, "little"))
    sha.update(array("q", map(len, encoded)).tobytes())
    sha.update(b"".join(encoded))
