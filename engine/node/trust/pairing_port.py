"""Pairing over the network: the port that is open while a code is shown, and the call to another computer's.

Strangers may call that port. All they get is an exchange of `engine.node.trust.pairing`, a few at a time and for
seconds, of which one may be wrong.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import platform
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from engine.config import PAIRING_PORT, join_address, split_address
from engine.errors import BatonError, HostError, InvalidRequest, PeerUnreachable
from engine.node.peering.peer_link import host_text
from engine.node.peering.peer_links import listen, make_room
from engine.node.trust.identity import Identity
from engine.node.trust.pairing import (
    CODE_LIFETIME_S,
    MAX_BODY_BYTES,
    Card,
    Exchange,
    Patience,
    Reason,
    Side,
    State,
    code_text,
    make_code,
    parse_code,
)
from engine.node.trust.peers import MAX_ADDRESSES, Peer, PeerBook
from engine.wire.messages import Role

if TYPE_CHECKING:
    from engine.node.finding.discovery import Found

log = logging.getLogger(__name__)

# An exchange takes a tenth of a second; a computer under load, or a wireless network, gets its time.
EXCHANGE_TIMEOUT_S = 10.0

# A computer on a desk answers in a millisecond, or not at all.
_CONNECT_TIMEOUT_S = 4.0

# A computer that has just begun to show a code is found within two seconds, and a busy one later.
_FIND_TIMEOUT_S = 10.0
_LOOK_EVERY_S = 0.1

# Callers at a time.
_MAX_CALLERS = 4

# What the other end still has to read when this one hangs up.
_CLOSE_TIMEOUT_S = 0.5

_READ_BYTES = 4096


@dataclass(frozen=True, kw_only=True)
class Paired:
    """What became of an exchange: the new peer, and a sentence where the two run different versions of Baton."""

    peer: Peer
    platform: str
    note: str

    def describe(self) -> dict[str, Any]:
        return {
            "node_id": self.peer.node_id,
            "name": self.peer.name,
            "fingerprint": self.peer.fingerprint,
            "platform": self.platform,
            "note": self.note,
        }


@dataclass(kw_only=True, eq=False)
class Offer:
    """A code while it is shown; `outcome` is whom it paired, or the error that ended it."""

    code: str
    port: int
    ends_at_s: float
    role: Role | None
    outcome: asyncio.Future[Paired]
    tasks: list[asyncio.Task[None]] = field(default_factory=list)
    callers: dict[asyncio.Task[None], str] = field(default_factory=dict)
    is_good: bool = True


class PairingPort:
    """One computer's end of every pairing; at most one code is shown at a time.

    `name` is what this computer is called, `node_port` tells where its node listens for paired ones, `found` who may be
    there. `clock` counts seconds. All on one event loop.
    """

    def __init__(
        self,
        identity: Identity,
        book: PeerBook,
        *,
        name: str,
        baton: str,
        node_port: Callable[[], int],
        found: Callable[[], Sequence[Found]],
        on_change: Callable[[], None],
        host: str = "",
        port: int = PAIRING_PORT,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._identity = identity
        self._book = book
        self.name = name
        self._baton = baton
        self._node_port = node_port
        self._found = found
        self._on_change = on_change
        self._host = host
        self._port = port
        self._clock = clock
        self._patience = Patience(clock)
        self._offer: Offer | None = None
        self._is_joining = False

    async def start(self) -> None:
        """Nothing is open until a code is shown."""

    async def close(self) -> None:
        await self.withdraw()

    def snapshot(self) -> dict[str, Any]:
        """The code that is shown, why the last one paired nobody, and how long no other one can be shown."""
        offer, shown, note = self._offer, None, ""
        if offer is not None and offer.is_good:
            shown = self.describe(offer)
        elif offer is not None and not offer.outcome.cancelled():
            note = str(offer.outcome.exception() or "")
        return {"offer": shown, "note": note, "wait_s": round(self._patience.wait_s, 1)}

    def describe(self, offer: Offer) -> dict[str, Any]:
        return {
            "code": code_text(offer.code),
            "port": offer.port,
            "expires_in_s": round(max(0.0, offer.ends_at_s - self._clock()), 1),
        }

    async def offer(self, role: Role | None = None) -> Offer:
        """Show a new code in place of any other; `role` is what this computer asks to be. Wait for its `outcome`.

        Raises InvalidRequest while a wrong code is too near, and HostError when no port can be opened.
        """
        self._patience.check()
        await self.withdraw()
        listeners = listen(self._host, self._port)
        offer = Offer(
            code=make_code(),
            port=listeners[0].getsockname()[1],
            ends_at_s=self._clock() + CODE_LIFETIME_S,
            role=role,
            outcome=asyncio.get_running_loop().create_future(),
        )
        # an outcome that nobody waits for is no mistake
        offer.outcome.add_done_callback(lambda outcome: outcome.cancelled() or outcome.exception())
        for listener in listeners:
            task = asyncio.create_task(self._accept(offer, listener))
            task.add_done_callback(functools.partial(_close, listener))
            offer.tasks.append(task)
        offer.tasks.append(asyncio.create_task(self._expire(offer)))
        self._offer = offer
        self._on_change()
        return offer

    async def withdraw(self) -> None:
        """The code that is shown, if any, is void, and so is one that came while this one's port was being closed."""
        offer: Offer | None = None
        while offer is not self._offer:
            offer = self._offer
            self._end(offer, _withdrawn())
            if offer is not None:
                await asyncio.gather(*offer.tasks, *offer.callers, return_exceptions=True)

    async def join(self, address: str, code: str, role: Role | None = None) -> Paired:
        """Pair with the computer that shows `code` at HOST or HOST:PORT. Raises a BatonError that says what to do."""
        code = parse_code(code)
        host, port = split_address(_with_port(address))
        self._patience.check()
        if self._is_joining:
            raise InvalidRequest("another code is being tried just now: wait for its end")
        self._is_joining = True
        try:
            return await self._join(host, port, code, role)
        finally:
            self._is_joining = False

    async def join_found(
        self, code: str, role: Role | None = None, *, is_wanted: Callable[[], bool] = lambda: True
    ) -> Paired:
        """As `join`, with the one computer that was found and shows a code; a moment is waited for it.

        Not once it is no longer wanted: an old code would make void the one that is shown by then.
        """
        parse_code(code)
        until_s = time.monotonic() + _FIND_TIMEOUT_S
        failures: dict[str, PeerUnreachable] = {}
        while is_wanted():
            showing = [found for found in self._found() if set(found.pairing_addresses) - set(failures)]
            if len(showing) > 1:
                names = ", ".join(f"{found.name} (--to {found.pairing_addresses[0]})" for found in showing)
                raise InvalidRequest(f"{len(showing)} computers show a code: name one of {names}", param="to")
            for address in showing[0].pairing_addresses if showing else ():
                try:
                    return await self.join(address, code, role)
                except PeerUnreachable as error:  # what was announced may be old news
                    failures[address] = error
            if time.monotonic() > until_s:
                raise next(iter(failures.values()), _none_found())
            await asyncio.sleep(_LOOK_EVERY_S)
        raise HostError("who asked for the pairing has gone")

    # the side that types

    async def _join(self, host: str, port: int, code: str, role: Role | None) -> Paired:
        try:
            async with asyncio.timeout(_CONNECT_TIMEOUT_S):
                reader, writer = await asyncio.open_connection(host, port, limit=MAX_BODY_BYTES)
        except (OSError, UnicodeError) as error:
            raise _unreachable(join_address(host, port), error) from error
        exchange = self._exchange(Side.TYPES, code, role)
        paired = await self._talk(exchange, reader, writer, None)
        if exchange.is_wrong_try:
            self._patience.wrong()
            self._on_change()
        if paired is None:
            raise exchange.error or HostError("the pairing was ended here")
        return paired

    # the side that shows

    async def _accept(self, offer: Offer, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection, address = await loop.sock_accept(listener)
            except OSError as error:
                log.warning("a call was not taken: %s", error.strerror or error)
                await asyncio.sleep(1.0)
                continue
            make_room(offer.callers, _MAX_CALLERS)
            task = asyncio.create_task(self._serve(offer, connection))
            offer.callers[task] = address[0]
            task.add_done_callback(lambda task: offer.callers.pop(task, None))

    async def _serve(self, offer: Offer, connection: socket.socket) -> None:
        try:
            reader, writer = await asyncio.open_connection(sock=connection, limit=MAX_BODY_BYTES)
        except OSError:
            connection.close()
            return
        except asyncio.CancelledError:
            connection.close()
            raise
        exchange = self._exchange(Side.SHOWS, offer.code, offer.role)
        await self._talk(exchange, reader, writer, offer)
        if exchange.error is not None:
            log.info("a caller was not paired: %s", exchange.error)

    async def _expire(self, offer: Offer) -> None:
        await asyncio.sleep(max(0.0, offer.ends_at_s - self._clock()))
        self._end(offer, _expired())

    def _end(self, offer: Offer | None, outcome: Paired | BatonError) -> None:
        """The first end counts; whoever else is calling is told that the code is spent."""
        if offer is None or not offer.is_good:
            return
        offer.is_good = False
        if offer.outcome.cancelled():  # with whoever waited for it
            pass
        elif isinstance(outcome, Paired):
            offer.outcome.set_result(outcome)
        else:
            offer.outcome.set_exception(outcome)
        here = asyncio.current_task()
        for task in (*offer.tasks, *offer.callers):
            if task is not here:
                task.cancel()
        self._on_change()

    # both

    def _exchange(self, side: Side, code: str, role: Role | None) -> Exchange:
        card = Card(
            node_id=self._identity.node_id,
            name=self.name,
            platform=f"{platform.system()} {platform.machine()}",
            certificate_der=self._identity.certificate_der,
            node_port=self._node_port(),
            role=role,
        )
        return Exchange(side=side, code=code, card=card, baton=self._baton, check=self._refusal)

    def _refusal(self, card: Card) -> Reason | None:
        if self._book.has_other_key(card.node_id, card.certificate_der):
            return Reason.KEY_CHANGED
        return None if self._book.has_room_for(card.node_id) else Reason.FULL

    async def _talk(
        self,
        exchange: Exchange,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        offer: Offer | None,
    ) -> Paired | None:
        """Run an exchange to its end, at the side that shows for an `offer`; whom it paired, if anybody."""
        paired: Paired | None = None
        try:
            async with asyncio.timeout(EXCHANGE_TIMEOUT_S):
                writer.write(exchange.begin())
                while exchange.state not in (State.PAIRED, State.FAILED):
                    try:
                        data = await reader.read(_READ_BYTES)
                    except asyncio.CancelledError:
                        if offer is not None and not offer.is_good:
                            writer.write(exchange.abort(Reason.SPENT))
                        raise
                    if not data:
                        break
                    host = host_text(writer.get_extra_info("peername"))
                    answer, paired = await self._take(exchange, data, host, offer)
                    writer.write(answer)
                    await writer.drain()
        except (OSError, TimeoutError) as error:
            log.info("a pairing broke: %s", error)
        finally:
            writer.close()
        exchange.end()
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(_CLOSE_TIMEOUT_S):
                await writer.wait_closed()
        return paired

    async def _take(
        self, exchange: Exchange, data: bytes, host: str, offer: Offer | None
    ) -> tuple[bytes, Paired | None]:
        """What is to be sent for `data`, and whom it paired; the computer at `host` is written down then.

        Of callers who are looked at together only the first is answered when it ends the code: the others' guesses stay
        untested.
        """
        answer = await asyncio.to_thread(exchange.receive, data)
        if offer is not None and not offer.is_good:
            return exchange.abort(Reason.SPENT), None
        if exchange.is_wrong_try and offer is not None:
            self._patience.wrong()
        if exchange.error is not None and (exchange.is_wrong_try or exchange.peer is not None):
            # by a wrong code, or with the computer that the person has typed the right one on
            self._end(offer, exchange.error)
        if exchange.state is not State.AGREED:
            return answer, None
        try:
            paired = self._write_down(exchange, host)
        except BatonError as error:
            said = exchange.abort(Reason.NOT_KEPT)
            exchange.error = error
            self._end(offer, error)
            return answer + said, None
        self._patience.right()
        self._end(offer, paired)
        return answer + exchange.settle(), paired

    def _write_down(self, exchange: Exchange, host: str) -> Paired:
        card = exchange.peer
        if card is None:
            raise ValueError("an exchange that agreed has no peer")
        known = self._book.get(card.node_id)
        addresses = (join_address(host, card.node_port), *(known.addresses if known is not None else ()))
        peer = Peer(
            node_id=card.node_id,
            name=card.name,
            certificate_der=card.certificate_der,
            addresses=tuple(dict.fromkeys(addresses))[:MAX_ADDRESSES],
            paired_at=time.time(),
            role_wish=card.role,
        )
        self._book.add(peer)
        note = ""
        if exchange.peer_baton != self._baton:
            note = (
                f"{card.name} has Baton {exchange.peer_baton} and this computer {self._baton}: on the newer one, type "
                "`baton setup-peer --update NAME`, with the name of the other"
            )
        return Paired(peer=peer, platform=card.platform, note=note)


def _close(listener: socket.socket, _: asyncio.Task[None]) -> None:
    listener.close()


def _withdrawn() -> InvalidRequest:
    return InvalidRequest("the code was withdrawn: show a new one (baton pair)").worded("withdrawn")


def _expired() -> InvalidRequest:
    return InvalidRequest("nobody typed the code in five minutes: show a new one (baton pair)").worded(
        "expired"
    )


def _none_found() -> InvalidRequest:
    return InvalidRequest(
        "no computer that shows a code was found: run `baton pair` there, or name its address, for example "
        "--to 192.168.1.20",
        param="to",
    ).worded("none_found")


def _with_port(address: str) -> str:
    """HOST:PORT for a HOST with or without one, and for an IPv6 address without brackets."""
    if not address.startswith("[") and address.count(":") > 1:
        return join_address(address, PAIRING_PORT)
    return address if ":" in address.rpartition("]")[2] else f"{address}:{PAIRING_PORT}"


def _unreachable(address: str, error: OSError | UnicodeError) -> BatonError:
    if isinstance(error, (socket.gaierror, UnicodeError)):
        return InvalidRequest(
            f"{address}: there is no computer of that name; take an address that `baton pair` shows on the other one",
            param="to",
        ).worded("no_such_name")
    if isinstance(error, ConnectionRefusedError):
        return PeerUnreachable(
            f"no code is shown at {address}: run `baton pair` on that computer first, then type its code here"
        ).worded("no_code_shown")
    why = "nothing answers there" if isinstance(error, TimeoutError) else error.strerror or str(error)
    return PeerUnreachable(
        f"{address} cannot be reached ({why}): check the cable, and whether a firewall is in the way. Either computer "
        "may show the code: run `baton pair` on this one, and type its code on the other"
    ).worded("unreachable")
