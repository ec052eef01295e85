"""The only part of Baton that runs as administrator: it does one plan, or undoes what earlier ones did, and ends.

It trusts nobody: every change is checked again against what it finds itself, and what is run follows from the kind of
the change, never from a text that came in. It says each step as a line of JSON.
"""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Literal

import msgspec

from engine.errors import BatonError, HostError, UserError
from engine.files import write_whole
from engine.link.commands import Runner, run_command
from engine.link.interfaces import Network, read_network
from engine.link.limits import read_numbers
from engine.link.tune import (
    MAX_MTU,
    Change,
    Firewall,
    Operation,
    Profile,
    Remove,
    Roots,
    Run,
    Set,
    Step,
    Sysctls,
    Way,
    Write,
    check_host,
    check_interface,
    check_values,
    private_subnet,
    steps_of,
)
from engine.link.tune_before import read_before, read_settings
from engine.link.tune_journal import Entry, Journal, is_in_the_way

# A plan has a few changes of a hundred bytes each.
MAX_ORDER_BYTES = 1 << 16

_WAYS = {
    "linux": {Way.NETWORK_MANAGER, Way.NETWORKD, Way.IP},
    "darwin": {Way.NETWORKSETUP},
    "win32": {Way.POWERSHELL},
}

Say = Callable[[dict[str, Any]], None]


class Order(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the helper is asked for."""

    action: Literal["apply", "undo"]
    changes: Annotated[tuple[Change, ...], msgspec.Meta(max_length=8)] = ()


def read_order(data: bytes) -> Order:
    """Raises UserError."""
    if len(data) > MAX_ORDER_BYTES:
        raise UserError("the plan is too long to be one of Baton's")
    try:
        return msgspec.json.decode(data, type=Order)
    except msgspec.DecodeError as error:
        raise UserError(f"this is no plan of Baton's ({error})") from error


def carry_out(
    order: Order,
    say: Say,
    roots: Roots,
    *,
    run: Runner = run_command,
    read: Callable[[Runner], Network] = read_network,
) -> None:
    """Raises BatonError; what was begun of a plan that fails is undone then."""
    journal = Journal(roots.state)
    if order.action == "undo":
        undo(journal, say, roots, run)
        return
    if is_in_the_way(journal, order.changes):
        raise UserError(
            "an earlier plan is in force: `baton link tune --undo` takes it back, and then the new one can be applied"
        )
    for change in order.changes:
        check(change, read(run), read_settings(run, roots))
    if journal.entries:
        _do_again(journal, order.changes, say, roots, run)
        return
    try:
        for change in order.changes:
            _apply(change, journal, say, roots, run, read)
    except BatonError as error:
        try:
            undo(journal, say, roots, run)
        except HostError as left:
            raise HostError(f"{error}; {left}") from error
        raise HostError(f"{error}; everything was put back") from error


def check(change: Change, network: Network, settings: dict[str, tuple[int, ...]]) -> None:
    """Raises UserError for a change that must not be made."""
    match change:
        case Profile():
            _check_profile(change, network)
        case Sysctls():
            for name, values in change.values.items():
                check_values(name, values, settings.get(name, ()))
        case Firewall():
            private_subnet(change.peer_host)
            if sys.platform != "win32":
                raise UserError("only Windows' firewall is ever told anything")


def undo(journal: Journal, say: Say, roots: Roots, run: Runner) -> None:
    """From the last change to the first, and from its last step to its first. Raises HostError with all that failed.

    What failed stays in the journal, and can be tried again.
    """
    failed: list[str] = []
    for entry in reversed(journal.entries.copy()):
        steps = steps_of(entry.change, entry.before, roots)[: entry.n_begun]
        faults = [fault for step in reversed(steps) if (fault := _undo_step(step, say, run))]
        if not faults:
            journal.drop(entry)
        failed += faults
    if failed:
        raise HostError(
            f"not everything could be put back: {'; '.join(failed)}; mend that, and try `baton link tune --undo` again"
        )


def _do_again(journal: Journal, changes: Sequence[Change], say: Say, roots: Roots, run: Runner) -> None:
    """What the journal has, and the system forgot at its last start; undoing it stays as it was."""
    for entry in journal.entries:
        for step in steps_of(entry.change, entry.before, roots) if entry.change in changes else ():
            if step.do is not None:
                _perform(step.do, run)
                say({"done": step.do.text})


def _apply(
    change: Change,
    journal: Journal,
    say: Say,
    roots: Roots,
    run: Runner,
    read: Callable[[Runner], Network],
) -> None:
    before = read_before(change, read(run), run, roots)
    steps = steps_of(change, before, roots)
    for index, step in enumerate(steps):
        journal.record(Entry(change=change, before=before, n_begun=index + 1, n_steps=len(steps)))
        if step.do is not None:
            _perform(step.do, run)
            say({"done": step.do.text})


def _undo_step(step: Step, say: Say, run: Runner) -> str:
    """What kept it from being undone, or ""."""
    if step.undo is None or _is_undone(step, run):
        return ""
    try:
        _perform(step.undo, run)
    except HostError as error:
        return str(error)
    say({"undone": step.undo.text})
    return ""


def _is_undone(step: Step, run: Runner) -> bool:
    """Whether what the step did is not there, or no more."""
    if isinstance(step.undo, Set):
        return tuple(read_numbers(step.undo.path)) == step.undo.values
    return step.there is not None and not _says_something(step.there, run)


def _says_something(question: Run, run: Runner) -> bool:
    try:
        return bool(run(question.words).strip())
    except HostError:
        return False


def _perform(operation: Operation, run: Runner) -> None:
    """Raises HostError."""
    try:
        match operation:
            case Run():
                run(operation.words)
            case Write():
                operation.path.parent.mkdir(parents=True, exist_ok=True)
                write_whole(operation.path, operation.content.encode(), synced=True)
                operation.path.chmod(0o644)  # the system's services run as users of their own
            case Remove():
                # asked first: a disk that cannot be written says so of files that are not there, too
                if operation.path.exists():
                    operation.path.unlink()
            case Set():
                operation.path.write_text(" ".join(map(str, operation.values)), encoding="ascii")
    except OSError as error:
        raise HostError(
            f"could not {operation.text.partition(':')[0]} ({error.strerror or error})"
        ) from error


def _check_profile(change: Profile, network: Network) -> None:
    interface = network.named(change.interface)
    if interface is None:
        raise UserError(f"there is no interface {change.interface}")
    if (change.port, change.guid) != (interface.port, interface.guid):
        raise UserError(f"{change.interface} is another interface than the plan says")
    if change.way not in _WAYS.get(sys.platform, ()):
        raise UserError(f"{change.way.value} is not how interfaces are set up on this system")
    if interface.max_mtu and change.mtu > min(interface.max_mtu, MAX_MTU):
        raise UserError(f"{change.interface} takes an MTU of {interface.max_mtu} at most")
    check_interface(network, interface)
    check_host(network, interface, change.host)


def main(data: bytes, roots: Roots) -> int:
    """Do what the order says; the exit status. Each line of standard output is an object: done, undone, error or ok."""

    def say(line: dict[str, Any]) -> None:
        with contextlib.suppress(
            OSError
        ):  # whoever asked may be gone, and the plan is done whole all the same
            print(json.dumps(line), flush=True)

    try:
        carry_out(read_order(data), say, roots)
    except BatonError as error:
        say({"error": str(error)})
        return 1
    say({"ok": True})
    return 0
