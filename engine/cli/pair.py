"""`baton pair`: show a code that joins another computer to this one, type the other's, and list or remove pairs."""

from __future__ import annotations

import argparse
import json
import time
from typing import Any
from urllib.parse import quote

from engine.config import IDENTITY, PAIRING_PORT, add_flags
from engine.errors import HostError, UserError
from engine.node.client import NodeClient

EXAMPLE = """\
  baton pair                                show a code, and wait for the other computer
  baton pair 1234-5678                      type the code that the other computer shows
  baton pair 1234-5678 --to 192.168.1.20    the same, where it is not found by itself
  baton pair list
  baton pair remove studio
  baton pair remove 192.168.1.20:7119       look no more at an address that was typed in
  baton pair renew                          another identity, for a computer that was copied
"""

# Of an id or a fingerprint: enough to tell a few computers apart.
_SHORT = 12


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "what",
        nargs="?",
        metavar="CODE|list|remove|renew",
        help="the code that the other computer shows (default: show one here)",
    )
    parser.add_argument(
        "name",
        nargs="?",
        metavar="NAME",
        help="the computer to remove: its name or id, or an address that was typed in",
    )
    parser.add_argument(
        "--to", metavar="HOST[:PORT]", help="where the code is shown (default: it is looked for)"
    )
    parser.add_argument(
        "--role",
        choices=("decode", "prefill"),
        help="what this computer asks to do (default: it is measured)",
    )
    parser.add_argument("--json", action="store_true", help="print JSON, an object a line")
    add_flags(parser, [IDENTITY])


def run(args: argparse.Namespace) -> int:
    if args.what == "remove" and args.name is None:
        raise UserError(
            "name the computer to remove, for example: baton pair remove studio (baton pair list)"
        )
    if args.what != "remove" and args.name is not None:
        raise UserError(f"{args.name} is one word too many: baton pair --help shows what there is")
    if args.to is not None and args.what in (None, "list", "remove", "renew"):
        raise UserError(
            "--to goes with the code that is shown there, for example: baton pair 1234-5678 --to HOST"
        )
    match args.what:
        case None:
            _show(args)
        case "list":
            _list(args)
        case "remove":
            _remove(args)
        case "renew":
            _renew(args)
        case _:
            _type(args)
    return 0


def _show(args: argparse.Namespace) -> None:
    """Ending this command ends the code too."""
    lines = NodeClient.find().watch("/pairing/offer", {"watch": True, **_role(args)})
    for line in lines:
        if args.json:
            print(json.dumps(line), flush=True)
        elif "paired" in line:
            _say_paired(line)
        else:
            print(_invitation(line), flush=True)
        if "paired" in line:
            return
    raise HostError("the node ended before anybody typed the code: start it again (baton node)")


def _invitation(shown: dict[str, Any]) -> str:
    command = f"baton pair {shown['code']}"
    text = f"On the other computer, type:\n\n    {command}\n"
    if shown["addresses"]:
        default = f":{PAIRING_PORT}"
        places = [address.removesuffix(default) for address in shown["addresses"]]
        also = f", or --to {', --to '.join(places[1:])}" if places[1:] else ""
        text += f"\nIf that does not find this one, add its address: {command} --to {places[0]}{also}"
    minutes = round(shown["expires_in_s"] / 60)
    return f"{text}\nThe code is good for {minutes} minutes and one try; Ctrl-C withdraws it."


def _type(args: argparse.Namespace) -> None:
    body = {"code": args.what, **({"to": args.to} if args.to is not None else {}), **_role(args)}
    outcome = NodeClient.find().post("/pairing/join", body)
    if args.json:
        print(json.dumps(outcome))
    else:
        _say_paired(outcome)


def _role(args: argparse.Namespace) -> dict[str, str]:
    return {"role": args.role} if args.role is not None else {}


def _say_paired(outcome: dict[str, Any]) -> None:
    other = outcome["paired"]
    print(f"Paired: {outcome['here']} and {other['name']} ({other['platform']})")
    print(f"  the key of {other['name']}: {other['fingerprint']}")
    if other["note"]:
        print(f"  {other['note']}")


def _list(args: argparse.Namespace) -> None:
    node = NodeClient.find()
    peers = node.get("/peers")
    if args.json:
        print(json.dumps(peers, indent=2))
        return
    if not peers:
        print("This computer is paired with no other one: baton pair")
    for peer in peers:
        state = f"connected, at {peer['address']}" if peer["connected"] else f"not connected: {peer['note']}"
        since = time.strftime("%Y-%m-%d", time.localtime(peer["paired_at"]))
        print(f"{peer['name']:<16} {peer['node_id'][:_SHORT]}  paired {since}  {state}")
    for address in node.get("/discovery")["manual"]:
        print(f"Another one is looked for at {address}, which was typed in")


def _remove(args: argparse.Namespace) -> None:
    node = NodeClient.find()
    if (address := _typed(node, args.name)) is not None:
        node.delete(f"/discovery/manual/{quote(address, safe='')}")
        print(
            json.dumps({"removed": address}) if args.json else f"Nobody is looked for at {address} any more"
        )
        return
    outcome = node.delete(f"/peers/{quote(args.name, safe='')}")
    if args.json:
        print(json.dumps(outcome))
        return
    told = "it was told" if outcome["told"] else "it is not connected, and will be turned away when it calls"
    print(f"{outcome['removed']} is not paired with this computer any more; {told}")


def _typed(node: NodeClient, text: str) -> str | None:
    """The address that was typed in and that is meant, with its port or without."""
    manual: list[str] = node.get("/discovery")["manual"]
    return next((each for each in manual if text in (each, each.rpartition(":")[0].strip("[]"))), None)


def _renew(args: argparse.Namespace) -> None:
    """While no node runs, so that nothing goes on with the old identity."""
    from engine.node.presence import Place
    from engine.node.trust.identity import Identity
    from engine.node.trust.peers import PeerBook
    from engine.node.trust.secrets import Secrets
    from engine.paths import identity_dir, peers_file

    place = Place()
    place.take()
    try:
        folder = identity_dir(args.identity)
        secrets = Secrets(folder)
        new = Identity.load_or_create(folder, secrets).renew(secrets)
        book = PeerBook(peers_file())
        for peer in book.all():
            book.remove(peer.node_id)
    finally:
        place.leave()
    if args.json:
        print(json.dumps({"node_id": new.node_id, "fingerprint": new.fingerprint}))
    else:
        print(
            "This computer has a new identity, and is paired with no other one: start the node, and pair anew"
        )
