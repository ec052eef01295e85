"""What each change is made of on each system, and what undoes it: commands as data, most of them never run here."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from engine.errors import HostError
from engine.link import tune_linux
from engine.link.tune import (
    Before,
    Firewall,
    Profile,
    Remove,
    Roots,
    Run,
    Set,
    Step,
    Sysctls,
    Way,
    Write,
    steps_of,
)
from engine.link.tune_windows import jumbo_setting, uses_dhcp

ROOTS = Roots(etc=Path("/etc"), proc_sys=Path("/proc/sys"), state=Path("/var/lib/baton"))
PROFILE = Profile(interface="enp7s0", host="10.71.17.5", mtu=9000, way=Way.IP)
GUID = "{2F6E0D1C-9B1E-4E0B-9C8A-0D2C3B4A5968}"


def done(steps: Sequence[Step]) -> list[str]:
    return [step.do.text for step in steps if step.do is not None]


def undone(steps: Sequence[Step]) -> list[str]:
    """In the order of an undo."""
    return [step.undo.text for step in reversed(steps) if step.undo is not None]


def of(way: Way, before: Before, **rest: str) -> list[Step]:
    return steps_of(Profile(interface="enp7s0", host="10.71.17.5", mtu=9000, way=way, **rest), before, ROOTS)


def test_ip() -> None:
    steps = of(Way.IP, Before(mtu=1500, is_up=False))
    assert done(steps) == [
        "ip link set dev enp7s0 up",
        "ip link set dev enp7s0 mtu 9000",
        "ip address replace 10.71.17.5/24 dev enp7s0",
    ]
    assert undone(steps) == [
        "ip address delete 10.71.17.5/24 dev enp7s0",
        "ip link set dev enp7s0 mtu 1500",
        "ip link set dev enp7s0 down",
    ]
    assert all(step.there is not None for step in steps)
    assert done(of(Way.IP, Before(mtu=9000, has_address=True))) == []


def test_network_manager_gets_a_profile_of_our_own_and_the_old_one_back() -> None:
    steps = of(Way.NETWORK_MANAGER, Before(mtu=1500, profile="11111111-2222-3333-4444-555555555555"))
    add, up = done(steps)
    assert add == (
        "nmcli connection add type ethernet con-name baton-link ifname enp7s0 connection.autoconnect yes "
        "connection.autoconnect-priority 100 ipv4.method manual ipv4.addresses 10.71.17.5/24 ipv4.never-default yes "
        "ipv4.ignore-auto-dns yes ipv6.method link-local ipv6.never-default yes 802-3-ethernet.mtu 9000"
    )
    assert up == "nmcli connection up id baton-link"
    assert undone(steps) == [
        "nmcli connection delete id baton-link",
        "nmcli connection up uuid 11111111-2222-3333-4444-555555555555",
    ]
    assert not any(word in add for word in ("gateway", "modify", "ipv4.dns "))
    by_hand = Before(mtu=1500, addresses=("192.0.2.1/30",))
    assert undone(of(Way.NETWORK_MANAGER, by_hand)) == [
        "nmcli connection delete id baton-link",
        "ip link set dev enp7s0 mtu 1500",
        "ip address replace 192.0.2.1/30 dev enp7s0",
    ]


def test_networkd_gets_a_file_of_our_own() -> None:
    steps = of(Way.NETWORKD, Before(mtu=1500))
    file = next(step.do for step in steps if isinstance(step.do, Write))
    assert file.path == Path("/etc/systemd/network/05-baton-link.network")
    assert "Name=enp7s0\n" in file.content and "MTUBytes=9000" in file.content
    assert (
        "Address=10.71.17.5/24" in file.content
        and "Gateway" not in file.content
        and "DNS" not in file.content
    )
    assert done(steps)[1:] == ["networkctl reload"]
    assert undone(steps) == [
        "remove /etc/systemd/network/05-baton-link.network",
        "networkctl reload",
        "ip link set dev enp7s0 mtu 1500",
    ]


def test_linux_settings_are_set_at_once_and_for_every_start() -> None:
    change = Sysctls(values={"net.ipv4.tcp_rmem": (4096, 131072, 33554432), "net.core.rmem_max": (33554432,)})
    before = Before(values={"net.ipv4.tcp_rmem": (4096, 131072, 6291456), "net.core.rmem_max": (212992,)})
    file, *at_once = steps_of(change, before, ROOTS)
    assert isinstance(file.do, Write) and file.undo == Remove(path=file.do.path)
    assert file.do.path == Path("/etc/sysctl.d/90-baton-link.conf")
    assert file.do.content.splitlines()[1:] == [
        "net.core.rmem_max = 33554432",
        "net.ipv4.tcp_rmem = 4096 131072 33554432",
    ]
    assert [step.do for step in at_once] == [
        Set(path=Path("/proc/sys/net/core/rmem_max"), values=(33554432,)),
        Set(path=Path("/proc/sys/net/ipv4/tcp_rmem"), values=(4096, 131072, 33554432)),
    ]
    assert [step.undo for step in at_once] == [
        Set(path=Path("/proc/sys/net/core/rmem_max"), values=(212992,)),
        Set(path=Path("/proc/sys/net/ipv4/tcp_rmem"), values=(4096, 131072, 6291456)),
    ]


def test_macos_gets_a_service_of_our_own_without_a_router() -> None:
    steps = of(Way.NETWORKSETUP, Before(mtu=1500), port="Thunderbolt Bridge")
    assert done(steps) == [
        'networksetup -createnetworkservice "Baton Link" "Thunderbolt Bridge"',
        'networksetup -setmanual "Baton Link" 10.71.17.5 255.255.255.0',
        "networksetup -setMTU enp7s0 9000",
    ]
    assert undone(steps) == [
        "networksetup -setMTU enp7s0 1500",
        'networksetup -removenetworkservice "Baton Link"',
    ]
    change = Sysctls(values={"kern.ipc.maxsockbuf": (33554432,)})
    (step,) = steps_of(change, Before(values={"kern.ipc.maxsockbuf": (8388608,)}), ROOTS)
    assert step.do == Run(words=("sysctl", "-w", "kern.ipc.maxsockbuf=33554432"))
    assert step.undo == Run(words=("sysctl", "-w", "kern.ipc.maxsockbuf=8388608"))


def test_windows() -> None:
    steps = of(Way.POWERSHELL, Before(mtu=1500, dhcp=True, jumbo="1514"), guid=GUID)
    assert all(
        step.do is None or (isinstance(step.do, Run) and step.do.words[0] == "powershell") for step in steps
    )
    address, jumbo, mtu = done(steps)
    adapter = f"(Get-NetAdapter | Where-Object InterfaceGuid -eq '{GUID}')"
    assert f"New-NetIPAddress -InterfaceIndex {adapter}.InterfaceIndex -AddressFamily IPv4" in address
    assert "-IPAddress 10.71.17.5 -PrefixLength 24" in address and "Gateway" not in address
    assert (
        f"{adapter} | Set-NetAdapterAdvancedProperty -RegistryKeyword '*JumboPacket' -RegistryValue 9014"
        in jumbo
    )
    assert "-NlMtuBytes 9000" in mtu
    back = undone(steps)
    assert "-NlMtuBytes 1500" in back[0]
    assert "-RegistryValue 1514" in back[1]
    assert "Remove-NetIPAddress -IPAddress 10.71.17.5" in back[2]
    assert "-Dhcp Enabled" in back[3]


def test_windows_firewall_lets_the_other_computer_in_and_nobody_else() -> None:
    (step,) = steps_of(Firewall(peer_host="10.71.17.9"), Before(), ROOTS)
    assert step.do is not None and step.undo is not None
    assert "-RemoteAddress 10.71.17.9 -Profile Private" in step.do.text
    assert "-LocalPort 7118,7119,7120" in step.do.text and "-Name Baton-Link" in step.do.text
    assert "Remove-NetFirewallRule -Name Baton-Link" in step.undo.text


@pytest.mark.parametrize(
    ("said", "way"),
    [
        (
            {
                "nmcli -g RUNNING general": "running",
                "nmcli -g GENERAL.STATE device show enp7s0": "100 (connected)",
            },
            Way.NETWORK_MANAGER,
        ),
        (
            {
                "nmcli -g RUNNING general": "running",
                "nmcli -g GENERAL.STATE device show enp7s0": "10 (unmanaged)",
                "systemctl is-active systemd-networkd": "active",
            },
            Way.NETWORKD,
        ),
        ({"systemctl is-active systemd-networkd": "active"}, Way.NETWORKD),
        ({"nmcli -g RUNNING general": "not running"}, Way.IP),
        ({}, Way.IP),
    ],
)
def test_who_looks_after_an_interface(said: dict[str, str], way: Way) -> None:
    def run(words: Sequence[str]) -> str:
        if " ".join(words) not in said:
            raise HostError("not here")
        return said[" ".join(words)] + "\n"

    assert tune_linux.find_way(run, "enp7s0") is way


@pytest.mark.parametrize(
    ("state", "name", "found"),
    [
        ("100 (connected)", "Wired 1", "1-2-3"),
        ("100 (connected)", "baton-link", ""),
        ("100 (connected (externally))", "enp7s0", ""),
    ],
)
def test_which_profile_was_there_before(state: str, name: str, found: str) -> None:
    said = {"GENERAL.STATE": state, "GENERAL.CONNECTION": name, "GENERAL.CON-UUID": "1-2-3"}
    assert tune_linux.active_profile(lambda words: said[words[2]] + "\n", "enp7s0") == found


def test_what_windows_says_of_an_adapter() -> None:
    assert uses_dhcp(lambda words: "Enabled\r\n", GUID) and not uses_dhcp(lambda words: "Disabled\r\n", GUID)
    assert jumbo_setting(lambda words: "1514\r\n", GUID) == "1514"
    assert jumbo_setting(lambda words: "", GUID) == ""
