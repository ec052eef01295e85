"""Couriers of two computers, played by two network namespaces: either side calls, by IPv4 and by IPv6 with its zone."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from engine.bench import netns
from engine.errors import HostError
from engine.handoff.client_events import Finished
from engine.wire.messages import Role
from tests.engine.handoff.pairs import courier_config, digest, pair

LINK_LOCAL = ("fe80::a%cable", "fe80::b%cable")


@pytest.fixture(scope="module")
def ends() -> Iterator[tuple[netns.End, netns.End]]:
    """The worker's and the decode side's, with link-local addresses where the system has IPv6."""
    try:
        netns.check_possible()
    except HostError as error:
        pytest.skip(str(error))
    with netns.cable("1gbit") as made:
        for end, host in zip(made, LINK_LOCAL, strict=True):
            address = host.removesuffix("%cable") + "/64"
            subprocess.run(
                [*end.enter, "ip", "address", "add", address, "dev", "cable", "nodad"], check=False
            )
        yield made


@pytest.mark.root
@pytest.mark.parametrize("client_dials", [True, False], ids=["the client calls", "the worker calls"])
@pytest.mark.parametrize("link_local", [False, True], ids=["IPv4", "IPv6 with its zone"])
def test_a_prompt_crosses_the_cable(
    tmp_path: Path, ends: tuple[netns.End, netns.End], client_dials: bool, link_local: bool
) -> None:
    worker_end, client_end = ends
    worker_host, client_host = LINK_LOCAL if link_local else (worker_end.host, client_end.host)
    if link_local and not has_address(worker_end, "fe80::a"):
        pytest.skip("no IPv6")
    with pair(tmp_path, start=False) as (client, worker):
        of_worker = courier_config(
            Role.PREFILL, worker.folder, client.identity.fingerprint, start_through=worker_end.enter
        )
        of_client = courier_config(
            Role.DECODE, client.folder, worker.identity.fingerprint, start_through=client_end.enter
        )
        if client_dials:
            port = worker.start(msgspec.structs.replace(of_worker, listen=f"[{worker_host}]:0"))
            client.start(msgspec.structs.replace(of_client, dial=f"[{worker_host}]:{port}"))
        else:
            port = client.start(msgspec.structs.replace(of_client, listen=f"[{client_host}]:0"))
            worker.start(msgspec.structs.replace(of_worker, dial=f"[{client_host}]:{port}"))
        client.wait_ready()
        called = worker_host if client_dials else worker_host.partition("%")[0]
        assert called in client.opened.status().peer
        client.ask(1, 100)
        assert isinstance(client.wait_end(1), Finished)
        assert digest(client.memory, 0, 100) == digest(worker.memory, 0, 100)


def has_address(end: netns.End, address: str) -> bool:
    shown = subprocess.run(
        [*end.enter, "ip", "-6", "address", "show", "dev", "cable"],
        capture_output=True,
        text=True,
        check=False,
    )
    return address in shown.stdout
