"""Messages as a tree: each edit and each new answer is a sibling, and one way through it is shown. Pure functions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from app.chats.model import Message


class Tree:
    """The messages of one conversation. `leaf` ends the way that is shown."""

    def __init__(self, messages: Iterable[Message] = (), leaf: str | None = None) -> None:
        self._messages: dict[str, Message] = {}
        self._children: dict[str | None, list[str]] = {}
        before: str | None = None
        for message in messages:
            if message.parent is not None and message.parent not in self._messages:
                # A damaged file may have lost what was answered: what is left stays one conversation.
                message = replace(message, parent=before)
            self._put(message)
            before = message.id
        self.leaf = leaf if leaf in self._messages else self._newest(None)

    def __getitem__(self, message_id: str) -> Message:
        return self._messages[message_id]

    def __contains__(self, message_id: object) -> bool:
        return message_id in self._messages

    def __len__(self) -> int:
        return len(self._messages)

    def __iter__(self) -> Iterator[Message]:
        return iter(self._messages.values())

    def path(self, to: str | None = None) -> list[Message]:
        """From the first message to `to`, else to the leaf."""
        found: list[Message] = []
        at = to if to is not None else self.leaf
        while at is not None:
            message = self._messages[at]
            found.append(message)
            at = message.parent
        return found[::-1]

    def version(self, message_id: str) -> tuple[int, int]:
        """Which of how many versions a message is, from 1."""
        siblings = self._children[self._messages[message_id].parent]
        return siblings.index(message_id) + 1, len(siblings)

    def sibling(self, message_id: str, step: int) -> str | None:
        """The leaf that shows the version `step` further, None where there is none."""
        siblings = self._children[self._messages[message_id].parent]
        at = siblings.index(message_id) + step
        return self._newest(siblings[at]) if 0 <= at < len(siblings) else None

    def add(self, message: Message) -> None:
        """A new message; it is shown from now on. Its parent has to be there."""
        if message.parent is not None and message.parent not in self._messages:
            raise ValueError("the message answers one that is not there")
        self._put(message)
        self.leaf = message.id

    def change(self, message_id: str, **fields: object) -> Message:
        self._messages[message_id] = changed = replace(self._messages[message_id], **fields)  # type: ignore[arg-type]
        return changed

    def below(self, message_id: str) -> list[str]:
        """The message, and all that answer it or what answers it."""
        found, at = [message_id], 0
        while at < len(found):
            found += self._children.get(found[at], [])
            at += 1
        return found

    def remove(self, message_id: str) -> list[str]:
        """Take a message and all below it out; a sibling is shown then, else the message before. Returns their ids."""
        message, gone = self._messages[message_id], self.below(message_id)
        self._children[message.parent].remove(message_id)
        for one in gone:
            del self._messages[one]
            self._children.pop(one, None)
        if self.leaf in gone:
            self.leaf = self._newest(message.parent)
        return gone

    def _put(self, message: Message) -> None:
        self._messages[message.id] = message
        self._children.setdefault(message.parent, []).append(message.id)

    def _newest(self, under: str | None) -> str | None:
        """The leaf below it by the newest version each time; itself where nothing is below."""
        at = under
        while children := self._children.get(at):
            at = children[-1]
        return at
