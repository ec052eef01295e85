"""What follows from a probe's measurements: each finding says what, what it costs in ms or Gbit/s, and the fix.

Pure: it sees a report and nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator

from engine.link.interfaces import Interface, Kind, overlapping_routes, speed_text
from engine.link.limits import HostLimits
from engine.link.probe_path import Direction
from engine.link.report import Finding, Report, Severity

TUNE = "run `baton link tune --apply` on both computers"

# The cache of a prompt of some ten thousand tokens: what the sentences reckon with.
_HANDOFF_GB = 1.0

# From this speed on packets of 1,500 bytes keep a receiving core busy.
_FAST_MBPS = 2500

_USUAL_MTU = 1500
_JUMBO_MTU = 9000

# Some systems send no larger datagrams, whatever their interfaces do.
_LARGEST_JUDGED_MTU = 9216

# Of TCP over IPv4 with time stamps: what a packet has beside its payload, and on the wire beside the packet.
_HEADERS_BYTES = 52
_FRAMING_BYTES = 38

# Of what the negotiated speed leaves for payload; a sound link with idle computers carries 0.97 and more.
_SOUND_SHARE = 0.85
_SOUND_BALANCE = 0.75
_STREAMS_GAIN = 1.15

# A cable of a few metres answers in a fifth of that.
_LONG_ROUND_TRIP_MS = 1.0
_LONG_WORST_MS = 20.0

# A receiver that waits for its turn on a busy computer may be gone for so long.
_PAUSE_MS = 5.0

# Shorter than anybody notices.
_IDLE_COST_MS = 2.0

_MIB = 1 << 20

_SEVERITIES = tuple(Severity)


def findings(report: Report) -> tuple[Finding, ...]:
    """All of them, what matters most first."""
    found = [*_of_the_cable(report), *_of_addresses(report), *_of_the_host(report), *_of_the_path(report)]
    return tuple(sorted(found, key=lambda each: _SEVERITIES.index(each.severity)))


def _of_the_cable(report: Report) -> Iterator[Finding]:
    used, network = report.local_interface, report.here.network
    if not report.cable.interface:
        yield Finding(
            code="no_cable",
            severity=Severity.SLOW,
            what=f"no direct cable was found: {report.cable.reason}",
            why=f"over Wi-Fi at 0.5 Gbit/s a handoff of 1 GB takes {_seconds(0.5)}, over a cable of 10 Gbit/s "
            f"{_seconds(10)}",
            fix="join the two computers by one cable between their fastest ports, and probe again",
        )
    elif used is not None and used.name != report.cable.interface:
        over = "Wi-Fi" if used.kind is Kind.WIFI else "the interface of its Internet connection"
        yield Finding(
            code="not_over_the_cable",
            severity=Severity.SLOW,
            what=f"the other computer is connected over {used.name}, {over}, and not over the cable on "
            f"{report.cable.interface}",
            why="handoffs go over the slower way, and share it with everything else",
            fix=f"{TUNE}, which gives both ends of the cable an address",
            is_tunable=True,
        )
    elif used is not None and report.peer is None and not used.networks:
        yield Finding(
            code="no_address",
            severity=Severity.SLOW,
            what=f"{used.name} is up and has no IPv4 address",
            why="the two computers can meet on the cable by IPv6 only, which not every program there uses",
            fix=TUNE,
            is_tunable=True,
        )
    speed = _negotiated(report)
    if used is not None and speed is not None and speed < _FAST_MBPS:
        yield Finding(
            code="slow_port",
            severity=Severity.SLOW,
            what=f"{used.name} runs at {speed_text(speed)}",
            why=f"a handoff of 1 GB takes {_seconds(speed / 1000)} at best; at 10 Gbit/s it is {_seconds(10)}",
            fix="use the fastest port at both ends, and a cable of category 6A or better (or Thunderbolt)",
        )
    if used is not None and network.has_default_route(used) and report.cable.interface == used.name:
        yield Finding(
            code="shared_port",
            severity=Severity.NOTE,
            what=f"{used.name} has the default route as well",
            why="what else the computer does in the network shares the link with handoffs",
        )


def _of_addresses(report: Report) -> Iterator[Finding]:
    used = report.local_interface
    if used is None:
        return
    for route in overlapping_routes(report.here.network, used):
        yield Finding(
            code="address_collision",
            severity=Severity.BROKEN,
            what=f"the addresses of {used.name} ({', '.join(map(str, used.networks))}) are also reached over "
            f"{route.interface} ({route.destination})",
            why="packets for the other computer may leave by the wrong interface, and connections then hang for good",
            fix="let `baton link tune --apply` pick addresses that nothing else here uses, or change those of "
            f"{route.interface}",
            is_tunable=True,
        )
    peer = report.peer_interface
    shared = (
        {each.host for each in used.addresses} & {each.host for each in peer.addresses} if peer else set()
    )
    if shared:
        yield Finding(
            code="same_address",
            severity=Severity.BROKEN,
            what=f"both ends of the cable have the address {', '.join(sorted(shared))}",
            why="neither computer can reach the other by it",
            fix="undo the address on one of them: `baton link tune --undo`, then `--apply`",
        )


def _of_the_host(report: Report) -> Iterator[Finding]:
    yield from _of_limits(report, report.here.limits, "this computer", report.local_interface)
    if report.peer is not None:
        yield from _of_limits(report, report.peer.facts.limits, report.peer.name, report.peer_interface)


def _of_limits(report: Report, limits: HostLimits, whose: str, used: Interface | None) -> Iterator[Finding]:
    gbps = _expected_gbps(report)
    held = min(limits.receive_buffer, limits.send_buffer)
    if held < gbps * 1e9 / 8 * _PAUSE_MS / 1000:
        yield Finding(
            code="small_buffers",
            severity=Severity.SLOW,
            what=f"connections of {whose} get buffers of {limits.receive_buffer / _MIB:.1f} MiB to receive and "
            f"{limits.send_buffer / _MIB:.1f} MiB to send at most",
            why=f"{held / _MIB:.1f} MiB are {held * 8 / gbps / 1e6:.1f} ms at {gbps:.1f} Gbit/s: whenever a busy "
            "computer takes longer to come back to the connection, the link stands still",
            fix=TUNE,
            is_tunable=True,
        )
    if used is not None and used.name in limits.shared_interfaces:
        yield Finding(
            code="internet_sharing",
            severity=Severity.BROKEN,
            what=f"Internet Sharing is on for {used.name} of {whose}",
            why="macOS then drops multicast on that port, so that the computers do not find each other, and hands out "
            "addresses of its own there",
            fix="switch it off in System Settings, General, Sharing, Internet Sharing; or add the other computer by "
            "its address",
        )


def _of_the_path(report: Report) -> Iterator[Finding]:
    peer = report.peer
    if peer is None or peer.path is None:
        return
    yield from _of_mtus(report)
    yield from _of_goodput(report, peer.path.to_peer, f"to {peer.name}")
    yield from _of_goodput(report, peer.path.from_peer, f"from {peer.name}")
    yield from _of_idling(peer.path.to_peer, report.here.limits, "this computer")
    yield from _of_idling(peer.path.from_peer, peer.facts.limits, peer.name)
    yield from _of_balance(report)
    yield from _of_round_trips(report)
    yield from _of_counters(report)


def _of_mtus(report: Report) -> Iterator[Finding]:
    peer, here, there = report.peer, report.local_interface, report.peer_interface
    if peer is None or peer.path is None:
        return
    yield from _of_mtu(report, peer.path.to_peer, here, f"to {peer.name}")
    yield from _of_mtu(report, peer.path.from_peer, there, f"from {peer.name}")
    speed = _negotiated(report) or 0
    passing = _passing_mtu(report)
    if passing is not None and passing <= _USUAL_MTU and speed >= _FAST_MBPS:
        gain = speed / 1000 * (_payload_share(_JUMBO_MTU) - _payload_share(passing))
        yield Finding(
            code="small_mtu",
            severity=Severity.SLOW,
            what=f"packets on this cable have {passing} bytes at most",
            why=f"with {_JUMBO_MTU} the cable carries {gain:.2f} Gbit/s more, and both processors handle a sixth of "
            "the packets",
            fix=TUNE,
            is_tunable=True,
        )
    if here is not None and there is not None and here.mtu != there.mtu:
        yield Finding(
            code="unequal_mtu",
            severity=Severity.NOTE,
            what=f"the MTU is {here.mtu} here and {there.mtu} at {peer.name}",
            why="connections take the smaller of the two, and other traffic of the larger size is lost",
            fix=TUNE,
            is_tunable=True,
        )


def _of_mtu(report: Report, way: Direction, sender: Interface | None, where: str) -> Iterator[Finding]:
    if way.path_mtu is None:
        yield Finding(
            code="no_datagrams",
            severity=Severity.NOTE,
            what=f"no UDP packet came through {where}, so the path MTU is not known",
            why="packets that are too large for the path would be lost without a word",
            fix="allow Baton's UDP in the firewall of both computers, and probe again",
        )
    elif sender is not None and way.path_mtu < min(sender.mtu, _LARGEST_JUDGED_MTU):
        yield Finding(
            code="mtu_black_hole",
            severity=Severity.BROKEN,
            what=f"{where} packets of {way.path_mtu} bytes pass, and larger ones vanish without a word, although "
            f"{sender.name} sends up to {sender.mtu}",
            why="a connection that sends larger ones hangs, at best for seconds until it gives them up",
            fix=f"set the MTU to {_passing_mtu(report)} at both ends: {TUNE}",
            is_tunable=True,
        )


def _of_goodput(report: Report, way: Direction, where: str) -> Iterator[Finding]:
    speed = _negotiated(report)
    best = max(way.goodput_gbps, way.goodput_two_streams_gbps)
    ceiling = (speed or 0) / 1000 * _payload_share(way.path_mtu or _USUAL_MTU)
    if speed is not None and best < ceiling * _SOUND_SHARE:
        yield Finding(
            code="slow_link",
            severity=Severity.SLOW,
            what=f"{where} the link carries {best:.2f} Gbit/s of the {ceiling:.2f} that {speed_text(speed)} leave for "
            "payload",
            why=f"a handoff of 1 GB takes {_seconds(best)} instead of {_seconds(ceiling)}",
            fix="look at the errors counted, try another cable or port, and let no other program load either computer "
            "while it is probed again",
        )
    if way.goodput_gbps and way.goodput_two_streams_gbps > way.goodput_gbps * _STREAMS_GAIN:
        yield Finding(
            code="streams_help",
            severity=Severity.NOTE,
            what=f"{where} two connections carry {way.goodput_two_streams_gbps:.2f} Gbit/s, and one "
            f"{way.goodput_gbps:.2f}",
            why="one connection does not fill the link; Baton opens more of them by itself where that helps",
        )


def _of_idling(way: Direction, limits: HostLimits, whose: str) -> Iterator[Finding]:
    cost_ms = way.burst_after_idle_ms - way.burst_warm_ms
    costs = cost_ms > _IDLE_COST_MS
    if limits.slow_start_after_idle or (limits.slow_start_after_idle is None and costs):
        yield Finding(
            code="slow_start_after_idle",
            severity=Severity.SLOW if costs else Severity.NOTE,
            what=f"a connection of {whose} begins slowly again after each pause: {way.burst_bytes / 1e6:.1f} MB took "
            f"{way.burst_after_idle_ms:.1f} ms after one second, and {way.burst_warm_ms:.1f} ms before",
            why=f"every handoff that comes after a pause pays {cost_ms:.1f} ms for it"
            if costs
            else "over a direct cable that costs next to nothing, and milliseconds wherever round trips take longer",
            fix=TUNE if limits.slow_start_after_idle else "",
            is_tunable=bool(limits.slow_start_after_idle),
        )


def _of_balance(report: Report) -> Iterator[Finding]:
    if report.peer is None or report.peer.path is None:
        return
    out, back = report.peer.path.to_peer, report.peer.path.from_peer
    rates = [max(way.goodput_gbps, way.goodput_two_streams_gbps) for way in (out, back)]
    if min(rates) < max(rates) * _SOUND_BALANCE:
        yield Finding(
            code="one_way_slower",
            severity=Severity.SLOW,
            what=f"{rates[0]:.2f} Gbit/s go to {report.peer.name}, and {rates[1]:.2f} come from there",
            why="the slower way is held up by its sender's or receiver's driver or load, not by the cable",
            fix="update the driver of the network card at the receiving end of the slower way, or try another port",
        )


def _of_round_trips(report: Report) -> Iterator[Finding]:
    trips = report.peer.path.round_trips if report.peer is not None and report.peer.path is not None else None
    if trips is None:
        return
    if trips.median_ms > _LONG_ROUND_TRIP_MS or trips.worst_ms > _LONG_WORST_MS:
        yield Finding(
            code="long_round_trips",
            severity=Severity.NOTE,
            what=f"a round trip takes {trips.median_ms:.2f} ms, and {trips.worst_ms:.1f} at worst",
            why="a handoff has about two of them in its tail; a direct cable needs 0.2 ms",
            fix="switch off power saving (Energy Efficient Ethernet) of the network cards, and use the cable instead "
            "of Wi-Fi or a switch",
        )
    if trips.lost > trips.sent // 100:
        yield Finding(
            code="lost_packets",
            severity=Severity.BROKEN,
            what=f"{trips.lost} of {trips.sent} small packets were lost",
            why="each loss holds a connection up by 200 ms or more",
            fix="try another cable or port",
        )


def _of_counters(report: Report) -> Iterator[Finding]:
    if report.peer is None or report.peer.path is None or _loses_large_packets(report):
        return  # those that the probe itself lost are counted as well
    ends = (
        (report.peer.counted_here, report.local_interface, "here"),
        (report.peer.counted_there, report.peer_interface, f"at {report.peer.name}"),
    )
    for counted, interface, where in ends:
        n_errors = counted.receive_errors + counted.send_errors
        n_dropped = counted.receive_dropped + counted.send_dropped
        if interface is None or not (n_errors or n_dropped):
            continue
        yield Finding(
            code="packet_errors",
            severity=Severity.SLOW if n_errors else Severity.NOTE,
            what=f"{interface.name} {where} counted {n_errors} faulty and {n_dropped} dropped packets during the probe",
            why="each lost packet is sent again, and slows its connection down for a while",
            fix="try another cable or port, or another driver of the network card"
            + (f" (it is {interface.driver})" if interface.driver else ""),
        )


def _loses_large_packets(report: Report) -> bool:
    return any(each.code == "mtu_black_hole" for each in _of_mtus(report))


def _passing_mtu(report: Report) -> int | None:
    """What passes both ways."""
    if report.peer is None or report.peer.path is None:
        return None
    path = report.peer.path
    return min((way.path_mtu for way in (path.to_peer, path.from_peer) if way.path_mtu), default=None)


def _negotiated(report: Report) -> int | None:
    """The slower of both ends' speeds in Mbit/s; one end's where the other does not say."""
    speeds = [
        interface.speed_mbps
        for interface in (report.local_interface, report.peer_interface)
        if interface is not None and interface.speed_mbps
    ]
    return min(speeds) if speeds else None


def _expected_gbps(report: Report) -> float:
    """What was measured, else what was negotiated, else a gigabit."""
    if report.peer is not None and report.peer.path is not None:
        path = report.peer.path
        measured = max(path.to_peer.goodput_gbps, path.from_peer.goodput_gbps)
        if measured:
            return measured
    return (_negotiated(report) or 1000) / 1000


def _payload_share(mtu: int) -> float:
    return (mtu - _HEADERS_BYTES) / (mtu + _FRAMING_BYTES)


def _seconds(gbps: float) -> str:
    seconds = _HANDOFF_GB * 8 / gbps if gbps else float("inf")
    return f"{seconds:.1f} s" if seconds < 100 else "minutes"
