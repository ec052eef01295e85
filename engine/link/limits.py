"""What this computer's system allows a connection: socket buffers, slow start after idle, Internet Sharing.

None stands wherever a system has no such thing, or does not say.
"""

from __future__ import annotations

import contextlib
import plistlib
import socket
import sys
from pathlib import Path
from typing import Annotated
from xml.parsers.expat import ExpatError

import msgspec

from engine.errors import HostError
from engine.link.commands import Runner, run_command
from engine.wire.limits import MIN_SOCKET_BUFFER_BYTES, SOCKET_BUFFER_BYTES

PROC_SYS = Path("/proc/sys")
_SHARING_FILE = Path("/Library/Preferences/SystemConfiguration/com.apple.nat.plist")

_Bytes = Annotated[int, msgspec.Meta(ge=0)]


class HostLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Sizes in bytes; `*_granted` is what a socket gets that asks as couriers do, `*_auto_max` what TCP takes itself.

    `shared_interfaces` are those over which macOS shares its Internet connection.
    """

    receive_granted: _Bytes
    send_granted: _Bytes
    receive_auto_max: _Bytes | None = None
    send_auto_max: _Bytes | None = None
    slow_start_after_idle: bool | None = None
    mtu_probing: bool | None = None
    shared_interfaces: Annotated[
        tuple[Annotated[str, msgspec.Meta(max_length=256)], ...], msgspec.Meta(max_length=64)
    ] = ()

    @property
    def receive_buffer(self) -> int:
        """What a courier's connection can hold while nobody reads: below a size it leaves that to the system."""
        return _usable(self.receive_granted, self.receive_auto_max)

    @property
    def send_buffer(self) -> int:
        return _usable(self.send_granted, self.send_auto_max)


def _usable(granted: int, auto_max: int | None) -> int:
    if granted >= MIN_SOCKET_BUFFER_BYTES or auto_max is None:
        return granted
    return auto_max


def read_limits(
    run: Runner = run_command, *, proc_sys: Path = PROC_SYS, sharing_file: Path = _SHARING_FILE
) -> HostLimits:
    """This computer's."""
    receive, send = granted_buffers()
    if sys.platform == "darwin":
        return HostLimits(
            receive_granted=receive,
            send_granted=send,
            receive_auto_max=_sysctl(run, "net.inet.tcp.autorcvbufmax"),
            send_auto_max=_sysctl(run, "net.inet.tcp.autosndbufmax"),
            shared_interfaces=shared_interfaces(sharing_file),
        )
    receive_auto = proc_values(proc_sys, "net.ipv4.tcp_rmem")
    send_auto = proc_values(proc_sys, "net.ipv4.tcp_wmem")
    slow_start = proc_values(proc_sys, "net.ipv4.tcp_slow_start_after_idle")
    probing = proc_values(proc_sys, "net.ipv4.tcp_mtu_probing")
    return HostLimits(
        receive_granted=receive,
        send_granted=send,
        receive_auto_max=receive_auto[-1] if receive_auto else None,
        send_auto_max=send_auto[-1] if send_auto else None,
        slow_start_after_idle=slow_start[0] != 0 if slow_start else None,
        mtu_probing=probing[0] != 0 if probing else None,
    )


def granted_buffers() -> tuple[int, int]:
    """The receive and send buffers that a new socket gets which asks for what couriers ask for, and takes less."""
    granted = []
    for option in (socket.SO_RCVBUF, socket.SO_SNDBUF):
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            n_bytes = SOCKET_BUFFER_BYTES
            while n_bytes >= MIN_SOCKET_BUFFER_BYTES:
                with contextlib.suppress(OSError):  # some systems refuse what others cut down
                    probe.setsockopt(socket.SOL_SOCKET, option, n_bytes)
                    break
                n_bytes //= 2
            found = probe.getsockopt(socket.SOL_SOCKET, option)
            # Linux doubles the number that it was given, for its own bookkeeping.
            granted.append(found // 2 if sys.platform == "linux" else found)
    return granted[0], granted[1]


def proc_values(proc_sys: Path, name: str) -> list[int]:
    """The numbers of a Linux setting; empty where there is none of that name."""
    return read_numbers(proc_sys / name.replace(".", "/"))


def read_numbers(file: Path) -> list[int]:
    try:
        return [int(word) for word in file.read_text(encoding="ascii").split()]
    except (OSError, ValueError):
        return []


def shared_interfaces(file: Path) -> tuple[str, ...]:
    """The interfaces that macOS's Internet Sharing is on for."""
    try:
        with file.open("rb") as opened:
            found = plistlib.load(opened)["NAT"]
        return tuple(str(name) for name in found["SharingDevices"]) if found["Enabled"] else ()
    except (OSError, plistlib.InvalidFileException, ExpatError, ValueError, KeyError, TypeError):
        return ()


def _sysctl(run: Runner, name: str) -> int | None:
    try:
        return int(run(["sysctl", "-n", name]))
    except (HostError, ValueError):
        return None
