"""What a chat is made of: conversations, and messages in versions. Knows nothing of Qt and of how it is kept."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field, fields, replace
from typing import Any, TypeGuard

from app.pages.chat.transcript.model import Role, Stats


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """How words are chosen; None leaves a value to the engine. `max_tokens` bounds one answer."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repeat_penalty: float | None = None
    max_tokens: int | None = None
    seed: int | None = None

    def wishes(self) -> dict[str, float | int]:
        """What was chosen, by the names of the endpoint."""
        values = {part.name: getattr(self, part.name) for part in fields(self)}
        return {name: value for name, value in values.items() if value is not None}


@dataclass(frozen=True, kw_only=True)
class File:
    """An attached file as the text in it. `n_tokens` is None where it was not counted yet."""

    id: str
    name: str
    text: str
    n_bytes: int
    n_tokens: int | None = None


@dataclass(frozen=True, kw_only=True)
class Message:
    """One version of one message. `parent` is what it answers, None for the first; `note` is why it ended early."""

    id: str
    parent: str | None
    role: Role
    text: str
    created: float
    reasoning: str = ""
    reasoning_s: float | None = None
    note: str = ""
    model: str = ""
    files: tuple[File, ...] = ()
    stats: Stats | None = None


@dataclass(frozen=True, kw_only=True)
class Conversation:
    """`leaf` is the last message of the version that is shown, None before the first. Times are seconds of the epoch.

    `is_named` says that the user chose the title. `draft` and `draft_files` were not sent yet.
    """

    id: str
    created: float
    updated: float
    title: str = ""
    is_named: bool = False
    pinned: bool = False
    system: str = ""
    sampling: Sampling = field(default_factory=Sampling)
    model: str = ""
    leaf: str | None = None
    draft: str = ""
    draft_files: tuple[File, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Chat:
    """A conversation with all of its messages, in the order in which they were made."""

    conversation: Conversation
    messages: tuple[Message, ...]


@dataclass(frozen=True, kw_only=True)
class Listed:
    """What a list of many conversations needs of each."""

    id: str
    title: str
    pinned: bool
    updated: float


@dataclass(frozen=True, kw_only=True)
class Found:
    """A conversation that a search found. `snippet` is a piece of it, its hits between MARK_BEGIN and MARK_END."""

    id: str
    title: str
    pinned: bool
    updated: float
    snippet: str = ""


@dataclass(frozen=True, kw_only=True)
class Preset:
    """A system prompt under a name."""

    name: str
    system: str


# Around each hit in a snippet: no text of a person holds them.
MARK_BEGIN, MARK_END = "\x02", "\x03"


# Of what a file may say: SQLite's integers end not far above. A NaN is not below it either.
MAX_NUMBER = 2.0**62


def new_id() -> str:
    return uuid.uuid4().hex


def whole(value: Any) -> Any:
    """A text that can be written as UTF-8: halves of surrogate pairs are joined, and a lone one is "�"."""
    if not isinstance(value, str) or value.isascii():
        return value
    return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def renewed(chat: Chat) -> Chat:
    """The same with other ids, for one that comes in beside itself."""
    ids: dict[str | None, str | None] = {message.id: new_id() for message in chat.messages}
    ids[None] = None

    def own(files: tuple[File, ...]) -> tuple[File, ...]:
        return tuple(replace(file, id=new_id()) for file in files)

    conversation = replace(
        chat.conversation,
        id=new_id(),
        leaf=ids[chat.conversation.leaf],
        draft_files=own(chat.conversation.draft_files),
    )
    messages = tuple(
        replace(message, id=ids[message.id] or "", parent=ids[message.parent], files=own(message.files))
        for message in chat.messages
    )
    return Chat(conversation=conversation, messages=messages)


def stats_from(told: Any) -> Stats | None:
    """Stats as they were kept; what is of another kind, or none of them, is left out. None of what is no Stats."""
    if not isinstance(told, dict):
        return None
    fitting = {
        part.name: value
        for part in fields(Stats)
        if (value := told.get(part.name)) is not None and _fits(value, part.default)
    }
    return Stats(**fitting)


def sampling_from(told: Any) -> Sampling:
    """Sampling as it was kept; what is no number is as not chosen."""
    if not isinstance(told, dict):
        return Sampling()
    chosen: dict[str, Any] = {}
    for part in fields(Sampling):
        value = told.get(part.name)
        if _is_number(value):
            chosen[part.name] = int(value) if part.name in ("top_k", "max_tokens", "seed") else float(value)
    return Sampling(**chosen)


def _fits(value: Any, default: Any) -> bool:
    """Numbers, which alone are None by default, are numbers; all else is of the default's kind."""
    return _is_number(value) if default is None else isinstance(value, type(default))


def _is_number(value: Any) -> TypeGuard[int | float]:
    """One that can be computed with and kept, which neither infinity nor a number of 100 digits can."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= MAX_NUMBER
