"""`baton worker`: the engine that prefills prompts for another computer. It has no endpoint of its own."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from engine import config
from engine.cli.lifetime import add_lifetime_flags, watch_stdin
from engine.cli.log import log_to_stderr
from engine.cli.progress import ProgressBar, loading_bar
from engine.errors import UserError
from engine.node.library import Library
from engine.node.running import announce

EXAMPLE = """\
  baton worker --model smollm2-135m --listen 0.0.0.0:7118 --trust FINGERPRINT
  baton worker --model ./model.gguf --dial 192.168.1.10:7118 --trust FINGERPRINT
"""

SETTINGS = [
    *(config.MODEL, config.LISTEN, config.DIAL, config.TRUST, config.IDENTITY),
    *(config.SLOTS, config.CTX, config.CHUNK, config.WEIGHTS, config.DEVICE, config.THREADS),
]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    config.add_flags(parser, SETTINGS)
    add_lifetime_flags(parser)


def run(args: argparse.Namespace) -> int:
    raise UserError("not built yet")
