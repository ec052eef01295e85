"""`baton service`: have the system start this computer's node and keep it running, or see to it that it does not."""

from __future__ import annotations

import argparse
import json
import time

from engine.node.system.service import Service, ServiceStatus, own_service

EXAMPLE = """\
  baton service install --dry-run
  baton service install
  baton service status --json
  baton service uninstall
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)

    install = actions.add_parser("install", help="say what will change, change it, and start the node")
    install.add_argument("--dry-run", action="store_true", help="only say what would change")
    install.add_argument(
        "--no-linger", action="store_true", help="on Linux: run only while this user is logged in"
    )

    uninstall = actions.add_parser("uninstall", help="end the service, and undo what install did")

    status = actions.add_parser("status", help="show whether it is installed and runs")
    status.add_argument("--json", action="store_true", help="print JSON")

    for action in (install, uninstall, status):
        action.add_argument(
            "--system",
            action="store_true",
            default=None,
            help="on macOS: a daemon of the system, which needs no login, in place of the user's agent",
        )


def run(args: argparse.Namespace) -> int:
    """For `status`: 0 when the service runs, 1 when it does not."""
    if args.action == "install":
        return _install(own_service(system=args.system, linger=not args.no_linger), is_dry=args.dry_run)
    service = own_service(system=args.system)
    if args.action == "uninstall":
        for sentence in service.uninstall() or ["no service of Baton's is installed"]:
            print(sentence)
        return 0
    status = service.status()
    if args.json:
        print(json.dumps(status.as_json(), indent=2))
    else:
        _print(status)
    return 0 if status.running else 1


def _install(service: Service, *, is_dry: bool) -> int:
    changes = service.changes()
    print("This would change:" if is_dry else "This changes:")
    for change in changes:
        print(f"  - {change}", flush=True)
    if is_dry:
        return 0
    service.install()
    print("Done. `baton service status` shows how it is, `baton service uninstall` undoes it.")
    return 0


def _print(status: ServiceStatus) -> None:
    print(f"service    {_state(status)}")
    if not status.installed and not status.notes:
        print("           to have the system start the node, type: baton service install")
    if status.installed:
        print(f"installed  {status.kind}, {status.where}")
        print(f"starts     {' '.join(status.words)}")
        if status.lingering is not None:
            print(f"lingering  {'on: it starts with the computer' if status.lingering else 'off'}")
        print(f"log        {status.log}")
    for note in status.notes:
        print(f"note       {note}")


def _state(status: ServiceStatus) -> str:
    if not status.installed:
        return "not installed"
    parts = ["running" if status.running else "not running"]
    if status.pid is not None:
        parts.append(f"process {status.pid}")
    if status.since is not None:
        parts.append(f"since {time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(status.since))}")
    if status.n_restarts:
        parts.append(f"started again {status.n_restarts} {'time' if status.n_restarts == 1 else 'times'}")
    if status.last_exit:
        parts.append(f"last exit: {status.last_exit}")
    return ", ".join(parts)
