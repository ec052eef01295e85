"""The window's own first contact with the local network: only a window's process has macOS ask its user."""

from __future__ import annotations

import contextlib
import socket

# Multicast DNS; an empty packet is ignored by all who get it.
_TO_ALL = ("224.0.0.251", 5353)


def touch_local_network() -> None:
    """Send a packet to all neighbours; whether it was let out is seen by the node, not here."""
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as contact:
        contact.setblocking(False)
        contact.sendto(b"", _TO_ALL)
