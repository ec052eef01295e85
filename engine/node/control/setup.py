"""Putting Baton on another computer: by a line to paste there, or over ssh where it asks nothing."""

from __future__ import annotations

import asyncio
from typing import Annotated

import msgspec
from msgspec import Meta
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from engine.node.control.asked import asked_of
from engine.node.control.lines import lines
from engine.node.own_words import said_by
from engine.node.setup.setup_peer import check_target, own_host

CHILD = ("setup-peer", "--json", "--exit-with-stdin")


class _Line(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`address` is where the line calls this computer; by default the best network's."""

    address: Annotated[str, Meta(max_length=256)] = ""


class _Ssh(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`target` is USER@HOST, as ssh calls it."""

    target: Annotated[str, Meta(min_length=1, max_length=256)]


def routes() -> list[BaseRoute]:
    return [
        Route("/setup/line", _line, methods=["POST"]),
        Route("/setup/ssh", _ssh, methods=["POST"]),
    ]


async def _line(request: Request) -> Response:
    """Lines: the line to paste and for how long it works, then who has taken it. It works as long as it is watched."""
    asked = await asked_of(request, _Line)
    address = asked.address or await asyncio.to_thread(own_host)
    return lines(said_by(*CHILD, "--print-command", "--address", address))


async def _ssh(request: Request) -> Response:
    """Lines: what is being done there, then whom this computer has been paired with. Who goes away ends it."""
    asked = await asked_of(request, _Ssh)
    check_target(asked.target)
    return lines(said_by(*CHILD, "--batch", asked.target))
