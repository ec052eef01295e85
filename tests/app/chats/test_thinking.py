"""Thought and answer are told apart, whatever pieces they come in."""

from __future__ import annotations

import pytest

from app.chats.thinking import Thinking

CASES = {
    "no thought": ("Hello there.", "", "Hello there."),
    "thought first": ("<think>\nHm, well.\n</think>\n\nYes.", "Hm, well.", "Yes."),
    "opened by the prompt": ("Hm, well.\n</think>\n\nYes.", "Hm, well.", "Yes."),
    "opened by the prompt, nothing thought": ("\n</think>\n\nYes.", "", "Yes."),
    "never ended": ("<think>Hm, well", "Hm, well", ""),
    "a mark that is none": ("<thin air", "", "<thin air"),
    "half a mark at the end": ("<think>Hm</thi", "Hm</thi", ""),
    "marks in the answer": (
        "<think>a</think>Write <think> and </think>.",
        "a",
        "Write <think> and </think>.",
    ),
    "a mark within a line": ("The tag </think> ends it.", "", "The tag </think> ends it."),
}


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
@pytest.mark.parametrize("name", CASES)
def test_in_pieces_of_any_size(name: str, size: int) -> None:
    whole, reasoning, text = CASES[name]
    thinking = Thinking()
    for at in range(0, len(whole), size):
        thinking.add(whole[at : at + size])
    thinking.end()
    assert (thinking.reasoning, thinking.text) == (reasoning, text)


def test_while_it_thinks_nothing_is_said() -> None:
    thinking = Thinking()
    thinking.add("<think>Hm")
    assert thinking.is_thinking and thinking.text == ""
    thinking.add("</think>\n")
    assert not thinking.is_thinking
    thinking.add("\nYes")
    assert thinking.text == "Yes"


def test_an_answer_that_goes_on_is_not_searched_for_thought() -> None:
    thinking = Thinking("The tag is\n", "thought")
    thinking.add("</think>\n.")
    thinking.end()
    assert (thinking.text, thinking.reasoning) == ("The tag is\n</think>\n.", "thought")


def test_reasoning_that_the_server_told_apart() -> None:
    thinking = Thinking()
    thinking.add_reasoning("Hm")
    thinking.add("Yes")
    thinking.end()
    assert (thinking.reasoning, thinking.text) == ("Hm", "Yes")
