"""`baton serve`: what it says, and what it does on a computer that lacks something."""

from __future__ import annotations

import json
import os
import socket
import subprocess
from pathlib import Path

import pytest

from engine.paths import own_command

TIMEOUT_S = 60.0


@pytest.fixture
def no_settings(tmp_path: Path, smollm2_path: Path) -> dict[str, str]:
    """An environment in which neither settings nor a cache can be written, and the model is there."""
    (tmp_path / "file").write_text("in the place of a folder")
    folder = str(tmp_path / "file")
    return {
        **os.environ,
        "HOME": folder,
        "XDG_CONFIG_HOME": folder,
        "XDG_CACHE_HOME": folder,
        "BATON_MODELS": str(smollm2_path.parent),
    }


def serve(*words: str, env: dict[str, str]) -> subprocess.Popen[str]:
    small = ["--port", "0", "--threads", "1", "--slots", "1", "--ctx", "256"]
    return subprocess.Popen(
        [*own_command(), "serve", "--json", "--exit-with-stdin", *small, *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=env,
    )


def test_without_a_worker_no_settings_folder_is_needed(no_settings: dict[str, str]) -> None:
    with serve(env=no_settings) as process:
        assert process.stdout is not None
        ready = process.stdout.readline()
        _, errors = process.communicate(timeout=TIMEOUT_S)
    assert ready, errors
    assert json.loads(ready)["ready"] is True
    assert json.loads(ready)["fingerprint"] is None
    assert "no worker can be joined" in errors
    assert "Traceback" not in errors


def test_with_a_worker_the_settings_folder_is_needed_and_named(no_settings: dict[str, str]) -> None:
    with serve("--peer", "127.0.0.1:1", "--trust", "ab" * 32, env=no_settings) as process:
        assert process.stderr is not None
        errors = process.stderr.read()
        out, _ = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 1
    assert out == ""
    assert "baton: this computer's identity in" in errors
    assert "Traceback" not in errors


def test_a_free_port_for_the_worker_to_call_is_told(tmp_path: Path, smollm2_path: Path) -> None:
    env = {**os.environ, "BATON_MODELS": str(smollm2_path.parent)}
    words = ["--listen", "127.0.0.1:0", "--trust", "ab" * 32, "--identity", str(tmp_path)]
    with serve(*words, env=env) as process:
        assert process.stdout is not None
        ready = json.loads(process.stdout.readline())
        with socket.create_connection(("127.0.0.1", ready["listen_port"]), TIMEOUT_S):
            process.communicate(timeout=TIMEOUT_S)
