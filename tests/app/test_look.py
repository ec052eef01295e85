"""The palette: every text can be read on every ground it is put on, in both themes."""

from __future__ import annotations

import pytest

from app.look.palette import DARK, LIGHT, Palette, contrast

GROUNDS = ("ground", "surface", "sunken")
HUES = ("local", "peer", "warning", "danger")
SOFT = tuple(f"{hue}_soft" for hue in HUES)
PAIRS = [
    *((text, ground) for text in ("text", "text_soft", "text_faint", *HUES) for ground in GROUNDS),
    *zip(HUES, SOFT, strict=True),
    *(("text", ground) for ground in ("hover", "pressed", "selection", *SOFT)),
    *(("text_soft", ground) for ground in ("hover", "pressed")),
    ("on_local", "local"),
    ("on_local", "local_hover"),
    ("on_danger", "danger"),
    ("on_danger", "danger_hover"),
]


@pytest.mark.parametrize("palette", [LIGHT, DARK], ids=["light", "dark"])
@pytest.mark.parametrize(("text", "ground"), PAIRS)
def test_text_stands_out_from_its_ground(palette: Palette, text: str, ground: str) -> None:
    assert contrast(getattr(palette, text), getattr(palette, ground)) >= 4.5


def test_contrast_is_that_of_wcag() -> None:
    assert round(contrast("#000000", "#ffffff"), 2) == 21.0
    assert round(contrast("#777777", "#ffffff"), 2) == 4.48
