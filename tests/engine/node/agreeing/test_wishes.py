"""Wishes for roles: said on either computer, kept by both, and the later one holds."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from engine.errors import InvalidRequest
from engine.node.agreeing.roles import Wish
from engine.node.agreeing.wishes import Wishes
from tests.engine.node.glue import End, two_ends

ME, OTHER, THIRD = "1" * 32, "2" * 32, "4" * 32


def wishes_of(end: End, path: Path) -> Wishes:
    wishes = Wishes(
        path,
        end.identity.node_id,
        paired=lambda: [peer.node_id for peer in end.book.all()],
        on_change=end.changed.set,
    )
    wishes.offer_methods(end.offers)
    return wishes


def kept(path: Path, *paired: str) -> Wishes:
    return Wishes(path, ME, paired=lambda: paired, on_change=lambda: None)


def test_a_wish_reaches_the_other_computer_and_is_kept_there(tmp_path: Path) -> None:
    async def work() -> None:
        async with two_ends(tmp_path) as (left, right):
            l_id, r_id = left.identity.node_id, right.identity.node_id
            here, there = (wishes_of(left, tmp_path / "l.json"), wishes_of(right, tmp_path / "r.json"))
            here.say(r_id, left.links.all())
            await right.until(lambda: there.with_peer(l_id).prefill == r_id)
            there.say("auto", right.links.all())
            await left.until(lambda: here.with_peer(r_id).prefill == "auto")
            assert here.with_peer(r_id) == there.with_peer(l_id)
            assert kept(tmp_path / "l.json", r_id).with_peer(r_id).count == 2

    asyncio.run(work())


def test_who_was_away_hears_the_latest_when_it_is_greeted(tmp_path: Path) -> None:
    async def work() -> None:
        async with two_ends(tmp_path) as (left, right):
            l_id, r_id = left.identity.node_id, right.identity.node_id
            here, there = (wishes_of(left, tmp_path / "l.json"), wishes_of(right, tmp_path / "r.json"))
            here.say(l_id, [])
            here.say(r_id, [])
            there.say(l_id, [])
            assert left.link is not None and right.link is not None
            there.greet(right.link)
            here.greet(left.link)
            await right.until(lambda: there.with_peer(l_id).prefill == r_id)
            assert here.with_peer(r_id) == there.with_peer(l_id) == Wish(prefill=r_id, count=2, by=l_id)

    asyncio.run(work())


def test_what_is_no_wish_or_no_concern_of_the_pair_is_not_heard(tmp_path: Path) -> None:
    async def work() -> None:
        async with two_ends(tmp_path) as (left, right):
            l_id = left.identity.node_id
            there = wishes_of(right, tmp_path / "r.json")
            assert left.link is not None
            left.link.tell("roles.wish", {"prefill": "everybody", "count": 9, "by": l_id})
            left.link.tell("roles.wish", {"prefill": OTHER, "count": 9, "by": l_id})
            left.link.tell("roles.wish", {"prefill": l_id, "count": 1, "by": l_id})
            await right.until(lambda: there.with_peer(l_id).prefill == l_id)
            assert there.with_peer(l_id).count == 1

    asyncio.run(work())


def test_what_is_wished_with_one_is_nothing_to_another(tmp_path: Path) -> None:
    wishes = kept(tmp_path / "w.json", OTHER, THIRD)
    wishes.say(OTHER, [])
    assert (wishes.with_peer(OTHER).prefill, wishes.with_peer(THIRD).prefill) == (OTHER, "auto")
    wishes.say(ME, [])
    assert (wishes.with_peer(OTHER).prefill, wishes.with_peer(THIRD).prefill) == (ME, ME)


def test_who_is_paired_anew_begins_anew(tmp_path: Path) -> None:
    kept(tmp_path / "w.json", OTHER).say(OTHER, [])
    kept(tmp_path / "w.json").forget_unpaired()
    assert kept(tmp_path / "w.json", OTHER).with_peer(OTHER) == Wish()


@pytest.mark.parametrize("prefill", ["", "me", "A" * 32, "a" * 31, "3" * 32])
def test_only_one_of_the_pair_or_auto_can_be_wished(tmp_path: Path, prefill: str) -> None:
    with pytest.raises(InvalidRequest, match="auto"):
        kept(tmp_path / "w.json", OTHER).say(prefill, [])


def test_a_damaged_file_is_no_wish(tmp_path: Path) -> None:
    (tmp_path / "w.json").write_bytes(b'{"prefill": "x"}')
    assert kept(tmp_path / "w.json", OTHER).with_peer(OTHER) == Wish()


def test_a_count_beyond_all_others_is_not_heard(tmp_path: Path) -> None:
    """With it, no other wish could ever be said here again."""

    async def work() -> None:
        async with two_ends(tmp_path) as (left, right):
            l_id, r_id = left.identity.node_id, right.identity.node_id
            there = wishes_of(right, tmp_path / "r.json")
            assert left.link is not None
            left.link.tell("roles.wish", {"prefill": r_id, "count": 1 << 53, "by": l_id})
            left.link.tell("roles.wish", {"prefill": l_id, "count": 3, "by": l_id})
            await right.until(lambda: there.with_peer(l_id).prefill == l_id)
            there.say("auto", [])
            assert there.with_peer(l_id).count == 4

    asyncio.run(work())
