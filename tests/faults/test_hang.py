"""An engine whose computing thread alone hangs: it goes on saying that it is there, and is ended and started again."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import httpx
import pytest

from engine import config
from engine.node import supervisor
from engine.node.engines import Engines, Memory, ModelFile
from engine.node.front import Front
from engine.server.settings import ServerSettings
from tests.engine.models.tiny import write_tiny

pytestmark = pytest.mark.fault

TIMEOUT_S = 60.0

# Baton itself, but the first process of them hangs in its first step.
ENGINE = """
import sys, threading
from pathlib import Path
from engine.batching import pulse, runner
from engine.__main__ import main

mark = Path(sys.argv.pop(1))
if not mark.exists():
    mark.touch()
    pulse.STUCK_AFTER_S = 0.2
    runner.Runner.step = lambda *_: threading.Event().wait()
sys.exit(main())
"""


def test_a_request_is_answered_though_the_engine_hung_over_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "engine.py"
    program.write_text(ENGINE)
    words = [sys.executable, "-P", str(program), str(tmp_path / "hung")]
    monkeypatch.setattr(supervisor, "own_command", lambda: words)
    monkeypatch.setattr(supervisor, "_HEALTH_EVERY_S", 0.1)
    model = ModelFile(model_id="model", path=write_tiny("qwen2", tmp_path / "tiny.gguf"), needed_bytes=1)

    async def find(model_id: str) -> ModelFile:
        return model

    async def refresh() -> None:
        pass

    engines = Engines(
        find=find,
        memory=lambda: Memory(total_bytes=1 << 40, available_bytes=1 << 40),
        settings=lambda: {config.CTX: 64, config.SLOTS: 1},
        environment=dict(os.environ),
        log_folder=tmp_path,
        on_change=lambda: None,
    )
    front = Front(
        engines,
        settings=ServerSettings(),
        engine_key="key",
        decoder_of=lambda name: None,
        models=lambda: [{"id": "model"}],
        refresh=refresh,
        problem_of=lambda name: "",
    )

    async def work() -> None:
        transport = httpx.ASGITransport(app=front.build_app())
        ask = {"model": "model", "prompt": "A relay race is", "max_tokens": 2}
        async with (
            asyncio.timeout(2 * TIMEOUT_S),
            httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client,
        ):
            try:
                engine = await engines.load("model")
                await engine.process.until_settled(TIMEOUT_S)
                assert engine.is_ready
                answer = await client.post("/v1/completions", json=ask, timeout=None)
                while answer.status_code == 503:  # the model is being loaded: come back
                    await engine.process.until_settled(TIMEOUT_S)
                    answer = await client.post("/v1/completions", json=ask, timeout=None)
                assert answer.status_code == 200, answer.text
                assert answer.json()["usage"]["completion_tokens"] == 2
                (end,) = engine.process.outcomes
                assert "did not compute any more" in end.reason
            finally:
                await front.close()
                await engines.close()

    asyncio.run(work())
