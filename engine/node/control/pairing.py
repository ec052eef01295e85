"""Pairing and paired computers, as the control API has them."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

import msgspec
from msgspec import Meta
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from engine.config import join_address
from engine.node.control.asked import asked_of
from engine.node.control.lines import Items, lines
from engine.node.finding.segments import segments
from engine.node.trust.pairing_port import Offer, PairingPort
from engine.server.json import JSONResponse
from engine.wire.messages import Role


class _Offer(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """With `watch` the answer is a stream of lines, the last of them whom it paired; the code ends with the stream."""

    role: Role | None = None
    watch: bool = False


class _Join(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`to` is the HOST or HOST:PORT where the code is shown; by default it is found."""

    code: Annotated[str, Meta(max_length=40)]
    to: Annotated[str, Meta(max_length=320)] | None = None
    role: Role | None = None


def routes() -> list[Route]:
    return [
        Route("/pairing", _pairing),
        Route("/pairing/offer", _offer, methods=["POST"]),
        Route("/pairing/offer", _withdraw, methods=["DELETE"]),
        Route("/pairing/join", _join, methods=["POST"]),
        Route("/peers", _peers),
        Route("/peers/{peer:path}", _remove, methods=["DELETE"]),
    ]


async def _pairing(request: Request) -> Response:
    return JSONResponse(_port(request).snapshot())


async def _offer(request: Request) -> Response:
    asked = await asked_of(request, _Offer)
    port = _port(request)
    offer = await port.offer(asked.role)
    shown = {**port.describe(offer), "here": port.name, "addresses": await _addresses(offer)}
    if not asked.watch:
        return JSONResponse(shown)
    return lines(_watched(port, offer, shown))


async def _watched(port: PairingPort, offer: Offer, shown: dict[str, Any]) -> Items:
    try:
        yield shown
        await asyncio.wait([offer.outcome])
        yield {"here": port.name, "paired": offer.outcome.result().describe()}
    finally:
        if offer.is_good:
            await port.withdraw()


async def _withdraw(request: Request) -> Response:
    await _port(request).withdraw()
    return JSONResponse(_port(request).snapshot())


async def _join(request: Request) -> Response:
    asked = await asked_of(request, _Join)
    port = _port(request)
    if asked.to is not None:
        paired = await port.join(asked.to, asked.code, asked.role)
    else:
        gone = asyncio.create_task(_until_gone(request))
        try:
            paired = await port.join_found(asked.code, asked.role, is_wanted=lambda: not gone.done())
        finally:
            gone.cancel()
            await asyncio.gather(gone, return_exceptions=True)
    return JSONResponse({"here": port.name, "paired": paired.describe()})


async def _until_gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _peers(request: Request) -> Response:
    node = request.app.state.node
    links = {link["node_id"]: link for link in node.links.snapshot()}
    return JSONResponse(
        [
            {
                **links.get(peer.node_id, {}),
                "node_id": peer.node_id,
                "name": peer.name,
                "fingerprint": peer.fingerprint,
                "addresses": list(peer.addresses),
                "paired_at": peer.paired_at,
                "role_wish": peer.role_wish,
            }
            for peer in node.peers.all()
        ]
    )


async def _remove(request: Request) -> Response:
    """Unpair: by name, id or fingerprint."""
    node = request.app.state.node
    peer = node.peers.named(request.path_params["peer"])
    link = node.links.get(peer.node_id)
    node.peers.unpair(peer.node_id, link)
    return JSONResponse({"removed": peer.name, "node_id": peer.node_id, "told": link is not None})


def _port(request: Request) -> PairingPort:
    port: PairingPort = request.app.state.node.pairing
    return port


async def _addresses(offer: Offer) -> list[str]:
    """Where the other computer can call this one, as it would be typed there."""
    hosts = [
        str(address.ip) for segment in await asyncio.to_thread(segments) for address in segment.addresses
    ]
    return [join_address(host, offer.port) for host in hosts]
