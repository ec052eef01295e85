"""What can go wrong with what is kept of chats, as sentences a user can act on.

ChatsError
├── ChatsBusy         the disk is full, or another program has the file: later it may go
├── ChatsUnreadable   the file is of a newer Baton, or may not be read
└── BadFile           a file that was to be imported or attached is not what it should be
"""

from __future__ import annotations

from app.node.faults import AppError


class ChatsError(AppError):
    """The chats' file could not be read or written just now; what was there is there still."""


class ChatsBusy(ChatsError):
    """Nothing can be kept just now; the same may be kept later."""


class ChatsUnreadable(ChatsError):
    """The chats' file cannot be opened, and it is not broken: it is left as it is."""


class BadFile(ChatsError):
    """A file that the user gave cannot be used."""
