"""A worker and a decode engine as processes of their own take a thousand prompts in a row and keep their size."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from engine.cli.children import Child, ended_together
from engine.handoff.target import Target
from engine.node.endpoint import Endpoint
from engine.node.trust.identity import Identity

TIMEOUT_S = 120.0
N_PROMPTS = 1000

# The allocator's own, whatever is done.
NOISE_BYTES = 8 << 20


def sizes(engines: tuple[Child, Child]) -> list[tuple[int, int, int]]:
    """Memory that is nobody else's, descriptors and threads of both engines and their couriers."""
    found = []
    for engine in engines:
        process = psutil.Process(engine.pid)
        for each in (process, *process.children()):
            found.append((each.memory_full_info().uss, each.num_fds(), each.num_threads()))
    return found


@pytest.mark.soak
def test_a_thousand_prompts_leave_nothing_behind(smollm2_path: Path, tmp_path: Path) -> None:
    worker_id, decoder_id = (Identity.load_or_create(tmp_path / name) for name in ("worker", "decoder"))
    common = ["--model", str(smollm2_path), "--ctx", "256", "--threads", "1", "--slots", "1"]
    common += ["--prefix-cache", "0"]
    worker_words = ["worker", "--listen", "127.0.0.1:0", "--identity", str(tmp_path / "worker")]
    worker_words += ["--trust", decoder_id.fingerprint, *common]
    decoder_words = ["serve", "--port", "0", "--identity", str(tmp_path / "decoder")]
    decoder_words += ["--peer", "-", "--trust", worker_id.fingerprint, *common]
    with (
        Child("worker", worker_words, tmp_path / "worker.log") as worker,
        Child("decoder", decoder_words, tmp_path / "decoder.log") as decoder,
        ended_together(worker, decoder),
    ):
        decoder.tell(Target(dial=f"127.0.0.1:{worker.wait_for('ready', timeout_s=TIMEOUT_S)['port']}").line())
        endpoint = Endpoint("127.0.0.1", decoder.wait_for("ready", timeout_s=TIMEOUT_S)["port"])
        decoder.wait_for("worker", timeout_s=TIMEOUT_S)
        seen = []
        for number in range(1, N_PROMPTS + 1):
            prompt = [100 + (number * step) % 1000 for step in range(1, 41)]
            wish = {"prompt": prompt, "prefill": "remote", "max_tokens": 1, "cache_prompt": False}
            handoff = endpoint.ask("/v1/completions", wish)["timings"]["handoff"]
            assert handoff["prefill"] == "remote", handoff
            # By half of them every table that forgets its oldest entries is full.
            if number in (N_PROMPTS // 2, N_PROMPTS):
                seen.append(sizes((worker, decoder)))
    print([[f"{uss >> 20} MiB, {fds}, {threads}" for uss, fds, threads in each] for each in seen])
    for (early, early_fds, early_threads), (late, late_fds, late_threads) in zip(*seen, strict=True):
        assert late < early + NOISE_BYTES
        assert late_fds <= early_fds
        assert late_threads <= early_threads + 1  # one that gets pages ready may just be ending
