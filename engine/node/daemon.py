"""The node: everything that runs on a computer whether or not a window is open, put together and taken apart.

Each part knows only what it is given here. All of it is on one event loop; what takes time is in processes of its own.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import platform
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import psutil

from engine.node.announcement import clean_name
from engine.node.control import pairing
from engine.node.control.app import build_control_app
from engine.node.discovery import Discovery
from engine.node.engines import Engines, Memory, ModelFile
from engine.node.front import PASSED_ON, Front
from engine.node.identity import Identity
from engine.node.news import News
from engine.node.pairing_port import PairingPort
from engine.node.peer_link import Offers, PeerLink
from engine.node.peer_links import PeerLinks
from engine.node.peer_messages import NODE_PROTOCOL_MAJOR, NODE_PROTOCOL_MINOR, NodeHello
from engine.node.peers import PeerBook
from engine.node.presence import Place
from engine.node.secrets import Secrets
from engine.paths import identity_dir, log_dir, peers_file
from engine.server.run import HttpServer, is_loopback
from engine.server.settings import ServerSettings
from engine.version import baton_version

log = logging.getLogger(__name__)

OnReady = Callable[[dict[str, Any]], None]


@dataclass(frozen=True, kw_only=True)
class NodeOptions:
    """What a node is started with."""

    name: str
    host: str
    port: int
    node_port: int
    model: str | None
    engine_words: tuple[str, ...]
    identity: str | None
    use_keyring: bool
    api_key: str | None

    @classmethod
    def from_args(cls, args: argparse.Namespace, *, api_key: str | None) -> NodeOptions:
        words = ["--slots", str(args.slots), "--ctx", str(args.ctx)]
        if args.identity:
            words += ["--identity", args.identity]
        return cls(
            name=clean_name(args.name or platform.node()),
            host=args.host,
            port=args.port,
            node_port=args.node_port,
            model=args.model,
            engine_words=tuple(words),
            identity=args.identity,
            use_keyring=args.keyring != "never",
            api_key=api_key,
        )


class Node:
    """`run` it once, on an event loop; `stop_soon` ends it from any thread."""

    def __init__(self, options: NodeOptions) -> None:
        self.options = options
        self.news = News()
        self._place = Place()
        self._stopping = asyncio.Event()
        self._announcing: set[asyncio.Future[None]] = set()
        self._loop: asyncio.AbstractEventLoop | None = None

    async def run(self, on_ready: OnReady) -> None:
        """Serve until told to stop. Raises AnotherNode where one runs already, or HostError."""
        self._loop = asyncio.get_running_loop()
        self._place.take()
        try:
            await self._run(on_ready)
        finally:
            self._place.leave()

    def stop(self) -> None:
        self._stopping.set()

    def stop_soon(self) -> None:
        """From any thread, and however far the start has come."""
        if self._loop is None:
            self._stopping.set()
        elif not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._stopping.set)

    async def _run(self, on_ready: OnReady) -> None:
        options = self.options
        key_secrets = Secrets(identity_dir(options.identity), use_keyring=options.use_keyring)
        self.identity = await asyncio.to_thread(_settled_identity, options.identity, key_secrets)
        self._key_note = key_secrets.note()
        self.offers = Offers()
        self.peers = PeerBook(peers_file())
        self.discovery = Discovery(
            node_id=self.identity.node_id,
            name=options.name,
            version=baton_version(),
            port=options.node_port,
            on_change=self._on_found,
            remembered=self.peers.all,
        )
        self.links = PeerLinks(
            self.identity,
            self.peers,
            NodeHello(
                protocol_major=NODE_PROTOCOL_MAJOR,
                protocol_minor=NODE_PROTOCOL_MINOR,
                baton=baton_version(),
                node_id=self.identity.node_id,
                instance=self.discovery.instance,
                name=options.name,
            ),
            addresses=self._addresses_of,
            offers=self.offers,
            on_change=self.news.add("peers", lambda: self.links.snapshot()),
            on_link=self._on_link,
            port=options.node_port,
        )
        self.offers.news.update(self.peers.news())
        self.peers.on_change(self.links.look_again)
        self.pairing = PairingPort(
            self.identity,
            self.peers,
            name=options.name,
            baton=baton_version(),
            node_port=lambda: self._node_port,
            found=self.discovery.found,
            on_change=self._on_pairing,
        )
        self._pairing_changed = self.news.add("pairing", self.pairing.snapshot)
        engine_key = secrets.token_urlsafe(32)
        self.engines = Engines(
            models=self._models,
            memory=_memory,
            words=options.engine_words,
            environment={**os.environ, **self.identity.environment(), "BATON_API_KEY": engine_key},
            log_folder=log_dir(),
            on_change=self.news.add("engines", lambda: self.engines.snapshot()),
        )
        self.front = Front(
            self.engines,
            settings=ServerSettings(api_key=options.api_key, check_host=is_loopback(options.host)),
            engine_key=engine_key,
            decoder_of=lambda model: None,
            model_ids=self._model_list,
        )
        self.offers.streams[PASSED_ON] = self.front.answer_peer
        self._found_changed = self.news.add("discovery", self.discovery.snapshot)
        self.news.add("node", self._describe)
        await self._serve(on_ready)

    async def _serve(self, on_ready: OnReady) -> None:
        options = self.options
        endpoint = HttpServer(self.front.build_app(), host=options.host, port=options.port)
        control_socket_app = build_control_app(
            self, token := secrets.token_urlsafe(32), routes=pairing.routes()
        )
        control = HttpServer(control_socket_app)
        self.endpoint_url = endpoint.url
        tasks = [asyncio.create_task(server.serve()) for server in (endpoint, control)]
        try:
            self._node_port = await self.links.start()
            await self.discovery.start()
            self._place.tell(port=control.port, token=token, endpoint=endpoint.url)
            on_ready(
                {
                    "port": control.port,
                    "endpoint": endpoint.url,
                    "name": options.name,
                    "node_id": self.identity.node_id,
                    "fingerprint": self.identity.fingerprint,
                    "peers": [peer.name for peer in self.peers.all()],
                    "notes": [note for note in (self.peers.fault, self._key_note) if note],
                }
            )
            if options.model is not None:
                await self.engines.load(options.model)
            await self._stopping.wait()
        finally:
            endpoint.stop()
            control.stop()
            await asyncio.gather(
                self.engines.close(),
                self.pairing.close(),
                self.discovery.close(),
                self.links.close(),
                *tasks,
                return_exceptions=True,
            )
            await self.front.close()

    def _describe(self) -> dict[str, Any]:
        return {
            "node_id": self.identity.node_id,
            "name": self.options.name,
            "baton": baton_version(),
            "fingerprint": self.identity.fingerprint,
            "endpoint": self.endpoint_url,
            "pid": os.getpid(),
        }

    def _on_pairing(self) -> None:
        self._pairing_changed()
        shown = self.pairing.snapshot()["offer"]
        announcing = asyncio.ensure_future(self.discovery.set_pairing_port(shown["port"] if shown else None))
        self._announcing.add(announcing)
        announcing.add_done_callback(self._announcing.discard)

    def _on_found(self) -> None:
        self._found_changed()
        self.links.look_again()

    def _addresses_of(self, node_id: str) -> Sequence[str]:
        return [
            address
            for found in self.discovery.found()
            if found.node_id == node_id
            for address in found.addresses
        ]

    async def _on_link(self, link: PeerLink) -> None:
        pass

    def _models(self) -> dict[str, ModelFile]:
        from engine.node.catalogue import load_catalogue
        from engine.node.library import Library

        library = Library()
        return {
            name: ModelFile(model_id=name, path=library.path(model), needed_bytes=2 * model.size_bytes)
            for name, model in load_catalogue().items()
            if library.has(model)
        }

    def _model_list(self) -> list[dict[str, Any]]:
        return [{"id": model, "object": "model"} for model in self._models()]


def _settled_identity(folder: str | None, key_secrets: Secrets) -> Identity:
    return Identity.load_or_create(identity_dir(folder), key_secrets).settled(key_secrets)


def _memory() -> Memory:
    memory = psutil.virtual_memory()
    return Memory(total_bytes=memory.total, available_bytes=memory.available)
