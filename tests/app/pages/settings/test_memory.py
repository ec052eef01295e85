"""Which model's memory is told, and whether it fits."""

from __future__ import annotations

from typing import Any

import pytest

from app.pages.settings.memory import need_of


def told(*models: tuple[str, bool, int], room: int = 100) -> dict[str, Any]:
    return {
        "total_bytes": 200,
        "room_bytes": room,
        "models": [
            {"model": name, "is_loaded": loaded, "needed_bytes": need} for name, loaded, need in models
        ],
    }


def test_the_loaded_one_goes_before_the_preferred_and_that_before_the_largest() -> None:
    models = [("large", False, 90), ("loaded", True, 10), ("wished", False, 20)]
    assert need_of(told(*models), "wished") == need_of(told(*models))
    chosen = [
        need_of(told(*some), wish)
        for some, wish in ((models, "wished"), (models[::2], "wished"), (models[::2], ""))
    ]
    assert [one and one.model for one in chosen] == ["loaded", "wished", "large"]
    assert need_of(told()) is None


@pytest.mark.parametrize(("need", "fit"), [(50, "fits"), (95, "tight"), (101, "too large")])
def test_whether_it_fits(need: int, fit: str) -> None:
    found = need_of(told(("m", True, need)))
    assert found is not None and found.fit == fit


def test_without_any_room_nothing_fits() -> None:
    found = need_of(told(("m", True, 1), room=0))
    assert found is not None and found.fit in ("tight", "too large")
