"""The two ends of a probe as processes, each to be started inside its own network namespace.

`far HOST PEER` opens ports, prints what the near end needs to know, and ends with its standard input. `near mtu` and
`near report` read that as their first line, and print the two path MTUs or the whole report.
"""

from __future__ import annotations

import sys
import time

import msgspec

from engine.link.interfaces import read_network
from engine.link.probe import interface_holding, make_report, read_facts
from engine.link.probe_path import Target, measure, path_mtus
from engine.link.probe_ports import ProbePorts
from engine.link.report import HostFacts, PeerHalf, Report


class Far(msgspec.Struct):
    """What the far end says."""

    host: str
    peer_host: str
    udp_port: int
    tcp_port: int
    token: bytes
    interface: str
    facts: HostFacts

    @property
    def target(self) -> Target:
        return Target(
            local_host=self.peer_host,
            peer_host=self.host,
            udp_port=self.udp_port,
            tcp_port=self.tcp_port,
            token=self.token,
        )


def far(host: str, peer_host: str) -> None:
    facts = read_facts()
    ports = ProbePorts(host, peer_host)
    said = Far(
        host=host,
        peer_host=peer_host,
        udp_port=ports.udp_port,
        tcp_port=ports.tcp_port,
        token=ports.token,
        interface=interface_holding(facts.network, host),
        facts=facts,
    )
    print(msgspec.json.encode(said).decode(), flush=True)
    sys.stdin.read()
    ports.close()


def near(what: str) -> None:
    far_end = msgspec.json.decode(sys.stdin.readline(), type=Far)
    here = read_facts()
    local = interface_holding(here.network, far_end.peer_host)
    mtus = {
        "local_mtu": here.network.named(local).mtu,
        "peer_mtu": far_end.facts.network.named(far_end.interface).mtu,
    }
    if what == "mtu":
        print(msgspec.json.encode(path_mtus(far_end.target, **mtus)).decode())
        return
    print(msgspec.json.encode(_report(far_end, here, local, mtus)).decode())


def _report(far_end: Far, here: HostFacts, local: str, mtus: dict[str, int]) -> Report:
    began_s = time.time()
    path = measure(far_end.target, **mtus, say=lambda part: None)
    counted = read_network().named(local).counters.since(here.network.named(local).counters)
    peer = PeerHalf(
        node_id="far",
        name="studio",
        facts=far_end.facts,
        local_interface=local,
        peer_interface=far_end.interface,
        path=path,
        counted_here=counted,
    )
    return make_report(here, began_s=began_s, peer=peer)


if __name__ == "__main__":
    {"far": far, "near": near}[sys.argv[1]](*sys.argv[2:])
