"""What a user is told of the node."""

from __future__ import annotations

from pathlib import Path

from engine.node.notes import no_models_as, notes_of


def test_only_what_there_is_to_say_is_said() -> None:
    awake = {"held": True, "why": "qwen can be asked"}
    notes = notes_of(["", "one", ""], twins=(), permission={"state": "granted"}, awake=awake)
    assert notes == ["one", "kept from sleeping, as qwen can be asked"]


def test_why_there_are_no_models() -> None:
    assert no_models_as("", Path("/models")) == ""
    note = no_models_as("it may not be read: check its permissions", Path("/models"))
    assert (
        note.startswith("no models are found in /models: it may not be read") and "baton config set" in note
    )
