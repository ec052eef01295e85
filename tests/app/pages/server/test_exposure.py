"""Whether other computers may use the endpoint: what is so, what is wanted, and what a change needs."""

from __future__ import annotations

from typing import Any

import pytest

from app.pages.server.exposure import EVERYWHERE, change_for, exposure_of, is_loopback, new_key, outside_hosts


def settings(host: str = "127.0.0.1", *, has_key: bool = False, source: str = "file") -> dict[str, Any]:
    return {
        "settings": [
            {"name": "host", "value": host, "source": source, "flag": "--host", "environment": None},
            {"name": "api_key", "is_set": has_key, "source": "environment", "environment": "BATON_API_KEY"},
        ]
    }


def test_as_it_is_and_as_it_is_wanted() -> None:
    closed = exposure_of(settings(), "http://127.0.0.1:7117")
    assert (closed.is_open, closed.is_wanted, closed.waits, closed.has_key) == (False, False, False, False)
    waiting = exposure_of(settings(EVERYWHERE, has_key=True), "http://127.0.0.1:7117")
    assert (waiting.is_open, waiting.is_wanted, waiting.waits) == (False, True, True)
    opened = exposure_of(settings(EVERYWHERE, has_key=True), "http://0.0.0.0:7117")
    assert (opened.is_open, opened.waits, opened.fixed_by) == (True, False, "")
    assert opened.key_fixed_by == "BATON_API_KEY"
    assert exposure_of(settings(source="flag"), "http://127.0.0.1:7117").fixed_by == "--host"
    assert not exposure_of({}, "").is_open


def test_a_key_is_made_where_there_is_none() -> None:
    without = exposure_of(settings(), "http://127.0.0.1:7117")
    changes, key = change_for(without, is_open=True)
    assert changes == {"host": EVERYWHERE, "api_key": key} and len(key) > 40
    has_one = exposure_of(settings(has_key=True), "http://127.0.0.1:7117")
    assert change_for(has_one, is_open=True) == ({"host": EVERYWHERE}, "")
    assert change_for(has_one, is_open=False) == ({"host": None}, "")
    assert new_key() != new_key()


@pytest.mark.parametrize(
    ("host", "is_so"),
    [("127.0.0.1", True), ("localhost", True), ("::1", True), ("0.0.0.0", False), ("studio", False)],
)
def test_loopback(host: str, is_so: bool) -> None:
    assert is_loopback(host) is is_so


def test_addresses_for_others_are_those_that_they_can_reach() -> None:
    assert outside_hosts(["127.0.0.1", "169.254.1.2", "192.168.1.2"]) == ["192.168.1.2", "169.254.1.2"]
