"""What the server needs of the rest of the engine, as it sees it. No torch: the engine loop is known by its methods."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from engine.batching.journal import Journal
from engine.batching.pulse import Pulse
from engine.batching.request import Request
from engine.batching.snapshot import LoopSnapshot


class Engine(Protocol):
    """The engine loop. No method blocks."""

    @property
    def n_ctx(self) -> int: ...

    @property
    def n_slots(self) -> int: ...

    @property
    def is_alive(self) -> bool: ...

    @property
    def pulse(self) -> Pulse: ...

    @property
    def journal(self) -> Journal: ...

    def submit(self, request: Request) -> None: ...

    def cancel(self, request_id: str) -> None: ...

    def snapshot(self) -> LoopSnapshot: ...


class Tokenizer(Protocol):
    """Text to ids and back."""

    @property
    def n_vocab(self) -> int: ...

    @property
    def end_ids(self) -> frozenset[int]: ...

    def check_fits(self, text: str, n_ctx: int) -> None: ...

    def encode(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]: ...

    def decode(self, ids: Sequence[int], *, special: bool = False) -> str: ...

    def token_bytes(self, token_id: int, *, special: bool = False) -> bytes: ...


class ChatTemplate(Protocol):
    """A model's chat template: messages to the ids of a prompt. Raises InvalidRequest or PromptTooLong."""

    def encode(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        variables: Mapping[str, Any] | None = None,
        n_ctx: int | None = None,
        continue_final_message: bool = False,
    ) -> list[int]: ...


@dataclass(frozen=True, kw_only=True)
class ModelInfo:
    """What the model list says of the loaded model; sizes in bytes, `created` in seconds since the epoch."""

    model_id: str
    created: int
    n_ctx_train: int
    n_vocab: int
    n_params: int | None = None
    size_bytes: int | None = None


@dataclass(frozen=True, kw_only=True)
class Backend:
    """All that answers a request. `template` is None for a model that has none: it can only complete."""

    engine: Engine
    tokenizer: Tokenizer
    template: ChatTemplate | None
    model: ModelInfo
