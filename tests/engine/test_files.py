"""Paths that a user names: what each of them leads to is said in words."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path

import pytest

from engine.errors import UserError
from engine.files import NO_SUCH_FILE, file_fault, folder_fault, keeping_fault, user_path

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="makes pipes and links")


def fault_of(path: Path) -> str:
    return file_fault(path, wanted="a text")


def test_a_folder_that_can_be_looked_into_or_is_still_to_be_has_no_fault(tmp_path: Path) -> None:
    assert folder_fault(tmp_path) == folder_fault(tmp_path / "later") == ""


def test_what_keeps_a_folder_from_being_looked_into(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    assert folder_fault(tmp_path / "file") == "this is a file, and a folder is needed"

    def refuse(path: Path) -> None:  # who is root may look into any
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "scandir", refuse)
    assert folder_fault(tmp_path) == "it may not be read: check its permissions"


def test_where_no_file_can_be_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "file"
    file.touch()
    assert keeping_fault(tmp_path) == keeping_fault(tmp_path / "later" / "models") == ""
    assert keeping_fault(file) == "this is a file, and a folder is needed"
    assert keeping_fault(file / "models") == f"{file} is a file, and a folder is needed"
    monkeypatch.setattr(os, "access", lambda *_: False)  # who is root may write into any
    assert keeping_fault(tmp_path).startswith("nothing may be written into it")
    assert keeping_fault(tmp_path / "later" / "models").startswith(f"it cannot be made in {tmp_path}")


def test_a_file_has_no_fault(tmp_path: Path) -> None:
    file, link = tmp_path / "file", tmp_path / "link"
    file.touch()
    link.symlink_to(file)
    assert fault_of(file) == fault_of(link) == ""


def test_what_is_no_file_is_called_what_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # a socket's path has to be short
    os.mkfifo("pipe")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("socket")
        assert fault_of(tmp_path) == "this is a folder, and a text is needed"
        assert fault_of(Path("pipe")) == "this is a pipe, and a text is needed"
        assert fault_of(Path("socket")) == "this is a socket, and a text is needed"
        assert fault_of(Path(os.devnull)) == "this is a device, and a text is needed"


def test_what_is_not_there_is_told_from_what_leads_nowhere(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("elsewhere")
    (tmp_path / "file").touch()
    assert fault_of(tmp_path / "absent") == NO_SUCH_FILE
    assert fault_of(tmp_path / "file" / "inside") == NO_SUCH_FILE
    assert fault_of(tmp_path / "link") == "this is a link to elsewhere, which is not there"


def test_what_cannot_be_looked_at_or_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "loop").symlink_to("loop")
    assert "symbolic links" in fault_of(tmp_path / "loop")
    assert "too long" in fault_of(tmp_path / ("x" * 300))
    (tmp_path / "locked").touch()
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # root may read everything
    assert "permissions" in fault_of(tmp_path / "locked")


def test_a_home_that_is_nobodys_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert user_path("~/model.gguf") == tmp_path / "model.gguf"
    with pytest.raises(UserError, match=r"~no-such-user/model\.gguf: the home folder of ~no-such-user"):
        user_path("~no-such-user/model.gguf")
