"""System prompts to begin with."""

from __future__ import annotations

from app.chats.model import Preset
from app.chats.presets import all_presets, built_in, name_of


def test_ones_own_come_after_those_that_are_there_and_may_replace_them() -> None:
    own = [Preset(name="Poet", system="In rhymes."), Preset(name=built_in()[0].name, system="Mine.")]
    presets = all_presets(own)
    assert [preset.name for preset in presets] == [
        *(one.name for one in built_in()[1:]),
        "Poet",
        built_in()[0].name,
    ]


def test_a_text_is_known_by_its_preset() -> None:
    presets = all_presets([Preset(name="Poet", system="In rhymes.")])
    assert name_of(" In rhymes.\n", presets) == "Poet"
    assert name_of("In prose.", presets) == ""
