"""Cluster and Telemetry with two real nodes, from one prompt that is handed over to the end of their pairing."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from app.context import is_there
from app.pages.cluster.page import ClusterPage
from app.pages.telemetry.page import TelemetryPage
from app.widgets.feedback import Question
from tests.app.conftest import STARTER
from tests.app.windows import Opened, button, click, opened, pair, texts, wait
from tests.engine.node.nodes import NodeProcess

PROMPT = "The runner who hands over the baton is already tired. " * 8

# Of which the prompt has two and a half.
CHUNK = 32

FLAGS = ("--port", "0", "--node-port", "0", "--ctx", "512", "--slots", "1", "--chunk", str(CHUNK))


@pytest.fixture
def app(tmp_path: Path, models: Path) -> Iterator[Opened]:
    """A window of `studio`, which is paired with `spark`."""
    with (
        NodeProcess(tmp_path, "studio", *FLAGS, models=models) as studio,
        NodeProcess(tmp_path, "spark", *FLAGS, models=models) as spark,
        opened(studio, tmp_path / "window") as app,
    ):
        pair(app, spark)
        yield app


def test_a_handoff_is_seen_and_then_the_two_part(app: Opened) -> None:
    page = app.page("cluster")
    assert isinstance(page, ClusterPage)
    wait(
        lambda: (
            "✓ spark prefills, studio decodes" in texts(page)
            or "✓ studio prefills, spark decodes" in texts(page)
        )
    )
    click(button(page, "spark prefills"))
    wait(lambda: "as was chosen" in texts(page) and "✓ spark prefills, studio decodes" in texts(page))
    assert "of" in page.picture.peer.accessibleName() and "Linux" in texts(page.picture)

    asked = in_background(app, "Hello", prefill="local")
    cards = (page.picture.here, page.picture.peer)
    wait(lambda: all(card.accessibleName().endswith(", ready") for card in cards))
    assert texts(page.picture).count(STARTER) == 2 and "✓ same model" in texts(page.picture)
    asked.join()

    telemetry = app.page("telemetry")
    assert isinstance(telemetry, TelemetryPage)
    asked = in_background(app, PROMPT, prefill="remote")
    wait(lambda: "prefilled on spark" in texts(telemetry) and "arrived during prefill" in texts(telemetry))
    asked.join()
    wait(lambda: telemetry._waterfall.has_tail)
    shown = telemetry._waterfall.picture
    assert shown is not None and not shown.local
    assert len(shown.remote) >= 2 and all(len(chunk.layers) == shown.n_layers for chunk in shown.remote)
    assert "Prefilled on spark: the request asked for it." in texts(telemetry)
    assert "on studio" in telemetry._requests.requests.entries[1].where

    app.window.go("cluster")
    click(button(page, "Self-test"))
    wait(lambda: "prompts compared." in texts(page))
    click(button(page, "Stop"))
    assert "Stopped after" in texts(page)

    click(button(page, "Unpair"))
    question = page.findChild(Question)
    assert question is not None
    click(button(question, "Unpair"))
    wait(lambda: "One computer so far" in texts(page))
    assert not any(is_there(peer) for peer in app.state.part("peers"))


def in_background(app: Opened, prompt: str, **fields: Any) -> threading.Thread:
    """Ask as another program does, while the window works."""
    asking = threading.Thread(target=lambda: app.node.ask(STARTER, prompt, **fields), daemon=True)
    asking.start()
    return asking
