"""What is on its way, as the node's parts tell it."""

from __future__ import annotations

from typing import Any

from app.node.faults import sentence
from app.pages.models.transits import Kind, transits_of

CATALOGUE = {"small"}


def download(key: str, model: str, state: str) -> dict[str, Any]:
    return {
        "id": key,
        "model": model,
        "model_id": "",
        "done_bytes": 5,
        "total_bytes": 10,
        "state": state,
        "problem": "no network",
        "note": "",
    }


def copy(key: str, state: str, direction: str = "out") -> dict[str, Any]:
    return {
        "id": key,
        "model": "small",
        "source": "small",
        "peer": "spark",
        "peer_id": "b" * 32,
        "begun_here": True,
        "direction": direction,
        "done_bytes": 5,
        "total_bytes": 10,
        "state": state,
        "problem": "lost",
    }


def left(name: str, source: str = "") -> dict[str, Any]:
    return {"id": name, "file": f"{name}.gguf", "size_bytes": 7, "touched": 0.0, "source": source}


def test_what_runs_is_first_and_what_is_done_is_gone() -> None:
    downloads = [
        download("a", "o/r/A.gguf", "failed"),
        download("b", "o/r/B.gguf", "done"),
        download("c", "o/r/C.gguf", "running"),
        download("d", "o/r/D.gguf", "cancelled"),
    ]
    found = transits_of(downloads, [], [], CATALOGUE)
    assert [(each.key, each.name, each.state) for each in found] == [
        ("c", "C", "running"),
        ("a", "A", "failed"),
        ("d", "D", "cancelled"),
    ]


def test_copies_say_which_way_they_go() -> None:
    found = transits_of([], [copy("a", "running"), copy("b", "running", "in")], [], CATALOGUE)
    assert [(each.kind, each.peer) for each in found] == [(Kind.COPY_OUT, "spark"), (Kind.COPY_IN, "spark")]


def test_a_copy_that_was_begun_here_can_be_paused_and_gone_on_with() -> None:
    theirs = {"begun_here": False, "source": ""}
    copies = [
        copy("a", "cancelled"),
        copy("b", "failed", "in"),
        {**copy("c", "cancelled"), **theirs},
        {**copy("d", "running", "in"), **theirs},
    ]
    found = {each.key: each for each in transits_of([], copies, [], CATALOGUE)}
    assert {key: (each.can_pause, each.source) for key, each in found.items()} == {
        "d": (False, ""),
        "a": (True, "small"),
        "b": (True, "small"),
    }


def test_what_is_left_of_earlier_fetches_can_be_gone_on_with_where_it_is_known() -> None:
    found = transits_of([], [], [left("small"), left("Hub", "o/r/Hub.gguf"), left("Other")], CATALOGUE)
    assert [(each.kind, each.source, each.done_bytes) for each in found] == [
        (Kind.LEFT, "small", 7),
        (Kind.LEFT, "o/r/Hub.gguf", 7),
        (Kind.LEFT, "", 7),
    ]


def test_where_not_a_byte_has_come_nothing_is_left() -> None:
    assert transits_of([], [], [{**left("small"), "size_bytes": 0}], CATALOGUE) == []


def test_parts_that_are_left_of_one_model_are_one() -> None:
    (found,) = transits_of([], [], [left("Big", "o/r/1"), left("Big", "o/r/2")], CATALOGUE)
    assert (found.name, found.done_bytes) == ("Big", 14)


def test_what_is_left_of_one_that_is_listed_is_not_listed_twice() -> None:
    downloads = [download("a", "o/r/A-00001-of-00002.gguf", "cancelled"), download("b", "small", "running")]
    found = transits_of(downloads, [copy("c", "running", "in")], [left("A"), left("small")], CATALOGUE)
    assert [each.key for each in found] == ["b", "c", "a"]


def test_faults_are_sentences_and_names_stay_as_they_are() -> None:
    assert sentence("the disk is full") == "The disk is full."
    assert sentence("meta/Llama is closed.") == "meta/Llama is closed."
    assert sentence("") == ""
