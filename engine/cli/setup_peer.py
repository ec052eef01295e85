"""`baton setup-peer`: put the same Baton on another computer and pair with it, over ssh or by a line to paste there."""

from __future__ import annotations

import argparse
import contextlib
import json
import shlex
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from engine.cli.lifetime import watch_stdin
from engine.cli.log import tell
from engine.config import join_address
from engine.errors import HostError, UserError
from engine.paths import updates_file

if TYPE_CHECKING:
    from engine.node.setup.own_wheel import Archive
    from engine.node.setup.setup_peer import Step

EXAMPLE = """\
  baton setup-peer me@spark.local --dry-run
  baton setup-peer me@spark.local
  baton setup-peer me@spark.local --remove
  baton setup-peer --print-command
  baton setup-peer --update spark
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("target", metavar="USER@HOST", nargs="?", help="the other computer, as ssh calls it")
    parser.add_argument("--dry-run", action="store_true", help="only say what would be done there")
    parser.add_argument(
        "--service", action="store_true", help="have the system over there start the node from now on"
    )
    parser.add_argument("--remove", action="store_true", help="undo it; models, pairings and keys stay there")
    parser.add_argument(
        "--index",
        metavar="URL",
        help="one more package index for the other computer, such as PyTorch's for CUDA",
    )
    parser.add_argument(
        "--no-pair", action="store_true", help="show the code that it waits with, and do not join"
    )
    parser.add_argument(
        "--print-command",
        action="store_true",
        help="show a line to paste on the other computer, and serve it once",
    )
    parser.add_argument(
        "--address", metavar="HOST", help="where the line calls this computer (default: the cable)"
    )
    parser.add_argument(
        "--update", metavar="NAME", help="send this computer's Baton to a paired one, over the cable"
    )
    parser.add_argument(
        "--allow-updates",
        choices=("yes", "no"),
        help="whether paired computers may update this one; they may not until you say so",
    )
    parser.add_argument(
        "--batch", action="store_true", help="ask nothing: fail where ssh would want a password or a yes"
    )
    parser.add_argument("--json", action="store_true", help="print lines of JSON")
    parser.add_argument("--exit-with-stdin", action="store_true", help="end when standard input does")


def run(args: argparse.Namespace) -> int:
    if args.exit_with_stdin:
        watch_stdin()
    jobs = {
        "USER@HOST": (args.target, _by_ssh),
        "--print-command": (args.print_command, _by_line),
        "--update": (args.update, _update),
        "--allow-updates": (args.allow_updates, _allow),
    }
    chosen = [job for is_asked, job in jobs.values() if is_asked]
    if len(chosen) != 1:
        raise UserError(f"say one of {', '.join(jobs)}, for example `baton setup-peer me@spark.local`")
    return chosen[0](args)


def _by_ssh(args: argparse.Namespace) -> int:
    from engine.node.setup.own_wheel import make_archive
    from engine.node.setup.setup_peer import SetupOptions, check_target, control_folder, run_steps, ssh_steps

    target = check_target(args.target)
    options = SetupOptions(index=args.index, service=args.service, remove=args.remove, batch=args.batch)
    archive = make_archive()
    if args.dry_run:
        return _describe(args, ssh_steps(target, archive, options), archive)
    with control_folder() as control:
        steps = ssh_steps(target, archive, options, control=control)
        ssh_host = ""
        with contextlib.closing(run_steps(steps, target)) as said:
            for event in said:
                ssh_host = event.get("ssh_host") or ssh_host
                if sentence := event.get("doing"):
                    _say(args, f"{target}: {sentence}", doing=sentence)
                if code := event.get("code"):
                    # a link-local address came with the other computer's zone, which says nothing here
                    is_usable = ssh_host and "%" not in ssh_host and event.get("port")
                    to = join_address(ssh_host, event["port"]) if is_usable else None
                    _join(args, str(code), to)
    return 0


def _describe(args: argparse.Namespace, steps: Iterable[Step], archive: Archive) -> int:
    for step in steps:
        _say(args, f"{step.sentence}:\n  {shlex.join(step.words)}", step=step.sentence, words=step.words)
    if not args.remove:
        from engine.node.setup.installer import Plan

        plan = Plan("~/.local/share/baton/app", archive.wheel_name, index=args.index)
        for sentence, words in plan.describe("python3", service=args.service):
            _say(
                args,
                f"    {sentence}: {' '.join(words)}" if words else f"    {sentence}",
                there=sentence,
                words=words,
            )
    return 0


def _join(args: argparse.Namespace, code: str, to: str | None) -> None:
    """Type the code here that is shown over there."""
    from engine.node.client import NodeClient
    from engine.node.presence import NoNode

    by_hand = f"baton pair {code}" + (f" --to {to}" if to else "")
    if args.no_pair:
        _say(args, f"It waits to be paired. Type on this computer:  {by_hand}", code=code, to=to)
        return
    try:
        client = NodeClient.find()
    except NoNode:
        _say(
            args,
            "It waits to be paired, and no node runs on this computer. Start one (baton node), then type:  "
            + by_hand,
            code=code,
            to=to,
        )
        return
    joined = client.post("/pairing/join", {"code": code, **({"to": to} if to else {})})
    _say(args, f"Paired with {joined['paired']['name']}", **joined)


def _by_line(args: argparse.Namespace) -> int:
    from engine.node.setup.own_wheel import make_archive
    from engine.node.setup.setup_peer import SERVE_FOR_S, Offer, own_host

    offer = Offer(make_archive(), args.address or own_host())
    try:
        _say(
            args,
            "Paste this line on the other computer (on Windows with py in place of python3):\n\n"
            f"{offer.line()}\n\n"
            f"It works once, for {SERVE_FOR_S / 60:g} minutes, while this command runs. Type the code that is shown "
            "there at the end on this computer:  baton pair CODE",
            line=offer.line(),
            works_for_s=SERVE_FOR_S,
        )
        taken_by = offer.wait()
    finally:
        offer.close()
    if taken_by is None:
        raise UserError("nobody came for it in time: run the same again for a new line")
    _say(args, f"{taken_by} has it, and installs it", taken_by=taken_by)
    return 0


def _update(args: argparse.Namespace) -> int:
    from engine.node.client import NodeClient

    _say(args, f"Sending this computer's Baton to {args.update}; installing it there may take minutes")
    for event in NodeClient.find().watch("/setup/update", {"peer": args.update}):
        if "error" in event:
            raise HostError(event["error"]["message"])
        if version := event.get("version"):
            _say(args, f"{args.update} runs Baton {version} now, and starts anew", **event)
    return 0


def _allow(args: argparse.Namespace) -> int:
    from engine.node.setup.updates import set_allowance

    allowed = args.allow_updates == "yes"
    set_allowance(updates_file(), allowed=allowed)
    _say(
        args,
        "Paired computers may update this one" if allowed else "Paired computers may not update this one",
        allow_updates=allowed,
    )
    return 0


def _say(args: argparse.Namespace, sentence: str, **data: Any) -> None:
    if not args.json:
        tell(sentence, sys.stdout)
    elif data:
        tell(json.dumps(data), sys.stdout)
