"""The file of the settings: kept whole, for its owner alone; what is broken is kept beside, and never lost."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest

from engine.errors import HostError
from engine.settings_file import SettingsFile


@pytest.fixture
def file(tmp_path: Path) -> SettingsFile:
    return SettingsFile(tmp_path / "config" / "settings.json")


def test_what_is_set_is_there_and_what_is_taken_back_is_not(file: SettingsFile) -> None:
    assert file.read() == ({}, "")
    file.change({"ctx": 8192, "name": "studio"})
    file.change({"slots": 2, "ctx": None})
    assert file.read() == ({"name": "studio", "slots": 2}, "")


@pytest.mark.skipif(os.name != "posix", reason="modes of files as POSIX has them")
def test_it_is_for_its_owner_alone(file: SettingsFile) -> None:
    file.change({"slots": 2})
    assert stat.S_IMODE(file.path.stat().st_mode) == 0o600


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[1]", b"\xff\xfe", b"[" * 50_000, b'{"a": 1}' + b" " * (1 << 16)]
)
def test_a_damaged_one_is_said_and_kept_beside_when_settings_are_made(
    file: SettingsFile, content: bytes
) -> None:
    file.path.parent.mkdir()
    for number, beside in enumerate(("settings.json.damaged", "settings.json.damaged-2")):
        file.path.write_bytes(content)
        values, fault = file.read()
        assert values == {} and str(file.path) in fault
        assert file.path.read_bytes() == content
        file.change({"slots": 2 + number})
        assert file.read() == ({"slots": 2 + number}, "")
        assert file.path.with_name(beside).read_bytes() == content


def test_what_it_does_not_know_stays(file: SettingsFile) -> None:
    file.path.parent.mkdir()
    file.path.write_text(json.dumps({"of_a_later_version": [1, {"a": None}], "slots": "many"}))
    file.change({"ctx": 512})
    assert json.loads(file.path.read_text()) == {
        "of_a_later_version": [1, {"a": None}],
        "slots": "many",
        "ctx": 512,
    }


def test_one_that_is_no_file_is_said(file: SettingsFile) -> None:
    file.path.mkdir(parents=True)
    assert "this is a folder" in file.read()[1]


def test_one_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    (tmp_path / "config").write_text("")
    with pytest.raises(HostError, match="cannot be written"):
        SettingsFile(tmp_path / "config" / "settings.json").change({"slots": 2})
