"""The node: everything that runs on a computer whether or not a window is open, put together and taken apart.

Each part knows only what it is given here. All of it is on one event loop; what takes time is in processes of its own.
"""

from __future__ import annotations

import asyncio
import logging
import os
import platform
import secrets
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import psutil
from starlette.routing import BaseRoute

from engine import config
from engine.cache.spec import kv_type_of
from engine.config import is_loopback
from engine.errors import BatonError, UnsupportedModel, UserError
from engine.gguf.digest import digest_of_parts
from engine.link.permission import LocalNetworkPermission
from engine.node.agreeing.agreement import Agreement
from engine.node.agreeing.measure import Measurements
from engine.node.agreeing.reports import Reports
from engine.node.agreeing.wishes import Wishes
from engine.node.changes import Changes
from engine.node.cluster import Cluster
from engine.node.control import (
    discovery,
    feeds,
    hub,
    pairing,
    permission,
    selftest,
    settings,
    setup,
    status,
    updates,
    wake,
)
from engine.node.control import link as link_control
from engine.node.control import models as models_control
from engine.node.control.app import build_control_app
from engine.node.control.status import DESCRIBE, Told, memory_told
from engine.node.engines import Engines, LoadedEngine, Memory, ModelFile
from engine.node.finding.announcement import clean_name
from engine.node.finding.discovery import Discovery
from engine.node.front import Front
from engine.node.hosts import Host, Hosts, read_host
from engine.node.link_doctor import LinkDoctor
from engine.node.model_list import ModelList
from engine.node.model_memory import ModelMemory
from engine.node.models.copies import Copies
from engine.node.models.downloads import Downloads
from engine.node.models.elsewhere import kept_elsewhere
from engine.node.models.hub_search import HubSearch
from engine.node.models.inspection import inspect_model
from engine.node.models.model_folder import Folder, LocalModel
from engine.node.models.shelf import Shelf
from engine.node.news import News
from engine.node.notes import notes_of, of_models_folder
from engine.node.peering.offers import Method, Offers
from engine.node.peering.peer_link import PeerLink
from engine.node.peering.peer_links import PeerLinks, split_node_address
from engine.node.peering.peer_messages import NODE_PROTOCOL_MAJOR, NODE_PROTOCOL_MINOR, NodeHello
from engine.node.presence import Place
from engine.node.recent import RecentRequests
from engine.node.reporting.log_feed import LogFeed
from engine.node.settings import DECODE_SETTINGS, PREFILL_SETTINGS, NodeSettings, Source
from engine.node.setup.updates import Updates
from engine.node.standby import Standby
from engine.node.system.awake import Awake
from engine.node.system.computer import read_computer
from engine.node.system.wake_on_lan import WakeOnLan
from engine.node.trust.identity import Identity, TrustStore
from engine.node.trust.pairing_port import PairingPort
from engine.node.trust.peers import PeerBook
from engine.node.trust.secrets import Secrets
from engine.node.workers import StartPrefill, Workers
from engine.paths import cache_dir, data_dir, identity_dir, log_dir, models_dir, peers_file, updates_file
from engine.server.listeners import Listeners
from engine.server.run import HttpServer
from engine.server.settings import ServerSettings
from engine.version import baton_version
from engine.wire.messages import Role

log = logging.getLogger(__name__)

# A process that waits takes 0.25 GB; where less than that is left the models and other programs are to have it.
_ROOM_TO_WAIT_BYTES = 2 << 30

OnReady = Callable[[dict[str, Any]], None]


class Node:
    """`run` it once, on an event loop; `stop_soon` ends it from any thread."""

    def __init__(self, settings: NodeSettings, log_feed: LogFeed | None = None) -> None:
        """`log_feed` hears already what the node logs; what its engines log is added."""
        self.settings = settings
        self.log = log_feed or LogFeed()
        self.log_hub = Listeners(self.log)
        self.recent = RecentRequests()
        self.recent_hub = Listeners(self.recent.feed)
        self.news = News()
        self._place = Place()
        self.is_to_start_anew = False
        self._stopping = asyncio.Event()
        self._announcing: set[asyncio.Future[None]] = set()
        self._preload_fault = ""
        self._token = secrets.token_urlsafe(32)
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

    @property
    def name(self) -> str:
        """What this computer is called."""
        return clean_name(self.settings.value(config.NODE_NAME) or platform.node())

    def start_anew_soon(self) -> None:
        """End, and be started again as it was, once what is being answered has been."""
        asyncio.get_running_loop().call_soon(self._start_anew)

    def _start_anew(self) -> None:
        self.is_to_start_anew = True
        self.stop()

    def stop_soon(self) -> None:
        """From any thread, and however far the start has come."""
        if self._loop is None:
            self._stopping.set()
        elif not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._stopping.set)

    async def _run(self, on_ready: OnReady) -> None:
        await self._make()
        endpoint = HttpServer(self.front.build_app(), host=self.settings.host, port=self.settings.port)
        control = HttpServer(build_control_app(self, self._token, _routes()))
        self.endpoint_url = endpoint.url
        serving = [asyncio.create_task(server.serve()) for server in (endpoint, control)]
        parts = (
            *(self.discovery, self.shelf, self.link_doctor, self.permission, self.pairing, self.awake),
            *(self.agreement, self.hosts),
        )
        try:
            self._node_port = await self.links.start()
            for part in parts:
                await part.start()
            self._place.tell(port=control.port, token=self._token, endpoint=endpoint.url)
            on_ready(
                {"port": control.port, **self._describe(), "peers": [peer.name for peer in self.peers.all()]}
            )
            await self._preload()
            await self._stopping.wait()
        finally:
            endpoint.stop()
            control.stop()
            ends = await asyncio.gather(
                self.changes.close(),
                self.cluster.close(),
                self.engines.close(),
                self.workers.close(),
                self.copies.close(),
                self.downloads.close(),
                self.links.close(),
                *(part.close() for part in parts),
                *serving,
                return_exceptions=True,
            )
            for error in ends:
                if isinstance(error, Exception):
                    log.error("a part of the node did not end as it should", exc_info=error)
            await self.front.close()
            await self.standby.close()

    async def _make(self) -> None:
        """Make every part; nothing runs yet."""
        settings = self.settings
        self._secrets = settings.open_secrets()
        self.identity = await asyncio.to_thread(_settled_identity, settings.identity, self._secrets)
        await asyncio.to_thread(settings.recall, self._secrets)
        await asyncio.to_thread(settings.look_at_address)
        _check_exposure(settings)
        for fault in settings.faults():
            log.warning("%s", fault)
        self._key_note = self._secrets.note()
        self._trust = TrustStore(identity_dir(settings.identity))
        self._computer = await asyncio.to_thread(read_computer)
        self.offers = Offers()
        self.peers = PeerBook(peers_file())
        self._make_network()
        self._make_models()
        self._make_roles()
        self._make_changes()
        self._offer()
        self._node_changed = self.news.add("node", self._describe)
        self.news.add("computer", lambda: msgspec.to_builtins(self._computer))
        self._paired = {peer.node_id for peer in self.peers.all()}
        self.peers.on_change(self._on_book)

    def _make_network(self) -> None:
        """Who is there, who may come in, and what the cable is good for."""
        add = self.news.add
        self.discovery = Discovery(
            node_id=self.identity.node_id,
            name=self.name,
            version=baton_version(),
            port=lambda: self._node_port,
            on_change=lambda: self._on_found(),
            remembered=self.peers.all,
        )
        self._found_changed = add("discovery", self.discovery.snapshot)
        self.links = PeerLinks(
            self.identity,
            self.peers,
            NodeHello(
                protocol_major=NODE_PROTOCOL_MAJOR,
                protocol_minor=NODE_PROTOCOL_MINOR,
                baton=baton_version(),
                node_id=self.identity.node_id,
                instance=self.discovery.instance,
                name=self.name,
            ),
            addresses=self._addresses_of,
            offers=self.offers,
            on_change=self._on_links,
            on_link=self._on_link,
            port=self.settings.value(config.NODE_LISTEN_PORT),
        )
        self._links_changed = add("peers", self.links.snapshot)
        self.pairing = PairingPort(
            self.identity,
            self.peers,
            name=self.name,
            baton=baton_version(),
            node_port=lambda: self._node_port,
            found=self.discovery.found,
            on_change=self._on_pairing,
        )
        self._pairing_changed = add("pairing", self.pairing.snapshot)
        self.link_doctor = LinkDoctor(
            folder=data_dir(),
            node_id=self.identity.node_id,
            links=self.links.all,
            on_change=self._on_link_measured,
        )
        self._link_measured = add("link", self.link_doctor.snapshot)
        self.permission = LocalNetworkPermission(
            peer=self._someone,
            own_host=self._own_host,
            memory=data_dir() / "local-network-worked",
            on_change=self._with_notes(add("permission", lambda: self.permission.snapshot())),
        )
        self.updates = Updates(
            version=baton_version(), name=self.name, allowance=updates_file(), restart=self._start_anew
        )
        self.wake_on_lan = WakeOnLan(
            data_dir() / "wake.json",
            named=self.peers.named,
            is_paired=self._is_paired,
            is_awake=lambda node_id: self.links.get(node_id) is not None,
            call_it=lambda: self.links.look_again(at_once=True),
            on_change=add("wake", lambda: self.wake_on_lan.snapshot()),
        )

    def _make_models(self) -> None:
        """What there is to load, what is loaded, and what the two computers do together."""
        settings, add = self.settings, self.news.add
        own_words = () if settings.identity is None else (config.IDENTITY.flag, settings.identity)
        engine_key = secrets.token_urlsafe(32)
        environment = {**os.environ, **self.identity.environment()}
        self.shelf = Shelf(
            Folder(models_dir(), cache_dir() / "digests", kept_elsewhere),
            on_change=self._on_models,
            in_use=self._what_ends_engines,
            needed_bytes=lambda model: self._needed_bytes(model, n_slots=self.settings.value(config.SLOTS)),
            on_check=add("checks", lambda: self.shelf.checks),
            folder_note=self._models_folder_note,
        )
        self._models_changed = add("models", self.shelf.snapshot)
        self.copies = Copies(
            self.shelf,
            self.identity,
            on_change=add("copies", lambda: self.copies.snapshot()),
        )
        self.downloads = Downloads(
            self.shelf.folder.path,
            on_change=add("downloads", lambda: self.downloads.snapshot()),
            on_model=self.shelf.refresh,
        )
        self.hub = HubSearch()
        self.awake = Awake(on_change=self._with_notes(add("awake", lambda: self.awake.snapshot())))
        self.standby = Standby(environment)
        self._model_memory = ModelMemory(_host_memory)
        self.engines = Engines(
            find=self._find_model,
            memory=self._memory,
            on_device=lambda told: self._model_memory.hear(told, held_bytes=self._held_bytes()),
            settings=lambda: settings.values(DECODE_SETTINGS),
            words=own_words,
            environment={**environment, "BATON_API_KEY": engine_key},
            start_process=self.standby.start,
            log_folder=log_dir(),
            on_change=self._on_engines,
            on_line=self.log.write,
        )
        self._engines_changed = add("engines", self.engines.snapshot)
        self.workers = Workers(
            find=self._find_for_worker,
            make_room=self.engines.make_room,
            name=self.name,
            links=lambda: self.links,
            trust=self._trust,
            settings=lambda: settings.values(PREFILL_SETTINGS),
            words=own_words,
            environment=environment,
            start_process=self.standby.start,
            log_folder=log_dir(),
            on_change=self._on_workers,
            on_line=self.log.write,
        )
        self._workers_changed = add("workers", self.workers.snapshot)
        self.cluster = Cluster(
            self.engines,
            prefiller_for=self._prefiller_for,
            digest_of=self._digest_of,
            is_paired=self._is_paired,
            trust=self._trust,
            on_change=add("joins", lambda: self.cluster.snapshot()),
        )
        self._model_list = ModelList(self.shelf, self.engines)
        self.front = Front(
            self.engines,
            settings=ServerSettings(check_host=is_loopback(settings.host)),
            engine_key=engine_key,
            decoder_of=self._decoder_of,
            models=self._model_list.entries,
            refresh=self.shelf.refresh,
            problem_of=self._model_list.problem_of,
            keys=self._endpoint_keys,
            recent=self.recent,
        )

    def _make_roles(self) -> None:
        """Who prefills and who decodes."""
        settings, node_id = self.settings, self.identity.node_id
        self._reports = Reports(
            node_id,
            self.name,
            self.shelf,
            Measurements(cache_dir() / "measured", device="auto", version=baton_version()),
            link_bytes_per_s=self._link_bytes_per_s,
        )
        self.wishes = Wishes(
            data_dir() / "roles.json",
            node_id,
            paired=lambda: [peer.node_id for peer in self.peers.all()],
            on_change=lambda: self.agreement.changed(),
        )
        self.agreement = Agreement(
            node_id,
            self.shelf,
            self._reports,
            self.wishes,
            links=self.links.all,
            n_ctx=settings.value(config.CTX),
            n_slots=settings.value(config.SLOTS),
            has_time_for=self._has_time_for,
            on_change=self._on_roles,
        )
        self._roles_changed = self.news.add("roles", self.agreement.snapshot)
        self.hosts = Hosts(
            node_id,
            read=self._read_host,
            links=self.links.all,
            paired=lambda: [peer.node_id for peer in self.peers.all()],
            on_change=self.news.add("hosts", lambda: self.hosts.snapshot()),
        )

    def _make_changes(self) -> None:
        """How settings are changed while the node runs."""
        self.changes = Changes(
            self.settings,
            self._secrets,
            self.engines,
            self.workers,
            apply=self._apply_settings,
            on_change=self._with_notes(self.news.add("settings", lambda: self.changes.snapshot())),
        )

    async def _apply_settings(self) -> None:
        """Have the parts follow what can be followed while they run."""
        self._models_changed()
        self._stay_awake()
        self._have_one_wait()
        self.agreement.set_size(
            n_ctx=self.settings.value(config.CTX), n_slots=self.settings.value(config.SLOTS)
        )
        if self.name != self.pairing.name:
            await self._rename(self.name)

    async def _rename(self, name: str) -> None:
        """Call this computer so from now on, here and where it is known."""
        self.pairing.name = self.workers.name = self._reports.name = self.updates.name = name
        self.links.set_name(name)
        self.peers.tell_name(name, self.links.all())
        await self.discovery.set_name(name)

    async def _preload(self) -> None:
        """Load what is to be there from the start; a node without that model is of use all the same."""
        wanted = self.settings.value(config.PRELOAD)
        if wanted is None:
            return
        try:
            await self.engines.load(wanted)
        except BatonError as error:
            self._preload_fault = f"{wanted} was to be loaded at the start, and was not: {error}"
            log.warning("%s", self._preload_fault)
            self._node_changed()

    def _offer(self) -> None:
        """What paired computers may ask of this one."""
        self.offers.calls[DESCRIBE] = Method(self._describe_to_peer, None)
        self.offers.calls.update(self.link_doctor.methods())
        self.offers.calls.update(self.wake_on_lan.methods())
        self.offers.calls.update(self.updates.methods())
        self.offers.news.update(self.peers.news())
        self.shelf.offer_methods(self.offers)
        self.copies.offer_methods(self.offers)
        self.agreement.offer_methods(self.offers)
        self.front.offer_methods(self.offers)
        self.workers.offer_methods(self.offers)
        self.hosts.offer_methods(self.offers)

    # what the parts are told of each other

    def _with_notes(self, changed: Callable[[], None]) -> Callable[[], None]:
        """For a part that `_notes` tell of, too."""

        def told() -> None:
            changed()
            self._node_changed()

        return told

    def _on_found(self) -> None:
        self._found_changed()
        self._node_changed()
        self.links.look_again()

    def _on_book(self) -> None:
        """Somebody was paired, or is not any more; a role that was asked for in the pairing is wished from now on."""
        self.wishes.forget_unpaired()
        for peer in self.peers.all():
            if peer.node_id not in self._paired and peer.role_wish is not None:
                prefills = peer if peer.role_wish is Role.PREFILL else self.identity
                self.wishes.say(prefills.node_id, self.links.all())
        self._paired = {peer.node_id for peer in self.peers.all()}
        self.links.look_again()

    def _on_links(self) -> None:
        self._links_changed()
        self.agreement.look_again()
        self.workers.look_again()
        self.cluster.look_again()

    def _on_models(self) -> None:
        self._models_changed()
        self.agreement.changed()

    def _on_link_measured(self) -> None:
        self._link_measured()
        self.agreement.changed()

    def _on_roles(self) -> None:
        self._roles_changed()
        self.hosts.look_again()
        self.workers.look_again()
        self.cluster.look_again()

    async def _on_link(self, link: PeerLink) -> None:
        self.agreement.greet(link)
        self.hosts.greet(link)
        await self.wake_on_lan.learn(link)

    def _on_pairing(self) -> None:
        self._pairing_changed()
        shown = self.pairing.snapshot()["offer"]
        announcing = asyncio.ensure_future(self.discovery.set_pairing_port(shown["port"] if shown else None))
        self._announcing.add(announcing)
        announcing.add_done_callback(self._announcing.discard)

    def _on_engines(self) -> None:
        self._engines_changed()
        self.hosts.look_again()
        self.cluster.look_again()
        self.changes.look_again()
        if self._preload_fault and self.engines.get(self.settings.value(config.PRELOAD) or "") is not None:
            self._preload_fault = ""
            self._node_changed()
        self._stay_awake()
        self._have_one_wait()

    def _on_workers(self) -> None:
        self._workers_changed()
        self.changes.look_again()
        self.hosts.look_again()
        self._stay_awake()
        self._have_one_wait()

    def _endpoint_keys(self) -> tuple[str, ...]:
        """What the endpoint takes for a key, if it wants one: commands of this user send the node's token."""
        key = self.settings.api_key
        return () if key is None else (key, self._token)

    def _stay_awake(self) -> None:
        may_stay = self.settings.value(config.KEEP_AWAKE) != "never"
        self.awake.serve(sorted(self._models_in_use()) if may_stay else ())

    def _have_one_wait(self) -> None:
        """While a model is loaded, and there is memory. While one is being loaded it stays as it is."""
        if self.settings.value(config.STANDBY) == "never" or not self._models_in_use():
            self.standby.want(False)
        elif self.engines.latest() is not None or self.workers.is_any_ready:
            self.standby.want(_host_memory().available_bytes > _ROOM_TO_WAIT_BYTES)

    def _addresses_of(self, node_id: str) -> Sequence[str]:
        """Where a node may be, best first."""
        return self.discovery.addresses_of(node_id)

    def _someone(self) -> tuple[str, int] | None:
        """A paired computer's address, for a look at whether it can be called at all."""
        for peer in self.peers.all():
            for address in (*self._addresses_of(peer.node_id), *peer.addresses):
                return split_node_address(address)
        return None

    def _own_host(self) -> str | None:
        return self.discovery.own_host

    def _is_paired(self, node_id: str) -> bool:
        return self.peers.get(node_id) is not None

    # models

    def _models_in_use(self) -> set[str]:
        return {engine.model.model_id for engine in self.engines.all()} | set(self.workers.askers)

    def _what_ends_engines(self) -> dict[str, str]:
        """By models. A worker that was ended here would be asked for again."""
        ends = {
            model_id: f"`baton models unload {asker.model}` on {asker.name}, for which it prefills"
            for model_id, asker in self.workers.askers.items()
        }
        for engine in self.engines.all():
            ends[engine.model.model_id] = f"`baton models unload {engine.model.model_id}`"
        return ends

    async def _find_model(self, model_id: str) -> ModelFile:
        await self.shelf.refresh()
        model = self.shelf.find(model_id)
        if model.problem:
            raise UnsupportedModel(f"{model_id}: {model.problem}")
        return _as_file(
            model, n_ctx=self.settings.value(config.CTX), n_slots=self.settings.value(config.SLOTS)
        )

    async def _find_for_worker(self, asked: StartPrefill) -> ModelFile | None:
        await self.shelf.refresh()
        # Those that were read through already come first.
        for model in sorted(self.shelf.models, key=lambda model: model.digest is None):
            if not model.problem and (model.digest or await self._read_digest(model)) == asked.digest:
                return _as_file(model, n_ctx=asked.n_ctx, n_slots=asked.n_slots)
        return None

    async def _digest_of(self, model_id: str) -> str:
        model = self.shelf.find(model_id)
        return model.digest or await self._read_digest(model)

    async def _read_digest(self, model: LocalModel) -> str:
        return digest_of_parts(await self.shelf.digests(model))

    def inspect(self, model: LocalModel) -> dict[str, Any]:
        """What a model's file holds, and what it takes as it would be loaded. Reads its header."""
        value = self.settings.value
        kv_type = kv_type_of(value(config.KV_TYPE), value(config.WEIGHTS))
        return inspect_model(model, n_ctx=value(config.CTX), n_slots=value(config.SLOTS), kv_type=kv_type)

    def _needed_bytes(self, model: LocalModel, *, n_slots: int) -> int:
        value = self.settings.value
        kv_type = kv_type_of(value(config.KV_TYPE), value(config.WEIGHTS))
        return model.needed_bytes(n_ctx=value(config.CTX), n_slots=n_slots, kv_type=kv_type)

    def _held_bytes(self) -> int:
        return self.engines.held_bytes + self.workers.held_bytes

    def _memory(self) -> Memory:
        """What models may have: of the device where they are computed, else of the computer."""
        if self.settings.value(config.DEVICE) == "cpu":
            return _host_memory()
        return self._model_memory.memory(
            measured_bytes=self._reports.gpu_bytes(), held_bytes=self._held_bytes()
        )

    def memory_with(self, *, n_ctx: int, n_slots: int, kv_type: str, weights: str) -> dict[str, Any]:
        """What each model that can be run here would take with these settings; and what there is for it.

        `room_bytes` is what is free, with what the loaded models have given back.
        """
        kind = kv_type_of(kv_type, weights)
        loaded = {engine.model.model_id: engine.model.needed_bytes for engine in self.engines.all()}
        memory = self._memory()
        return {
            "total_bytes": memory.total_bytes,
            "room_bytes": min(memory.total_bytes, memory.available_bytes + sum(loaded.values())),
            "models": [
                {
                    "model": model.model_id,
                    "is_loaded": model.model_id in loaded,
                    "n_ctx_train": model.n_ctx_train,
                    "needed_bytes": model.needed_bytes(n_ctx=n_ctx, n_slots=n_slots, kv_type=kind),
                }
                for model in self.shelf.models
                if not model.problem
            ],
        }

    # roles

    def _prefiller_for(self, engine: LoadedEngine) -> PeerLink | None:
        """Of several, one that was wished for."""
        here, model_id = self.identity.node_id, engine.model.model_id
        found: PeerLink | None = None
        for link in self.links.all():
            roles = self.agreement.with_peer(link.peer.node_id, model_id)
            if roles is not None and (roles.prefill, roles.decode) == (link.peer.node_id, here):
                if roles.is_wish:
                    return link
                found = found or link
        return found

    def _decoder_of(self, model_id: str | None) -> PeerLink | None:
        """The link with who decodes that model; what names none concerns what is loaded here, if anything is."""
        if model_id is None and self.engines.all():
            return None
        for link in self.links.all():
            roles = self.agreement.with_peer(link.peer.node_id, model_id)
            if roles is not None and roles.decode == link.peer.node_id:
                return link
        return None

    def _link_bytes_per_s(self, node_id: str) -> float | None:
        """What the link carries in the worse of both directions, where it was probed."""
        ceiling = self.link_doctor.ceiling_for(node_id)
        gbps = 0.0 if ceiling is None else min(ceiling.send_gbps, ceiling.receive_gbps)
        return gbps * 1e9 / 8 if gbps > 0 else None

    def _has_time_for(self, model: LocalModel) -> bool:
        """Whether nobody waits for an answer, and the model has room beside those that are loaded."""
        is_busy = any(engine.n_active or not engine.is_ready for engine in self.engines.all())
        measures = self.settings.value(config.MEASURE) != "never"
        needed = self._needed_bytes(model, n_slots=1)
        return measures and not is_busy and needed < self._memory().available_bytes

    # what others are told

    def _read_host(self) -> Host:
        measured = self._reports.snapshot()
        engines = [engine.model.model_id for engine in self.engines.all() if engine.is_ready]
        return read_host(
            device=measured["device"] or self._computer.gpu or self._computer.processor,
            gpu_bytes=measured["memory"]["gpu_bytes"],
            loaded={*engines, *self.workers.askers},
        )

    def _models_folder_note(self) -> str:
        is_given = self.settings.source(config.MODELS_FOLDER) is Source.ENVIRONMENT
        return of_models_folder(
            self.shelf.folder.path, variable=config.MODELS_FOLDER.environment if is_given else ""
        )

    def _describe(self) -> dict[str, Any]:
        return {
            "node_id": self.identity.node_id,
            "name": self.name,
            "baton": baton_version(),
            "fingerprint": self.identity.fingerprint,
            "endpoint": self.endpoint_url,
            "logs": str(log_dir()),
            "pid": os.getpid(),
            "notes": notes_of(
                (
                    *(self.peers.fault, self._key_note, *self.settings.faults(), self._preload_fault),
                    self._models_folder_note(),
                ),
                twins=self.discovery.twins(),
                permission=self.permission.snapshot(),
                awake=self.awake.snapshot(),
            ),
        }

    def describe(self) -> dict[str, Any]:
        """This computer at a glance."""
        return {
            **self._describe(),
            "engines": self.engines.snapshot(),
            "workers": self.workers.snapshot(),
            "joins": self.cluster.snapshot(),
            "memory": memory_told(),
            "standby": self.standby.pid,
        }

    async def _describe_to_peer(self, link: PeerLink, _: None) -> Told:
        return msgspec.convert(self.describe(), Told)


def _routes() -> list[BaseRoute]:
    """Of all parts' control."""
    parts = (
        *(status, pairing, discovery, permission, link_control, selftest),
        *(models_control, hub, wake, updates, settings, setup, feeds),
    )
    return [route for part in parts for route in part.routes()]


def _settled_identity(folder: str | None, key_secrets: Secrets) -> Identity:
    return Identity.load_or_create(identity_dir(folder), key_secrets).settled(key_secrets)


def _as_file(model: LocalModel, *, n_ctx: int, n_slots: int) -> ModelFile:
    return ModelFile(
        model_id=model.model_id,
        path=model.path,
        needed_bytes=model.needed_bytes(n_ctx=n_ctx, n_slots=n_slots),
    )


def _check_exposure(settings: NodeSettings) -> None:
    """Raises UserError where a flag opens the endpoint to anybody."""
    if not is_loopback(settings.host) and settings.api_key is None:
        raise UserError(
            f"{config.HOST.flag} {settings.host} opens the endpoint to the network: set a key that clients must send "
            f"(baton config set {config.API_KEY.name} --new), or {config.API_KEY.environment}"
        )


def _host_memory() -> Memory:
    memory = psutil.virtual_memory()
    return Memory(total_bytes=memory.total, available_bytes=memory.available)
