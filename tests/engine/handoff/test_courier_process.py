"""An engine's courier as its engine sees it, while it starts."""

from __future__ import annotations

import os
import queue
import sys
import threading
from pathlib import Path

import pytest

from engine.handoff import channel as ch
from engine.handoff import courier_process
from engine.handoff.courier_process import CourierProcess
from engine.handoff.shared import SharedMemory
from engine.wire.messages import Role
from tests.engine.handoff.pairs import TIMEOUT_S, courier_config

pytestmark = pytest.mark.skipif(
    sys.platform == "win32", reason="no named pipes, and no descriptors to inherit"
)

# In place of a courier: says something when somebody opens the pipe, and ends.
SLOW = """
import json, socket, sys
config = json.loads(sys.stdin.readline())
open(sys.argv[1]).read()
from engine.handoff import channel as ch
ch.Channel(socket.socket(fileno=config["channel_descriptor"])).send(ch.Listening(port=7118))
"""


def test_one_that_takes_long_to_start_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script, gate = tmp_path / "courier.py", tmp_path / "gate"
    script.write_text(SLOW)
    os.mkfifo(gate)
    monkeypatch.setattr(courier_process, "own_command", lambda: [sys.executable, str(script), str(gate)])
    monkeypatch.setattr(ch, "_SILENCE_SLICE_S", 0.01)
    monkeypatch.setattr(ch, "SILENCE_S", 0.05)
    waited = threading.Event()
    wait_readable = ch.Channel._wait_readable

    def watched(channel: ch.Channel, silence_s: float) -> bool:
        found = wait_readable(channel, silence_s)
        if channel._silent_s > 4 * ch.SILENCE_S:
            waited.set()
        return found

    monkeypatch.setattr(ch.Channel, "_wait_readable", watched)
    told: queue.Queue[object] = queue.Queue()
    memory = SharedMemory.create(4096)
    config = courier_config(Role.PREFILL, tmp_path, "0" * 64)
    courier = CourierProcess(config, memory, on_message=told.put, on_gone=told.put)
    courier.start()
    try:
        assert waited.wait(TIMEOUT_S)
        gate.write_text("")
        assert told.get(timeout=TIMEOUT_S) == ch.Listening(port=7118)
    finally:
        courier.close()
        memory.close_descriptor()
