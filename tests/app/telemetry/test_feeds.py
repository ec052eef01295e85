"""Engines are followed while there are any, and no longer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from app.context import Context
from app.node.faults import NodeGone
from app.telemetry import feeds as module
from app.telemetry.feeds import Feeds
from app.telemetry.sides import sides_of
from tests.app.telemetry.timelines import ASKED_S, Handoff, snapshot
from tests.app.two_computers import MODEL, engine, pretend, two_computers
from tests.app.windows import wait

SMALL = Handoff(n_prompt=1025, n_chunks=2, n_layers=4)


class Engine:
    """What engines say, once for each time that they are followed; `fault` ends the stream."""

    def __init__(self) -> None:
        self.events: list[Any] = [snapshot(), *SMALL.until_chunk(1)]
        self.fault: Exception | None = None
        self.followed: list[str] = []
        self.n_left = 0

    async def __call__(self, model: str) -> AsyncGenerator[Any, None]:
        self.followed.append(model)
        try:
            for event in self.events:
                yield event
            if self.fault is not None:
                raise self.fault
            await asyncio.Event().wait()
        finally:
            self.n_left += 1


@pytest.fixture
def context(tmp_path: Path) -> Iterator[Context]:
    with two_computers(tmp_path) as context:
        yield context


@pytest.fixture
def said(context: Context, monkeypatch: pytest.MonkeyPatch) -> Engine:
    said = Engine()
    monkeypatch.setattr(context.client, "endpoint_events", said)
    monkeypatch.setattr("tests.app.two_computers._silence", said)
    return said


@pytest.fixture
def feeds(context: Context, said: Engine) -> Feeds:
    return Feeds(context.bridge, context.client, context.state, lambda: ASKED_S + 1)


def states(feeds: Feeds) -> list[str]:
    return [record.state for _, _, record in feeds.records()]


def test_a_loaded_model_is_followed_until_it_is_unloaded(
    context: Context, said: Engine, feeds: Feeds
) -> None:
    wait(lambda: states(feeds) == ["prefill_remote"])
    assert (said.followed, feeds.models) == ([MODEL], [MODEL])
    pretend(context, engines=[engine(active=1)])
    assert said.followed == [MODEL]
    pretend(context, engines=[])
    wait(lambda: said.n_left == 1)
    assert feeds.models == [] and states(feeds) == ["ended"]
    pretend(context)
    wait(lambda: said.followed == [MODEL, MODEL])


def test_one_that_loads_is_followed_once_it_is_ready(context: Context, said: Engine, feeds: Feeds) -> None:
    pretend(context, engines=[engine(), engine(model="other", state="starting")])
    assert feeds.models == [MODEL]
    pretend(context, engines=[engine(), engine(model="other")])
    wait(lambda: sorted(said.followed) == sorted([MODEL, "other"]))


def test_of_a_computer_that_prefills_the_other_ones_engine_is_followed(
    context: Context, said: Engine, feeds: Feeds
) -> None:
    worker = {
        "model": "theirs",
        "for": "spark",
        "state": "ready",
        "link": {"connected": True},
        "last_exits": [],
    }
    pretend(context, engines=[], workers=[worker])
    wait(lambda: "theirs" in said.followed)
    assert feeds.models == ["theirs"]


def test_after_a_change_of_roles_the_other_engine_is_followed(
    context: Context, said: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    feeds = Feeds(
        context.bridge, context.client, context.state, lambda: ASKED_S + 1, sides=partial(sides_of, context)
    )
    wait(lambda: states(feeds) == ["prefill_remote"])
    worker = {
        "model": MODEL,
        "for": "spark",
        "state": "ready",
        "link": {"connected": True},
        "last_exits": [],
    }
    said.events = [snapshot(), *Handoff(request_id="chat-8", asked_s=ASKED_S + 9).until_chunk(1)]
    pretend(context, workers=[worker])
    wait(lambda: len(feeds.records()) == 2)
    assert (said.followed, said.n_left) == ([MODEL, MODEL], 1)
    new, old = (record for _, _, record in feeds.records())
    assert (new.sides.worker, new.sides.decoder) == ("studio", "spark")
    assert (old.sides.worker, old.sides.decoder) == ("spark", "studio")
    assert old.is_over and "the roles changed" in old.told["error"]


def test_a_stream_that_breaks_off_is_taken_up_again(
    context: Context, said: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_AGAIN_AFTER_MS", 1)
    said.fault = NodeGone("it is gone")
    feeds = Feeds(context.bridge, context.client, context.state, lambda: ASKED_S + 1)
    wait(lambda: len(said.followed) > 2)
    said.fault = None
    wait(lambda: feeds.is_handing_over() and feeds.models == [MODEL])
    assert states(feeds) == ["prefill_remote"]
