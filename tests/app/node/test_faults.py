"""What the node says, as the window shows it."""

from __future__ import annotations

import pytest

from app.node.client import _refused


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("the disk is full", "The disk is full."),
        ("smollm2-135m cannot be run", "smollm2-135m cannot be run."),
        ("/models/a.gguf: it is cut short", "/models/a.gguf: it is cut short."),
        ("is it on?", "Is it on?"),
        ("", ""),
    ],
)
def test_names_are_shown_as_they_are(said: str, shown: str) -> None:
    assert str(_refused(400, {"error": {"message": said}})) == shown
