"""Starts a node that outlives the window. Knows nothing of Qt."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence

from app.node.faults import NodeGone


def start_node(command: Sequence[str]) -> None:
    """Start `command node`, in a session of its own: a closed window stops no answer. Raises NodeGone."""
    words = [*command, "node", "--json"]
    options: dict[str, object] = {"start_new_session": True}
    if sys.platform == "win32":
        options = {"creationflags": subprocess.CREATE_NO_WINDOW | subprocess.CREATE_NEW_PROCESS_GROUP}
    try:
        subprocess.Popen(  # type: ignore[call-overload]
            words,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            **options,
        )
    except OSError as error:
        raise NodeGone(f"Baton could not start its node: {error.strerror or error}.") from error
