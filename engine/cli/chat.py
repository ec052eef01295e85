"""`baton chat`: one question to the running endpoint; the answer as it comes, then what it took."""

from __future__ import annotations

import argparse
import json
import sys
import time
from typing import Any

from engine.cli.answer import Answer, telemetry_line
from engine.config import HOST, PORT, add_flags
from engine.errors import UserError
from engine.node.endpoint import Endpoint

EXAMPLE = """\
  baton chat "What is a relay race?"
  baton chat - --max-tokens 200 < question.txt
  baton chat "Say hello" --port 8080 --json
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "question", help="what to ask; standard input is put behind it where it is a pipe or a file"
    )
    parser.add_argument("--system", metavar="TEXT", help="a system message")
    parser.add_argument("--max-tokens", type=int, metavar="N", help="end the answer after this many tokens")
    parser.add_argument("--temperature", type=float, metavar="T", help="0 always takes the likeliest token")
    parser.add_argument(
        "--prefill", choices=("auto", "local", "remote"), default="auto", help="where to prefill the prompt"
    )
    add_flags(parser, [HOST, PORT])
    parser.add_argument("--json", action="store_true", help="print one JSON object instead")


def run(args: argparse.Namespace) -> int:
    question = sys.stdin.read() if args.question == "-" else args.question
    if not question.strip():
        raise UserError('ask something: baton chat "What is a relay race?"')
    messages = [{"role": "user", "content": question}]
    if args.system:
        messages.insert(0, {"role": "system", "content": args.system})
    body: dict[str, Any] = {"messages": messages, "prefill": args.prefill}
    body |= {
        name: value
        for name, value in (("max_tokens", args.max_tokens), ("temperature", args.temperature))
        if value is not None
    }
    answer = Answer(Endpoint(args.host, args.port), body, clock=time.perf_counter)
    for text in answer.texts():
        if not args.json:
            print(text, end="", flush=True)
    if args.json:
        print(json.dumps(answer.report()))
    else:
        print(f"\n\n{telemetry_line(answer.report())}")
    return 0
