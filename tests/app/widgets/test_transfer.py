"""Bytes on their way, in words."""

from __future__ import annotations

from app.widgets.transfer import TransferRow
from tests.app.windows import button, click


def test_it_says_how_much_and_that_it_is_being_checked(look: object) -> None:
    row = TransferRow(lambda: None)
    assert row.text == "Beginning…"
    row.show_progress(312_000_000, 491_400_064)
    assert row.text.startswith("312 MB of 491 MB")
    row.show_progress(491_400_064, 491_400_064)
    assert "checking that it is right" in row.text


def test_it_can_be_stopped_until_it_has_failed(look: object) -> None:
    stops: list[bool] = []
    row = TransferRow(lambda: stops.append(True))
    click(button(row, "Stop"))
    assert stops
    row.show_fault("The disk is full.")
    assert row.text == "The disk is full." and row.stop.isHidden()
