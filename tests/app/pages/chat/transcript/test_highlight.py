"""The colours of code."""

from __future__ import annotations

from dataclasses import fields

import pytest

from app.look.palette import DARK, LIGHT, Palette, contrast
from app.pages.chat.transcript import highlight as module
from app.pages.chat.transcript.highlight import highlight, is_loaded, load


@pytest.fixture(autouse=True)
def a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other programs may keep this one from its few milliseconds."""
    monkeypatch.setattr(module, "_MAX_S", 60.0)


def coloured(text: str, language: str) -> dict[str, str]:
    load(language)
    lines = text.split("\n")
    return {
        lines[row][start:end]: colour
        for row, runs in enumerate(highlight(lines, language))
        for start, end, colour in runs
    }


def test_words_of_a_language_have_colours() -> None:
    found = coloured('def f(x):\n    return 12  # why\ns = """a\nb"""', "python")
    assert found["def"] == "code_word"
    assert found["f"] == "code_name"
    assert found["12"] == "code_number"
    assert found["# why"] == "text_faint"
    assert found["b"] == "code_string"


def test_runs_lie_within_their_lines() -> None:
    load("python")
    lines = ["x = '", "ü𝔼' + 1", "", '"""', "never closed"]
    for line, runs in zip(lines, highlight(lines, "python"), strict=True):
        assert all(0 <= start < end <= len(line) for start, end, _ in runs)


def test_an_unknown_language_stays_plain() -> None:
    load("no-such-language")
    assert is_loaded("no-such-language")
    assert highlight(["a", "b"], "no-such-language") == [[], []]


def test_what_is_not_loaded_stays_plain_until_it_is() -> None:
    assert not is_loaded("brainfuck")
    assert highlight(["+"], "brainfuck") == [[]]


@pytest.mark.parametrize("palette", [LIGHT, DARK])
def test_every_colour_can_be_read_on_its_ground(palette: Palette) -> None:
    names = [field.name for field in fields(palette) if field.name.startswith("code_")]
    assert len(names) == 4
    for name in [*names, "text", "text_faint", "local", "danger"]:
        assert contrast(getattr(palette, name), palette.sunken) >= 4.5, name
