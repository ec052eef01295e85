"""Chats as files, and back."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from app.chats.faults import BadFile
from app.chats.model import Chat, Conversation, File, Message, Sampling
from app.chats.store import Store
from app.chats.transfer import from_json, to_json, to_markdown
from app.pages.chat.transcript.model import Stats

FILE = File(id="f", name="log.txt", text="oops\n", n_bytes=5, n_tokens=3)

CHAT = Chat(
    conversation=Conversation(
        id="c",
        created=1.5,
        updated=1_700_000_000.25,
        title="Kernel log",
        is_named=True,
        pinned=True,
        system="Be short.",
        sampling=Sampling(temperature=0.2, seed=7),
        model="smollm2-135m",
        leaf="a2",
        draft="and then",
        draft_files=(File(id="g", name="more.txt", text="more", n_bytes=4),),
    ),
    messages=(
        Message(id="q", parent=None, role="user", text="What is “it”?", created=2.0, files=(FILE,)),
        Message(id="a1", parent="q", role="assistant", text="A crash.", created=3.0, note="stopped"),
        Message(
            id="a2",
            parent="q",
            role="assistant",
            text="A null pointer.",
            created=4.0,
            reasoning="Hm.",
            reasoning_s=1.25,
            model="smollm2-135m",
            stats=Stats(first_token_s=0.5, n_prompt=12, is_remote=True, prefilled_on="spark"),
        ),
    ),
)


def test_json_comes_back_exactly() -> None:
    assert from_json(to_json([CHAT]), "chats.json") == [CHAT]


def test_through_the_store_and_back_it_is_the_same(tmp_path: Path) -> None:
    with Store(tmp_path / "chats.db") as store:
        store.take_in([CHAT])
        assert store.all_chats() == [CHAT]
        assert from_json(to_json(store.chats()), "chats.json") == [CHAT]


def test_what_is_there_already_comes_in_beside_itself(tmp_path: Path) -> None:
    with Store(tmp_path / "chats.db") as store:
        store.take_in([CHAT])
        store.take_in(from_json(to_json([CHAT]), "chats.json"))
        one, other = store.all_chats()
        assert one.conversation.id != other.conversation.id
        assert [message.text for message in one.messages] == [message.text for message in other.messages]
        leaves = [message.id for message in other.messages]
        assert other.conversation.leaf == leaves[2] and other.messages[1].parent == leaves[0]
        assert len(store.search("pointer")) == 2


def test_markdown_shows_the_version_that_is_shown() -> None:
    text = to_markdown([CHAT])
    assert text.startswith("# Kernel log\n")
    assert "> Be short." in text and "## You\n\n*Attached: log.txt*\n\nWhat is “it”?" in text
    assert "## smollm2-135m\n\n<details><summary>Thought</summary>\n\nHm." in text
    assert "A null pointer." in text and "A crash." not in text


def test_a_list_of_messages_is_one_conversation() -> None:
    messages = [
        {"role": "system", "content": "Be short."},
        {"role": "user", "content": [{"type": "text", "text": "Where to?"}, {"type": "image_url"}]},
        {"role": "assistant", "content": "Home.", "reasoning_content": "Hm."},
        {"role": "tool", "content": "{}"},
    ]
    for told in (messages, {"messages": messages}, [{"messages": messages}]):
        (chat,) = from_json(json.dumps(told), "chat.json", clock=lambda: 9.0)
        assert chat.conversation.system == "Be short." and chat.conversation.title == "Where to?"
        assert [(one.role, one.text) for one in chat.messages] == [
            ("user", "Where to?"),
            ("assistant", "Home."),
        ]
        assert chat.messages[1].parent == chat.messages[0].id and chat.messages[1].reasoning == "Hm."
        assert chat.conversation.leaf == chat.messages[1].id and chat.conversation.updated == 9.0


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("hello", "no JSON file, or not a whole one: line 1 breaks off or is wrong"),
        ("[" * 100_000, "no JSON file that chats"),
        ("{}", "holds no chats"),
        ("[1, 2]", "holds no chats"),
        ('[{"role": "user", "content": ""}]', "no message with a text"),
        ('{"format": "baton-chats", "version": 99, "conversations": []}', "newer Baton"),
        ('{"format": "baton-chats", "version": 1, "conversations": []}', "no conversation"),
        ('{"format": "baton-chats", "version": 1, "conversations": [{}]}', "is missing: “messages”"),
        ('{"format": "baton-chats", "version": 1, "conversations": 7}', "is not what it should be"),
        ('{"format": "baton-chats"}', "is missing: “version”"),
    ],
)
def test_other_files_are_refused_with_a_sentence(text: str, says: str) -> None:
    with pytest.raises(BadFile, match=says):
        from_json(text, "chats.json")


@pytest.mark.parametrize(
    ("field", "value"), [("parent", "a2"), ("parent", "nowhere"), ("role", "boss"), ("text", 7), ("id", "q")]
)
def test_messages_that_do_not_fit_together_are_refused(field: str, value: object) -> None:
    told = json.loads(to_json([CHAT]))
    told["conversations"][0]["messages"][1][field] = value
    with pytest.raises(BadFile, match="a part is wrong"):
        from_json(json.dumps(told), "chats.json")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("created", float("nan")),
        ("created", -1e18),
        ("updated", 1e300),
        ("updated", float("inf")),
        ("draft_files", [{"id": "f", "name": "n", "text": "t", "n_bytes": 10**30, "n_tokens": None}]),
        ("draft_files", [{"id": "f", "name": "n", "text": "t", "n_bytes": 1, "n_tokens": float("inf")}]),
    ],
)
def test_numbers_that_nothing_can_keep_are_refused(field: str, value: object) -> None:
    told = json.loads(to_json([CHAT]))
    told["conversations"][0][field] = value
    with pytest.raises(BadFile, match="a part is wrong"):
        from_json(json.dumps(told), "chats.json")


def test_what_is_no_figure_is_left_out() -> None:
    told = json.loads(to_json([CHAT]))
    told["conversations"][0]["sampling"] = {"top_k": float("inf"), "seed": 10**40, "temperature": 0.5}
    stats = {
        "tokens_per_s": "fast",
        "tail_ms": [1],
        "n_prompt": 12,
        "prefilled_on": 5,
        "saved_s": float("nan"),
    }
    told["conversations"][0]["messages"][2]["stats"] = stats
    (chat,) = from_json(json.dumps(told), "chats.json")
    assert chat.conversation.sampling == Sampling(temperature=0.5)
    assert chat.messages[2].stats == Stats(n_prompt=12)


def test_half_a_surrogate_pair_is_no_obstacle(tmp_path: Path) -> None:
    told = json.loads(to_json([CHAT]))
    told["conversations"][0]["title"] = "\ud83d"
    told["conversations"][0]["messages"][0]["text"] = "\ud83d\ude00 and \ude00"
    chats = from_json(json.dumps(told), "chats.json")
    with Store(tmp_path / "chats.db") as store:
        store.take_in(chats)
        (chat,) = store.all_chats()
    assert chat.conversation.title == "\ufffd"
    assert chat.messages[0].text == "\N{GRINNING FACE} and \ufffd"
    assert to_markdown([chat]).encode()
    (foreign,) = from_json('[{"role": "user", "content": "\\ud83d"}]', "list.json")
    assert foreign.messages[0].text == foreign.conversation.title == "\ufffd"
