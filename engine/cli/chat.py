"""`baton chat`: one question to the running endpoint; the answer as it comes, then what it took."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator
from typing import Any

from engine.cli.answer import Answer, telemetry_line
from engine.cli.log import tell
from engine.config import HOST, MAX_TOKENS, PORT, TEMPERATURE, add_flags
from engine.errors import UserError
from engine.node.endpoint import Endpoint, ModelLoading

EXAMPLE = """\
  baton chat "What is a relay race?"
  baton chat - --max-tokens 200 < question.txt
  baton chat "Say hello" --port 8080 --json
"""

# The largest models, from a slow disk.
_LOADING_TIMEOUT_S = 900.0
_LOOK_AGAIN_S = 0.5


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("question", help='what to ask; "-" takes it from standard input')
    parser.add_argument(
        "--model", metavar="NAME", help="of those that the endpoint has (default: the one that is loaded)"
    )
    parser.add_argument("--system", metavar="TEXT", help="a system message")
    add_flags(parser, [MAX_TOKENS, TEMPERATURE])
    parser.add_argument(
        "--prefill", choices=("auto", "local", "remote"), default="auto", help="where to prefill the prompt"
    )
    add_flags(parser, [HOST, PORT])
    parser.add_argument("--json", action="store_true", help="print one JSON object instead")


def run(args: argparse.Namespace) -> int:
    question = _question(args.question)
    if not question.strip():
        raise UserError('ask something: baton chat "What is a relay race?"')
    messages = [{"role": "user", "content": question}]
    if args.system:
        messages.insert(0, {"role": "system", "content": _checked("--system", args.system)})
    body: dict[str, Any] = {"messages": messages, "prefill": args.prefill}
    body |= {
        name: value
        for name, value in (("max_tokens", args.max_tokens), ("temperature", args.temperature))
        if value is not None
    }
    if args.model:
        body["model"] = args.model
    answer = Answer(Endpoint.named(args.host, args.port), body, clock=time.perf_counter)
    for text in _once_loaded(answer):
        if not args.json:
            print(text, end="", flush=True)
    if args.json:
        print(json.dumps(answer.report()))
    else:
        print(f"\n\n{telemetry_line(answer.report())}")
    return 0


def _once_loaded(answer: Answer) -> Iterator[str]:
    """The answer's text; a model that is still being loaded is waited for."""
    give_up_at = time.monotonic() + _LOADING_TIMEOUT_S
    has_said = False
    while True:
        texts = answer.texts()
        try:
            first = next(texts, "")
            break
        except ModelLoading:
            if time.monotonic() > give_up_at:
                raise
        if not has_said:
            has_said = True
            tell("The model is being loaded", sys.stderr)
        time.sleep(_LOOK_AGAIN_S)
    yield first
    yield from texts


def _question(word: str) -> str:
    if word != "-":
        return _checked("the question", word)
    content = b"" if sys.stdin is None else sys.stdin.buffer.read()
    try:
        return content.decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        raise UserError(
            f"standard input is not text in UTF-8 (byte {error.start + 1} is wrong): save the question in UTF-8"
        ) from None


def _checked(what: str, text: str) -> str:
    """`text` from the command line, where bytes that are no text have become characters that cannot be sent."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise UserError(
            f"{what} is not text in UTF-8 (character {error.start + 1} is none): set the terminal to UTF-8"
        ) from None
    return text
