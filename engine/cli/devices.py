"""`baton devices`: what can compute on this computer, as JSON, for the processes of Baton that know no torch."""

from __future__ import annotations

import argparse
import json

EXAMPLE = """\
  baton devices
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    pass


def run(args: argparse.Namespace) -> int:
    from engine.device import describe_devices

    print(json.dumps(describe_devices()))
    return 0
