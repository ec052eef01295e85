"""What a node says of itself by multicast DNS, and the strict reading of what anybody on the network may say.

Knows no sockets and no zeroconf. All of it is a hint: who somebody really is, a handshake tells later.
"""

from __future__ import annotations

import re
import secrets
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass

from engine.errors import ProtocolError

SERVICE_TYPE = "_baton._tcp.local."

# Of the entries below. A reader leaves what is newer alone.
_FORMAT = b"1"

# A TXT entry holds 255 bytes at most with its key; people read far fewer.
MAX_NAME_LETTERS = 60
_MAX_NAME_BYTES = 200

# Of one interface; with the longest addresses they fill an entry nearly.
MAX_HOSTS = 6

_NODE_ID = re.compile(r"[0-9a-f]{32}")
_INSTANCE = re.compile(r"[0-9a-f]{32}")
_VERSION = re.compile(r"[0-9A-Za-z.+-]{1,40}")

_UNNAMED = "a computer without a name"


@dataclass(frozen=True, kw_only=True)
class Announcement:
    """One node, as it runs now.

    `instance` is drawn at random at each start: two that show the same `node_id` are two computers with one identity.
    `pairing_port` is there while the node shows a code. `hosts` are its addresses where this is said, without zones: of
    the address records that caches have, some may be of yesterday. `n_changes` counts what was announced before, and is
    not read: a cache that sees an entry once more tells nobody, so none is ever the same again.
    """

    node_id: str
    instance: str
    name: str
    version: str
    port: int
    pairing_port: int | None = None
    hosts: tuple[str, ...] = ()
    n_changes: int = 0

    def properties(self) -> dict[bytes, bytes]:
        """The TXT entries; the port goes with the service."""
        entries = {
            b"v": _FORMAT,
            b"id": self.node_id.encode(),
            b"start": self.instance.encode(),
            b"name": clean_name(self.name).encode(),
            b"baton": self.version.encode(),
            b"at": ",".join(self.hosts[:MAX_HOSTS]).encode(),
            b"n": str(self.n_changes).encode(),
        }
        if self.pairing_port is not None:
            entries[b"pair"] = str(self.pairing_port).encode()
        return entries

    @classmethod
    def parse(cls, properties: Mapping[bytes, bytes | None], port: int | None) -> Announcement:
        """Raises ProtocolError for what no Baton announces, or only a newer one."""
        if properties.get(b"v") != _FORMAT:
            raise ProtocolError("an announcement in a form that is not known here")
        pairing_port = properties.get(b"pair")
        return cls(
            node_id=_text(properties, b"id", _NODE_ID),
            instance=_text(properties, b"start", _INSTANCE),
            name=clean_name((properties.get(b"name") or b"")[:_MAX_NAME_BYTES].decode("utf-8", "replace")),
            version=_text(properties, b"baton", _VERSION),
            port=_port(str(port)),
            hosts=_hosts(properties.get(b"at") or b""),
            pairing_port=None if pairing_port is None else _port(pairing_port.decode("ascii", "replace")),
        )


def new_instance() -> str:
    return secrets.token_hex(16)


def clean_name(text: str) -> str:
    """A name that can be shown in one line: no control or direction characters, no ends of lines, not too long."""
    shown = "".join(letter if _is_shown(letter) else " " for letter in text[: 4 * MAX_NAME_LETTERS])
    name = " ".join(shown.split())[:MAX_NAME_LETTERS]
    while len(name.encode()) > _MAX_NAME_BYTES:
        name = name[:-1]
    return name.strip() or _UNNAMED


def _is_shown(letter: str) -> bool:
    # C: control, format (which turns the direction of text), surrogates, private and unassigned; Zl, Zp: ends of lines
    kind = unicodedata.category(letter)
    return letter != "\N{REPLACEMENT CHARACTER}" and not kind.startswith("C") and kind not in ("Zl", "Zp")


def _text(properties: Mapping[bytes, bytes | None], key: bytes, form: re.Pattern[str]) -> str:
    text = (properties.get(key) or b"").decode("ascii", "replace")
    if not form.fullmatch(text):
        raise ProtocolError(f"an announcement whose {key.decode()} is none")
    return text


def _hosts(text: bytes) -> tuple[str, ...]:
    hosts = text.decode("ascii", "replace").split(",")
    if len(hosts) > MAX_HOSTS:
        raise ProtocolError("an announcement with too many addresses")
    return tuple(host for host in hosts if host)


def _port(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 5 and 0 < int(text) < 65536):
        raise ProtocolError("an announcement whose port is none")
    return int(text)
