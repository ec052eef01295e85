"""The one node of this user on this computer: who has the place, where it answers, and with what token.

A lock is held for as long as a node runs; the note beside it is void without.
"""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from engine.errors import HostError, UserError
from engine.files import write_whole
from engine.paths import node_dir

if TYPE_CHECKING:
    from filelock import BaseFileLock

_NOTE = "node.json"
_LOCK = "node.lock"

_LOOK_EVERY_S = 0.05

# Whoever looks for a node holds its lock for a moment, if nobody else does.
_TAKE_WITHIN_S = 0.2


class NodeNote(msgspec.Struct, frozen=True, kw_only=True):
    """Where the running node is: its control API's port and token, the endpoint's address, its process."""

    pid: int
    port: int
    token: str
    endpoint: str
    started_at: float


class AnotherNode(UserError):
    """A node runs here already."""


class NoNode(UserError):
    """No node runs here."""


class Place:
    """The node's place; `take` it before anything is opened, `tell` where the node is, `leave` at the end."""

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder or node_dir()
        self._lock = _lock_of(self._folder)

    @property
    def _note(self) -> Path:
        return self._folder / _NOTE

    def take(self) -> None:
        """Raises AnotherNode, which names the one that runs, or HostError."""
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._lock.acquire(timeout=_TAKE_WITHIN_S, poll_interval=_LOOK_EVERY_S)
            self._note.unlink(missing_ok=True)
        except TimeoutError:  # an OSError, too
            raise AnotherNode(self._who()) from None
        except OSError as error:
            raise self._fault(error) from error

    def tell(self, *, port: int, token: str, endpoint: str) -> None:
        """Let others of this user find the node, and know the token that its control API wants. Raises HostError."""
        note = NodeNote(pid=os.getpid(), port=port, token=token, endpoint=endpoint, started_at=time.time())
        try:
            write_whole(self._note, msgspec.json.encode(note))
        except OSError as error:
            raise self._fault(error) from error

    def leave(self) -> None:
        with contextlib.suppress(OSError):
            self._note.unlink(missing_ok=True)
        self._lock.release()

    def wait_until_free(self, timeout_s: float) -> bool:
        """Wait for the end of the node that has the place; whether it came in time."""
        try:
            self._lock.acquire(timeout=timeout_s, poll_interval=_LOOK_EVERY_S)
        except TimeoutError:
            return False
        self._lock.release()
        return True

    def _who(self) -> str:
        with contextlib.suppress(OSError, msgspec.MsgspecError):
            note = msgspec.json.decode(self._note.read_bytes(), type=NodeNote)
            since = time.strftime("%H:%M on %d %B", time.localtime(note.started_at))
            return (
                f"a node runs here already: process {note.pid}, since {since}, with the endpoint at {note.endpoint}. "
                "Look at it with `baton status`, or end it with `baton node --stop`"
            )
        return "a node is just being started here: look at it with `baton status`"

    def _fault(self, error: OSError) -> HostError:
        return HostError(
            f"{self._folder} cannot be written ({error.strerror or error}): check who owns the folder and whether its "
            "disk is full"
        )


def find_node(folder: Path | None = None) -> NodeNote:
    """The note of the node that runs. Raises NoNode."""
    folder = folder or node_dir()
    try:
        note = msgspec.json.decode((folder / _NOTE).read_bytes(), type=NodeNote)
    except (OSError, msgspec.MsgspecError):
        raise _no_node() from None
    if _is_free(folder):
        raise _no_node()
    return note


def _lock_of(folder: Path) -> BaseFileLock:
    # The window, which is to be there at once, looks for a node after it has been painted.
    from filelock import FileLock

    return FileLock(folder / _LOCK, mode=0o600)


def _no_node() -> NoNode:
    return NoNode("no node runs on this computer: start one with `baton node`")


def _is_free(folder: Path) -> bool:
    """Whether no node has the place. At the port of one that was killed another user may listen by now, for a code."""
    lock = _lock_of(folder)
    try:
        lock.acquire(timeout=0)
    except OSError:  # a timeout is one, too
        return False
    lock.release()
    return True
