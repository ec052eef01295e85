"""A mistake is written down with its place and its kind, and without a word of what was asked."""

from __future__ import annotations

import io
import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.log_lines import LineFormatter, account_of

PROMPT = 'my diary: it\'s "late"\nand dark'


def raised(make: Exception) -> Exception:
    try:
        raise make
    except Exception as error:
        return error


def test_where_and_what_kind() -> None:
    account = account_of(raised(RuntimeError("the expanded size of the tensor (4) must match")))
    assert "in raised\n    raise make\n" in account
    assert account.endswith("\nRuntimeError: the expanded size of the tensor (4) must match")


@pytest.mark.parametrize(
    "mistake", [lambda text: {}[text], float, lambda text: int(text), lambda text: [].index(text)]
)
def test_what_python_quotes_is_left_out(mistake) -> None:
    with pytest.raises(Exception) as caught:
        mistake(PROMPT)
    account = account_of(caught.value)
    assert "diary" not in account and "late" not in account and "dark" not in account
    assert type(caught.value).__name__ in account


@given(text=st.text(min_size=1))
def test_nothing_of_a_key_gets_through(text: str) -> None:
    lines = account_of(KeyError(f"x{text}x")).splitlines()
    assert lines[1:] in (["KeyError: '...'"], ['KeyError: "..."'])


def test_what_led_to_it_comes_first_and_a_circle_ends() -> None:
    try:
        try:
            raise KeyError(PROMPT)
        except KeyError as first:
            raise ValueError(f"{PROMPT!r} is no number") from first
    except ValueError as second:
        account = account_of(second)
        assert second.__cause__ is not None
        second.__cause__.__cause__ = second
        assert account_of(second) == account
    assert (
        account.index("KeyError: '...'")
        < account.index("which led to")
        < account.index("ValueError: '...' is no")
    )
    assert "diary" not in account


def test_a_log_line_has_it_too() -> None:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(LineFormatter("%(levelname)s: %(message)s"))
    log = logging.Logger("test")
    log.addHandler(handler)
    try:
        raise KeyError(PROMPT)
    except KeyError:
        log.exception("a step failed")
    log.error("%s is connected", "a\nERROR: forged\x1b[2J\u2028b")
    lines = stream.getvalue().splitlines()
    assert lines[-1] == "ERROR: a\\nERROR: forged\\x1b[2J\\u2028b is connected"
    assert lines[0] == "ERROR: a step failed" and "KeyError: '...'" in lines
    assert "diary" not in stream.getvalue().replace("raise KeyError(PROMPT)", "")
