"""What commands are told of a node that does not answer."""

from __future__ import annotations

import socket

import pytest

from engine.errors import HostError
from engine.node import client
from engine.node.client import NodeClient


def test_a_node_that_hangs_keeps_nobody_who_ends_it_waiting_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "_TIMEOUT_S", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        node = NodeClient(silent.getsockname()[1], "token", pid=4711)
        with pytest.raises(
            HostError, match=r"process 4711\) does not answer: if it stays so, end that process"
        ):
            node.stop()
