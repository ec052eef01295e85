"""Chats as files: JSON, which comes back exactly, and Markdown, to read. Knows no Qt.

    {"format": "baton-chats", "version": 1, "conversations": [{..., "messages": [{..., "files": [...]}]}]}

What others write as a list of OpenAI messages, by itself or under "messages", is taken as one conversation.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Any

from app.amounts import size_text
from app.chats.faults import BadFile
from app.chats.model import (
    MAX_NUMBER,
    Chat,
    Conversation,
    File,
    Message,
    new_id,
    sampling_from,
    stats_from,
    whole,
)
from app.chats.titles import title_of
from app.chats.tree import Tree
from app.pages.chat.transcript.words import note_line
from app.words import translate

FORMAT, VERSION = "baton-chats", 1

MAX_IMPORT_BYTES = 512 * 1024 * 1024

_ROLES = {"user": "user", "assistant": "assistant", "system": "system", "developer": "system"}


def to_json(chats: Iterable[Chat]) -> str:
    """All versions, files, settings and drafts of them."""
    told = [
        {**asdict(chat.conversation), "messages": [asdict(message) for message in chat.messages]}
        for chat in chats
    ]
    return json.dumps(
        {"format": FORMAT, "version": VERSION, "conversations": told}, indent=1, ensure_ascii=False
    )


def from_json(text: str, name: str, *, clock: Callable[[], float] = time.time) -> list[Chat]:
    """The conversations in a file of that name, with the ids that they had. Raises BadFile."""
    try:
        told = json.loads(text)
    except json.JSONDecodeError as error:
        words = translate(
            "Import", "{0} is no JSON file, or not a whole one: line {1} breaks off or is wrong."
        )
        raise BadFile(words.format(name, f"{error.lineno:,}")) from None
    except (ValueError, RecursionError):
        words = translate("Import", "{} is no JSON file that chats could be in.")
        raise BadFile(words.format(name)) from None
    try:
        chats = _chats_in(told, name, clock())
    except KeyError as error:
        words = translate("Import", "{0} looks like exported chats, but a part is missing: “{1}”.")
        raise BadFile(words.format(name, error.args[0])) from None
    except (AttributeError, TypeError):
        words = translate("Import", "{} looks like exported chats, but a part is not what it should be.")
        raise BadFile(words.format(name)) from None
    except (ValueError, OverflowError) as error:
        words = translate("Import", "{0} looks like exported chats, but a part is wrong: {1}.")
        raise BadFile(words.format(name, error)) from None
    if not chats:
        raise BadFile(translate("Import", "There is no conversation in {}.").format(name))
    return chats


def read_export(path: Path) -> str:
    """A file's text. Raises BadFile."""
    try:
        if path.stat().st_size > MAX_IMPORT_BYTES:
            raise BadFile(
                translate("Import", "{0} has {1}, more than chats ever have.").format(
                    path.name, size_text(path.stat().st_size)
                )
            )
        return path.read_text("utf-8-sig")
    except OSError as error:
        raise BadFile(
            translate("Import", "{0} cannot be read: {1}.").format(path.name, error.strerror)
        ) from error
    except UnicodeDecodeError:
        raise BadFile(
            translate("Import", "{} is not a JSON file: it is no text.").format(path.name)
        ) from None


def to_markdown(chats: Iterable[Chat]) -> str:
    """The version that is shown of each, to read and to print."""
    return "\n\n---\n\n".join(_markdown(chat) for chat in chats) + "\n"


def _markdown(chat: Chat) -> str:
    conversation = chat.conversation
    title, thought = conversation.title or translate("Export", "Conversation"), translate("Export", "Thought")
    attached = translate("Export", "Attached: {}")
    parts = [f"# {title}", f"*{_day(conversation.updated)}*"]
    if conversation.system.strip():
        parts.append("\n".join(f"> {line}" for line in conversation.system.strip().splitlines()))
    for message in Tree(chat.messages, conversation.leaf).path():
        parts.append(f"## {_speaker(message)}")
        parts += [f"*{attached.format(file.name)}*" for file in message.files]
        if message.reasoning:
            parts.append(f"<details><summary>{thought}</summary>\n\n{message.reasoning}\n\n</details>")
        if message.text:
            parts.append(message.text)
        if message.note:
            parts.append(f"*{note_line(message.note)}*")
    return "\n\n".join(parts)


def _speaker(message: Message) -> str:
    if message.role == "assistant":
        return message.model or translate("Export", "Assistant")
    return translate("Export", "You") if message.role == "user" else translate("Export", "System")


def _day(moment: float) -> str:
    return datetime.fromtimestamp(moment).strftime("%Y-%m-%d %H:%M")


def _chats_in(told: Any, name: str, now: float) -> list[Chat]:
    if isinstance(told, dict) and told.get("format") == FORMAT:
        if told["version"] > VERSION:
            raise BadFile(
                translate("Import", "{} was written by a newer Baton. Update Baton to import it.").format(
                    name
                )
            )
        return [_chat(one) for one in told["conversations"]]
    if isinstance(told, dict) and isinstance(told.get("messages"), list):
        return [_foreign(told["messages"], told.get("title"), name, now)]
    if isinstance(told, list) and told and all(isinstance(one, dict) for one in told):
        if all("role" in one for one in told):
            return [_foreign(told, None, name, now)]
        if all(isinstance(one.get("messages"), list) for one in told):
            return [_foreign(one["messages"], one.get("title"), name, now) for one in told]
    raise BadFile(
        translate(
            "Import",
            "{} holds no chats: neither an export of Baton nor a list of messages with a role and a content.",
        ).format(name)
    )


def _chat(told: dict[str, Any]) -> Chat:
    messages = tuple(_message(one) for one in told["messages"])
    known: set[str] = set()
    for message in messages:
        if message.id in known or (message.parent is not None and message.parent not in known):
            raise ValueError(
                translate("Import", "a message answers one that is not there, or is there twice")
            )
        known.add(message.id)
    leaf = told["leaf"]
    if leaf is not None and leaf not in known:
        raise ValueError(translate("Import", "the message that is shown is not there"))
    conversation = Conversation(
        id=_text(told, "id"),
        created=_moment(told["created"]),
        updated=_moment(told["updated"]),
        title=_text(told, "title"),
        is_named=bool(told["is_named"]),
        pinned=bool(told["pinned"]),
        system=_text(told, "system"),
        sampling=sampling_from(told["sampling"]),
        model=_text(told, "model"),
        leaf=leaf,
        draft=_text(told, "draft"),
        draft_files=tuple(_file(one) for one in told["draft_files"]),
    )
    return Chat(conversation=conversation, messages=messages)


def _message(told: dict[str, Any]) -> Message:
    parent, seconds = told["parent"], told["reasoning_s"]
    if told["role"] not in ("user", "assistant", "system"):
        raise ValueError(translate("Import", "{} is no role").format(repr(told["role"])))
    return Message(
        id=_text(told, "id"),
        parent=None if parent is None else _text(told, "parent"),
        role=told["role"],
        text=_text(told, "text"),
        created=_moment(told["created"]),
        reasoning=_text(told, "reasoning"),
        reasoning_s=None if seconds is None else _number(seconds),
        note=_text(told, "note"),
        model=_text(told, "model"),
        files=tuple(_file(one) for one in told["files"]),
        stats=stats_from(told["stats"]),
    )


def _file(told: dict[str, Any]) -> File:
    n_tokens = told["n_tokens"]
    return File(
        id=_text(told, "id"),
        name=_text(told, "name"),
        text=_text(told, "text"),
        n_bytes=int(_number(told["n_bytes"])),
        n_tokens=None if n_tokens is None else int(_number(n_tokens)),
    )


def _text(told: dict[str, Any], name: str) -> str:
    value = told[name]
    if not isinstance(value, str):
        raise ValueError(translate("Import", "{} is not a text").format(name))
    return str(whole(value))


def _number(value: Any) -> float:
    number = float(value)
    if not abs(number) <= MAX_NUMBER:
        raise ValueError(translate("Import", "{} is out of range").format(number))
    return number


def _moment(value: Any) -> float:
    """Seconds since 1970, of a day that has a date."""
    moment = _number(value)
    try:
        datetime.fromtimestamp(moment)
    except (OverflowError, OSError):
        raise ValueError(translate("Import", "{} is no moment").format(moment)) from None
    return moment


def _foreign(told: Sequence[Any], title: Any, name: str, now: float) -> Chat:
    """A list of messages as OpenAI's API has it; leading system messages are the system prompt."""
    system: list[str] = []
    messages: list[Message] = []
    for one in told:
        role = _ROLES.get(str(one.get("role"))) if isinstance(one, dict) else None
        text = _content(one.get("content")) if isinstance(one, dict) else ""
        if role is None or not text:
            continue
        if role == "system" and not messages:
            system.append(text)
            continue
        parent = messages[-1].id if messages else None
        reasoning = one.get("reasoning_content")
        messages.append(
            Message(
                id=new_id(),
                parent=parent,
                role=role,  # type: ignore[arg-type]
                text=text,
                created=now,
                reasoning=whole(reasoning) if isinstance(reasoning, str) else "",
            )
        )
    if not messages:
        raise BadFile(translate("Import", "There is no message with a text in {}.").format(name))
    first = next((message.text for message in messages if message.role == "user"), messages[0].text)
    conversation = Conversation(
        id=new_id(),
        created=now,
        updated=now,
        title=whole(title) if isinstance(title, str) and title else title_of(first),
        is_named=isinstance(title, str) and bool(title),
        system="\n\n".join(system),
        leaf=messages[-1].id,
    )
    return Chat(conversation=conversation, messages=tuple(messages))


def _content(content: Any) -> str:
    if isinstance(content, str):
        return str(whole(content))
    if isinstance(content, list):
        texts = [
            part.get("text") for part in content if isinstance(part, dict) and part.get("type") == "text"
        ]
        return "\n".join(whole(text) for text in texts if isinstance(text, str))
    return ""
