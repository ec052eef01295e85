"""`baton models get` for a program that follows it, from a small hub on this computer."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.cli.main import main
from tests.engine.node.models.test_hub import CONTENT, FakeHub


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty library, and a hub that publishes someone/tiny/tiny.gguf."""
    monkeypatch.setenv("BATON_MODELS", str(tmp_path / "models"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with FakeHub() as server:
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield tmp_path / "models"
        server.shutdown()
        thread.join(10)


def test_progress_comes_as_lines_and_the_name_at_last(
    library: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["models", "get", "someone/tiny/tiny.gguf", "--lines"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert lines[-1] == {"model_id": "tiny"}
    assert {"done_bytes": len(CONTENT), "total_bytes": len(CONTENT)} in lines
    assert (library / "tiny.gguf").read_bytes() == CONTENT


def test_what_the_hub_has_not_is_said(library: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models", "get", "someone/tiny/other.gguf"]) == 1
    assert "someone/tiny/other.gguf" in capsys.readouterr().err
    assert not list(library.glob("*.gguf"))


def test_what_is_no_name_is_refused(library: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models", "get", "someone/tiny"]) == 2
    assert "OWNER/REPO/FILE.gguf" in capsys.readouterr().err
