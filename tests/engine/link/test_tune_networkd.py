"""`link tune` where systemd-networkd looks after the interfaces: a real one, in namespaces of its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.link.privileged import Order
from engine.link.tune import Profile, Way
from tests.engine.link.rooms import Room, room

pytestmark = pytest.mark.root

NETWORKD = "/lib/systemd/systemd-networkd"
PROFILE = Profile(interface="cable", host="10.71.17.5", mtu=9000, way=Way.NETWORKD)

SERVICE = f"""
mount -t tmpfs tmpfs /etc/systemd/network
mkdir -p /run/systemd/netif
chown systemd-network:systemd-network /run/systemd/netif
{NETWORKD} &
"""


def setup(inside: Room) -> str:
    """What networkd says of the cable."""
    return inside.run("networkctl", "--no-pager", "--no-legend", "list", "cable").split()[-1]


@pytest.fixture
def inside() -> Iterator[Room]:
    if not Path("/etc/systemd/network").is_dir():
        pytest.skip("needs systemd-networkd")
    with room(SERVICE, NETWORKD, "networkctl") as made:
        made.until(lambda: setup(made), "unmanaged")
        yield made


def test_a_file_of_our_own_wins_and_goes(inside: Room) -> None:
    at_first = inside.link()
    inside.helper(Order(action="apply", changes=(PROFILE,)))
    inside.until(lambda: setup(inside), "configured")
    inside.until(inside.link, (9000, ["10.71.17.5", *at_first[1]]))
    assert "default" not in inside.run("ip", "route")
    inside.helper(Order(action="undo"))
    inside.until(lambda: setup(inside), "unmanaged")
    inside.until(inside.link, at_first)


def test_what_somebody_else_set_up_is_back_afterwards(inside: Room) -> None:
    """Another file for the same interface is left as it is, and holds again."""
    theirs = "[Match]\nName=cable\n[Link]\nMTUBytes=4000\n[Network]\nAddress=192.168.77.1/24\n"
    inside.run("ip", "address", "flush", "dev", "cable", "scope", "global")
    inside.run("tee", "/etc/systemd/network/10-theirs.network", given=theirs)
    inside.run("networkctl", "reload")
    inside.until(inside.link, (4000, ["192.168.77.1"]))
    inside.helper(Order(action="apply", changes=(PROFILE,)))
    inside.until(lambda: (inside.link()[0], "10.71.17.5" in inside.link()[1]), (9000, True))
    inside.helper(Order(action="undo"))
    inside.until(inside.link, (4000, ["192.168.77.1"]))
    assert inside.run("cat", "/etc/systemd/network/10-theirs.network") == theirs
    assert inside.run("ls", "/etc/systemd/network").split() == ["10-theirs.network"]
