"""`baton link`: what the two computers' link is good for. `selftest` compares their answers token for token.

`probe` and `tune` have files of their own.
"""

from __future__ import annotations

import argparse
import json
from typing import Any

from engine.cli import link_probe, link_tune
from engine.config import HOST, PORT, add_flags
from engine.errors import HostError, UserError
from engine.node.endpoint import Endpoint
from engine.numbers import whole_numbers

EXAMPLE = """\
  baton link probe
  baton link tune --dry-run
  baton link tune --apply
  baton link selftest
  baton link selftest --lengths 100,2000 --json
"""

# One token, a few, and around the borders of a chunk of 512.
_LENGTHS = (2, 33, 511, 512, 513, 514, 1030, 2100)

_N_ANSWER = 16

# How many likely tokens are looked at where two answers part.
_N_LIKELY = 5

# In natural logarithms of probabilities: two tokens this near to each other are as good as equal, and the rounding of
# 16-bit numbers decides between them.
_NEAR_TIE = 0.1

# Cut into tokens, and repeated until a prompt is long enough.
_TEXT = """A relay race is won in the exchange zone. The runner who arrives gives everything that is left, and the one
who waits has to be at full speed when the baton comes: looking back costs a tenth of a second, dropping it costs the
race. Teams therefore practise one movement more than any other, until nobody has to think of it. """


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    link_probe.add_arguments(
        actions.add_parser("probe", help="measure the cable, and say what slows it down and how to mend that")
    )
    link_tune.add_arguments(
        actions.add_parser(
            "tune", help="give the cable addresses, large packets and the buffers that it needs"
        )
    )
    selftest = actions.add_parser(
        "selftest", help="prefill the same prompts here and at the worker, and compare the answers"
    )
    selftest.add_argument(
        "--lengths",
        type=whole_numbers,
        default=_LENGTHS,
        metavar="N,...",
        help="tokens of each prompt (default: around the borders of a chunk, as far as the context goes)",
    )
    add_flags(selftest, [HOST, PORT])
    selftest.add_argument("--json", action="store_true", help="print one JSON object")


def run(args: argparse.Namespace) -> int:
    if args.action == "probe":
        return link_probe.run(args)
    if args.action == "tune":
        return link_tune.run(args)
    return _selftest(args)


def _selftest(args: argparse.Namespace) -> int:
    """0 when the worker prefilled every prompt, and the answers are the same or part at a near tie; else 1."""
    endpoint = Endpoint.named(args.host, args.port)
    rows = []
    for prompt in _prompts(endpoint, args.lengths):
        rows.append(_compare(endpoint, prompt))
        if not args.json:
            print(_line(rows[-1]), flush=True)
    passed = all(row["prefill"] == "remote" and (row["same"] or row["near_tie"]) for row in rows)
    if args.json:
        print(json.dumps({"passed": passed, "prompts": rows}))
    else:
        print(_verdict(rows, passed=passed, by_int8=not passed and _by_int8(endpoint)))
    return 0 if passed else 1


def _by_int8(endpoint: Endpoint) -> bool:
    """Whether a slot's last K and V came in 8 bits, which alone may change an answer."""
    handoffs = [(slot["timeline"] or {}).get("handoff") for slot in endpoint.get("/slots")]
    return any(handoff["codec"] == "int8" for handoff in handoffs if handoff)


def _prompts(endpoint: Endpoint, lengths: tuple[int, ...]) -> list[list[int]]:
    """Prompts of those lengths, without those of the default that do not fit the context."""
    worker = endpoint.get("/worker")
    if not worker["configured"]:
        raise UserError("this endpoint has no worker: start it with --peer to have something to test")
    if not worker["connected"]:
        raise HostError(f"the worker is not connected: {worker['note']}")
    if min(lengths) < 2:
        raise UserError("--lengths: 2 at least, as a prompt's last token is always computed here")
    room = min(slot["n_ctx"] for slot in endpoint.get("/slots")) - _N_ANSWER
    if lengths is not _LENGTHS and max(lengths) > room:
        raise UserError(
            f"--lengths {max(lengths)}: the context has room for prompts of {room} tokens beside the answer"
        )
    tokens = endpoint.ask("/tokenize", {"content": _TEXT})["tokens"]
    # Each begins in its own way, so that none finds another's cache.
    return [
        [
            tokens[(index * 7 + number) % len(tokens)] if index < 8 else tokens[index % len(tokens)]
            for index in range(n)
        ]
        for number, n in enumerate(lengths)
        if n <= room
    ]


def _compare(endpoint: Endpoint, prompt: list[int]) -> dict[str, Any]:
    """One prompt both ways."""
    local, remote = (_answer(endpoint, prompt, way) for way in ("local", "remote"))
    here, there = local["choices"][0], remote["choices"][0]
    handoff = remote["timings"]["handoff"]
    row: dict[str, Any] = {
        "prompt_tokens": len(prompt),
        "prefill": handoff["prefill"],
        "reason": handoff["reason"],
        "detail": handoff["detail"],
        "bytes": handoff["bytes"],
        "tail_ms": handoff["tail_ms"],
        "local_ms": local["timings"]["prompt_ms"],
        "remote_ms": remote["timings"]["prompt_ms"],
        "same": local["tokens"] == remote["tokens"],
        "diverges_at": None,
        "margin": None,
        "near_tie": False,
    }
    if row["same"]:
        return row
    pairs = zip(local["tokens"], remote["tokens"], strict=False)
    place = next((index for index, (a, b) in enumerate(pairs) if a != b), None)
    if place is not None:
        likely, other = (choice["logprobs"] for choice in (here, there))
        least = min(likely["top_logprobs"][place].values())
        margin = likely["token_logprobs"][place] - likely["top_logprobs"][place].get(
            other["tokens"][place], least
        )
        row |= {"diverges_at": place, "margin": margin, "near_tie": margin < _NEAR_TIE}
    return row


def _answer(endpoint: Endpoint, prompt: list[int], prefill: str) -> dict[str, Any]:
    answer: dict[str, Any] = endpoint.ask(
        "/v1/completions",
        {
            "prompt": prompt,
            "max_tokens": _N_ANSWER,
            "temperature": 0,
            "logprobs": _N_LIKELY,
            "return_tokens": True,
            "ignore_eos": True,
            "cache_prompt": False,
            "prefill": prefill,
        },
    )
    return answer


def _line(row: dict[str, Any]) -> str:
    if row["prefill"] != "remote":
        outcome = f"not prefilled by the worker: {row['detail']}"
    elif row["same"]:
        outcome = "same answer"
    elif row["near_tie"]:
        outcome = f"parts at token {row['diverges_at']}, a near tie ({row['margin']:.3f})"
    elif row["margin"] is None:
        outcome = "one answer is longer"
    else:
        outcome = f"PARTS at token {row['diverges_at']}, by {row['margin']:.3f}"
    times = f"{row['local_ms']:8.0f} ms here {row['remote_ms']:8.0f} ms by the worker"
    return f"{row['prompt_tokens']:6d} tokens {times} {row['bytes'] / 1e6:8.1f} MB  {outcome}"


def _verdict(rows: list[dict[str, Any]], *, passed: bool, by_int8: bool) -> str:
    n_local = sum(row["prefill"] != "remote" for row in rows)
    if n_local:
        return f"{n_local} of {len(rows)} prompts could not be prefilled by the worker"
    if by_int8:
        return "answers may part with --codec int8: start Baton without it to compare the two computers"
    if not passed:
        return "the two computers do not compute the same: check that both run the same version, and look at their logs"
    n_ties = sum(row["near_tie"] for row in rows)
    ties = f", {n_ties} of them but for a near tie" if n_ties else ""
    return f"{len(rows)} prompts gave the same answer either way{ties}"
