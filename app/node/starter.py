"""Starts a node that outlives the window, and knows why one ended before it was there. Knows nothing of Qt."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from typing import IO

from app.node.faults import NodeGone
from app.words import translate

# Of what a command says at its end, which is a sentence.
_MAX_SAID_BYTES = 4096


@contextlib.contextmanager
def start_node(command: Sequence[str]) -> Iterator[Callable[[], str]]:
    """Start `command node`, in a session of its own: a closed window stops no answer. Raises NodeGone.

    Gives what tells why it has ended: "" while it runs. The node runs on when this is left.
    """
    words = [*command, "node", "--json"]
    options: dict[str, object] = {"start_new_session": True}
    if sys.platform == "win32":
        options = {"creationflags": subprocess.CREATE_NO_WINDOW | subprocess.CREATE_NEW_PROCESS_GROUP}
    # A pipe would break when the window closes.
    with tempfile.TemporaryFile() as said:
        try:
            process = subprocess.Popen(  # type: ignore[call-overload]
                words,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=said,
                **options,
            )
        except OSError as error:
            raise NodeGone(
                translate("Node", "Baton could not start its node: {}.").format(error.strerror or error)
            ) from error
        yield lambda: "" if process.poll() is None else _last_words(said, process.returncode)


def _last_words(said: IO[bytes], status: int) -> str:
    """What a command of Baton's own says when it ends by itself, without its name before it."""
    said.seek(max(0, said.seek(0, 2) - _MAX_SAID_BYTES))
    lines = said.read().decode("utf-8", "replace").strip().splitlines()
    if not lines:
        return translate("Node", "it ended with status {}").format(status)
    return lines[-1].removeprefix("baton: ")
