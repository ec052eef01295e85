"""`baton status`: this computer and the ones it is paired with, the endpoint's slots and worker, and every engine."""

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

_RENEW = "run `baton pair renew` on the copy, and pair it anew"

# An endpoint on this computer that does not answer within this is not well.
_TIMEOUT_S = 2.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_flags(parser, [HOST, PORT])
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> int:
    """0 when the endpoint answers, 1 when it does not."""
    cluster, problem = _ask_node()
    endpoint = _ask(Endpoint.named(args.host, args.port))
    report = {"cluster": cluster, "problem": problem, "endpoint": endpoint, "engines": list_running()}
    if args.json:
        print(json.dumps(report, indent=2))
    else:
        _print(report)
    return 0 if endpoint["status"] == "ok" else 1


def _ask_node() -> tuple[dict[str, Any] | None, str]:
    """What the node says of all computers, and why one that runs does not say it."""
    from engine.node.client import NodeClient
    from engine.node.presence import NoNode

    try:
        return NodeClient.find().get("/status"), ""
    except NoNode:
        return None, ""
    except BatonError as error:
        return None, str(error)


def _ask(endpoint: Endpoint) -> dict[str, Any]:
    """`status` is "ok", "absent", or the endpoint's own sentence on why it cannot answer."""
    empty: dict[str, Any] = {"url": endpoint.url, "models": [], "slots": [], "worker": None}
    try:
        health = endpoint.get("/health", timeout_s=_TIMEOUT_S)
        models = endpoint.get("/v1/models", timeout_s=_TIMEOUT_S)["data"]
    except NoEndpoint:
        return {**empty, "status": "absent"}
    except BatonError as error:
        return {**empty, "status": str(error)}
    found = {**empty, "status": health.get("status", "unknown"), "models": [model["id"] for model in models]}
    try:
        found["slots"] = endpoint.get("/slots", timeout_s=_TIMEOUT_S)
    except BatonError as error:
        # A node answers before a model is loaded; an engine that is still loading says so itself.
        return {**found, "note": str(error)}
    return {**found, "worker": _ask_worker(endpoint)}


def _ask_worker(endpoint: Endpoint) -> dict[str, Any] | None:
    """What the endpoint says of its worker; None where it is one that knows of none, such as llama-server's."""
    try:
        worker: dict[str, Any] = endpoint.get("/worker", timeout_s=_TIMEOUT_S)
    except BatonError:
        return None
    return worker


def _print(report: dict[str, Any]) -> None:
    if report["cluster"] is not None:
        _print_cluster(report["cluster"])
    if report["problem"]:
        print(report["problem"])
    endpoint = report["endpoint"]
    if endpoint["status"] == "absent":
        print(f"endpoint  {endpoint['url']}  nothing answers; start it with: baton node")
    else:
        print(f"endpoint  {endpoint['url']}  {endpoint['status']}  {', '.join(endpoint['models'])}")
    if endpoint.get("note"):
        print(f"  {endpoint['note']}")
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


def _print_cluster(cluster: dict[str, Any]) -> None:
    """Each computer with what it does, so that one look tells whether the two work together."""
    here = cluster["node"]
    width = max(len(name) for name in (here["name"], *(peer["name"] for peer in cluster["peers"])))
    print(f"{here['name']:<{width}}  this computer, Baton {here['baton']}")
    _print_node(here, width)
    for note in here["notes"]:
        print(f"{'':<{width}}  {note}")
    for peer in cluster["peers"]:
        print(f"{peer['name']:<{width}}  {_peer_line(peer)}")
        if peer["node"] is not None:
            _print_node(peer["node"], width)
        if peer["twin"]:
            print(
                f"{'':<{width}}  another computer, at {peer['twin']}, has the same identity: one was copied; {_RENEW}"
            )
        if peer["ceiling"]:
            print(f"{'':<{width}}  cable: {_ceiling_line(peer['ceiling'])}")
    if not cluster["peers"]:
        print("No other computer is paired with this one: baton pair")


def _print_node(node: dict[str, Any], width: int) -> None:
    indent = " " * (width + 2)
    for engine in node["engines"]:
        print(f"{indent}decodes {engine['model']}: {_engine_line(engine)}")
    for join in node["joins"]:
        if join["note"]:
            print(f"{indent}no worker for {join['model']} on {join['prefill']} yet: {join['note']}")
    for worker in node["workers"]:
        print(f"{indent}prefills {worker['model']} for {worker['for']}: {_engine_line(worker)}")


def _peer_line(peer: dict[str, Any]) -> str:
    if not peer["connected"]:
        return f"paired, away: {peer['note']}"
    return f"connected at {peer['address']}, Baton {peer['baton']}"


def _engine_line(engine: dict[str, Any]) -> str:
    if engine["state"] == "ready" and engine.get("leaving"):
        return "ready, and loaded anew once its answers have ended"
    if engine["state"] == "ready":
        return f"ready{_came_back(engine.get('last_start') or {})}"
    if not engine["last_exits"]:
        return str(engine["state"])
    return f"{engine['state']}, as {engine['last_exits'][-1]['reason']}"


def _came_back(start: dict[str, Any]) -> str:
    """How long an engine that had ended was away, where it tells."""
    if start.get("away_s") is None:
        return ""
    model = f", {start['model_s']:.1f} s of that for its model" if "model_s" in start else ""
    return f" again {start['away_s']:.1f} s after it had ended{model}"


def _ceiling_line(ceiling: dict[str, Any]) -> str:
    mtu = f", packets of {ceiling['path_mtu']} bytes" if ceiling["path_mtu"] else ""
    return f"{ceiling['send_gbps']:.2f} Gbit/s there, {ceiling['receive_gbps']:.2f} back{mtu}"


def _worker_line(worker: dict[str, Any]) -> str:
    if not worker["configured"]:
        return "none: prompts are prefilled here"
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
