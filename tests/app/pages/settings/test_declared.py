"""What follows from a setting's declaration: its control, its stops, what was typed, and what a search finds."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from app.pages.settings.declared import Declared, Kind, nearest, parsed, read, stops
from engine.config import NODE_SETTINGS, Needs
from engine.node.settings import NodeSettings
from engine.settings_file import SettingsFile


@pytest.fixture
def told(tmp_path: Path) -> dict[str, Any]:
    """As a node tells them."""
    settings = NodeSettings(SettingsFile(tmp_path / "settings.json"), flags={"ctx": 8192}, environ={})
    waits = {"slots": Needs.RELOAD, "port": Needs.RESTART}
    told = settings.snapshot(lambda setting: waits.get(setting.name, Needs.NOTHING))
    return {**told, "is_reloading": False, "reload_fault": ""}


def test_every_setting_of_the_node_is_read(told: dict[str, Any]) -> None:
    snapshot = read(told)
    assert [one.name for one in snapshot.settings] == [setting.name for setting in NODE_SETTINGS]
    assert snapshot.groups() == ["This computer", "Endpoint", "Handoff", "Models and memory"]
    assert snapshot.by_name["ctx"].fixed_by == "--ctx" and snapshot.by_name["ctx"].value == 8192
    assert snapshot.by_name["chunk"].fixed_by == ""
    assert [one.name for one in snapshot.waiting("reload")] == ["slots"]
    assert [one.name for one in snapshot.waiting("restart")] == ["port"]
    assert all(one.sentence.endswith(".") and "(default" not in one.sentence for one in snapshot.settings)


def test_each_gets_the_control_that_fits(told: dict[str, Any]) -> None:
    kinds = {one.name: one.kind for one in read(told).settings}
    assert kinds["route"] is kinds["codec"] is Kind.SEGMENTS
    assert kinds["ctx"] is kinds["chunk"] is kinds["prefills"] is kinds["slots"] is Kind.SLIDER
    assert kinds["threads"] is kinds["port"] is Kind.NUMBER
    assert (kinds["api_key"], kinds["models"], kinds["preload"], kinds["name"]) == (
        Kind.SECRET,
        Kind.FOLDER,
        Kind.MODEL,
        Kind.TEXT,
    )


def test_what_a_later_node_tells_beside_is_passed_over(told: dict[str, Any]) -> None:
    told["settings"][0]["colour"] = "green"
    told["settings"].append({**told["settings"][0], "name": "new_one", "type": "bool", "choices": None})
    assert read(told).by_name["new_one"].kind is Kind.SWITCH
    assert read(None).settings == ()


NUMBER = Declared(name="ctx", group="g", type="int", help="h", minimum=16, maximum=1 << 22, value=5000)


def test_a_slider_has_its_ends_and_what_holds() -> None:
    found = stops(NUMBER, n_ctx_train=8192)
    assert found == sorted(set(found))
    assert (found[0], found[-1]) == (1024, 8192) and 5000 in found and 1536 in found
    assert stops(NUMBER)[-1] == 1 << 17
    assert stops(replace(NUMBER, value=None), n_ctx_train=512) == [512]
    prefills = Declared(name="prefills", group="g", type="int", help="h", minimum=1, maximum=64)
    assert stops(prefills, slots=4) == [1, 2, 3, 4]
    chunk = Declared(name="chunk", group="g", type="int", help="h", minimum=16, maximum=4096, value=512)
    assert stops(chunk) == [16, 32, 64, 128, 256, 512, 1024, 2048, 4096]
    assert stops(replace(NUMBER, name="prefix_cache")) == []
    assert nearest([1, 4, 16], 5) == 1


@pytest.mark.parametrize(
    ("text", "value", "fault"),
    [
        ("8192", 8192, ""),
        (" 8,192 ", 8192, ""),
        ("", None, ""),
        ("many", None, "no number"),
        ("15", None, "too small"),
        ("99999999", None, "too large"),
    ],
)
def test_what_was_typed(text: str, value: int | None, fault: str) -> None:
    assert parsed(NUMBER, text) == (value, fault)


def test_what_can_be_taken_back() -> None:
    assert not NUMBER.can_be_reset and replace(NUMBER, kept=5000).can_be_reset
    secret = replace(NUMBER, is_secret=True, is_set=True)
    assert (
        replace(secret, source="file").can_be_reset and not replace(secret, source="environment").can_be_reset
    )


def test_a_search_looks_at_titles_help_and_choices() -> None:
    route = Declared(name="route", group="Handoff", type="str", help="where", choices=("auto", "never"))
    assert (
        route.matches("HAND where", "Where prompts")
        and route.matches("never")
        and route.matches("prompts", "Prompts")
    )
    assert not route.matches("memory", "Where prompts")
