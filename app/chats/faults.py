"""What can go wrong with what is kept of chats, as sentences a user can act on.

ChatsError
├── ChatsUnreadable   the file is of a newer Baton, or may not be read
└── BadFile           a file that was to be imported or attached is not what it should be
"""

from __future__ import annotations

from app.node.faults import AppError


class ChatsError(AppError):
    """The chats' file could not be read or written just now; what was there is there still."""


class ChatsUnreadable(ChatsError):
    """The chats' file cannot be opened, and it is not broken: it is left as it is."""


class BadFile(ChatsError):
    """A file that the user gave cannot be used."""
