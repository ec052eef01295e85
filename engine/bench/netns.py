"""Two network namespaces joined by a virtual cable of a chosen speed: a link of the real kernel on one computer.

Linux and root only. Namespaces outlive the process that made them, so each carries that process's number and start in
its name: whoever comes next deletes those whose process is gone. What travels over the cable is not known here.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from engine.errors import HostError

# What `tc` calls the speeds on offer: a good cable, a common one, and about what goes through walls without one.
RATES = ("10gbit", "1gbit", "100mbit")

_PREFIX = "baton-bench"
_NAME = re.compile(rf"{_PREFIX}-(\d+)-(\d+)-[ab]")

_INTERFACE = "cable"

# Frames of the size that the common 10 Gbit/s cards take.
_MTU_BYTES = 8000
_BURST = "1mb"
_QUEUE = "20ms"

# Documentation addresses (RFC 5737): nothing outside the two namespaces can be meant by them.
_ADDRESSES = ("192.0.2.1", "192.0.2.2")

_COMMAND_TIMEOUT_S = 10.0

# Each tool, and the package that brings it.
_TOOLS = {"ip": "iproute2", "tc": "iproute2", "iperf3": "iperf3"}


@dataclass(frozen=True, kw_only=True)
class End:
    """One end of the cable. `enter` are words that start the command after them inside the end's namespace."""

    namespace: str
    host: str

    @property
    def enter(self) -> tuple[str, ...]:
        return (_tool("ip"), "netns", "exec", self.namespace)


def check_possible() -> None:
    """Raises HostError with all that this computer lacks for a cable."""
    if sys.platform != "linux":
        raise HostError("network namespaces are Linux's alone: use --link loopback here")
    wants = []
    if os.geteuid() != 0:
        wants.append("it has to be run by root, for example with sudo")
    missing = [name for name in _TOOLS if shutil.which(name) is None]
    if missing:
        packages = " ".join(sorted({_TOOLS[name] for name in missing}))
        wants.append(f"{', '.join(missing)} must be installed (on Debian: apt-get install {packages})")
    if wants:
        raise HostError(f"a link of network namespaces cannot be had: {'; '.join(wants)}")


@contextlib.contextmanager
def cable(rate: str) -> Iterator[tuple[End, End]]:
    """Two joined ends, gone afterwards whatever happens. Raises HostError."""
    check_possible()
    delete_stale()
    stem = f"{_PREFIX}-{os.getpid()}-{_started(os.getpid())}"
    ends = tuple(
        End(namespace=f"{stem}-{letter}", host=host) for letter, host in zip("ab", _ADDRESSES, strict=True)
    )
    try:
        for end in ends:
            _run("ip", "netns", "add", end.namespace)
        _join(ends, rate)
        yield ends[0], ends[1]
    finally:
        for end in ends:
            _delete(end.namespace)


def delete_stale() -> None:
    """Delete the namespaces of processes that are gone."""
    for line in _run("ip", "netns", "list").splitlines():
        name = line.split(" ")[0]
        made_by = _NAME.fullmatch(name)
        if made_by and _started(int(made_by[1])) != made_by[2]:
            _delete(name)


def _join(ends: Sequence[End], rate: str) -> None:
    near, far = (end.namespace for end in ends)
    # Made inside the namespaces, it goes with them, and this computer's own list of interfaces never sees it.
    _run(
        *("ip", "-n", near, "link", "add", _INTERFACE, "mtu", str(_MTU_BYTES)),
        *("type", "veth", "peer", "name", _INTERFACE, "mtu", str(_MTU_BYTES), "netns", far),
    )
    for end in ends:
        inside = ("-n", end.namespace)
        _run("ip", *inside, "address", "add", f"{end.host}/30", "dev", _INTERFACE)
        _run("ip", *inside, "link", "set", "lo", "up")
        _run("ip", *inside, "link", "set", _INTERFACE, "up")
        _run(
            *("tc", *inside, "qdisc", "add", "dev", _INTERFACE, "root"),
            *("tbf", "rate", rate, "burst", _BURST, "latency", _QUEUE),
        )


def _started(pid: int) -> str:
    """When a process was started, by the kernel's count; empty for one that is gone."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except OSError:
        return ""
    # The command's name, in brackets, may hold anything.
    return stat.rpartition(")")[2].split()[19]


def _delete(namespace: str) -> None:
    with contextlib.suppress(HostError):
        _run("ip", "netns", "delete", namespace)


def _run(name: str, *words: str) -> str:
    """What a tool says; raises HostError with its complaint."""
    try:
        return subprocess.run(
            [_tool(name), *words],
            check=True,
            capture_output=True,
            text=True,
            timeout=_COMMAND_TIMEOUT_S,
            start_new_session=True,  # Ctrl-C reaches it through us: half a cable could not be taken away
        ).stdout
    except subprocess.CalledProcessError as error:
        complaint = error.stderr.strip() or f"exit status {error.returncode}"
        raise HostError(f"`{' '.join((name, *words))}` failed: {complaint}") from error
    except (OSError, subprocess.TimeoutExpired) as error:
        raise HostError(f"`{name}` could not be run: {error}") from error


def _tool(name: str) -> str:
    return shutil.which(name) or name
