"""`baton status`: the endpoint's health, slots and worker, and every engine that runs on this computer."""

from __future__ import annotations

import argparse
import json
from typing import Any

from engine.config import HOST, PORT, add_flags
from engine.errors import BatonError
from engine.node.endpoint import Endpoint, NoEndpoint
from engine.node.running import list_running

EXAMPLE = """\
  baton status
  baton status --port 8080 --json
"""

# An endpoint on this computer that does not answer within this is not well.
_TIMEOUT_S = 2.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_flags(parser, [HOST, PORT])
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> int:
    """0 when the endpoint answers, 1 when it does not."""
    endpoint = _ask(Endpoint(args.host, args.port))
    report = {"endpoint": endpoint, "engines": list_running()}
    if args.json:
        print(json.dumps(report, indent=2))
    else:
        _print(report)
    return 0 if endpoint["status"] == "ok" else 1


def _ask(endpoint: Endpoint) -> dict[str, Any]:
    """`status` is "ok", "absent", or the endpoint's own sentence on why it cannot answer."""
    try:
        health = endpoint.get("/health", timeout_s=_TIMEOUT_S)
        models = endpoint.get("/v1/models", timeout_s=_TIMEOUT_S)["data"]
        slots = endpoint.get("/slots", timeout_s=_TIMEOUT_S)
    except NoEndpoint:
        return {"url": endpoint.url, "status": "absent", "models": [], "slots": [], "worker": None}
    except BatonError as error:
        return {"url": endpoint.url, "status": str(error), "models": [], "slots": [], "worker": None}
    return {
        "url": endpoint.url,
        "status": health.get("status", "unknown"),
        "models": [model["id"] for model in models],
        "slots": slots,
        "worker": _ask_worker(endpoint),
    }


def _ask_worker(endpoint: Endpoint) -> dict[str, Any] | None:
    """What the endpoint says of its worker; None where it is one that knows of none, such as llama-server's."""
    try:
        worker: dict[str, Any] = endpoint.get("/worker", timeout_s=_TIMEOUT_S)
    except BatonError:
        return None
    return worker


def _print(report: dict[str, Any]) -> None:
    endpoint = report["endpoint"]
    if endpoint["status"] == "absent":
        print(f"endpoint  {endpoint['url']}  nothing answers; start it with: baton serve")
    else:
        print(f"endpoint  {endpoint['url']}  {endpoint['status']}  {', '.join(endpoint['models'])}")
    for slot in endpoint["slots"]:
        used = f"{slot['n_cached_tokens']} of {slot['n_ctx']} tokens"
        print(f"  slot {slot['id']}  {slot['state']:<16} {used}")
    if endpoint["worker"]:
        print(f"  worker  {_worker_line(endpoint['worker'])}")
        if link := endpoint["worker"].get("link"):
            print(f"  link    {_link_line(link)}")
    for engine in report["engines"]:
        where = engine.get("url") or engine.get("address") or ""
        print(f"{engine['role']:<9} {where}  {engine['model']}  (process {engine['pid']})")


def _worker_line(worker: dict[str, Any]) -> str:
    if not worker["configured"]:
        return "none configured: prompts are prefilled here"
    if not worker["connected"]:
        return f"not connected, prompts are prefilled here: {worker['note']}"
    return f"connected, {worker['peer']}; {_route(worker)}"


def _link_line(link: dict[str, Any]) -> str:
    to = [
        f"{_mib(link[f'{way}_granted_bytes'])} to {way} ({_asked(link[f'{way}_asked_bytes'])})"
        for way in ("receive", "send")
    ]
    return f"data streams: {link['data_streams']}; socket buffers of {' and '.join(to)}"


def _asked(n_bytes: int) -> str:
    return f"{_mib(n_bytes)} asked for" if n_bytes else "sized by the system"


def _mib(n_bytes: int) -> str:
    return f"{n_bytes / (1 << 20):.1f} MiB"


def _route(worker: dict[str, Any]) -> str:
    match worker.get("route"):
        case "always":
            return "it prefills every prompt"
        case "never":
            return "prompts are prefilled here all the same (--route never)"
    crossover = worker.get("crossover_tokens")
    if crossover is not None:
        return f"it is sooner from {crossover} tokens on"
    if worker.get("local_tps") and worker.get("remote_tps"):
        return "this computer is sooner at any length"
    return "both are still being measured"
