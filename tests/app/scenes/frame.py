"""The frame by itself: each page as it is when nothing has happened yet, and a node that has gone."""

from __future__ import annotations

from app.pages.catalogue import PAGES
from tests.app.screenshots import Stage


def play(stage: Stage) -> None:
    for name in PAGES:
        stage.app.window.go(name)
        stage.shot(f"first-{name}")
