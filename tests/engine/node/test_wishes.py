"""Wishes for roles: said on either computer, kept by both, and the later one holds."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from engine.errors import InvalidRequest
from engine.node.roles import Wish
from engine.node.wishes import Wishes
from tests.engine.node.glue import End, two_ends

ME, OTHER = "1" * 32, "2" * 32


def wishes_of(end: End, path: Path) -> Wishes:
    wishes = Wishes(path, end.identity.node_id, on_change=end.changed.set)
    wishes.offer_methods(end.offers)
    return wishes


def test_a_wish_reaches_the_other_computer_and_is_kept_there(tmp_path: Path) -> None:
    async def work() -> None:
        async with two_ends(tmp_path) as (left, right):
            here, there = wishes_of(left, tmp_path / "l.json"), wishes_of(right, tmp_path / "r.json")
            here.say(OTHER, left.links.all())
            await right.until(lambda: there.current.prefill == OTHER)
            there.say("auto", right.links.all())
            await left.until(lambda: here.current.prefill == "auto")
            assert here.current == there.current

    asyncio.run(work())
    assert Wishes(tmp_path / "l.json", ME, on_change=lambda: None).current.count == 2


def test_who_was_away_hears_the_latest_when_it_is_greeted(tmp_path: Path) -> None:
    async def work() -> None:
        async with two_ends(tmp_path) as (left, right):
            here, there = wishes_of(left, tmp_path / "l.json"), wishes_of(right, tmp_path / "r.json")
            here.say(ME, [])
            here.say(OTHER, [])
            there.say(ME, [])
            assert left.link is not None and right.link is not None
            there.greet(right.link)
            here.greet(left.link)
            await right.until(lambda: there.current.prefill == OTHER)
            assert here.current == there.current == Wish(prefill=OTHER, count=2, by=left.identity.node_id)

    asyncio.run(work())


def test_what_is_no_wish_is_not_heard(tmp_path: Path) -> None:
    async def work() -> None:
        async with two_ends(tmp_path) as (left, right):
            there = wishes_of(right, tmp_path / "r.json")
            assert left.link is not None
            left.link.tell("roles.wish", {"prefill": "everybody", "count": 9, "by": ME})
            left.link.tell("roles.wish", {"prefill": ME, "count": 1, "by": ME})
            await right.until(lambda: there.current.prefill == ME)
            assert there.current.count == 1

    asyncio.run(work())


@pytest.mark.parametrize("prefill", ["", "me", "A" * 32, "a" * 31])
def test_only_a_node_or_auto_can_be_wished(tmp_path: Path, prefill: str) -> None:
    with pytest.raises(InvalidRequest, match="auto"):
        Wishes(tmp_path / "w.json", ME, on_change=lambda: None).say(prefill, [])


def test_a_damaged_file_is_no_wish(tmp_path: Path) -> None:
    (tmp_path / "w.json").write_bytes(b'{"prefill": "x"}')
    assert Wishes(tmp_path / "w.json", ME, on_change=lambda: None).current == Wish()


def test_a_count_beyond_all_others_is_not_heard(tmp_path: Path) -> None:
    """With it, no other wish could ever be said here again."""

    async def work() -> None:
        async with two_ends(tmp_path) as (left, right):
            there = wishes_of(right, tmp_path / "r.json")
            assert left.link is not None
            left.link.tell("roles.wish", {"prefill": OTHER, "count": 1 << 53, "by": OTHER})
            left.link.tell("roles.wish", {"prefill": ME, "count": 3, "by": ME})
            await right.until(lambda: there.current.prefill == ME)
            there.say("auto", [])
            assert there.current.count == 4

    asyncio.run(work())
