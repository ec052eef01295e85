"""How a change is made and undone on Linux: by NetworkManager, by systemd-networkd, or by plain `ip`."""

from __future__ import annotations

from engine.errors import HostError
from engine.link.commands import Runner
from engine.link.tune import (
    NETWORK_MANAGER_PROFILE,
    PREFIX,
    Before,
    Profile,
    Remove,
    Roots,
    Run,
    Set,
    Step,
    Sysctls,
    Way,
    Write,
)


def find_way(run: Runner, interface: str) -> Way:
    """Who looks after that interface."""
    if _said(run, "nmcli", "-g", "RUNNING", "general") == "running":
        state = _said(run, "nmcli", "-g", "GENERAL.STATE", "device", "show", interface)
        if state and "unmanaged" not in state:
            return Way.NETWORK_MANAGER
    if _said(run, "systemctl", "is-active", "systemd-networkd") == "active":
        return Way.NETWORKD
    return Way.IP


def active_profile(run: Runner, interface: str) -> str:
    """NetworkManager's id of what is active on it; "" where that is our own, or was set up by somebody else."""
    shown = ("nmcli", "-g", "{}", "device", "show", interface)
    state, name, uuid = (
        _said(run, *(word.format(field) for word in shown))
        for field in ("GENERAL.STATE", "GENERAL.CONNECTION", "GENERAL.CON-UUID")
    )
    return "" if "externally" in state or name == NETWORK_MANAGER_PROFILE else uuid


def profile_steps(change: Profile, before: Before, roots: Roots) -> list[Step]:
    if change.way is Way.NETWORK_MANAGER:
        return _by_network_manager(change, before)
    if change.way is Way.NETWORKD:
        return _by_networkd(change, before, roots)
    return _by_ip(change, before)


def sysctl_steps(change: Sysctls, before: Before, roots: Roots) -> list[Step]:
    """Our own file for every start from now on, and the values at once."""
    lines = [f"{name} = {' '.join(map(str, values))}" for name, values in sorted(change.values.items())]
    content = "\n".join(
        ["# Written by `baton link tune --apply`; `baton link tune --undo` removes it.", *lines, ""]
    )
    steps = [Step(do=Write(path=roots.sysctl_file, content=content), undo=Remove(path=roots.sysctl_file))]
    for name, values in sorted(change.values.items()):
        path = roots.proc_sys / name.replace(".", "/")
        steps.append(Step(do=Set(path=path, values=values), undo=Set(path=path, values=before.values[name])))
    return steps


def _by_network_manager(change: Profile, before: Before) -> list[Step]:
    """A new profile that wins for this interface while it is there; what was active before is left as it is."""
    name = NETWORK_MANAGER_PROFILE
    add = (
        *("nmcli", "connection", "add", "type", "ethernet", "con-name", name, "ifname", change.interface),
        *("connection.autoconnect", "yes", "connection.autoconnect-priority", "100"),
        *("ipv4.method", "manual", "ipv4.addresses", f"{change.host}/{PREFIX}"),
        *("ipv4.never-default", "yes", "ipv4.ignore-auto-dns", "yes"),
        *("ipv6.method", "link-local", "ipv6.never-default", "yes"),
        *("802-3-ethernet.mtu", str(change.mtu)),
    )
    show = ("nmcli", "-g", "connection.id", "connection", "show")
    return [
        *_as_before(change, before, show),
        Step(
            do=Run(words=add),
            undo=Run(words=("nmcli", "connection", "delete", "id", name)),
            there=Run(words=(*show, "id", name)),
        ),
        Step(do=Run(words=("nmcli", "connection", "up", "id", name))),
    ]


def _as_before(change: Profile, before: Before, show: tuple[str, ...]) -> list[Step]:
    """What brings back what was active before our profile: another one, or what somebody had set up by hand."""
    if before.profile:
        back = ("nmcli", "connection", "up", "uuid", before.profile)
        return [Step(undo=Run(words=back), there=Run(words=(*show, "uuid", before.profile)))]
    device = ("dev", change.interface)
    is_there = Run(words=("ip", "-oneline", "link", "show", *device))
    backs = [
        *(("ip", "address", "replace", address, *device) for address in before.addresses),
        ("ip", "link", "set", *device, "mtu", str(before.mtu)),
    ]
    return [Step(undo=Run(words=words), there=is_there) for words in backs]


def _by_networkd(change: Profile, before: Before, roots: Roots) -> list[Step]:
    """A file that comes before all others for this interface; they are left as they are."""
    content = (
        "# Written by `baton link tune --apply`; `baton link tune --undo` removes it.\n"
        f"[Match]\nName={change.interface}\n\n[Link]\nMTUBytes={change.mtu}\n\n"
        f"[Network]\nAddress={change.host}/{PREFIX}\nDHCP=no\nKeepConfiguration=static\nLinkLocalAddressing=ipv6\nIPv6AcceptRA=no\n"
        "DefaultRouteOnDevice=no\n"
    )
    # Has it look at every interface whose file came or went; `reconfigure` would drop addresses that others gave,
    # which KeepConfiguration leaves.
    reload = Run(words=("networkctl", "reload"))
    mtu_back = ("ip", "link", "set", "dev", change.interface, "mtu", str(before.mtu))
    is_there = Run(words=("ip", "-oneline", "link", "show", "dev", change.interface))
    # Undone from the last to the first.
    return [
        Step(undo=Run(words=mtu_back), there=is_there),
        Step(undo=reload),
        Step(do=Write(path=roots.networkd_file, content=content), undo=Remove(path=roots.networkd_file)),
        Step(do=reload),
    ]


def _by_ip(change: Profile, before: Before) -> list[Step]:
    link = ("ip", "link", "set", "dev", change.interface)
    is_there = Run(words=("ip", "-oneline", "link", "show", "dev", change.interface))
    address = (f"{change.host}/{PREFIX}", "dev", change.interface)
    steps = []
    if not before.is_up:
        steps.append(Step(do=Run(words=(*link, "up")), undo=Run(words=(*link, "down")), there=is_there))
    if change.mtu != before.mtu:
        steps.append(
            Step(
                do=Run(words=(*link, "mtu", str(change.mtu))),
                undo=Run(words=(*link, "mtu", str(before.mtu))),
                there=is_there,
            )
        )
    if not before.has_address:
        steps.append(
            Step(
                do=Run(words=("ip", "address", "replace", *address)),
                undo=Run(words=("ip", "address", "delete", *address)),
                there=Run(
                    words=(
                        "ip",
                        "-oneline",
                        "address",
                        "show",
                        "dev",
                        change.interface,
                        "to",
                        f"{change.host}/32",
                    )
                ),
            )
        )
    return steps


def _said(run: Runner, *words: str) -> str:
    """What a tool says; nothing where it is not there or fails."""
    try:
        return run(words).strip()
    except HostError:
        return ""
