"""Text to token ids and back, for one model. Knows nothing of chats: see `template`."""

from __future__ import annotations

import contextlib
import gc
import threading
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import cached_property
from typing import Any

from tokenizers import Tokenizer as Merging

from engine.errors import InvalidRequest, PromptTooLong
from engine.tokenizer import bpe, spm
from engine.tokenizer.measure import LeastTokens
from engine.tokenizer.pretokenize import pre_tokenizer
from engine.tokenizer.specials import SpecialTokens
from engine.tokenizer.stream import StreamDecoder
from engine.tokenizer.vocabulary import TokenType, Vocabulary, VocabularyKind, read_vocabulary

# Texts up to this are always counted exactly: that takes a tenth of a second and 25 MB.
EXACT_CHARS = 1 << 18

_HIDDEN_TYPES = frozenset({TokenType.CONTROL, TokenType.UNKNOWN})


@contextlib.contextmanager
def _uncollected() -> Iterator[None]:
    """Hundreds of thousands of small objects are made here; the collector would walk them again and again."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()


class Tokenizer:
    """One model's tokenizer. Safe to share between threads: nothing changes after it is made but caches."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._types = vocabulary.types
        self._is_spm = vocabulary.kind is VocabularyKind.SPM
        self._rules = None if self._is_spm else pre_tokenizer(vocabulary.pre)
        self._bytes: dict[int, bytes] = {}
        self._merging: Merging | None = None
        self._building = threading.Lock()
        add_bos = vocabulary.add_bos
        if add_bos is None:
            add_bos = self._rules.add_bos if self._rules is not None else True
        self._add_bos = bool(add_bos) and vocabulary.bos_id is not None
        self._add_eos = vocabulary.add_eos and vocabulary.eos_id is not None
        special = [index for index, kind in enumerate(self._types) if kind != TokenType.NORMAL]
        control = self._ids_of(special, _HIDDEN_TYPES)
        control.update({vocabulary.tokens[index]: index for index in vocabulary.markup_ids})
        defined = self._ids_of(special, {TokenType.USER_DEFINED})
        # A guard goes inside a token, so one of a single character cannot be guarded.
        self._template_tokens = SpecialTokens(
            {text: index for text, index in control.items() if len(text) > 1}
        )
        self._defined_tokens = SpecialTokens(defined)
        self._all_special = SpecialTokens(control | defined)

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, Any], *, prepare: bool = True) -> Tokenizer:
        """From a GGUF file's metadata; raises UnsupportedModel or ModelFileError.

        Without `prepare` the tables for encoding, which take the longest, wait for `prepare()` or the first text.
        """
        with _uncollected():
            tokenizer = cls(read_vocabulary(metadata))
        if prepare:
            tokenizer.prepare()
        return tokenizer

    def prepare(self) -> None:
        """Build the tables for encoding now; from any thread. Raises ModelFileError for merges that make no sense."""
        self._tables()

    @property
    def n_vocab(self) -> int:
        return len(self._vocabulary.tokens)

    @property
    def bos_id(self) -> int | None:
        return self._vocabulary.bos_id

    @property
    def eos_id(self) -> int | None:
        return self._vocabulary.eos_id

    @property
    def end_ids(self) -> frozenset[int]:
        """All tokens that end an answer."""
        return self._vocabulary.end_ids

    @property
    def adds_bos(self) -> bool:
        """Whether `add_special` puts the begin-of-text token first."""
        return self._add_bos

    @cached_property
    def digest(self) -> str:
        """sha256, in hex, over everything that decides which ids a text becomes."""
        return self._vocabulary.digest()

    def token_text(self, token_id: int) -> str:
        """The token as the vocabulary writes it (not what it adds to a text: that is `token_bytes`)."""
        return self._vocabulary.tokens[token_id]

    def is_control(self, token_id: int) -> bool:
        """Whether the token stands for no text: begin, end, turn marks, unknown."""
        return self._types[token_id] in _HIDDEN_TYPES

    def check_fits(self, text: str, n_ctx: int) -> None:
        """Raises PromptTooLong for a text that is seen to have `n_ctx` tokens or more without being cut into them.

        Keeps memory and time to what a context's worth of text takes; what passes may still turn out too long.
        """
        if len(text) > EXACT_CHARS and (n_tokens := self.least_tokens(text)) >= n_ctx:
            raise PromptTooLong(n_prompt_tokens=n_tokens, n_ctx=n_ctx, at_least=True)

    def least_tokens(self, text: str) -> int:
        """No encoding of `text` has fewer tokens; takes a hundredth of an encoding's time and memory."""
        plain = text.replace(spm.SPACE, " ") if self._is_spm else text
        return self._bound.of(plain.encode("utf-8", "surrogatepass"))

    def encode(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        """Ids of `text`.

        `add_special` adds begin and end of text where the model wants them; `parse_special` lets control tokens
        written out in the text become those tokens. Raises InvalidRequest for text that is not valid Unicode.
        """
        _check_unicode(text)
        specials = self._all_special if parse_special else self._defined_tokens
        return self._finish(specials.cut(text), add_bos=add_special, add_eos=add_special)

    def encode_guarded(self, text: str, *, guard: str, add_bos: bool) -> list[int]:
        """Ids of `text` without any `guard` in it; control tokens are recognised only where no guard splits them.

        Away from guards the same as `encode` with `parse_special`. `add_bos` puts begin of text first where the
        model wants it.
        """
        _check_unicode(text)
        if guard not in text:
            return self._finish(self._all_special.cut(text), add_bos=add_bos, add_eos=False)
        pieces: list[str | int] = []
        for piece in self._template_tokens.cut(text):
            if isinstance(piece, int):
                pieces.append(piece)
            else:
                pieces.extend(self._defined_tokens.cut(piece.replace(guard, "")))
        return self._finish(pieces, add_bos=add_bos, add_eos=False)

    @property
    def template_tokens(self) -> SpecialTokens:
        """The control tokens that a template may write out, and that what people write must not become."""
        return self._template_tokens

    def decode(self, ids: Iterable[int], *, special: bool = False, continues: bool = False) -> str:
        """Text of `ids`; control tokens are left out unless `special`.

        A tokenizer that puts a space before a text takes it off again, unless the ids continue an earlier text.
        """
        data = b"".join([self.token_bytes(token_id, special=special) for token_id in ids])
        if self._strips_first_space(continues):
            data = data.removeprefix(b" ")
        return data.decode("utf-8", "replace")

    def token_bytes(self, token_id: int, *, special: bool = False) -> bytes:
        """What the token adds to a text; nothing for a control token, unless `special`.

        Raises InvalidRequest for an id outside the vocabulary.
        """
        if not 0 <= token_id < len(self._types):
            raise InvalidRequest(f"token {token_id} is not in the vocabulary of {len(self._types)} tokens")
        if self._types[token_id] in _HIDDEN_TYPES and not special:
            return b""
        known = self._bytes.get(token_id)
        if known is None:
            known = self._bytes[token_id] = self._spell(token_id)
        return known

    def stream_decoder(self, *, special: bool = False, continues: bool = False) -> StreamDecoder:
        """A decoder whose output joined equals `decode` with the same flags."""

        def spell(token_id: int) -> bytes:
            return self.token_bytes(token_id, special=special)

        return StreamDecoder(spell, strip_first_space=self._strips_first_space(continues))

    @cached_property
    def _bound(self) -> LeastTokens:
        spellings = (self._spell(index) for index in range(self.n_vocab))
        if self._is_spm:
            space = spm.SPACE.encode()
            return LeastTokens((spelling.replace(space, b" ") for spelling in spellings), any_character=True)
        return LeastTokens(spellings, lost=bpe.missing_bytes(self._vocabulary))

    def _strips_first_space(self, continues: bool) -> bool:
        return self._vocabulary.add_space_prefix and not continues

    def _ids_of(self, ids: Iterable[int], types: Collection[int]) -> dict[str, int]:
        return {self._vocabulary.tokens[index]: index for index in ids if self._types[index] in types}

    def _tables(self) -> Merging:
        if self._merging is None:
            with self._building, _uncollected():
                if self._merging is None:
                    rules = self._rules
                    self._merging = (
                        spm.build_spm(self._vocabulary)
                        if rules is None
                        else bpe.build_bpe(self._vocabulary, rules)
                    )
        return self._merging

    def _finish(self, pieces: list[str | int], *, add_bos: bool, add_eos: bool) -> list[int]:
        ids: list[int] = []
        if add_bos and self._add_bos and self.bos_id is not None:
            ids.append(self.bos_id)
        texts = self._plain_texts(pieces)
        merging = self._tables()
        encodings = iter(merging.encode_batch_fast(texts, add_special_tokens=False) if texts else ())
        for piece in pieces:
            if isinstance(piece, int):
                ids.append(piece)
            else:
                ids.extend(next(encodings).ids)
        if merging.get_vocab_size() > self.n_vocab:
            # Bytes that the vocabulary lacks.
            ids = [token_id for token_id in ids if token_id < self.n_vocab]
        if add_eos and self._add_eos and self.eos_id is not None:
            ids.append(self.eos_id)
        return ids

    def _plain_texts(self, pieces: list[str | int]) -> list[str]:
        """The pieces to be merged, written as the merging wants them."""
        if not self._is_spm:
            return [piece for piece in pieces if isinstance(piece, str)]
        texts = []
        after_special = True
        for piece in pieces:
            if isinstance(piece, str):
                prefix = spm.SPACE if self._vocabulary.add_space_prefix and after_special else ""
                texts.append(prefix + piece.replace(" ", spm.SPACE))
            after_special = isinstance(piece, int)
        return texts

    def _spell(self, token_id: int) -> bytes:
        text, kind = self._vocabulary.tokens[token_id], self._types[token_id]
        if kind in _HIDDEN_TYPES or kind == TokenType.USER_DEFINED:
            return text.encode("utf-8", "surrogatepass")
        if kind == TokenType.BYTE:
            return _byte_of(text)
        if kind == TokenType.NORMAL:
            return spm.piece_bytes(text) if self._is_spm else bpe.piece_bytes(text)
        return b""  # padding of the vocabulary


def _byte_of(text: str) -> bytes:
    """Of a byte token, written <0xHH>."""
    try:
        return bytes([int(text[3:5], 16)])
    except ValueError:
        return text.encode("utf-8", "surrogatepass")


def _check_unicode(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidRequest(
            f"the text holds half of a surrogate pair at character {error.start}, which is not valid Unicode: "
            "remove it or send the whole character"
        ) from None
