"""`baton pair` as a process of its own, against the control API of two nodes' trust on loopback."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from engine.node.control import discovery, pairing
from engine.node.control.app import build_control_app
from engine.node.finding.discovery import Discovery, Found
from engine.node.peering.peer_links import PeerLinks
from engine.node.presence import Place
from engine.node.trust.identity import Identity
from engine.node.trust.pairing_port import PairingPort
from engine.node.trust.peers import PeerBook
from engine.paths import own_command
from engine.server.run import HttpServer
from tests.engine.node.glue import new_end

TIMEOUT_S = 30.0

TOKEN = "a token that only this user knows"

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="folders are set by XDG variables")


@dataclass(kw_only=True)
class Desk:
    """What of a node its trust needs, and the command line of the person who sits there."""

    folder: Path
    pairing: PairingPort
    peers: PeerBook
    links: PeerLinks
    found: list[Found] = field(default_factory=list)
    discovery: Discovery = field(
        default_factory=lambda: Discovery(
            node_id="a" * 32, name="Alpha", version="1", on_change=lambda: None, look=list
        )
    )

    @property
    def environment(self) -> dict[str, str]:
        folders = {
            f"XDG_{kind}_HOME": str(self.folder / kind) for kind in ("CONFIG", "CACHE", "DATA", "STATE")
        }
        return {**os.environ, "HOME": str(self.folder), **folders}

    async def start(self, *words: str) -> asyncio.subprocess.Process:
        pipe = asyncio.subprocess.PIPE
        return await asyncio.create_subprocess_exec(
            *own_command(), "pair", *words, stdout=pipe, stderr=pipe, env=self.environment
        )

    async def type(self, *words: str) -> tuple[int, str, str]:
        """Exit status, output, errors."""
        process = await self.start(*words)
        out, errors = await process.communicate()
        return process.returncode or 0, out.decode(), errors.decode()

    async def show(self, *words: str) -> tuple[asyncio.subprocess.Process, dict[str, Any]]:
        process = await self.start("--json", *words)
        assert process.stdout is not None
        return process, json.loads(await process.stdout.readline())


@contextlib.asynccontextmanager
async def desk(folder: Path, name: str) -> AsyncIterator[Desk]:
    home = folder / name
    end = new_end(home, name)
    end.offers.news.update(end.book.news())
    end.book.on_change(end.links.look_again)
    node_port = await end.links.start()
    here = Desk(
        folder=home,
        peers=end.book,
        links=end.links,
        pairing=PairingPort(
            end.identity,
            end.book,
            name=name,
            baton="1.0",
            node_port=lambda: node_port,
            found=lambda: here.found,
            on_change=lambda: None,
            host="127.0.0.1",
            port=0,
        ),
    )
    server = HttpServer(build_control_app(here, TOKEN, [*pairing.routes(), *discovery.routes()]))
    serving = asyncio.create_task(server.serve())
    place = Place(home / "CACHE" / "baton" / "node")
    place.take()
    try:
        place.tell(port=server.port, token=TOKEN, endpoint="http://127.0.0.1:1")
        yield here
    finally:
        place.leave()
        await here.pairing.close()
        await end.links.close()
        server.stop()
        await serving


def run(folder: Path, work: Callable[[Desk, Desk], Coroutine[Any, Any, None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(TIMEOUT_S), desk(folder, "spark") as here, desk(folder, "studio") as there:
            await work(here, there)

    asyncio.run(bounded())


async def paired(here: Desk, there: Desk) -> None:
    process, shown = await here.show()
    status, _, errors = await there.type(shown["code"], "--to", f"127.0.0.1:{shown['port']}")
    assert status == 0, errors
    assert await process.wait() == 0


def test_two_people_pair_their_computers(tmp_path: Path) -> None:
    async def work(here: Desk, there: Desk) -> None:
        process = await here.start("--role", "decode")
        assert process.stdout is not None
        while "Ctrl-C" not in (line := (await process.stdout.readline()).decode()):
            if line.strip().startswith("baton pair"):
                code = line.split()[-1]
        assert here.pairing.snapshot()["offer"]["code"] == code
        there.found = [
            Found(
                node_id="f" * 32,
                name="spark",
                addresses=("127.0.0.1:7119",),
                by=("multicast",),
                pairing_port=here.pairing.snapshot()["offer"]["port"],
            )
        ]
        since_s = time.monotonic()
        status, out, errors = await there.type(code)
        took_s = time.monotonic() - since_s

        assert (status, errors) == (0, "")
        assert out.startswith("Paired: studio and spark (")
        rest = (await process.stdout.read()).decode()
        assert rest.startswith("Paired: spark and studio (")
        assert await process.wait() == 0
        assert took_s < 3
        assert there.peers.all()[0].fingerprint in out and there.peers.all()[0].role_wish == "decode"

    run(tmp_path, work)


def test_pairs_are_listed_and_removed(tmp_path: Path) -> None:
    async def work(here: Desk, there: Desk) -> None:
        assert await here.type("list") == (0, "This computer is paired with no other one: baton pair\n", "")
        await paired(here, there)
        while not (here.links.all() and there.links.all()):
            await asyncio.sleep(0)
        status, out, _ = await here.type("list")
        assert status == 0 and out.startswith("studio ") and "connected, at 127.0.0.1" in out
        _, out, _ = await here.type("list", "--json")
        (peer,) = json.loads(out)
        assert peer["name"] == "studio" and peer["connected"] and peer["fingerprint"]

        status, _, errors = await here.type("remove", "nobody")
        assert status == 2 and "no paired computer is called 'nobody'; paired are: studio" in errors
        status, out, _ = await here.type("remove", "studio")
        assert (status, out) == (0, "studio is not paired with this computer any more; it was told\n")
        while there.peers.all():
            await asyncio.sleep(0)
        assert here.peers.all() == () and here.links.all() == []

    run(tmp_path, work)


def test_an_address_that_was_typed_in_is_listed_and_removed(tmp_path: Path) -> None:
    async def work(here: Desk, there: Desk) -> None:
        for address in ("192.168.1.20", "fe80::1%eth0"):
            here.discovery.add_manual(address)
        _, out, _ = await here.type("list")
        assert "looked for at 192.168.1.20:7119" in out and "[fe80::1%eth0]:7119" in out
        removed = await here.type("remove", "192.168.1.20")
        assert removed == (0, "Nobody is looked for at 192.168.1.20:7119 any more\n", "")
        assert (await here.type("remove", "[fe80::1%eth0]:7119"))[0] == 0
        assert here.discovery.snapshot()["manual"] == []

    run(tmp_path, work)


def test_a_wrong_code_is_told_at_both_ends(tmp_path: Path) -> None:
    async def work(here: Desk, there: Desk) -> None:
        process, shown = await here.show()
        wrong = f"{(int(shown['code'].replace('-', '')) + 1) % 10**8:08d}"
        status, out, errors = await there.type(wrong, "--to", f"127.0.0.1:{shown['port']}")
        assert (status, out) == (2, "")
        assert "not the code that the other computer shows" in errors
        _, errors_here = await process.communicate()
        assert process.returncode == 1
        assert "tried to pair with a wrong code" in errors_here.decode()
        status, _, errors = await here.type()
        assert status == 2 and "can be shown or typed in" in errors

    run(tmp_path, work)


def test_who_stops_showing_withdraws_the_code(tmp_path: Path) -> None:
    async def work(here: Desk, there: Desk) -> None:
        process, shown = await here.show()
        assert here.pairing.snapshot()["offer"]["code"] == shown["code"]
        process.terminate()
        await process.communicate()
        while here.pairing.snapshot()["offer"] is not None:
            await asyncio.sleep(0)
        status, _, errors = await there.type(shown["code"], "--to", f"127.0.0.1:{shown['port']}")
        assert status == 1 and "no code is shown at" in errors

    run(tmp_path, work)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["12-34"], "one has 8 digits"),
        (["1234-5678", "--to", "spark:99999"], "65535"),
        (["remove"], "name the computer to remove"),
        (["list", "studio"], "studio is one word too many"),
        (["--to", "spark"], "--to goes with the code"),
    ],
)
def test_what_cannot_be_is_told(tmp_path: Path, words: list[str], sentence: str) -> None:
    async def work(here: Desk, there: Desk) -> None:
        status, out, errors = await here.type(*words)
        assert (status, out) == (2, "")
        assert sentence in errors and "Traceback" not in errors

    run(tmp_path, work)


def test_the_identity_is_renewed_while_no_node_runs(tmp_path: Path) -> None:
    async def work(here: Desk, there: Desk) -> None:
        status, _, errors = await here.type("renew")
        assert status == 2 and "a node runs here already" in errors

        alone = Desk(folder=tmp_path / "alone", pairing=here.pairing, peers=here.peers, links=here.links)
        old = Identity.load_or_create(tmp_path / "alone" / "CONFIG" / "baton" / "identity")
        status, out, errors = await alone.type("renew", "--json")
        assert status == 0, errors
        new = Identity.load_or_create(tmp_path / "alone" / "CONFIG" / "baton" / "identity")
        assert json.loads(out) == {"node_id": new.node_id, "fingerprint": new.fingerprint}
        assert new.node_id != old.node_id
        status, _, errors = await alone.type("list")
        assert status == 2 and "start one with `baton node`" in errors

    run(tmp_path, work)
