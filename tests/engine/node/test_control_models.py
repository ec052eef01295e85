"""The control API's routes of models, copies and roles, on two nodes that are joined."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from engine.cache.spec import KVType
from engine.errors import DiskFull
from engine.node.agreeing.wishes import Wishes
from engine.node.control import models as models_routes
from engine.node.control.app import build_control_app
from engine.node.models.copies import Copies
from engine.node.models.inspection import inspect_model
from engine.node.models.model_folder import Folder
from engine.node.models.shelf import Shelf
from engine.node.peering.peer_link import PeerLink
from tests.engine.node.glue import End, two_ends
from tests.engine.node.models.models_at_hand import HEADS, KV_HEADS, LAYERS, write_model

TOKEN = "the node's token"


def new_node(end: End, folder: Path) -> SimpleNamespace:
    (folder / "models").mkdir(parents=True)
    shelf = Shelf(Folder(folder / "models", folder / "digests"), on_change=lambda: None, in_use=dict)
    node = SimpleNamespace(
        shelf=shelf,
        copies=Copies(shelf, end.identity, on_change=lambda: None),
        wishes=Wishes(
            folder / "roles.json",
            end.identity.node_id,
            paired=lambda: [peer.node_id for peer in end.book.all()],
            on_change=lambda: None,
        ),
        links=end.links,
        peers=end.book,
        engines=SimpleNamespace(unload_failed=_nothing_failed),
        inspect=partial(inspect_model, n_ctx=2048, n_slots=3, kv_type=KVType.BF16),
    )
    shelf.offer_methods(end.offers)
    node.copies.offer_methods(end.offers)
    return node


async def _nothing_failed(model_id: str) -> None:
    """No engine has that model."""


def run(folder: Path, work: Callable[[httpx.AsyncClient, Path, Path], Awaitable[None]]) -> None:
    async def inside() -> None:
        async with asyncio.timeout(60), two_ends(folder) as (left, right):
            node, _ = new_node(left, folder / "here"), new_node(right, folder / "there")
            transport = httpx.ASGITransport(build_control_app(node, TOKEN, models_routes.routes()))
            async with httpx.AsyncClient(
                transport=transport,
                base_url="http://127.0.0.1",
                headers={"Authorization": f"Bearer {TOKEN}"},
                timeout=60,
            ) as client:
                await work(client, folder / "here" / "models", folder / "there" / "models")

    asyncio.run(inside())


def lines(response: httpx.Response) -> list[Any]:
    return [json.loads(line) for line in response.text.splitlines() if line]


def test_models_of_both_computers_are_side_by_side(tmp_path: Path) -> None:
    async def work(client: httpx.AsyncClient, here: Path, there: Path) -> None:
        write_model(here / "mine.gguf")
        write_model(there / "theirs.gguf")
        found = (await client.get("/models")).json()
        assert [model["id"] for model in found["here"]["models"]] == ["mine"]
        (peer,) = found["peers"]
        assert (peer["name"], peer["problem"]) == ("right", "")
        assert [model["id"] for model in peer["models"]] == ["theirs"]

    run(tmp_path, work)


def test_a_computer_that_does_not_answer_keeps_nobody_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(models_routes, "_TIMEOUT_S", 0.01)

    async def never(self: Shelf, link: PeerLink, params: None) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(Shelf, "_list", never)

    async def work(client: httpx.AsyncClient, here: Path, there: Path) -> None:
        (peer,) = (await client.get("/models")).json()["peers"]
        assert (peer["models"], "did not answer" in peer["problem"]) == ([], True)

    run(tmp_path, work)


@pytest.mark.parametrize("to", [{}, {"to": "right"}])
def test_a_model_is_sent_with_progress(tmp_path: Path, to: dict[str, str]) -> None:
    async def work(client: httpx.AsyncClient, here: Path, there: Path) -> None:
        source = write_model(here / "mine.gguf", n_bytes=1 << 20)
        steps = lines(await client.post("/models/send", json={"model": "mine", **to}))
        assert steps[-1]["state"] == "done" and steps[-1]["peer"] == "right"
        assert (there / "mine.gguf").read_bytes() == source.read_bytes()
        assert [copy["state"] for copy in (await client.get("/copies")).json()] == ["done"]

    run(tmp_path, work)


@pytest.mark.parametrize("asked", [{}, {"from": "right"}])
def test_a_model_of_the_other_computer_is_fetched_with_progress(
    tmp_path: Path, asked: dict[str, str]
) -> None:
    async def work(client: httpx.AsyncClient, here: Path, there: Path) -> None:
        source = write_model(there / "theirs.gguf", n_bytes=1 << 20)
        steps = lines(await client.post("/models/fetch", json={"model": "theirs", **asked}))
        assert (steps[-1]["state"], steps[-1]["direction"]) == ("done", "in")
        assert (here / "theirs.gguf").read_bytes() == source.read_bytes()
        for body in ({"model": "nobody's"}, {"model": "theirs", "from": "nobody"}, {"model": ""}):
            refused = await client.post("/models/fetch", json=body)
            assert refused.status_code == 400 and refused.json()["error"]["message"]

    run(tmp_path, work)


def test_what_came_of_a_copy_is_kept_or_thrown_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(self: Any, copy: Any, link: Any) -> Any:
        copy.names = ("theirs.gguf",)
        raise DiskFull("the disk is full")
        yield

    monkeypatch.setattr(Copies, "_fetch", broken)

    async def work(client: httpx.AsyncClient, here: Path, there: Path) -> None:
        write_model(there / "theirs.gguf")
        (here / f"theirs.gguf.{'a' * 12}.partial").write_bytes(b"GGUF")
        *_, error = lines(await client.post("/models/fetch", json={"model": "theirs"}))
        assert "disk is full" in error["error"]["message"]
        ((copy,), left) = (await client.get("/copies")).json(), (await client.get("/models")).json()["here"]
        assert copy["state"] == "failed" and [each["id"] for each in left["unfinished"]] == ["theirs"]
        assert (await client.delete(f"/copies/{copy['id']}?discard=true")).status_code == 200
        assert not list(here.glob("*.partial"))
        assert (await client.get("/copies")).json() == []

    run(tmp_path, work)


def test_why_a_model_cannot_be_sent_is_the_last_line_or_the_answer(tmp_path: Path) -> None:
    async def work(client: httpx.AsyncClient, here: Path, there: Path) -> None:
        write_model(here / "mine.gguf")
        there.rmdir()
        there.write_bytes(b"in the way")
        (error,) = lines(await client.post("/models/send", json={"model": "mine"}))[-1:]
        assert "models" in error["error"]["message"]
        for body in ({"model": "nobody's"}, {"model": "mine", "to": "nobody"}, {"model": ""}, {}):
            refused = await client.post("/models/send", json=body)
            assert refused.status_code == 400 and refused.json()["error"]["message"]

    run(tmp_path, work)


def test_a_file_is_imported_and_removed(tmp_path: Path) -> None:
    async def work(client: httpx.AsyncClient, here: Path, there: Path) -> None:
        source = write_model(tmp_path / "a model.gguf")
        (model,) = lines(await client.post("/models/import", json={"path": str(source)}))
        assert (model["id"], model["is_link"]) == ("a model", True)
        assert (await client.delete("/models/a%20model")).json() == {"removed": "a model"}
        assert source.exists() and list(here.iterdir()) == []
        assert (await client.delete("/models/a%20model")).status_code == 400
        refused = await client.post("/models/import", json={"path": "model.gguf"})
        assert refused.status_code == 400 and "absolute" in refused.json()["error"]["message"]
        (error,) = lines(await client.post("/models/import", json={"path": "/nowhere.gguf"}))
        assert "no such file" in error["error"]["message"]

    run(tmp_path, work)


def test_a_copy_tells_how_far_it_is(tmp_path: Path) -> None:
    async def work(client: httpx.AsyncClient, here: Path, there: Path) -> None:
        source = write_model(tmp_path / "mine.gguf", n_bytes=1 << 20)
        *steps, model = lines(await client.post("/models/import", json={"path": str(source), "copy": True}))
        size = source.stat().st_size
        assert steps[-1] == {"done_bytes": size, "total_bytes": size}
        assert (model["id"], model["is_link"]) == ("mine", False)

    run(tmp_path, work)


def test_a_model_is_inspected(tmp_path: Path) -> None:
    async def work(client: httpx.AsyncClient, here: Path, there: Path) -> None:
        write_model(here / "mine.gguf")
        write_model(here / "odd.gguf", architecture="rwkv7")
        told = (await client.get("/models/mine")).json()
        measures = told["measures"]
        assert (told["quantization"], told["chat_template"], told["type_bytes"]) == (
            "F32",
            False,
            {"F32": 4096},
        )
        assert (measures["n_layers"], measures["n_heads"], measures["n_kv_heads"]) == (
            LAYERS,
            HEADS,
            KV_HEADS,
        )
        assert measures["n_ctx"] == 2048 and measures["n_slots"] == 3
        assert measures["cache_bytes"] == measures["kv_bytes_per_token"] * 2048 * 3
        odd = (await client.get("/models/odd")).json()
        assert odd["measures"] is None and "rwkv7" in odd["problem"]
        assert (await client.get("/models/nobody")).status_code == 400

    run(tmp_path, work)


def test_a_wish_for_roles_is_taken(tmp_path: Path) -> None:
    async def work(client: httpx.AsyncClient, here: Path, there: Path) -> None:
        (peer,) = (await client.get("/models")).json()["peers"]
        answer = (await client.post("/roles", json={"prefill": peer["node_id"]})).json()
        assert answer == {
            peer["node_id"]: {"prefill": peer["node_id"], "count": 1, "by": answer[peer["node_id"]]["by"]}
        }
        assert (await client.post("/roles", json={"prefill": "a" * 32})).status_code == 400
        assert (await client.post("/roles", json={"prefill": "me"})).status_code == 400

    run(tmp_path, work)


def test_a_copy_that_is_not_cannot_be_cancelled(tmp_path: Path) -> None:
    async def work(client: httpx.AsyncClient, here: Path, there: Path) -> None:
        assert (await client.delete("/copies/0123456789abcdef")).status_code == 400

    run(tmp_path, work)


@pytest.mark.parametrize("path", ["/models", "/copies"])
def test_without_the_token_nothing_is_told(tmp_path: Path, path: str) -> None:
    async def work(client: httpx.AsyncClient, here: Path, there: Path) -> None:
        assert (await client.get(path, headers={"Authorization": "Bearer guess"})).status_code == 401

    run(tmp_path, work)
