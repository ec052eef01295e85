"""Reads what a plan depends on, and says it in words: what `baton link tune` would do here, and what it would undo."""

from __future__ import annotations

import msgspec

from engine.errors import UserError
from engine.link.ceilings import Ceiling
from engine.link.commands import Runner, run_command
from engine.link.interfaces import Network, direct_cable, read_network
from engine.link.tune import Plan, Roots, Situation, make_plan, steps_of, system_roots
from engine.link.tune_before import find_way, read_before, read_settings
from engine.link.tune_journal import Journal, is_in_the_way


class PeerEnd(msgspec.Struct, frozen=True, kw_only=True):
    """The other computer, and the interface of its that the cable is in ("" where it is not known)."""

    node_id: str
    network: Network
    interface: str


class Preview(msgspec.Struct, frozen=True, kw_only=True):
    """A plan with its steps in words; `blocked`: what is in force has to be undone first."""

    plan: Plan
    steps: tuple[str, ...]
    blocked: bool


def preview(
    node_id: str,
    *,
    peer: PeerEnd | None = None,
    local_host: str = "",
    interface: str = "",
    mtu: int | None = None,
    ceiling: Ceiling | None = None,
    run: Runner = run_command,
    roots: Roots | None = None,
) -> Preview:
    """What would be done now. `local_host` is where the other computer is connected; `ceiling` is what a probe
    measured of the link to it.

    Without `interface` it is the direct cable. Blocks for as long as the system's tools take. Raises BatonError.
    """
    roots = roots or system_roots()
    network = read_network(run)
    name = interface or _cable(network, local_host)
    found = network.named(name)
    plan = make_plan(
        Situation(
            network=network,
            interface=name,
            way=find_way(run, name),
            node_id=node_id or (found.mac if found is not None else ""),
            settings=read_settings(run, roots),
            peer=peer.network if peer is not None else None,
            peer_interface=_peer_interface(peer),
            peer_id=peer.node_id if peer is not None else "",
            wanted_mtu=mtu,
            max_path_mtu=None if mtu else _passes(ceiling, name, network, peer),
        )
    )
    steps = []
    for change in plan.changes:
        before = read_before(change, network, run, roots)
        steps += [step.do.text for step in steps_of(change, before, roots) if step.do is not None]
    return Preview(plan=plan, steps=tuple(steps), blocked=is_in_the_way(Journal(roots.state), plan.changes))


def what_undo_does(roots: Roots | None = None) -> tuple[str, ...]:
    """The steps that put everything back, in words; none where nothing is in force. Raises HostError."""
    roots = roots or system_roots()
    return tuple(
        step.undo.text
        for entry in reversed(Journal(roots.state).entries)
        for step in reversed(steps_of(entry.change, entry.before, roots)[: entry.n_begun])
        if step.undo is not None
    )


def _cable(network: Network, local_host: str) -> str:
    in_use = network.holding(local_host) if local_host else None
    cable = direct_cable(network, in_use=in_use.name if in_use is not None else "")
    if not cable.interface:
        raise UserError(
            f"no direct cable was found ({cable.reason}): plug it in, or name its interface with --interface"
        ).worded("no_cable")
    return cable.interface


def _peer_interface(peer: PeerEnd | None) -> str:
    """Where the computers meet on another network, the other end of the cable is found as our own is."""
    if peer is None:
        return ""
    return direct_cable(peer.network, in_use=peer.interface).interface


def _passes(ceiling: Ceiling | None, name: str, network: Network, peer: PeerEnd | None) -> int | None:
    """The largest packet that the cable carries, where a probe found that an end sends larger ones, which are lost."""
    if ceiling is None or ceiling.path_mtu is None or ceiling.local_interface != name:
        return None
    ends = (network.named(name), peer.network.named(ceiling.peer_interface) if peer is not None else None)
    is_exceeded = any(end is not None and end.mtu > ceiling.path_mtu for end in ends)
    return ceiling.path_mtu if is_exceeded else None
