"""What a system allows a connection, read from where it says so."""

from __future__ import annotations

import plistlib
import sys
from pathlib import Path

import pytest

from engine.link.limits import granted_buffers, proc_values, read_limits, shared_interfaces
from tests.engine.link.networks import limits

linux = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc/sys")


@linux
def test_linux_settings_are_read(tmp_path: Path) -> None:
    folder = tmp_path / "net/ipv4"
    folder.mkdir(parents=True)
    (folder / "tcp_rmem").write_text("4096\t131072\t6291456\n")
    (folder / "tcp_slow_start_after_idle").write_text("1\n")
    found = read_limits(proc_sys=tmp_path)
    assert (found.receive_auto_max, found.send_auto_max) == (6291456, None)
    assert (found.slow_start_after_idle, found.mtu_probing) == (True, None)
    assert (found.receive_granted, found.send_granted) == granted_buffers()


@linux
def test_what_is_granted_is_what_the_kernel_allows() -> None:
    largest = proc_values(Path("/proc/sys"), "net.core.rmem_max")
    if not largest:
        pytest.skip("this namespace has no net.core.rmem_max")
    assert granted_buffers()[0] == min(largest[0], 32 << 20)


def test_a_small_grant_leaves_the_size_to_the_system() -> None:
    small = limits(
        receive_granted=200_000, receive_auto_max=6 << 20, send_granted=4 << 20, send_auto_max=6 << 20
    )
    assert (small.receive_buffer, small.send_buffer) == (6 << 20, 4 << 20)
    assert limits(receive_granted=200_000).receive_buffer == 200_000


@pytest.mark.parametrize(
    ("content", "shared"),
    [
        ({"NAT": {"Enabled": 1, "SharingDevices": ["en5", "bridge0"]}}, ("en5", "bridge0")),
        ({"NAT": {"Enabled": 0, "SharingDevices": ["en5"]}}, ()),
        ({"NAT": {}}, ()),
        ({}, ()),
    ],
)
def test_internet_sharing(tmp_path: Path, content: object, shared: tuple[str, ...]) -> None:
    file = tmp_path / "com.apple.nat.plist"
    file.write_bytes(plistlib.dumps(content))
    assert shared_interfaces(file) == shared


def test_no_internet_sharing_where_nobody_ever_shared(tmp_path: Path) -> None:
    assert shared_interfaces(tmp_path / "not there") == ()
    (tmp_path / "broken").write_bytes(b"<plist>")
    assert shared_interfaces(tmp_path / "broken") == ()
