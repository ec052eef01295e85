"""The links with all paired nodes: listened for, dialled, and kept one for each, whoever dialled.

Presence is a link: an address that was found, typed or remembered is only somewhere to try.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import random
import socket
import ssl
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from engine.config import NODE_PORT
from engine.errors import (
    BatonError,
    HostError,
    PeerError,
    PeerLost,
    PeerUnreachable,
    PeerUntrusted,
    ProtocolError,
)
from engine.node.peering.offers import Offers
from engine.node.peering.peer_link import PeerLink, exchange_hellos
from engine.node.peering.peer_messages import NODE_PROTOCOL, NODE_PROTOCOL_MAJOR, NodeHello
from engine.node.trust.identity import MUTUAL_NAME, Identity, peers_context, which_peer
from engine.node.trust.peers import Peer, PeerBook
from engine.wire.limits import HANDSHAKE_TIMEOUT_S, MAX_UNAUTHENTICATED

log = logging.getLogger(__name__)

_BACKLOG = 64

# Between two rounds of a peer's addresses: what was found anew is tried at once, and this is for all else.
_FIRST_WAIT_S = 0.5
_LONGEST_WAIT_S = 15.0

# A link that ends sooner is no reason to call again at once.
_LASTS_S = 5.0

# A copy of a peer calls again and again; that it did is shown for so long.
_TWIN_SHOWN_S = 60.0

# A computer on a desk answers in a millisecond, or not at all.
_CONNECT_TIMEOUT_S = 3.0

# Links that still bring answers while a newer one is there already.
_MAX_RETIRING = 8

# Addresses that were found for one peer, of which so many are tried in a round: a computer has no more than the first.
_MAX_FIRST = 8
_MAX_FOUND = 32


@dataclass(kw_only=True)
class _Known:
    """What is going on with one peer. `note` is why there is no link; `since_s` is when the link came or went.

    `retiring` are links that another one has taken the place of, and that still bring answers to their ends. `twin` is
    where another computer with its identity has called from; `found` is where it may be, as far as that was told, and
    `tried` what a link was last moved for.
    """

    link: PeerLink | None = None
    retiring: list[PeerLink] = field(default_factory=list)
    dialler: asyncio.Task[None] | None = None
    kicked: asyncio.Event = field(default_factory=asyncio.Event)
    note: str = "it has not been found yet"
    twin: str = ""
    twin_at_s: float = 0.0
    found: tuple[str, ...] = ()
    tried: tuple[str, ...] = ()
    since_s: float = field(default_factory=time.time)
    lasted_s: float = 0.0

    @property
    def is_steady(self) -> bool:
        """Whether there is a link, or the last one ended after a while."""
        return self.link is not None or self.lasted_s > _LASTS_S

    def is_linked_with_another_than(self, instance: str) -> bool:
        """Whether the peer is there, in another node than the one of that instance."""
        return self.link is not None and self.link.hello.instance != instance and self.link.is_heard


class PeerLinks:
    """Keeps a link with each node in the book; `addresses(node_id)` says where one may be, the best first."""

    def __init__(
        self,
        identity: Identity,
        book: PeerBook,
        hello: NodeHello,
        *,
        addresses: Callable[[str], Sequence[str]],
        offers: Offers,
        on_change: Callable[[], None],
        on_link: Callable[[PeerLink], Coroutine[Any, Any, None]],
        host: str = "",
        port: int = NODE_PORT,
    ) -> None:
        """`on_link` is called with each link that comes; `host` is the address to listen on, any by default.

        Where `port` is taken a free one is.
        """
        self._identity = identity
        self._book = book
        self._hello = hello
        self._addresses = addresses
        self._offers = offers
        self._on_change = on_change
        self._on_link = on_link
        self._host = host
        self._port = port
        self._known: dict[str, _Known] = {}
        self._listeners: list[socket.socket] = []
        self._tasks: set[asyncio.Task[Any]] = set()
        # Callers that are not known yet, the oldest first, and from where they call.
        self._strangers: dict[asyncio.Task[None], str] = {}

    async def start(self) -> int:
        """Listen, and call whom there is to call; the port on which this one listens. Raises HostError."""
        self._listeners = listen(self._host, self._port)
        for listener in self._listeners:
            self._spawn(self._accept(listener))
        self.look_again()
        port: int = self._listeners[0].getsockname()[1]
        return port

    async def close(self) -> None:
        for listener in self._listeners:
            listener.close()
        retiring = [link for known in self._known.values() for link in known.retiring]
        await asyncio.gather(
            *(link.close("the other computer's Baton has ended") for link in (*self.all(), *retiring))
        )
        tasks = [*self._tasks, *(known.dialler for known in self._known.values() if known.dialler)]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def set_name(self, name: str) -> None:
        """Greet by another name from now on."""
        self._hello = msgspec.structs.replace(self._hello, name=name)

    def get(self, node_id: str) -> PeerLink | None:
        known = self._known.get(node_id)
        return known.link if known is not None else None

    def all(self) -> list[PeerLink]:
        return [known.link for known in self._known.values() if known.link is not None]

    def look_again(self, *, at_once: bool = False) -> None:
        """The book, or what is known of addresses, may have changed: drop who is not trusted any more, and call who is.

        Whose addresses are the same waits for his turn, but for `at_once`.
        """
        trusted = {peer.node_id: peer for peer in self._book.all()}
        for node_id in list(self._known):
            known, peer = self._known[node_id], trusted.get(node_id)
            if peer is None:
                self._drop(self._known.pop(node_id), "the other computer has unpaired this one")
            elif known.link is not None and known.link.peer.certificate_der != peer.certificate_der:
                self._drop(known, "the other computer was paired anew")
        for node_id in trusted:
            known = self._known.setdefault(node_id, _Known())
            found = tuple(self._addresses(node_id))
            if at_once or found != known.found:
                known.found = found
                known.kicked.set()
            if known.dialler is None:
                known.dialler = asyncio.create_task(self._dial_for_ever(node_id, known))
        self._on_change()

    def snapshot(self) -> list[dict[str, Any]]:
        return [self._describe(peer) for peer in self._book.all()]

    def _describe(self, peer: Peer) -> dict[str, Any]:
        known = self._known.get(peer.node_id) or _Known()
        link = known.link
        return {
            "node_id": peer.node_id,
            "name": peer.name,
            "fingerprint": peer.fingerprint,
            "connected": link is not None,
            "address": link.remote_host if link is not None else None,
            "local_address": link.local_host if link is not None else None,
            "baton": link.hello.baton if link is not None else None,
            "note": "" if link is not None else known.note,
            "twin": known.twin if time.monotonic() - known.twin_at_s < _TWIN_SHOWN_S else "",
            "since": known.since_s,
        }

    def _drop(self, known: _Known, why: str) -> None:
        if known.dialler is not None:
            known.dialler.cancel()
            known.dialler = None
        for link in known.retiring:
            self._spawn(link.close(why))
        if known.link is not None:
            self._spawn(known.link.close(why))
            known.link = None

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    # calling

    async def _dial_for_ever(self, node_id: str, known: _Known) -> None:
        wait_s = _FIRST_WAIT_S
        while True:
            known.kicked.clear()
            if known.link is None:
                await self._dial_all(node_id, known)
            if known.link is not None:
                await self._move_to_better(known, known.link)
                await known.kicked.wait()
                if known.is_steady:
                    wait_s = _FIRST_WAIT_S
                    continue
                known.kicked.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait_s * random.uniform(0.8, 1.2)):
                    await known.kicked.wait()
            wait_s = min(2 * wait_s, _LONGEST_WAIT_S)

    async def _move_to_better(self, known: _Known, link: PeerLink) -> None:
        """Call again where that would be better than where the link is now: a cable has been plugged in, say.

        Left to whoever made the call, who knows that he can. Each list of addresses is tried once.
        """
        found = tuple(self._addresses(link.peer.node_id))
        if not link.is_dialled or found == known.tried:
            return
        known.tried = found
        hosts = [split_node_address(address)[0] for address in found]
        if link.remote_host not in hosts:
            return
        for address in found[: hosts.index(link.remote_host)]:
            with contextlib.suppress(PeerError):
                await self._dial(link.peer, address)
                return

    async def _dial_all(self, node_id: str, known: _Known) -> None:
        peer = self._book.get(node_id)
        if peer is None:
            return
        notes = []
        for address in self._where(peer):
            try:
                await self._dial(peer, address)
                return
            except PeerError as error:
                notes.append(str(error))
            if known.link is not None:  # it has called here meanwhile
                return
        self._note(known, notes[0] if notes else "it has not been found yet, and no address of it is known")

    def _where(self, peer: Peer) -> Iterable[str]:
        """The best of what was found, where it was met before, and the rest: anybody can say that he is this peer."""
        found = list(self._addresses(peer.node_id))
        return dict.fromkeys([*found[:_MAX_FIRST], *peer.addresses, *found[_MAX_FIRST:_MAX_FOUND]])

    async def _dial(self, peer: Peer, address: str) -> None:
        host, port = split_node_address(address)
        context = peers_context(self._identity, [peer], server_side=False, protocols=(NODE_PROTOCOL,))
        try:
            async with asyncio.timeout(_CONNECT_TIMEOUT_S + HANDSHAKE_TIMEOUT_S):
                reader, writer = await asyncio.open_connection(
                    host,
                    port,
                    ssl=context,
                    server_hostname=MUTUAL_NAME,
                    ssl_handshake_timeout=_CONNECT_TIMEOUT_S + 2 * HANDSHAKE_TIMEOUT_S,  # ours ends first
                )
        except ssl.SSLCertVerificationError as error:
            raise PeerUntrusted(
                f"the computer at {address} shows another key than the one that was paired: if Baton was set up anew "
                "there, remove the pairing on both computers and pair them again"
            ) from error
        except (ssl.SSLError, ConnectionResetError, ConnectionAbortedError, BrokenPipeError) as error:
            raise PeerLost(f"the computer at {address} hung up: it may have unpaired this one") from error
        except TimeoutError as error:
            raise PeerUnreachable(
                f"nothing answers at {address} in time: look whether that computer is awake"
            ) from error
        except ConnectionRefusedError as error:
            raise PeerUnreachable(f"no Baton answers at {address}: start Baton there") from error
        except (OSError, UnicodeError) as error:
            raise PeerUnreachable(
                f"{address} cannot be reached ({_reason(error)}): look at the cable, and whether that computer is on"
            ) from error
        await self._greet(peer, reader, writer, is_dialled=True)
        self._book.met(peer.node_id, address)

    # being called

    async def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection, address = await loop.sock_accept(listener)
            except OSError as error:
                log.warning("a call was not taken: %s", error.strerror or error)
                await asyncio.sleep(_FIRST_WAIT_S)
                continue
            if not self._book.all():
                connection.close()
                continue
            make_room(self._strangers, MAX_UNAUTHENTICATED)
            stranger = self._spawn(self._let_in(connection))
            self._strangers[stranger] = address[0]
            stranger.add_done_callback(lambda task: self._strangers.pop(task, None))

    async def _let_in(self, connection: socket.socket) -> None:
        peers = self._book.all()
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader()
        protocol = asyncio.StreamReaderProtocol(reader)
        try:
            context = peers_context(self._identity, peers, server_side=True, protocols=(NODE_PROTOCOL,))
            transport, _ = await loop.connect_accepted_socket(
                lambda: protocol, connection, ssl=context, ssl_handshake_timeout=HANDSHAKE_TIMEOUT_S
            )
            writer = asyncio.StreamWriter(transport, protocol, reader, loop)
            peer = which_peer(writer.get_extra_info("ssl_object"), peers)
            await self._greet(peer, reader, writer, is_dialled=False)
        except (OSError, TimeoutError, BatonError) as error:
            log.info("a caller was turned away: %s", error)
            connection.close()
        except asyncio.CancelledError:
            connection.close()
            raise

    # both

    async def _greet(
        self, peer: Peer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, is_dialled: bool
    ) -> None:
        """Say and hear hello on a new connection, and make it the link with this peer where it is the better one."""
        try:
            if is_dialled:
                which_peer(writer.get_extra_info("ssl_object"), [peer])
            async with asyncio.timeout(HANDSHAKE_TIMEOUT_S):
                hello, frames = await exchange_hellos(reader, writer, self._hello)
            _check(hello, peer)
        except TimeoutError as error:
            writer.transport.abort()
            raise PeerLost("the other computer did not say hello in time") from error
        except BatonError:
            writer.transport.abort()
            raise
        known = self._known.get(peer.node_id)
        is_twin = known is not None and known.is_linked_with_another_than(hello.instance)
        if not is_twin:
            peer = self._book.called(peer, hello.name)
        link = PeerLink(peer, hello, reader, writer, frames, self._offers, is_dialled=is_dialled)
        now = self._book.get(peer.node_id)
        if known is None or now is None or now.certificate_der != peer.certificate_der:
            await link.close("the other computer has unpaired this one")
            return
        if is_twin:
            # One that was started anew has lost its old link, or will have in a moment, and calls again.
            known.twin, known.twin_at_s = link.remote_host, time.monotonic()
            await link.close(
                "another computer with the same identity is connected: if one of the two was copied from the other, "
                "end its node, run `baton pair renew` there, and pair it anew"
            )
            self._on_change()
            return
        if known.link is not None and not self._is_better(link, known.link):
            self._spawn(self._run_out(link, known))
            return
        old, known.link = known.link, link
        known.since_s = time.time()
        if old is not None and old.hello.instance == link.hello.instance:
            self._spawn(self._retire(old, known))
        elif old is not None:
            self._spawn(old.close("there is a newer link"))
        self._spawn(self._run(link, known))

    async def _run_out(self, link: PeerLink, known: _Known) -> None:
        """Serve a link that is not needed: the other end may have asked something over it before it knew."""
        retiring = self._spawn(self._retire(link, known))
        with contextlib.suppress(BatonError):
            await link.run()
        retiring.cancel()

    async def _retire(self, link: PeerLink, known: _Known) -> None:
        known.retiring.append(link)
        try:
            if len(known.retiring) > _MAX_RETIRING:
                await known.retiring[0].close("there are newer links")
            await link.retire("there is a newer link")
        finally:
            known.retiring.remove(link)

    def _is_better(self, new: PeerLink, old: PeerLink) -> bool:
        """Both ends see the same two links and keep the same one: the newer, or that of the smaller id's call."""
        if new.hello.instance != old.hello.instance or new.is_dialled == old.is_dialled:
            return True
        return new.is_dialled == (self._hello.node_id < new.peer.node_id)

    async def _run(self, link: PeerLink, known: _Known) -> None:
        log.info("%s is connected, at %s", link.peer.name, link.remote_host)
        began_s = time.monotonic()
        running = asyncio.create_task(link.run())
        self._on_change()
        greeting = asyncio.create_task(self._greeted(link))
        try:
            await running
        except BatonError as error:
            log.info("%s is away: %s", link.peer.name, error)
            if known.link is link:
                known.link, known.lasted_s = None, time.monotonic() - began_s
                known.since_s = time.time()
                self._note(known, str(error))
                known.kicked.set()
                self._on_change()
        finally:
            greeting.cancel()
            running.cancel()
            await asyncio.gather(greeting, running, return_exceptions=True)

    async def _greeted(self, link: PeerLink) -> None:
        try:
            await self._on_link(link)
        except Exception:
            log.exception("a mistake while greeting %s", link.peer.name)

    def _note(self, known: _Known, note: str) -> None:
        if known.note != note:
            known.note = note
            self._on_change()


def _check(hello: NodeHello, peer: Peer) -> None:
    if hello.protocol_major != NODE_PROTOCOL_MAJOR:
        raise ProtocolError(
            f"{peer.name} runs Baton {hello.baton}, which speaks another language ({hello.protocol_major}, here "
            f"{NODE_PROTOCOL_MAJOR}): update the older of the two"
        )
    if hello.node_id != peer.node_id:
        raise ProtocolError(f"the computer that was paired as {peer.name} gives another id")


def make_room(callers: dict[asyncio.Task[None], str], most: int) -> None:
    """For one more caller: the oldest of the host that has most goes. Who holds calls open keeps no other out."""
    if len(callers) >= most:
        counts = Counter(callers.values())
        crowd = max(counts, key=counts.__getitem__)
        oldest = next(task for task, host in callers.items() if host == crowd)
        del callers[oldest]
        oldest.cancel()


def split_node_address(address: str) -> tuple[str, int]:
    """Host and port; the node's own port where none is given. Zones and IPv6 in brackets stay whole."""
    if address.startswith("["):
        host, _, port = address.removeprefix("[").partition("]")
        return host, int(port.removeprefix(":") or NODE_PORT)
    if address.count(":") > 1:
        return address, NODE_PORT
    host, _, port = address.partition(":")
    return host, int(port or NODE_PORT)


def listen(host: str, port: int) -> list[socket.socket]:
    """Sockets that take IPv4 and, where there is IPv6, that too, on the same port; a free one where it is taken."""
    try:
        return _bound(host, port)
    except OSError as error:
        if port == 0:
            raise HostError(f"this computer cannot listen for others: {_reason(error)}") from error
    log.warning("port %d is taken by another program: this node listens on a free one", port)
    return listen(host, 0)


def _bound(host: str, port: int) -> list[socket.socket]:
    if not host and socket.has_dualstack_ipv6():
        listener = socket.create_server(
            ("", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=_BACKLOG
        )
    else:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = socket.create_server((host, port), family=family, backlog=_BACKLOG)
    listener.setblocking(False)
    return [listener]


def _reason(error: OSError | UnicodeError) -> str:
    number = error.errno if isinstance(error, OSError) else None
    if number is not None and number > 0:
        return os.strerror(
            number
        )  # asyncio puts words of its own, with Python's addresses, in the place of these
    return str(getattr(error, "strerror", None) or error)
