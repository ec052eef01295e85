"""What can be asked about the endpoint itself: health, models, slots, worker. Never what anyone's prompt says."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from engine.batching.timeline import KEPT_REQUESTS
from engine.errors import HostError
from engine.server.backend import Backend, ModelInfo
from engine.server.errors import Refused, error_response, loading
from engine.server.json import JSONResponse
from engine.server.telemetry import goodput_body, slot_body, timeline_body, worker_body


async def health(request: Request) -> Response:
    """200 when requests are answered; 503 while the model is loading; 500 when the engine has ended, or is stuck."""
    backend: Backend | None = request.app.state.backend
    if backend is None:
        return error_response(loading())
    if not backend.engine.is_alive:
        return error_response(HostError("the engine has stopped: restart Baton"))
    pulse = backend.engine.pulse
    if pulse.is_stuck:
        return error_response(
            HostError(f"the engine has computed nothing for {pulse.still_s:.0f} s: restart Baton")
        )
    return JSONResponse({"status": "ok"})


async def models(request: Request) -> Response:
    """OpenAI's list, with llama-server's `meta`."""
    return JSONResponse({"object": "list", "data": [_model(_loaded(request))]})


async def model(request: Request) -> Response:
    backend = _loaded(request)
    name = request.path_params["model"]
    if name != backend.model.model_id:
        return error_response(
            Refused(f"no model is called {name!r} here", status=404, kind="invalid_request_error")
        )
    return JSONResponse(_model(backend))


async def slots(request: Request) -> Response:
    """llama-server's list of slots, with timelines; with `fail_on_no_slot` 503 when none is free."""
    engine = _loaded(request).engine
    snapshot = engine.snapshot()
    if request.query_params.get("fail_on_no_slot") not in (None, "", "0") and not any(
        slot.request_id is None for slot in snapshot.slots
    ):
        return error_response(Refused("no slot is free", status=503, kind="unavailable_error"))
    bodies = []
    for slot in snapshot.slots:
        timeline = engine.journal.timelines.of_slot(slot.slot)
        bodies.append(slot_body(slot) | {"timeline": timeline and timeline_body(timeline, with_layers=True)})
    return JSONResponse(bodies)


async def timeline(request: Request) -> Response:
    """Our own: the life of one request, by the id that an event or a slot names."""
    request_id = request.path_params["id"]
    found = _loaded(request).engine.journal.timelines.find(request_id)
    if found is None:
        return error_response(
            Refused(
                f"no request {request_id!r} waits, runs, or is among the last {KEPT_REQUESTS} that ended",
                status=404,
                kind="invalid_request_error",
            )
        )
    return JSONResponse(timeline_body(found, with_layers=True))


async def worker(request: Request) -> Response:
    """Our own: whether a worker is configured and connected, how prompts are routed, and how often they went where and
    why."""
    engine = _loaded(request).engine
    snapshot = engine.snapshot()
    route = snapshot.route
    return JSONResponse(
        worker_body(snapshot.worker)
        | {
            "route": route.policy,
            "crossover_tokens": route.crossover_tokens,
            "local_tps": route.local_tps,
            "remote_tps": route.remote_tps,
            **goodput_body(engine.journal.totals),
            "reasons": snapshot.reasons,
        }
    )


def _loaded(request: Request) -> Backend:
    backend: Backend | None = request.app.state.backend
    if backend is None:
        raise loading()
    return backend


def _model(backend: Backend) -> dict[str, Any]:
    info: ModelInfo = backend.model
    return {
        "id": info.model_id,
        "object": "model",
        "created": info.created,
        "owned_by": "baton",
        "meta": {
            "n_ctx": backend.engine.n_ctx,
            "n_ctx_train": info.n_ctx_train,
            "n_vocab": info.n_vocab,
            "n_params": info.n_params,
            "size": info.size_bytes,
        },
    }
