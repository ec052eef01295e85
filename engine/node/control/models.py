"""Models of both computers, their copies, and the roles, as the control API has them."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from engine.errors import BatonError, InvalidRequest, ModelNotFound, PeerUnreachable
from engine.node.control.asked import asked_of
from engine.node.control.lines import Items, lines
from engine.node.control.status import ask, memory_told
from engine.node.models.catalogue import find_model as find_entry
from engine.node.models.catalogue import load_catalogue
from engine.node.models.copies import Copies, Copy
from engine.node.models.hub_models import parse_hub_name
from engine.node.models.library import Library
from engine.node.models.model_folder import ToldModel
from engine.node.peering.peer_link import PeerLink
from engine.server.json import JSONResponse

# A paired computer that takes longer is shown without its models; who asks here waits ten seconds.
_TIMEOUT_S = 5.0

ModelName = Annotated[str, Meta(min_length=1, max_length=1024)]


class _Send(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`to` is a paired computer's name or id; by default the only one that is there."""

    model: ModelName
    to: Annotated[str, Meta(max_length=256)] | None = None


class _Fetch(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`model` is its id on the paired computer `source`, whose name or id that is; by default the only one there."""

    model: ModelName
    source: Annotated[str, Meta(max_length=256)] | None = msgspec.field(name="from", default=None)


class _Get(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A name of the catalogue, or OWNER/REPO/FILE.gguf of the Hugging Face hub."""

    model: Annotated[str, Meta(min_length=1, max_length=512)]


class _Import(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`path` is absolute; with `copy` the file is copied, else linked."""

    path: Annotated[str, Meta(min_length=1, max_length=4096)]
    copy: bool = False


class _Measure(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    model: ModelName


class _Unload(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    model: ModelName


class _Roles(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The node id of who is to prefill, or "auto"."""

    prefill: str


def routes() -> list[Route]:
    return [
        Route("/models", _models),
        Route("/models/catalogue", _catalogue),
        Route("/models/get", _get, methods=["POST"]),
        Route("/models/send", _send, methods=["POST"]),
        Route("/models/fetch", _fetch, methods=["POST"]),
        Route("/models/import", _import, methods=["POST"]),
        Route("/models/measure", _measure, methods=["POST"]),
        Route("/models/unload", _unload, methods=["POST"]),
        Route("/models/{model:path}", _remove, methods=["DELETE"]),
        Route("/models/{model:path}", _inspect),
        Route("/downloads", _downloads),
        Route("/downloads/{download}", _stop_download, methods=["DELETE"]),
        Route("/copies", _copies),
        Route("/copies/{copy}", _cancel, methods=["DELETE"]),
        Route("/roles", _roles),
        Route("/roles", _wish, methods=["POST"]),
    ]


async def _models(request: Request) -> Response:
    """What is here, and on each paired computer that is there now."""
    node = request.app.state.node
    await node.shelf.refresh()
    links: list[PeerLink] = list(node.links.all())
    theirs = await asyncio.gather(*(_models_of(link) for link in links))
    return JSONResponse({"here": node.shelf.snapshot() | {"memory": memory_told()}, "peers": theirs})


async def _models_of(link: PeerLink) -> dict[str, Any]:
    """`memory` is None where that computer does not say what it has."""
    about: dict[str, Any] = {
        "node_id": link.peer.node_id,
        "name": link.peer.name,
        "models": [],
        "problem": "",
        "memory": None,
    }
    try:
        models, told = await asyncio.gather(
            link.call("models.list", gives=list[ToldModel], timeout_s=_TIMEOUT_S), ask(link)
        )
    except BatonError as error:
        return {**about, "problem": str(error)}
    return {**about, "models": msgspec.to_builtins(models), "memory": (told[1] or {}).get("memory")}


async def _inspect(request: Request) -> Response:
    """What the file of a model holds, and what it takes here."""
    node = request.app.state.node
    await node.shelf.refresh()
    model = node.shelf.find(request.path_params["model"])
    return JSONResponse(await asyncio.to_thread(node.inspect, model))


async def _catalogue(request: Request) -> Response:
    """What can be had by name; whether it is here, too."""
    library = Library(request.app.state.node.shelf.folder.path)
    known = load_catalogue().values()
    here = await asyncio.to_thread(lambda: {model.name for model in known if library.has(model)})
    return JSONResponse(
        [
            {
                "name": model.name,
                "title": model.title,
                "architecture": model.architecture,
                "quantization": model.quantization,
                "licence": model.licence,
                "size_bytes": model.size_bytes,
                "here": model.name in here,
            }
            for model in known
        ]
    )


async def _get(request: Request) -> Response:
    """Lines: the fetch as it goes on. Who goes away ends nothing; asked again, it is followed, or resumed."""
    asked = await asked_of(request, _Get)
    if "/" in asked.model:
        parse_hub_name(asked.model)
    else:
        find_entry(asked.model)
    downloads = request.app.state.node.downloads
    download = downloads.start(asked.model)

    async def steps() -> Items:
        async with contextlib.aclosing(downloads.follow(download)) as followed:
            async for each in followed:
                yield each.snapshot()

    return lines(steps())


async def _downloads(request: Request) -> Response:
    return JSONResponse(request.app.state.node.downloads.snapshot())


async def _stop_download(request: Request) -> Response:
    """End a fetch; what has come is kept for the next try, but with `?discard=true`."""
    node, download = request.app.state.node, request.path_params["download"]
    if request.query_params.get("discard") == "true":
        await node.shelf.discard(await node.downloads.forget(download))
    else:
        node.downloads.cancel(download)
    return JSONResponse({"cancelled": download})


async def _send(request: Request) -> Response:
    """Lines: the copy as it goes on. Who goes away ends nothing; asked again, it is followed, or resumed."""
    asked = await asked_of(request, _Send)
    node = request.app.state.node
    await node.shelf.refresh()
    model, link = node.shelf.find(asked.model), _link_to(node, asked.to)
    return lines(_copied(node.copies, node.copies.send(model, link)))


async def _fetch(request: Request) -> Response:
    """Lines: as `_send`, of a model that a paired computer has."""
    asked = await asked_of(request, _Fetch)
    node = request.app.state.node
    link = _link_to(node, asked.source, param="from")
    models = await link.call("models.list", gives=list[ToldModel], timeout_s=_TIMEOUT_S)
    for told in models:
        if asked.model in (told.id, told.digest):
            return lines(_copied(node.copies, node.copies.fetch(told, link)))
    raise ModelNotFound(
        f"{link.peer.name} has no model {asked.model[:200]}: `baton models list` shows what it has"
    )


async def _copied(copies: Copies, copy: Copy) -> Items:
    async with contextlib.aclosing(copies.follow(copy)) as followed:
        async for each in followed:
            yield each.snapshot()


async def _import(request: Request) -> Response:
    """Lines: how much of a copy is done, then the model."""
    asked = await asked_of(request, _Import)
    path = Path(asked.path)
    if not path.is_absolute():
        raise InvalidRequest("path has to be absolute", param="path")
    shelf = request.app.state.node.shelf

    async def work() -> Items:
        progress = _Heard()
        adding = asyncio.create_task(shelf.add(path, progress, copy=asked.copy))
        async for step in progress.until(adding):
            yield step
        yield msgspec.to_builtins((await adding).told())

    return lines(work())


class _Heard:
    """The progress of a job on another thread, as items."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._news = asyncio.Event()
        self._done_bytes = self._total_bytes = 0

    def note(self, sentence: str) -> None:
        pass

    def advance(self, done: int, total: int) -> None:
        self._loop.call_soon_threadsafe(self._hear, done, total)

    def _hear(self, done: int, total: int) -> None:
        self._done_bytes, self._total_bytes = done, total
        self._news.set()

    async def until(self, job: asyncio.Task[Any]) -> Items:
        """Each time that it has gone on, until it is over, however that is."""
        while not job.done():
            news = asyncio.create_task(self._news.wait())
            await asyncio.wait((job, news), return_when=asyncio.FIRST_COMPLETED)
            news.cancel()
            if self._news.is_set():
                self._news.clear()
                yield {"done_bytes": self._done_bytes, "total_bytes": self._total_bytes}


async def _measure(request: Request) -> Response:
    """Lines: signs of life, then what was measured of the model, now or earlier."""
    asked = await asked_of(request, _Measure)
    node = request.app.state.node
    await node.shelf.refresh()
    model = node.shelf.find(asked.model)

    async def work() -> Items:
        yield msgspec.to_builtins(await node.agreement.measure(model))

    return lines(work())


async def _unload(request: Request) -> Response:
    """End the engine that has the model loaded here."""
    asked = await asked_of(request, _Unload)
    if not await request.app.state.node.engines.unload(asked.model):
        raise InvalidRequest(f"{asked.model[:100]} is not loaded to answer here", param="model")
    return JSONResponse({"unloaded": asked.model})


async def _remove(request: Request) -> Response:
    node, model = request.app.state.node, request.path_params["model"]
    await node.engines.unload_failed(model)
    await node.shelf.remove(model)
    return JSONResponse({"removed": model})


async def _copies(request: Request) -> Response:
    return JSONResponse(request.app.state.node.copies.snapshot())


async def _cancel(request: Request) -> Response:
    """End a copy; what has come is kept for the next try, but with `?discard=true` what has come here."""
    node, copy = request.app.state.node, request.path_params["copy"]
    if request.query_params.get("discard") == "true":
        ended = await node.copies.forget(copy)
        if ended.is_incoming:
            await node.shelf.discard_files(ended.names)
    else:
        node.copies.cancel(copy)
    return JSONResponse({"cancelled": copy})


async def _roles(request: Request) -> Response:
    return JSONResponse(request.app.state.node.agreement.snapshot())


async def _wish(request: Request) -> Response:
    node = request.app.state.node
    asked = await asked_of(request, _Roles)
    node.wishes.say(asked.prefill, node.links.all())
    return JSONResponse(node.wishes.snapshot())


def _link_to(node: Any, name: str | None, *, param: str = "to") -> PeerLink:
    """Raises InvalidRequest for a name that nobody has, PeerUnreachable for one who is not there."""
    if name is not None:
        peer = node.peers.named(name)
        link: PeerLink | None = node.links.get(peer.node_id)
        if link is None:
            raise PeerUnreachable(f"{peer.name} is not there now: start Baton on it, and look at the cable")
        return link
    links: list[PeerLink] = list(node.links.all())
    if len(links) > 1:
        names = ", ".join(link.peer.name for link in links)
        raise InvalidRequest(f"{len(links)} paired computers are there: say which, of {names}", param=param)
    if not links:
        raise PeerUnreachable("no paired computer is there: pair one (baton pair), or start Baton on it")
    return links[0]
