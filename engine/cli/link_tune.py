"""`baton link tune`: shows what would change, asks, and has the helper do it as administrator; or undoes all of it."""

from __future__ import annotations

import argparse
import json
import sys
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from engine.config import INTERFACE, MTU, add_flags
from engine.errors import UserError

if TYPE_CHECKING:
    from engine.link.tuning import Preview

# The node asks the other computer, whose tools may take half a minute.
_PREVIEW_TIMEOUT_S = 45.0

_BLOCKED = (
    "what an earlier `baton link tune --apply` changed has to be put back first: `baton link tune --undo`"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    action = parser.add_mutually_exclusive_group(required=True)
    action.add_argument("--dry-run", action="store_true", help="show every change, and change nothing")
    action.add_argument("--apply", action="store_true", help="show every change, ask, and make them")
    action.add_argument("--undo", action="store_true", help="put back everything that --apply changed")
    add_flags(parser, [INTERFACE, MTU])
    parser.add_argument(
        "--yes", action="store_true", help="do not ask; the system may still ask for a password"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(args: argparse.Namespace) -> int:
    from engine.link.elevate import run_helper
    from engine.link.privileged import Order
    from engine.link.tuning import what_undo_does

    if args.undo:
        steps: tuple[str, ...] = what_undo_does()
        notes: tuple[str, ...] = ()
        order, question = Order(action="undo"), "Put this back?"
        nothing = "nothing is in force that `baton link tune` has changed"
    else:
        preview = _preview(args.interface or "", args.mtu)
        if args.dry_run:
            print(json.dumps(_plain(preview)) if args.json else _describe(preview))
            return 0
        steps = preview.steps
        order, question = Order(action="apply", changes=preview.plan.changes), "Change this?"
        nothing = f"nothing to change: {preview.plan.interface} is tuned already"
        notes = preview.plan.notes if steps else ()
        if preview.blocked:
            raise UserError(_BLOCKED)
    if not args.json:
        print("\n".join((*steps, *notes)) or nothing)
    done: list[dict[str, Any]] = []
    if steps:
        if not args.yes:
            _ask(question)
        run_helper(order, done.append)
    if args.json:
        print(json.dumps({"steps": done}))
    elif steps:
        print(
            "done"
            if args.undo
            else "done; `baton link probe` measures it, `baton link tune --undo` puts it back"
        )
    return 0


def _preview(interface: str, mtu: int | None) -> Preview:
    """By the node, which knows the other computer; else as far as this computer knows."""
    import msgspec

    from engine.link.tuning import Preview, preview
    from engine.node.client import NodeClient
    from engine.node.presence import NoNode

    query = urlencode({"interface": interface, **({"mtu": mtu} if mtu else {})})
    try:
        return msgspec.convert(
            NodeClient.find().get(f"/link/tune?{query}", timeout_s=_PREVIEW_TIMEOUT_S), Preview
        )
    except NoNode:
        return preview("", interface=interface, mtu=mtu)


def _ask(question: str) -> None:
    """Raises UserError where the answer is not yes, or nobody is there to give one."""
    if sys.stdin is None or not sys.stdin.isatty():
        raise UserError("nobody can be asked here: add --yes once you have read what --dry-run shows")
    if input(f"{question} [y/N] ").strip().lower() not in ("y", "yes"):
        raise UserError("nothing was changed")


def _describe(preview: Preview) -> str:
    plan = preview.plan
    if not plan.changes:
        return f"nothing to change: {plan.interface} is tuned already"
    lines = [f"On {plan.interface}, `baton link tune --apply` would", *preview.steps, *plan.notes]
    if preview.blocked:
        lines.append(_BLOCKED)
    return "\n".join(lines)


def _plain(preview: Preview) -> Any:
    import msgspec

    return msgspec.to_builtins(preview)
