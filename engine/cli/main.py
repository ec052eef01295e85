"""Finds the command that was asked for, runs it, and turns what it raises into one sentence and an exit status."""

from __future__ import annotations

import argparse
import contextlib
import errno
import importlib
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass

from engine.cli.lifetime import unwinding_on_signals
from engine.cli.terminal import harmless_output
from engine.errors import BatonError, UserError
from engine.version import baton_version
from engine.waiting import limit_spinning

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130  # 128 + SIGINT, as shells have it
EXIT_BROKEN_PIPE = 141  # 128 + SIGPIPE

_EXAMPLES = """\
examples:
  baton demo                          two engines on this computer answer one question
  baton serve --model smollm2-135m    the OpenAI endpoint on 127.0.0.1:7117
  baton chat "What is a relay race?"  ask it

exit status, of every command:
  0 done; 1 failed; 2 asked for what cannot be; 130 ended by Ctrl-C, 143 by SIGTERM, 129 by a closed terminal
"""


@dataclass(frozen=True, kw_only=True)
class Command:
    """A command's module, and its line in the list; a hidden one is for Baton itself."""

    module: str
    help: str
    hidden: bool = False


COMMANDS = {
    "demo": Command(module="engine.cli.demo", help="see two engines on this computer answer one question"),
    "serve": Command(
        module="engine.cli.serve", help="run the engine that answers: decode, and the OpenAI endpoint"
    ),
    "worker": Command(
        module="engine.cli.worker", help="run the engine that prefills prompts for another computer"
    ),
    "node": Command(
        module="engine.cli.node",
        help="run this computer's daemon: it finds the other computer and keeps engines and endpoint up",
    ),
    "config": Command(
        module="engine.cli.config",
        help="show and change this computer's settings, whether its node runs or not",
    ),
    "pair": Command(module="engine.cli.pair", help="join this computer with another one, by a code"),
    "chat": Command(module="engine.cli.chat", help="ask the running endpoint"),
    "status": Command(module="engine.cli.status", help="show what runs on this computer"),
    "link": Command(
        module="engine.cli.link", help="probe and tune the cable, and test that both computers answer alike"
    ),
    "service": Command(
        module="engine.cli.service", help="have this computer's node started by the system, and kept running"
    ),
    "setup-peer": Command(
        module="engine.cli.setup_peer", help="put the same Baton on another computer, and pair with it"
    ),
    "roles": Command(
        module="engine.cli.roles", help="show and choose which computer prefills and which decodes"
    ),
    "wake": Command(module="engine.cli.wake", help="wake the other computer"),
    "models": Command(module="engine.cli.models", help="list, fetch and inspect models"),
    "bench": Command(module="engine.cli.bench", help="measure speed, quality and the handoff"),
    "report": Command(module="engine.cli.report", help="write a zip for a bug report; nothing is sent"),
    "devices": Command(module="engine.cli.devices", help="tell what can compute here", hidden=True),
    "measure": Command(module="engine.cli.measure", help="how fast this computer runs a model", hidden=True),
    "transfer": Command(
        module="engine.cli.transfer", help="copy a model from or to a paired computer", hidden=True
    ),
    "standby": Command(
        module="engine.cli.standby",
        help="wait, with imports done, to be told which engine to be",
        hidden=True,
    ),
    "courier": Command(module="engine.cli.courier", help="move KV for an engine", hidden=True),
    "privileged": Command(
        module="engine.cli.privileged", help="change network settings as administrator", hidden=True
    ),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; `argv` are the words after the program's name. Returns the exit status, never raises."""
    words = list(sys.argv[1:] if argv is None else argv)
    limit_spinning()
    try:
        with unwinding_on_signals(), harmless_output():
            return _answered(words)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except SystemExit as end:  # argparse's, or a signal's
        return end.code if isinstance(end.code, int) else EXIT_USAGE


def _answered(words: list[str]) -> int:
    """The exit status of a command, its output written and its errors told."""
    try:
        status = run_command(words)
        if sys.stdout is not None:
            sys.stdout.flush()
        return status
    except UserError as error:
        return _fail(str(error), EXIT_USAGE)
    except BatonError as error:
        return _fail(str(error), EXIT_FAILED)
    except BrokenPipeError:
        _forget_stdout()
        return EXIT_BROKEN_PIPE
    except Exception as error:
        _forget_stdout()
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            return _fail("the disk is full: make room, and run the same command again", EXIT_FAILED)
        return _fail(_own_up(error), EXIT_FAILED)


def _forget_stdout() -> None:
    """Python flushes stdout once more at its end, and would complain then."""
    with contextlib.suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def _own_up(error: Exception) -> str:
    """The sentence for a mistake of Baton's own; the details are for whoever mends it, and go into a file."""
    from engine.files import private_opener
    from engine.log_lines import account_of
    from engine.paths import log_dir

    file = log_dir() / "mistakes.log"
    what = f"a mistake of Baton's own ({type(error).__name__}: {error})"
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with open(file, "a", encoding="utf-8", errors="backslashreplace", opener=private_opener) as log:
            log.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {baton_version()}\n{account_of(error)}\n")
    except OSError:
        return f"{what}; please report it"
    return f"{what}; please report it, with the end of {file}"


def run_command(words: Sequence[str]) -> int:
    """Run one command inside of `main`, and return its exit status; raises what it raises."""
    command = next((word for word in words if not word.startswith("-")), None)
    parser = _parser(chosen=command if command in COMMANDS else None)
    args = parser.parse_args(words)
    if args.command is None:
        parser.print_help()
        return 0
    module = importlib.import_module(COMMANDS[args.command].module)
    status: int = module.run(args)
    return status


def _parser(chosen: str | None) -> argparse.ArgumentParser:
    """The parser with every command's name, and the flags of `chosen` alone: only its module is imported."""
    parser = argparse.ArgumentParser(
        prog="baton",
        description="Two computers answer as one: one prefills the prompt, the other decodes the answer.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="show the program's version, and end")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", title="commands")
    for name, command in COMMANDS.items():
        if command.hidden and name != chosen:
            continue
        if name != chosen:
            commands.add_parser(name, help=command.help, add_help=False)
            continue
        module = importlib.import_module(command.module)
        chosen_parser = commands.add_parser(
            name,
            help=command.help,
            description=command.help[0].upper() + command.help[1:] + ".",
            epilog=f"examples:\n{module.EXAMPLE}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        module.add_arguments(chosen_parser)
    return parser


class _Version(argparse.Action):
    """Finds the version out once it is asked for."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        print(f"baton {baton_version()}")
        parser.exit()


def _fail(sentence: str, status: int) -> int:
    with contextlib.suppress(OSError):
        print(f"baton: {sentence}", file=sys.stderr)
    return status
