"""The protocol with a contestant in a process of its own, kept by a program that computes nothing."""

from __future__ import annotations

import sys
import time

import pytest

from engine.bench import subject as subject_module
from engine.bench.subject import Subject
from engine.errors import ProcessFailed
from tests.engine.bench.contestants import fake


def test_answers_come_in_order() -> None:
    with fake(seconds=0.5) as subject:
        assert subject.ask("prefill", tokens=[1, 2, 3], depth=[]) == {"seconds": 1.5}
        assert subject.ask("decode", tokens=[1], depth=[4]) == {"seconds": 0.5}
        assert subject.ask("log")["log"] == ["prefill", "decode", "log"]


def test_an_error_is_told_and_the_program_lives_on() -> None:
    with fake(name="the other", fail="decode") as subject:
        with pytest.raises(ProcessFailed, match="the other failed: no such luck"):
            subject.ask("decode", tokens=[1], depth=[])
        assert "seconds" in subject.ask("prefill", tokens=[1], depth=[])


def test_a_program_that_ends_is_quoted() -> None:
    with fake(end="load") as subject, pytest.raises(ProcessFailed, match="the disk is on fire"):
        subject.ask("load")


def test_asking_after_its_end_says_so_again() -> None:
    with fake(end="load") as subject:
        for _ in range(2):
            with pytest.raises(ProcessFailed, match="ended without an answer"):
                subject.ask("load")


@pytest.mark.parametrize("said", ["hello", "[1]"])
def test_what_is_not_the_protocol_is_refused(said: str) -> None:
    with pytest.raises(ProcessFailed, match="not JSON"):
        fake(say=said)


def test_a_program_that_does_not_start() -> None:
    with pytest.raises(ProcessFailed, match="did not start"):
        Subject("ghost", ["/nonexistent/program"])
    with pytest.raises(ProcessFailed, match="exit status 4"):
        Subject("ghost", [sys.executable, "-S", "-c", "raise SystemExit(4)"])


def test_closing_twice_does_no_harm() -> None:
    subject = fake()
    subject.close()
    subject.close()


def test_of_a_traceback_the_last_line_is_told() -> None:
    with pytest.raises(ProcessFailed) as failure:
        Subject("ghost", [sys.executable, "-S", "-c", "import there_is_no_such_module"])
    assert str(failure.value) == (
        "ghost ended without an answer: ModuleNotFoundError: No module named 'there_is_no_such_module'"
    )


def test_a_program_that_cannot_begin_says_why() -> None:
    with pytest.raises(ProcessFailed, match=r"^fake did not start: it has no legs$"):
        fake(say='{"error": "it has no legs"}')


def test_ctrl_c_does_not_wait_for_a_measurement() -> None:
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt), fake(hang="prefill") as subject:
        subject._in.write('{"command": "prefill"}\n')
        subject._in.flush()
        raise KeyboardInterrupt
    assert time.monotonic() - began < subject_module._CLOSE_TIMEOUT_S
    assert subject._process.poll() is not None


def test_a_program_that_lives_on_after_its_last_answer_is_quoted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subject_module, "_CLOSE_TIMEOUT_S", 0.1)
    script = "import os, sys, time; os.close(1); time.sleep(60)"
    with pytest.raises(ProcessFailed, match="ended without an answer"):
        Subject("ghost", [sys.executable, "-S", "-c", script])
