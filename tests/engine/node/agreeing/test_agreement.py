"""Two joined nodes come to the same roles, from each other's reports, and follow when something changes."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from engine.errors import ProcessFailed
from engine.node.agreeing.agreement import Agreement
from engine.node.agreeing.measure import Measurement, Measurements
from engine.node.agreeing.reports import Reports
from engine.node.agreeing.roles import Roles
from engine.node.agreeing.wishes import Wishes
from engine.node.models.model_folder import Folder
from engine.node.models.shelf import Shelf
from engine.node.peering.offers import Method
from engine.node.peering.peer_link import PeerLink
from tests.engine.node.glue import End, two_ends
from tests.engine.node.models.models_at_hand import write_model

TIMEOUT_S = 30.0


class Known(Measurements):
    """Finds every model as fast as it is told to be; None where it cannot be measured."""

    rates: tuple[float, float] | None = (1000.0, 10.0)
    takes_long = False
    n_running = 0

    async def _run(self, model: Path) -> Measurement:
        if self.takes_long:
            self.n_running += 1
            try:
                await asyncio.Event().wait()
            finally:
                self.n_running -= 1
        if self.rates is None:
            raise ProcessFailed(f"{model.name} could not be measured")
        prefill, decode = self.rates
        return Measurement(prefill_tokens_per_s=prefill, decode_tokens_per_s=decode, load_s=1.0, device="cpu")


@dataclass(kw_only=True)
class Node:
    end: End
    folder: Path
    shelf: Shelf
    measurements: Known
    wishes: Wishes
    agreement: Agreement
    changed: asyncio.Event
    has_time: bool = True

    @property
    def node_id(self) -> str:
        return self.end.identity.node_id

    def roles(self, other: Node) -> Roles | None:
        return self.agreement.with_peer(other.node_id, "m")


def new_node(end: End, folder: Path, name: str) -> Node:
    (folder / "models").mkdir(parents=True)
    changed = asyncio.Event()
    shelf = Shelf(
        Folder(folder / "models", folder / "digests"),
        on_change=lambda: agreement.changed(),
        in_use=dict,
    )
    measurements = Known(folder / "measured", device="auto", version="1")
    wishes = Wishes(
        folder / "roles.json",
        end.identity.node_id,
        paired=lambda: [peer.node_id for peer in end.book.all()],
        on_change=lambda: agreement.changed(),
    )
    reports = Reports(end.identity.node_id, name, shelf, measurements, link_bytes_per_s=lambda node_id: 1e9)
    agreement = Agreement(
        end.identity.node_id,
        shelf,
        reports,
        wishes,
        links=end.links.all,
        n_ctx=1024,
        n_slots=1,
        has_time_for=lambda model: node.has_time,
        on_change=changed.set,
    )
    shelf.offer_methods(end.offers)
    agreement.offer_methods(end.offers)
    node = Node(
        end=end,
        folder=folder / "models",
        shelf=shelf,
        measurements=measurements,
        wishes=wishes,
        agreement=agreement,
        changed=changed,
    )
    return node


@contextlib.asynccontextmanager
async def two_nodes(folder: Path) -> AsyncIterator[tuple[Node, Node]]:
    async with two_ends(folder) as (left, right):
        nodes = new_node(left, folder / "here", "here"), new_node(right, folder / "there", "there")
        yield nodes


async def until(nodes: tuple[Node, Node], is_so: Callable[[], bool]) -> None:
    """Wait until it is so, however often either node changes before."""
    async with asyncio.timeout(TIMEOUT_S):
        while not is_so():
            for node in nodes:
                node.changed.clear()
            waits = [asyncio.create_task(node.changed.wait()) for node in nodes]
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            for wait in waits:
                wait.cancel()


def run(folder: Path, work: Callable[[Node, Node], Awaitable[None]]) -> None:
    async def inside() -> None:
        async with asyncio.timeout(TIMEOUT_S), two_nodes(folder) as (here, there):
            try:
                await work(here, there)
            finally:
                for node in (here, there):
                    await node.agreement.close()
                    await node.shelf.close()

    asyncio.run(inside())


async def start(here: Node, there: Node, *, on_both: bool = True) -> None:
    content = write_model(here.folder / "m.gguf").read_bytes()
    if on_both:
        (there.folder / "m.gguf").write_bytes(content)
    for node in (here, there):
        await node.shelf.start()
        await node.agreement.start()
        assert node.end.link is not None
        node.agreement.greet(node.end.link)


def both_agree(here: Node, there: Node, prefill: Node, decode: Node) -> bool:
    ours, theirs = here.roles(there), there.roles(here)
    wanted = (prefill.node_id, decode.node_id)
    return all(roles is not None and (roles.prefill, roles.decode) == wanted for roles in (ours, theirs))


def are_measured(here: Node, there: Node) -> bool:
    """Before that the order of their ids decides, which may be the right one."""
    roles = here.roles(there), there.roles(here)
    return all(one is not None and "with here prefilling" in one.reason for one in roles)


def test_both_are_measured_and_come_to_the_same(tmp_path: Path) -> None:
    async def work(here: Node, there: Node) -> None:
        here.measurements.rates, there.measurements.rates = (4000.0, 20.0), (800.0, 60.0)
        await start(here, there)
        await until((here, there), lambda: both_agree(here, there, here, there) and are_measured(here, there))
        assert here.roles(there) == there.roles(here)

    run(tmp_path, work)


def test_a_wish_said_on_one_is_met_by_both(tmp_path: Path) -> None:
    async def work(here: Node, there: Node) -> None:
        here.measurements.rates, there.measurements.rates = (4000.0, 20.0), (800.0, 60.0)
        await start(here, there)
        await until((here, there), lambda: both_agree(here, there, here, there))
        here.wishes.say(there.node_id, here.end.links.all())
        await until((here, there), lambda: both_agree(here, there, there, here))
        there.wishes.say("auto", there.end.links.all())
        await until((here, there), lambda: both_agree(here, there, here, there))
        assert here.agreement.snapshot()["wishes"][there.node_id]["prefill"] == "auto"

    run(tmp_path, work)


def test_what_is_busy_is_not_measured(tmp_path: Path) -> None:
    async def work(here: Node, there: Node) -> None:
        here.has_time = there.has_time = False
        await start(here, there)
        smaller, larger = sorted((here, there), key=lambda node: node.node_id)
        await until((here, there), lambda: both_agree(here, there, larger, smaller))
        assert here.agreement.snapshot()["measured"] == {}

    run(tmp_path, work)


def test_a_model_that_only_one_has_is_nobodys_business(tmp_path: Path) -> None:
    async def work(here: Node, there: Node) -> None:
        await start(here, there, on_both=False)
        await here.shelf.digests(here.shelf.find("m"))
        for node in (here, there):
            await node.agreement._agree_with_all()
        assert here.roles(there) is None and there.roles(here) is None
        assert here.agreement._unmeasured == {} == here.agreement.snapshot()["measured"]

    run(tmp_path, work)


def test_a_model_that_cannot_be_measured_is_tried_once_and_that_is_shown(tmp_path: Path) -> None:
    async def work(here: Node, there: Node) -> None:
        here.measurements.rates = None
        await start(here, there)
        await until((here, there), lambda: bool(there.agreement.snapshot()["measured"]))
        await until((here, there), lambda: list(here.agreement.snapshot()["not_measured"]) == ["m"])
        ours = here.roles(there)
        assert ours is not None and "is not measured yet" in ours.reason

    run(tmp_path, work)


def test_one_that_is_measured_after_all_is_not_shown_as_one_that_cannot_be(tmp_path: Path) -> None:
    async def work(here: Node, there: Node) -> None:
        here.measurements.rates = None
        await start(here, there)
        await until((here, there), lambda: bool(here.agreement.snapshot()["not_measured"]))
        here.measurements.rates = (4000.0, 20.0)
        await here.agreement.measure(here.shelf.find("m"))
        assert here.agreement.snapshot()["not_measured"] == {}
        await until((here, there), lambda: "not both measured" not in str(here.roles(there)))

    run(tmp_path, work)


def test_roles_follow_a_wish_while_a_model_is_measured(tmp_path: Path) -> None:
    async def work(here: Node, there: Node) -> None:
        for node in (here, there):
            node.measurements.takes_long = True
        await start(here, there)
        await until((here, there), lambda: here.roles(there) is not None)
        here.wishes.say(here.node_id, here.end.links.all())
        await until((here, there), lambda: both_agree(here, there, here, there))
        here.wishes.say(there.node_id, here.end.links.all())
        await until((here, there), lambda: both_agree(here, there, there, here))
        assert here.measurements.n_running == there.measurements.n_running == 1
        await here.agreement.close()
        assert here.measurements.n_running == 0

    run(tmp_path, work)


def test_a_wish_that_changes_no_role_is_news_all_the_same(tmp_path: Path) -> None:
    async def work(here: Node, there: Node) -> None:
        here.changed.clear()
        here.wishes.say(here.node_id, [])
        assert here.changed.is_set()

    run(tmp_path, work)


@pytest.mark.parametrize("told", ["nonsense", {"node_id": "x"}, None])
def test_a_report_that_is_not_valid_changes_nothing(tmp_path: Path, told: object) -> None:
    async def work(here: Node, there: Node) -> None:
        async def lie(link: object, params: object) -> object:
            return told

        here.has_time = there.has_time = False  # what is measured changes something
        await start(here, there)
        await until((here, there), lambda: here.roles(there) is not None)
        before = here.roles(there)
        there.end.offers.calls["roles.report"] = Method(lie)
        await here.agreement._agree_with_all()
        assert here.roles(there) == before

    run(tmp_path, work)


def test_who_does_not_answer_is_not_asked_of_each_model(tmp_path: Path) -> None:
    """Each question would wait for its ten seconds, and all others with it."""
    asked = []

    async def fall_silent(link: PeerLink, about: object) -> None:
        asked.append(about)
        await link.close("gone")

    async def work(here: Node, there: Node) -> None:
        for name in ("a", "b", "c"):
            write_model(here.folder / f"{name}.gguf")
        await here.shelf.refresh()
        for model in here.shelf.models:
            await here.shelf.digests(model)
        there.end.offers.calls["roles.report"] = Method(fall_silent)
        await here.agreement._agree_with_all()
        assert len(asked) == 1

    run(tmp_path, work)
