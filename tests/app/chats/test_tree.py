"""Messages in versions."""

from __future__ import annotations

from app.chats.model import Message
from app.chats.tree import Tree


def message(id_: str, parent: str | None, role: str = "user") -> Message:
    return Message(id=id_, parent=parent, role=role, text=id_, created=0.0)  # type: ignore[arg-type]


def talk() -> Tree:
    """A question with two answers, the second of which was asked on; and an edited question."""
    return Tree(
        [
            message("q1", None),
            message("a1", "q1"),
            message("a2", "q1"),
            message("q2", "a2"),
            message("b1", "q2"),
            message("q1x", None),
            message("c1", "q1x"),
        ],
        leaf="b1",
    )


def ids(tree: Tree) -> list[str]:
    return [message.id for message in tree.path()]


def test_one_way_is_shown() -> None:
    assert ids(talk()) == ["q1", "a2", "q2", "b1"]
    assert talk().version("a2") == (2, 2)
    assert talk().version("q1") == (1, 2)
    assert talk().version("b1") == (1, 1)


def test_a_leaf_that_is_not_there_is_the_newest_of_all() -> None:
    assert ids(Tree(list(talk()), leaf="gone")) == ["q1x", "c1"]
    assert Tree([]).leaf is None


def test_another_version_brings_what_follows_it() -> None:
    tree = talk()
    assert tree.sibling("a2", -1) == "a1"
    assert tree.sibling("q1", +1) == "c1"
    assert tree.sibling("a2", +1) is None
    assert tree.sibling("a1", -1) is None
    tree.leaf = tree.sibling("q1", +1)
    assert ids(tree) == ["q1x", "c1"]
    tree.leaf = tree.sibling("q1x", -1)
    assert ids(tree) == ["q1", "a2", "q2", "b1"]


def test_what_is_added_is_shown() -> None:
    tree = talk()
    tree.add(message("a3", "q1"))
    assert ids(tree) == ["q1", "a3"]
    assert tree.version("a3") == (3, 3)


def test_what_is_removed_takes_along_what_follows_and_leaves_another_version() -> None:
    tree = talk()
    assert sorted(tree.remove("a2")) == ["a2", "b1", "q2"]
    assert ids(tree) == ["q1", "a1"]
    tree.remove("a1")
    assert ids(tree) == ["q1"]
    tree.remove("q1")
    assert ids(tree) == ["q1x", "c1"]
    tree.remove("q1x")
    assert tree.leaf is None and len(tree) == 0


def test_what_answers_a_lost_message_follows_the_one_before() -> None:
    tree = Tree([message("a", "lost"), message("b", "a"), message("c", "d"), message("d", "c")], "d")
    assert ids(tree) == ["a", "b", "c", "d"]
    assert tree.version("a") == tree.version("c") == (1, 1)
