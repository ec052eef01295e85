"""A conversation that is open, where nothing is asked or kept."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import Mock

from app.chats.keeper import Keeper
from app.chats.model import Chat, File, Message
from app.pages.chat.open_chat import OpenChat, new_conversation
from tests.app.two_computers import two_computers


def test_an_edited_question_has_the_files_that_were_kept(look: object, tmp_path: Path) -> None:
    files = tuple(File(id=name, name=name, text="x", n_bytes=1) for name in ("a.md", "b.pdf", "c.txt"))
    asked = Message(id="q", parent=None, role="user", text="Old", created=0.0, files=files)
    with two_computers(tmp_path) as context:
        chat = OpenChat(context, Mock(spec=Keeper), Chat(conversation=new_conversation(), messages=(asked,)))
        chat._answer_anew = Mock()  # type: ignore[method-assign]
        chat.edit("q", "New", [0, 2])
        (_, [edited]), _ = chat._answer_anew.call_args
        assert edited.text == "New" and [file.name for file in edited.files] == ["a.md", "c.txt"]
        assert [file.name for file in chat.tree["q"].files] == ["a.md", "b.pdf", "c.txt"]
        chat.deleteLater()
