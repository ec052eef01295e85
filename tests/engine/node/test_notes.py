"""What a user is told of the node."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from engine.node.notes import notes_of, of_models_folder


def test_only_what_there_is_to_say_is_said() -> None:
    awake = {"held": True, "why": "qwen can be asked"}
    notes = notes_of(["", "one", ""], twins=(), permission={"state": "granted"}, awake=awake)
    assert notes == ["one", "kept from sleeping, as qwen can be asked"]


def test_what_is_wrong_with_the_models_folder_is_said_with_the_next_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert of_models_folder(tmp_path) == of_models_folder(tmp_path / "later") == ""
    file = tmp_path / "file"
    file.touch()
    note = of_models_folder(file)
    assert note.startswith(f"no models are found in {file}: this is a file") and "baton config set" in note
    note = of_models_folder(file / "models", variable="BATON_MODELS")
    assert "set BATON_MODELS to another folder" in note and "config set" not in note
    monkeypatch.setattr(os, "access", lambda *_: False)  # who is root may write into any
    assert of_models_folder(tmp_path).startswith(
        f"no models can be brought into {tmp_path}: nothing may be written into it"
    )
