"""A running engine that is told of another worker, of one that will call, and of none, by its standard input."""

from __future__ import annotations

import sys
from pathlib import Path

import httpx
import pytest

from engine.cli.children import Child, ended_together
from engine.handoff.target import Target
from engine.node.trust.identity import Identity
from tests.engine.models.tiny import write_tiny

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="engines share no memory there")

TIMEOUT_S = 60.0
PROMPT = "The runner who hands over the baton is already tired, and the one who takes it is fresh. " * 6


def test_a_worker_comes_goes_and_comes_by_its_own_call(tmp_path: Path) -> None:
    model = write_tiny("qwen2", tmp_path / "tiny.gguf")
    worker_id = Identity.load_or_create(tmp_path / "worker").fingerprint
    decoder_id = Identity.load_or_create(tmp_path / "decoder").fingerprint
    common = ["--model", str(model), "--ctx", "1024", "--slots", "1"]
    worker_words = ["worker", "--identity", str(tmp_path / "worker"), "--trust", decoder_id, *common]
    decoder_words = ["serve", "--port", "0", "--identity", str(tmp_path / "decoder"), "--peer", "-", *common]
    with Child("decoder", decoder_words, tmp_path / "decoder.log") as decoder:
        decoder.tell(Target().line())
        url = f"http://127.0.0.1:{decoder.wait_for('ready', timeout_s=TIMEOUT_S)['port']}"
        alone = answer(url)
        assert alone[1:] == ("local", "no_worker")

        listening = [*worker_words, "--listen", "127.0.0.1:0"]
        with Child("worker", listening, tmp_path / "worker.log") as worker, ended_together(worker):
            port = worker.wait_for("ready", timeout_s=TIMEOUT_S)["port"]
            decoder.tell("{this is no target")
            decoder.tell(Target(dial=f"127.0.0.1:{port}", trust=worker_id).line())
            decoder.wait_for("worker", timeout_s=TIMEOUT_S)
            assert answer(url)[:2] == (alone[0], "remote")

            decoder.tell(Target().line())
            assert decoder.wait_for("note", timeout_s=TIMEOUT_S)["note"] == "there is no worker"
            assert answer(url) == (alone[0], "local", "no_worker")

        decoder.tell(Target(listen="127.0.0.1:0", trust=worker_id).line())
        port = decoder.wait_for("listen_port", timeout_s=TIMEOUT_S)["listen_port"]
        calling = [*worker_words, "--dial", f"127.0.0.1:{port}"]
        with Child("worker", calling, tmp_path / "worker.log") as worker:
            worker.wait_for("ready", timeout_s=TIMEOUT_S)
            decoder.wait_for("worker", timeout_s=TIMEOUT_S)
            assert answer(url)[:2] == (alone[0], "remote")


def answer(url: str) -> tuple[list[int], str, str]:
    """The answer's tokens, where the prompt was prefilled, and why."""
    body = {
        "prompt": PROMPT,
        "max_tokens": 8,
        "temperature": 0,
        "return_tokens": True,
        "cache_prompt": False,
        "prefill": "remote",
    }
    found = httpx.post(f"{url}/v1/completions", json=body, timeout=TIMEOUT_S).raise_for_status().json()
    handoff = found["timings"]["handoff"]
    return found["tokens"], handoff["prefill"], handoff["reason"]
