"""A worker and a decode engine as processes of their own, a real model, and four prompts at the same time."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from engine.cli.children import Child, ended_together
from engine.handoff.target import Target
from engine.node.endpoint import Endpoint
from engine.node.trust.identity import Identity

TIMEOUT_S = 120.0
LENGTHS = (175, 9, 66, 127)
TEXT = (
    "The runner who arrives gives everything that is left, and the one who waits is at full speed by then. "
)


@pytest.fixture(scope="module")
def endpoint(smollm2_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Endpoint]:
    folder = tmp_path_factory.mktemp("pool")
    worker_id, decoder_id = (Identity.load_or_create(folder / name) for name in ("worker", "decoder"))
    common = ["--model", str(smollm2_path), "--ctx", "1024", "--threads", "1", "--slots", "4"]
    worker_words = ["worker", "--listen", "127.0.0.1:0", "--identity", str(folder / "worker")]
    worker_words += ["--trust", decoder_id.fingerprint, "--prefills", "4", *common]
    decoder_words = ["serve", "--port", "0", "--identity", str(folder / "decoder"), "--chunk", "32"]
    decoder_words += ["--peer", "-", "--trust", worker_id.fingerprint, *common]
    with (
        Child("worker", worker_words, folder / "worker.log") as worker,
        Child("decoder", decoder_words, folder / "decoder.log") as decoder,
        ended_together(worker, decoder),
    ):
        decoder.tell(Target(dial=f"127.0.0.1:{worker.wait_for('ready', timeout_s=TIMEOUT_S)['port']}").line())
        port = decoder.wait_for("ready", timeout_s=TIMEOUT_S)["port"]
        decoder.wait_for("worker", timeout_s=TIMEOUT_S)
        yield Endpoint("127.0.0.1", port)


def answer(endpoint: Endpoint, prompt: list[int], prefill: str) -> dict[str, Any]:
    wish = {"max_tokens": 8, "temperature": 0, "return_tokens": True, "ignore_eos": True}
    made: dict[str, Any] = endpoint.ask(
        "/v1/completions", {"prompt": prompt, "prefill": prefill, "cache_prompt": False, **wish}
    )
    return made


def test_four_prompts_at_once_get_their_own_answers(endpoint: Endpoint) -> None:
    tokens = endpoint.ask("/tokenize", {"content": TEXT * 10})["tokens"]
    prompts = [tokens[number : number + n_tokens] for number, n_tokens in enumerate(LENGTHS)]
    with ThreadPoolExecutor(len(prompts)) as users:
        remote = list(users.map(lambda prompt: answer(endpoint, prompt, "remote"), prompts))
    for prompt, found in zip(prompts, remote, strict=True):
        handoff = found["timings"]["handoff"]
        assert handoff["prefill"] == "remote", handoff
        assert handoff["remote_tokens"] == len(prompt) - 1
        assert found["tokens"] == answer(endpoint, prompt, "local")["tokens"]
