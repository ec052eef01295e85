"""How a change is made and undone on macOS: a network service of our own by `networksetup`, and `sysctl`."""

from __future__ import annotations

from engine.link.commands import Runner
from engine.link.tune import MACOS_SERVICE, Before, Profile, Run, Step, Sysctls

_MASK = "255.255.255.0"


def profile_steps(change: Profile, before: Before) -> list[Step]:
    """A new service has no router, and stands behind all others."""
    tool = "networksetup"
    steps = [
        Step(
            do=Run(words=(tool, "-createnetworkservice", MACOS_SERVICE, change.port or change.interface)),
            undo=Run(words=(tool, "-removenetworkservice", MACOS_SERVICE)),
            there=Run(words=(tool, "-getinfo", MACOS_SERVICE)),
        ),
        Step(do=Run(words=(tool, "-setmanual", MACOS_SERVICE, change.host, _MASK))),
    ]
    if change.mtu != before.mtu:
        set_mtu = (tool, "-setMTU", change.interface)
        steps.append(
            Step(
                do=Run(words=(*set_mtu, str(change.mtu))),
                undo=Run(words=(*set_mtu, str(before.mtu))),
                there=Run(words=(tool, "-getMTU", change.interface)),
            )
        )
    return steps


def sysctl_steps(change: Sysctls, before: Before) -> list[Step]:
    return [
        Step(do=_set(name, values), undo=_set(name, before.values[name]))
        for name, values in sorted(change.values.items())
    ]


def read_settings(run: Runner) -> dict[str, tuple[int, ...]]:
    """Raises HostError."""
    name = "kern.ipc.maxsockbuf"
    return {name: (int(run(["sysctl", "-n", name])),)}


def _set(name: str, values: tuple[int, ...]) -> Run:
    return Run(words=("sysctl", "-w", f"{name}={' '.join(map(str, values))}"))
