"""`baton node`: the daemon of this computer: it finds and trusts the other one, and keeps engines and endpoint up."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import threading
from typing import TYPE_CHECKING, Any

from engine import config
from engine.cli.lifetime import add_lifetime_flags, watch_stdin
from engine.cli.log import log_to, tell
from engine.errors import HostError
from engine.paths import node_log, own_command, settings_file, updates_file
from engine.settings_file import SettingsFile

if TYPE_CHECKING:
    from engine.node.daemon import Node

EXAMPLE = """\
  baton node
  baton node --preload qwen2.5-coder-0.5b --name studio
  baton node --stop
"""

SETTINGS = (*config.NODE_SETTINGS, config.IDENTITY)

# From being told to end to the end of the engines and of what else is open; the rest is left to the system.
_CLOSE_WITHIN_S = 2.6

# How long `--stop` waits for that.
_STOPS_WITHIN_S = 10.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    config.add_flags(parser, SETTINGS, with_defaults=False)
    add_lifetime_flags(parser)
    parser.add_argument("--stop", action="store_true", help="end the node that runs, and its engines")
    parser.add_argument(
        "--allow-updates",
        action="store_true",
        help="let paired computers update Baton here, from now on (see baton setup-peer --allow-updates)",
    )


def run(args: argparse.Namespace) -> int:
    if args.stop:
        return _stop(args)
    if args.allow_updates:
        from engine.node.setup.updates import set_allowance

        set_allowance(updates_file(), allowed=True)
    if args.exit_with_stdin:
        watch_stdin()

    from engine.node.reporting.log_feed import LogFeed
    from engine.node.reporting.logs import TrimmedStderr, node_log_handler
    from engine.paths import installer_log, service_log

    log_to(TrimmedStderr(service_log(), installer_log()))
    log_to(node_log_handler(node_log()))
    log_feed = LogFeed()
    log_to(log_feed.handler())

    from engine.node.daemon import Node
    from engine.node.heap import give_large_blocks_back
    from engine.node.settings import NodeSettings

    give_large_blocks_back()
    flags = {
        setting.name: getattr(args, setting.name) for setting in config.NODE_SETTINGS if setting.has_flag
    }
    node = Node(NodeSettings(SettingsFile(settings_file()), flags=flags, identity=args.identity), log_feed)
    runner = _Runner(node, on_ready=lambda ready: _say_ready(args, ready))
    try:
        runner.run()
    finally:
        has_ended = runner.close()
    if node.is_to_start_anew:  # an update has put other files in the place of those that run
        os.execv(sys.executable, [*own_command(), *sys.argv[1:]])
    if not has_ended:  # a thread copies or probes, and Python would wait for it
        sys.stdout.flush()
        os._exit(0)
    return 0


class _Runner:
    """The node's event loop on a thread of its own: the main thread waits, and is what a signal unwinds."""

    def __init__(self, node: Node, on_ready: Any) -> None:
        self._node = node
        self._on_ready = on_ready
        self._over = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="node", daemon=True)

    def run(self) -> None:
        self._thread.start()
        self._over.wait()
        if self._failure is not None:
            raise self._failure

    def close(self) -> bool:
        """Whether everything has ended."""
        self._node.stop_soon()
        if self._thread.ident is not None:
            self._thread.join(_CLOSE_WITHIN_S)
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            asyncio.run(self._work())
        except BaseException as error:  # raised again on the main thread
            self._failure = self._failure or error
        finally:
            self._over.set()

    async def _work(self) -> None:
        """Over when the node is: the loop ends only with the last thread that works for it."""
        try:
            await self._node.run(self._on_ready)
        except BaseException as error:
            self._failure = error
        finally:
            self._over.set()


def _say_ready(args: argparse.Namespace, ready: dict[str, Any]) -> None:
    if args.json:
        tell(json.dumps({"ready": True, **ready}), sys.stdout)
        return
    tell(f"This computer is {ready['name']}; its endpoint is {ready['endpoint']}/v1", sys.stderr)
    for note in ready["notes"]:
        tell(note, sys.stderr)
    if not ready["peers"]:
        tell("To join it with another computer:  baton pair", sys.stderr)


def _stop(args: argparse.Namespace) -> int:
    from engine.node.client import NodeClient
    from engine.node.presence import Place

    place = Place()
    NodeClient.find().stop()
    has_ended = place.wait_until_free(_STOPS_WITHIN_S)
    if args.json:
        tell(json.dumps({"stopped": has_ended}), sys.stdout)
    elif has_ended:
        tell("The node has ended, and its engines with it", sys.stdout)
    else:
        raise HostError(
            f"the node was told to end, and still runs after {_STOPS_WITHIN_S:g} s: look at its log"
        )
    return 0 if has_ended else 1
