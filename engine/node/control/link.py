"""The control API of the link doctor: its state, a probe with its progress, and the tuning of the cable."""

from __future__ import annotations

import asyncio
from typing import Annotated, Literal

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from engine.errors import InvalidRequest
from engine.link.report import Report
from engine.link.tune import MAX_MTU, MIN_MTU
from engine.node.control.asked import asked_of
from engine.node.control.lines import Items, lines
from engine.node.link_doctor import LinkDoctor
from engine.server.json import JSONResponse

_Name = Annotated[str, msgspec.Meta(max_length=256)]


class _ProbeAsked(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    peer: _Name = ""


class _TuneAsked(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    action: Literal["apply", "undo"]
    interface: _Name = ""
    mtu: Annotated[int, msgspec.Meta(ge=MIN_MTU, le=MAX_MTU)] | None = None


def routes() -> list[Route]:
    return [
        Route("/link", _link),
        Route("/link/probe", _probe, methods=["POST"]),
        Route("/link/tune", _plan),
        Route("/link/tune", _tune, methods=["POST"]),
    ]


def _doctor(request: Request) -> LinkDoctor:
    doctor: LinkDoctor = request.app.state.node.link_doctor
    return doctor


async def _link(request: Request) -> Response:
    return JSONResponse(_doctor(request).snapshot())


async def _probe(request: Request) -> Response:
    """Lines: `part` as each begins, and at last `report`."""
    asked = await asked_of(request, _ProbeAsked)
    return lines(_probed(_doctor(request), asked.peer))


async def _probed(doctor: LinkDoctor, peer_id: str) -> Items:
    """Whoever goes away while it runs ends nothing: the report is kept."""
    parts: asyncio.Queue[str | None] = asyncio.Queue()

    def over(probing: asyncio.Task[Report]) -> None:
        parts.put_nowait(None)
        if not probing.cancelled():
            probing.exception()  # told below, or to nobody

    probing = asyncio.create_task(doctor.probe(parts.put_nowait, peer_id=peer_id))
    probing.add_done_callback(over)
    while (part := await parts.get()) is not None:
        yield {"part": part}
    yield {"report": probing.result()}


async def _plan(request: Request) -> Response:
    query = request.query_params
    mtu = query.get("mtu", "")
    if mtu and not (mtu.isdecimal() and MIN_MTU <= int(mtu) <= MAX_MTU):
        raise InvalidRequest(f"mtu: {MIN_MTU} to {MAX_MTU} is needed here", param="mtu")
    preview = await _doctor(request).preview_tuning(
        interface=query.get("interface", ""), mtu=int(mtu) if mtu else None
    )
    return JSONResponse(preview)


async def _tune(request: Request) -> Response:
    """Apply the plan or undo it; the system asks the person at this computer first. All steps that were done."""
    asked = await asked_of(request, _TuneAsked)
    steps = await _doctor(request).tune(asked.action, interface=asked.interface, mtu=asked.mtu)
    return JSONResponse({"steps": steps})
