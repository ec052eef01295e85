"""The icon in the tray."""

from __future__ import annotations

import pytest

from app.look.palette import contrast
from app.tray import HUES


@pytest.mark.parametrize("panel", ["#ffffff", "#202020"])
@pytest.mark.parametrize("tone", HUES)
def test_it_is_seen_on_a_light_panel_and_on_a_dark_one(tone: str, panel: str) -> None:
    assert contrast(HUES[tone], panel) >= 3
