"""Finds the command that was asked for, runs it, and turns what it raises into one sentence and an exit status."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

from engine.cli.lifetime import unwinding_on_sigterm
from engine.errors import BatonError, UserError

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130  # 128 + SIGINT, as shells have it
EXIT_BROKEN_PIPE = 141  # 128 + SIGPIPE

_EXAMPLES = """\
examples:
  baton demo                          two engines on this computer answer one question
  baton serve --model smollm2-135m    the OpenAI endpoint on 127.0.0.1:7117
  baton chat "What is a relay race?"  ask it
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
    "chat": Command(module="engine.cli.chat", help="ask the running endpoint"),
    "status": Command(module="engine.cli.status", help="show what runs on this computer"),
    "models": Command(module="engine.cli.models", help="list, fetch and inspect models"),
    "bench": Command(module="engine.cli.bench", help="measure speed, quality and the handoff"),
    "courier": Command(module="engine.cli.courier", help="move KV for an engine", hidden=True),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; `argv` are the words after the program's name. Returns the exit status, never raises."""
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        with unwinding_on_sigterm():
            status = _run(words)
        sys.stdout.flush()
        return status
    except UserError as error:
        return _fail(error, EXIT_USAGE)
    except BatonError as error:
        return _fail(error, EXIT_FAILED)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except SystemExit as end:  # argparse's, or SIGTERM's
        return end.code if isinstance(end.code, int) else EXIT_USAGE
    except BrokenPipeError:
        # Python flushes stdout once more at its end, and would complain then
        with contextlib.suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return EXIT_BROKEN_PIPE


def _run(words: list[str]) -> int:
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
    parser.add_argument("--version", action="version", version=f"baton {_version()}")
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


def _fail(error: BatonError, status: int) -> int:
    print(f"baton: {error}", file=sys.stderr)
    return status


def _version() -> str:
    try:
        return version("baton")
    except PackageNotFoundError:
        return "(not installed)"
