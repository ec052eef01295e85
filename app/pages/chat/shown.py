"""Messages as the transcript is told of them. Knows no Qt."""

from __future__ import annotations

from app.chats.model import File, Message
from app.chats.tree import Tree
from app.pages.chat.transcript.model import Shown, ShownFile


def shown_of(tree: Tree, message: Message, *, live: str | None = None) -> Shown:
    """`live` is the message that is being answered just now."""
    return Shown(
        id=message.id,
        role=message.role,
        text=message.text,
        reasoning=message.reasoning,
        reasoning_s=message.reasoning_s,
        note=message.note,
        attachments=tuple(_shown_file(file) for file in message.files),
        branch=tree.version(message.id),
        stats=message.stats,
        is_live=message.id == live,
    )


def _shown_file(file: File) -> ShownFile:
    return ShownFile(name=file.name, n_tokens=file.n_tokens)
