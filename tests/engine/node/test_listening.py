"""Every reason for which an address cannot be listened on has its own words."""

from __future__ import annotations

import errno
import os
import socket

import pytest

from engine.node.listening import listening_fault


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (OSError(socket.EAI_NONAME, "unknown"), "no computer of that name"),
        (socket.gaierror(socket.EAI_AGAIN, "later"), "no computer of that name"),
        (UnicodeError("label too long"), "no computer of that name"),
        (OSError(errno.EADDRINUSE, "taken"), "another program listens on port 80"),
        (OSError(errno.EADDRNOTAVAIL, "whose"), "does not have that address"),
        (OSError(errno.EACCES, "no"), "for the system alone; choose one above 1023"),
        (OSError(errno.ENETDOWN, "down"), os.strerror(errno.ENETDOWN)),
    ],
)
def test_every_reason_is_put_in_words(
    error: Exception, sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def create_server(address: object, family: int) -> None:
        raise error

    monkeypatch.setattr(socket, "create_server", create_server)
    assert sentence in listening_fault("192.0.2.1", 80)


def test_a_free_port_is_left_free() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert "another program" in listening_fault("127.0.0.1", port)
    assert listening_fault("127.0.0.1", port) == listening_fault("127.0.0.1", port) == ""
