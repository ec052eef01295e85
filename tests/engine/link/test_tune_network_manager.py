"""`link tune` where NetworkManager looks after the interfaces: a real one, in namespaces of its own."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from engine.link.privileged import Order
from engine.link.tune import Profile, Way
from tests.engine.link.rooms import Room, room

pytestmark = pytest.mark.root

PROFILE = Profile(interface="cable", host="10.71.17.5", mtu=9000, way=Way.NETWORK_MANAGER)

SERVICE = """
mkdir -p /run/nm/profiles /run/nm/conf.d /var/lib/NetworkManager
cat > /run/nm/nm.conf <<END
[main]
plugins=keyfile
auth-polkit=false
dhcp=internal
no-auto-default=*
[keyfile]
path=/run/nm/profiles
[device]
match-device=type:ethernet
managed=1
END
NetworkManager --no-daemon --config /run/nm/nm.conf --config-dir /run/nm/conf.d \
    --system-config-dir /run/nm/conf.d --state-file /run/nm/state >/run/nm/log 2>&1 &
"""

FIND_WAY = """
from engine.link.commands import run_command
from engine.link.tune_linux import find_way
print(find_way(run_command, "cable").value)
"""


def profiles(inside: Room) -> list[str]:
    """Those that are kept, by name."""
    return sorted(inside.run("sh", "-c", "ls /run/nm/profiles").split())


@pytest.fixture
def inside() -> Iterator[Room]:
    with room(SERVICE, "NetworkManager", "nmcli") as made:
        made.until(lambda: made.run("sh", "-c", "nmcli -g RUNNING general || true").strip(), "running")
        yield made


def test_it_is_seen_who_looks_after_the_cable(inside: Room) -> None:
    inside.until(lambda: inside.run(sys.executable, "-c", FIND_WAY).strip(), "networkmanager")


def test_a_profile_of_our_own_is_used_and_goes(inside: Room) -> None:
    """The address that somebody gave by hand is back afterwards."""
    at_first = inside.link()
    inside.helper(Order(action="apply", changes=(PROFILE,)))
    inside.until(lambda: (inside.link()[0], "10.71.17.5" in inside.link()[1]), (9000, True))
    assert profiles(inside) == ["baton-link.nmconnection"]
    assert "default" not in inside.run("ip", "route")
    inside.helper(Order(action="undo"))
    inside.until(lambda: profiles(inside), [])
    inside.until(inside.link, at_first)


def test_the_profile_that_was_active_is_active_again(inside: Room) -> None:
    inside.run(
        *("nmcli", "connection", "add", "type", "ethernet", "con-name", "theirs", "ifname", "cable"),
        *("ipv4.method", "manual", "ipv4.addresses", "192.168.77.1/24", "802-3-ethernet.mtu", "4000"),
    )
    inside.run("nmcli", "connection", "up", "id", "theirs")
    inside.until(inside.link, (4000, ["192.168.77.1"]))
    theirs = inside.run("cat", "/run/nm/profiles/theirs.nmconnection")
    inside.helper(Order(action="apply", changes=(PROFILE,)))
    inside.until(inside.link, (9000, ["10.71.17.5"]))
    inside.helper(Order(action="undo"))
    inside.until(inside.link, (4000, ["192.168.77.1"]))
    assert profiles(inside) == ["theirs.nmconnection"]
    # It notes when a profile was last used, and nothing else.
    strip = [line for line in theirs.splitlines() if not line.startswith("timestamp=")]
    now = inside.run("cat", "/run/nm/profiles/theirs.nmconnection").splitlines()
    assert [line for line in now if not line.startswith("timestamp=")] == strip


@pytest.mark.parametrize(("number", "when"), [(1, "before"), (1, "after"), (2, "after")])
def test_what_a_killed_helper_left_is_undone(inside: Room, number: int, when: str) -> None:
    at_first = inside.link()
    inside.killed_helper(Order(action="apply", changes=(PROFILE,)), number, when)
    assert profiles(inside) == ([] if when == "before" else ["baton-link.nmconnection"])
    inside.helper(Order(action="undo"))
    inside.until(lambda: profiles(inside), [])
    inside.until(inside.link, at_first)
