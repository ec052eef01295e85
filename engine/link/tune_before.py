"""What is there now: who looks after an interface, the system settings, and what a change would replace."""

from __future__ import annotations

import sys

from engine.errors import HostError
from engine.link import tune_linux, tune_macos, tune_windows
from engine.link.commands import Runner
from engine.link.interfaces import Interface, Network
from engine.link.limits import proc_values
from engine.link.tune import SYSCTLS, Before, Change, Profile, Roots, Sysctls, Way


def find_way(run: Runner, interface: str) -> Way:
    """Who sets that interface up on this computer."""
    if sys.platform == "darwin":
        return Way.NETWORKSETUP
    if sys.platform == "win32":
        return Way.POWERSHELL
    return tune_linux.find_way(run, interface)


def read_settings(run: Runner, roots: Roots) -> dict[str, tuple[int, ...]]:
    """The present numbers of those of SYSCTLS that this system has. Raises HostError."""
    if sys.platform == "darwin":
        return tune_macos.read_settings(run)
    found = {name: tuple(proc_values(roots.proc_sys, name)) for name in SYSCTLS}
    return {name: values for name, values in found.items() if values}


def read_before(change: Change, network: Network, run: Runner, roots: Roots) -> Before:
    """What undoing the change will need. Raises HostError."""
    match change:
        case Profile():
            return _before_profile(change, network, run)
        case Sysctls():
            settings = read_settings(run, roots)
            return Before(values={name: settings[name] for name in change.values if name in settings})
        case _:
            return Before()


def _given_addresses(interface: Interface) -> tuple[str, ...]:
    return tuple(
        f"{address.host}/{address.prefix}" for address in interface.addresses if ":" not in address.host
    )


def _before_profile(change: Profile, network: Network, run: Runner) -> Before:
    interface = network.named(change.interface)
    if interface is None:
        raise HostError(f"the interface {change.interface} is gone: plug it in again")
    is_windows = change.way is Way.POWERSHELL
    is_managed = change.way is Way.NETWORK_MANAGER
    profile = tune_linux.active_profile(run, change.interface) if is_managed else ""
    return Before(
        mtu=interface.mtu,
        is_up=interface.is_up,
        has_address=any(address.host == change.host for address in interface.addresses),
        profile=profile,
        addresses=() if profile or not is_managed else _given_addresses(interface),
        dhcp=is_windows and tune_windows.uses_dhcp(run, change.guid),
        jumbo=tune_windows.jumbo_setting(run, change.guid) if is_windows else "",
    )
