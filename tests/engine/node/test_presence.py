"""The one node of a user: its place, and the note by which others find it."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from engine.errors import HostError
from engine.node.presence import AnotherNode, NoNode, Place, find_node


def test_the_note_is_there_while_the_node_is_and_for_its_user_alone(tmp_path: Path) -> None:
    place = Place(tmp_path)
    with pytest.raises(NoNode, match="baton node"):
        find_node(tmp_path)
    place.take()
    place.tell(port=5, token="secret", endpoint="http://127.0.0.1:7117")
    note = find_node(tmp_path)
    assert (note.port, note.token, note.pid) == (5, "secret", os.getpid())
    if os.name == "posix":
        assert stat.S_IMODE((tmp_path / "node.json").stat().st_mode) == 0o600
    place.leave()
    with pytest.raises(NoNode):
        find_node(tmp_path)


def test_there_is_room_for_one_and_the_second_is_told_of_the_first(tmp_path: Path) -> None:
    first, second = Place(tmp_path), Place(tmp_path)
    first.take()
    with pytest.raises(AnotherNode, match="just being started"):
        second.take()
    first.tell(port=5, token="secret", endpoint="http://127.0.0.1:7117")
    with pytest.raises(AnotherNode, match=rf"process {os.getpid()}, since .* at http://127\.0\.0\.1:7117"):
        second.take()
    first.leave()
    second.take()
    second.leave()


def test_a_note_that_a_killed_node_left_is_void_for_the_next(tmp_path: Path) -> None:
    killed = Place(tmp_path)
    killed.take()
    killed.tell(port=5, token="old", endpoint="http://127.0.0.1:7117")
    killed._lock.release()
    # another user's program may have its port by now, and is not to be told a code
    with pytest.raises(NoNode):
        find_node(tmp_path)
    place = Place(tmp_path)
    place.take()
    with pytest.raises(NoNode):
        find_node(tmp_path)
    place.leave()


@pytest.mark.parametrize("content", [b"", b"{}", b"\xff", b"[1]"])
def test_a_damaged_note_is_none(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "node.json").write_bytes(content)
    with pytest.raises(NoNode):
        find_node(tmp_path)


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("in the way")
    with pytest.raises(HostError, match="cannot be written"):
        Place(file / "node").take()
