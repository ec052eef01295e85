"""Asks one computer by unicast what it would have announced by multicast: the way in where multicast is filtered."""

from __future__ import annotations

import asyncio
import socket

from zeroconf import (  # type: ignore[attr-defined]
    DNSIncoming,
    DNSOutgoing,
    DNSPointer,
    DNSQuestion,
    DNSService,
    DNSText,
    ServiceInfo,
)

from engine.errors import ProtocolError
from engine.node.finding.announcement import SERVICE_TYPE, Announcement

_MDNS_PORT = 5353

# A datagram may be lost: so many are sent, so long apart, and the last answer is waited for as long.
_N_TRIES = 3
_TRY_EVERY_S = 0.3

_MAX_ANSWERS = 16

# RFC 1035 and 6762: a query, and the numbers of a pointer record and of the internet.
_FLAGS_QUERY = 0
_TYPE_PTR = 12
_CLASS_IN = 1


async def ask(host: str) -> tuple[Announcement, ...]:
    """Who answers at `host`, which may be a name, or an address with its zone. Nobody is no error."""
    loop = asyncio.get_running_loop()
    try:
        places = await loop.getaddrinfo(host, _MDNS_PORT, type=socket.SOCK_DGRAM)
        family, _, _, _, place = places[0]
        # not connected: a computer with two addresses may answer from the other
        transport, protocol = await loop.create_datagram_endpoint(_Asking, family=family)
    except (OSError, UnicodeError):
        return ()
    try:
        for _ in range(_N_TRIES):
            transport.sendto(_query(), place)
            try:
                return await asyncio.wait_for(asyncio.shield(protocol.answer), _TRY_EVERY_S)
            except TimeoutError:
                continue
        return ()
    finally:
        protocol.answer.cancel()
        transport.close()


class _Asking(asyncio.DatagramProtocol):
    def __init__(self) -> None:
        self.answer: asyncio.Future[tuple[Announcement, ...]] = asyncio.get_running_loop().create_future()

    def datagram_received(self, data: bytes, address: object) -> None:
        announcements = read_response(data)
        if announcements and not self.answer.done():
            self.answer.set_result(announcements)

    def error_received(self, error: Exception) -> None:
        pass  # nobody listens there, or there is no way: the tries run out


def _query() -> bytes:
    query = DNSOutgoing(_FLAGS_QUERY)
    query.add_question(DNSQuestion(SERVICE_TYPE, _TYPE_PTR, _CLASS_IN))
    return query.packets()[0]


def read_response(data: bytes) -> tuple[Announcement, ...]:
    """The announcements in a DNS message; none in one that is broken, or is about something else."""
    message = DNSIncoming(data)
    if not message.valid or message.is_query():
        return ()
    records = message.answers()
    names = [
        record.alias
        for record in records
        if isinstance(record, DNSPointer) and record.name.lower() == SERVICE_TYPE
    ]
    ports = {record.key: record.port for record in records if isinstance(record, DNSService)}
    texts = {record.key: record.text for record in records if isinstance(record, DNSText)}
    found = []
    for name in names[:_MAX_ANSWERS]:
        try:
            entries = text_entries(texts.get(name.lower(), b""))
            found.append(Announcement.parse(entries, ports.get(name.lower())))
        except ProtocolError:
            continue
    return tuple(found)


def text_entries(text: bytes) -> dict[bytes, bytes | None]:
    """What stands in a TXT record."""
    return ServiceInfo(SERVICE_TYPE, SERVICE_TYPE, properties=text).properties
