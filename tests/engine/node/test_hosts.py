"""What computers are is known on both, kept while one is away, and told again only when it has changed."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec

from engine.node.hosts import Host, Hosts
from tests.engine.node.glue import TIMEOUT_S, End, two_ends

GB = 1_000_000_000
STUDIO = Host(device="Apple M2 Ultra", system="macOS", memory_bytes=192 * GB, free_bytes=150 * GB)
SPARK = Host(
    device="NVIDIA GB10", system="Linux", memory_bytes=128 * GB, free_bytes=119 * GB, gpu_bytes=128 * GB
)


class Node:
    """An end of the link that says what it is; `changed` is set when anything it knows has."""

    def __init__(self, end: End, host: Host) -> None:
        self.end, self.host, self.n_changes = end, host, 0
        self.changed = asyncio.Event()
        self.hosts = Hosts(
            end.identity.node_id,
            read=lambda: self.host,
            links=end.links.all,
            paired=lambda: [peer.node_id for peer in end.book.all()],
            on_change=self._on_change,
        )
        self.hosts.offer_methods(end.offers)

    @property
    def node_id(self) -> str:
        return self.end.identity.node_id

    def _on_change(self) -> None:
        self.n_changes += 1
        self.changed.set()

    async def until_knows(self, node: Node, host: Host) -> None:
        while self.hosts.snapshot().get(node.node_id) != msgspec.to_builtins(host):
            self.changed.clear()
            await self.changed.wait()


def test_each_knows_both_and_hears_of_what_changes(tmp_path: Path) -> None:
    async def work() -> None:
        async with asyncio.timeout(TIMEOUT_S), two_ends(tmp_path) as (left, right):
            studio, spark = Node(left, STUDIO), Node(right, SPARK)
            for node in (studio, spark):
                assert node.end.link is not None
                node.hosts.look_again()
                node.hosts.greet(node.end.link)
            await studio.until_knows(spark, SPARK)
            await spark.until_knows(studio, STUDIO)

            spark.host = msgspec.structs.replace(SPARK, free_bytes=80 * GB, loaded=("qwen3.6-27b",))
            spark.hosts.look_again()
            await studio.until_knows(spark, spark.host)

            left.book.remove(spark.node_id)
            assert set(studio.hosts.snapshot()) == {studio.node_id}

    asyncio.run(work())


def test_memory_that_hardly_changes_is_no_news(tmp_path: Path) -> None:
    async def work() -> None:
        async with asyncio.timeout(TIMEOUT_S), two_ends(tmp_path) as (left, _):
            studio = Node(left, STUDIO)
            studio.hosts.look_again()
            for free_bytes, n_changes in ((150 * GB - 1, 1), (149 * GB, 1), (147 * GB, 2), (148 * GB, 2)):
                studio.host = msgspec.structs.replace(STUDIO, free_bytes=free_bytes)
                studio.hosts.look_again()
                assert studio.n_changes == n_changes

    asyncio.run(work())


def test_what_is_no_computer_is_not_taken_for_one(tmp_path: Path) -> None:
    async def work() -> None:
        async with asyncio.timeout(TIMEOUT_S), two_ends(tmp_path) as (left, right):
            studio, spark = Node(left, STUDIO), Node(right, SPARK)
            assert right.link is not None
            right.link.tell(
                "host.is", {"device": "x" * 300, "system": "", "memory_bytes": 1, "free_bytes": 1}
            )
            right.link.tell("host.is", {**msgspec.to_builtins(SPARK), "colour": "gold"})
            await studio.until_knows(spark, SPARK)
            assert studio.n_changes == 1

    asyncio.run(work())
