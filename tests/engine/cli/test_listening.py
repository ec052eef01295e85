"""`--listen` where this computer cannot: one message and one status, before a model is even looked for."""

from __future__ import annotations

import socket

import pytest

from engine.cli import worker
from engine.cli.main import main

TRUST = ["--trust", "0" * 64]

# Set aside for documentation: no computer has it.
NOT_OURS = "192.0.2.1:7118"


def refused(command: str, *words: str) -> int:
    return main([command, "--model", "/no/such/model.gguf", *words, *TRUST])


@pytest.mark.parametrize("command", ["serve", "worker"])
def test_a_port_that_is_taken_is_one_message(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert refused(command, "--listen", f"127.0.0.1:{port}") == 2
    assert capsys.readouterr().err == (
        f"baton: --listen 127.0.0.1:{port}: another program listens on port {port}; end it, or choose another port\n"
    )


@pytest.mark.parametrize("command", ["serve", "worker"])
def test_another_computers_address_is_one_message(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert refused(command, "--listen", NOT_OURS) == 2
    assert capsys.readouterr().err == (
        f"baton: --listen {NOT_OURS}: this computer does not have that address; "
        "0.0.0.0 stands for every one it has\n"
    )


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ([], "--listen 0.0.0.0:7118 waits for the other one's call, --dial 192.168.1.20:7118 calls it"),
        (["--listen", "127.0.0.1:0", "--dial", "127.0.0.1:7118"], "--listen and --dial exclude each other"),
    ],
)
def test_a_worker_either_waits_or_calls(
    words: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert refused("worker", *words) == 2
    assert sentence in capsys.readouterr().err


def test_nothing_is_said_of_the_other_computer_before_the_worker_is_ready() -> None:
    said: list[str] = []
    link = worker.UntilReady(said.append)
    link.say("it is not there")
    assert said == []
    link.begin()
    link.say("")
    assert said == ["it is not there", ""]
