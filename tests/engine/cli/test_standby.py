"""`baton standby` as the node uses it: with its imports done it becomes the engine that its first line names."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import httpx
import pytest

from engine.paths import own_command


@pytest.fixture
def standby() -> subprocess.Popen[bytes]:
    process = subprocess.Popen(
        [*own_command(), "standby"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    yield process
    process.kill()
    process.wait()
    for stream in (process.stdin, process.stdout, process.stderr):
        stream.close()


@pytest.mark.usefixtures("cold_starts")
def test_it_becomes_the_engine_that_is_ordered(standby: subprocess.Popen[bytes], smollm2_path: Path) -> None:
    words = [
        "serve",
        "--model",
        str(smollm2_path),
        "--port",
        "0",
        "--ctx",
        "256",
        "--slots",
        "1",
        "--peer",
        "-",
    ]
    order = {"words": [*words, "--json", "--exit-with-stdin"], "environment": {"BATON_API_KEY": "its-key"}}
    # What follows the order at once is the engine's: here, that it has no worker.
    standby.stdin.write(json.dumps(order).encode() + b"\n{}\n")
    standby.stdin.flush()
    ready = json.loads(standby.stdout.readline())
    url = f"http://127.0.0.1:{ready['port']}/v1/models"
    assert httpx.get(url).status_code == 401
    assert httpx.get(url, headers={"Authorization": "Bearer its-key"}).status_code == 200
    standby.stdin.close()
    assert standby.wait(60) in (0, 143)


def test_it_ends_when_it_is_not_needed(standby: subprocess.Popen[bytes]) -> None:
    standby.stdin.close()
    assert standby.wait(60) == 0
    assert (standby.stdout.read(), standby.stderr.read()) == (b"", b"")


def test_what_it_becomes_may_be_wrong_like_any_command(standby: subprocess.Popen[bytes]) -> None:
    words = ["serve", "--model", os.devnull + "/none.gguf"]
    _, err = standby.communicate(json.dumps({"words": words}).encode() + b"\n", timeout=60)
    assert standby.returncode == 2 and err.startswith(b"baton: ") and b"none.gguf" in err
