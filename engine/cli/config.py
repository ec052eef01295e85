"""`baton config`: this computer's settings, shown and changed: through its node where one runs, else in the file."""

from __future__ import annotations

import argparse
import getpass
import json
import secrets
import sys
import textwrap
from typing import Any, Protocol

from engine.config import IDENTITY, NODE_SETTINGS, Setting, add_flags
from engine.errors import UserError
from engine.node.client import NodeClient
from engine.node.presence import NoNode
from engine.node.settings import NodeSettings, setting_named
from engine.paths import settings_file
from engine.settings_file import SettingsFile

EXAMPLE = """\
  baton config list
  baton config get ctx
  baton config set name studio
  baton config set api_key --new
  baton config unset ctx
  baton config reload
"""

# Bytes of a key that is made here.
_NEW_KEY_BYTES = 32

_WAYS = {"flag": "a flag", "environment": "the environment", "file": "set here", "default": ""}


class _Home(Protocol):
    """Where settings are looked up and changed."""

    def snapshot(self) -> dict[str, Any]: ...

    def change(self, changes: dict[str, Any]) -> dict[str, Any]: ...


class _Running:
    """The node that runs."""

    def __init__(self, client: NodeClient) -> None:
        self.client = client

    def snapshot(self) -> dict[str, Any]:
        found: dict[str, Any] = self.client.get("/settings")
        return found

    def change(self, changes: dict[str, Any]) -> dict[str, Any]:
        return self.client.patch("/settings", changes)


class _Resting:
    """The file, and the secrets beside the key, while no node runs."""

    def __init__(self, identity: str | None) -> None:
        self._settings = NodeSettings(SettingsFile(settings_file()), identity=identity)
        self._secrets = self._settings.open_secrets()
        self._settings.recall(self._secrets)

    def snapshot(self) -> dict[str, Any]:
        return self._settings.snapshot()

    def change(self, changes: dict[str, Any]) -> dict[str, Any]:
        self._settings.keep(self._settings.check(changes), self._secrets)
        return self.snapshot()


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    listed = actions.add_parser("list", help="show every setting, and where its value is from")
    got = actions.add_parser("get", help="print the value of one")
    put = actions.add_parser("set", help="change one")
    put.add_argument("name", metavar="NAME", help="as `list` shows it")
    put.add_argument(
        "value", metavar="VALUE", nargs="?", help="a secret is asked for, or read from standard input"
    )
    put.add_argument("--new", action="store_true", help="make a new key, and print it this once (api_key)")
    unset = actions.add_parser("unset", help="take a change back")
    for action in (got, unset):
        action.add_argument("name", metavar="NAME", help="as `list` shows it")
    reload = actions.add_parser(
        "reload", help="load the models anew that wait for it, once their answers have ended"
    )
    for action in (listed, got, put, unset, reload):
        action.add_argument("--json", action="store_true", help="print JSON")
        add_flags(action, [IDENTITY])


def run(args: argparse.Namespace) -> int:
    setting = setting_named(args.name) if "name" in args else None
    home = _home(args)
    if args.action == "reload":
        if not isinstance(home, _Running):
            raise NoNode(
                "no node runs on this computer, so that nothing is loaded: start one with `baton node`"
            )
        waits = any(entry["waits_for"] == "reload" for entry in home.snapshot()["settings"])
        home.client.post("/settings/reload")
        _say(
            args,
            home.snapshot(),
            "What waited for it is loaded anew, one model after the other: `baton status`"
            if waits
            else "Nothing waits for it: what is loaded has the settings that hold",
        )
    elif setting is None:
        _list(args, home.snapshot())
    elif args.action == "get":
        _get(args, home.snapshot(), setting)
    else:
        _change(args, home, setting)
    return 0


def _home(args: argparse.Namespace) -> _Home:
    try:
        return _Running(NodeClient.find())
    except NoNode:
        return _Resting(args.identity)


def _list(args: argparse.Namespace, found: dict[str, Any]) -> None:
    if args.json:
        print(json.dumps(found, indent=2))
        return
    width = max(len(setting.name) for setting in NODE_SETTINGS)
    group = ""
    for entry in found["settings"]:
        if entry["group"] != group:
            group = entry["group"]
            print(f"\n{group}" if entry is not found["settings"][0] else group)
        notes = [note for note in (entry["unit"], _WAYS.get(entry["source"], ""), _waits(entry)) if note]
        print(f"  {entry['name']:{width}}  {_shown(entry)}" + (f"  ({'; '.join(notes)})" if notes else ""))
        for line in textwrap.wrap(entry["help"], 100 - width):
            print(f"  {'':{width}}    {line}")
    for fault in found["faults"]:
        print(f"\n{fault}")
    print(f"\nKept in {found['file']}")


def _get(args: argparse.Namespace, found: dict[str, Any], setting: Setting) -> None:
    entry = _entry(found, setting)
    print(json.dumps(entry, indent=2) if args.json else _shown(entry))


def _change(args: argparse.Namespace, home: _Home, setting: Setting) -> None:
    value = _value(args, setting) if args.action == "set" else None
    found = home.change({setting.name: value})
    entry = _entry(found, setting)
    if args.json:
        print(json.dumps(entry | ({"new": value} if _is_new(args) else {}), indent=2))
        return
    if _is_new(args):
        print(value)
    said = f"{setting.name} is {_shown(entry)}"
    if entry["source"] in ("flag", "environment"):
        said += f", by {_WAYS[entry['source']]}, which goes before what is kept"
    print(f"{said}{f'; {_waits(entry)}' if _waits(entry) else ''}", file=sys.stderr)


def _value(args: argparse.Namespace, setting: Setting) -> Any:
    if args.new and not setting.is_secret:
        raise UserError(f"{setting.name} is no key: name its value")
    if args.new and args.value is not None:
        raise UserError("--new makes a value: name none beside it")
    if args.new:
        return secrets.token_urlsafe(_NEW_KEY_BYTES)
    text = args.value
    if text is None and setting.is_secret:
        text = (
            getpass.getpass(f"{setting.name}: ")
            if sys.stdin.isatty()
            else sys.stdin.readline().rstrip("\r\n")
        )
    if text is None:
        raise UserError(
            f"{setting.name}: name a value ({setting.value_name}), or take it back with `baton config unset`"
        )
    return setting.parse(text, called=setting.name)


def _is_new(args: argparse.Namespace) -> bool:
    return args.action == "set" and bool(args.new)


def _entry(found: dict[str, Any], setting: Setting) -> dict[str, Any]:
    entry: dict[str, Any] = next(one for one in found["settings"] if one["name"] == setting.name)
    return entry


def _shown(entry: dict[str, Any]) -> str:
    if entry["is_secret"]:
        return "set" if entry["is_set"] else "not set"
    return "chosen by Baton" if entry["value"] is None else str(entry["value"])


def _waits(entry: dict[str, Any]) -> str:
    return {
        "reload": "felt once models are loaded anew: `baton config reload`",
        "restart": "felt when the node is started anew",
    }.get(entry["waits_for"], "")


def _say(args: argparse.Namespace, found: dict[str, Any], sentence: str) -> None:
    print(json.dumps(found, indent=2) if args.json else sentence)
