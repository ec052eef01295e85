"""The palette: every text can be read on every ground it is put on, in both themes."""

from __future__ import annotations

import pytest

from app.look.palette import DARK, LIGHT, Palette, contrast

GROUNDS = ("ground", "surface", "sunken")
HUES = ("local", "peer", "warning", "danger")
SOFT = tuple(f"{hue}_soft" for hue in HUES)
CODE = ("code_word", "code_string", "code_number", "code_name")
PAIRS = [
    *((text, ground) for text in ("text", "text_soft", "text_faint", *HUES) for ground in GROUNDS),
    *zip(HUES, SOFT, strict=True),
    *(("text", ground) for ground in ("hover", "pressed", "selection", *SOFT)),
    *(
        (text, ground)
        for text in ("text_soft", "text_faint", "local", "peer")
        for ground in ("hover", "pressed")
    ),
    *((code, ground) for code in CODE for ground in ("surface", "sunken")),
    ("text_soft", "selection"),
    # a tooltip
    ("ground", "text"),
    ("on_local", "local"),
    ("on_local", "local_hover"),
    ("on_danger", "danger"),
    ("on_danger", "danger_hover"),
]


# Icons, the rings of what has the focus, boxes to tick, and what has flowed of a bar.
MARKS = [
    *((mark, ground) for mark in ("text_faint", *HUES) for ground in (*GROUNDS, "hover", "pressed")),
    *((mark, "border") for mark in ("local", "peer")),
]


@pytest.mark.parametrize("palette", [LIGHT, DARK], ids=["light", "dark"])
@pytest.mark.parametrize(("text", "ground"), PAIRS)
def test_text_stands_out_from_its_ground(palette: Palette, text: str, ground: str) -> None:
    assert contrast(getattr(palette, text), getattr(palette, ground)) >= 4.5


@pytest.mark.parametrize("palette", [LIGHT, DARK], ids=["light", "dark"])
@pytest.mark.parametrize(("mark", "ground"), MARKS)
def test_marks_and_icons_stand_out_from_their_ground(palette: Palette, mark: str, ground: str) -> None:
    assert contrast(getattr(palette, mark), getattr(palette, ground)) >= 3.0


def test_contrast_is_that_of_wcag() -> None:
    assert round(contrast("#000000", "#ffffff"), 2) == 21.0
    assert round(contrast("#777777", "#ffffff"), 2) == 4.48
