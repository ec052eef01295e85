"""`baton report`: one file to attach to a bug report, with secrets and prompts left out; nothing is sent."""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

from engine.files import user_path
from engine.node.reporting.report import Sources, make_report, write_report

EXAMPLE = """\
  baton report
  baton report --output ~/Desktop/baton.zip
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--output", metavar="FILE", help="where to write it, a file or a folder (default: the present folder)"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> int:
    path = _target(args.output)
    items = make_report(Sources.own())
    write_report(items, path)
    if args.json:
        files = [{"name": item.name, "about": item.about, "characters": len(item.text)} for item in items]
        print(json.dumps({"file": str(path), "files": files, "sent": False}, indent=2))
        return 0
    print(items[0].text)
    print(f"All of it is in {path}: look into it, and attach it to your bug report.")
    return 0


def _target(given: str | None) -> Path:
    path = user_path(given).absolute() if given else Path.cwd()
    return path / time.strftime("baton-report-%Y%m%d-%H%M%S.zip") if path.is_dir() else path
