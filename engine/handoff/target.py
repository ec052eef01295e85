"""Which worker a decode engine works with: a line of JSON on its standard input says so, at the start and whenever it
changes."""

from __future__ import annotations

import msgspec

from engine import config
from engine.errors import InvalidRequest


class Target(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A worker to call (`dial`) or to wait for (`listen`), each HOST:PORT; neither where there is none.

    `trust` is the worker's fingerprint.
    """

    dial: str | None = None
    listen: str | None = None
    trust: str = ""

    @property
    def is_there(self) -> bool:
        return bool(self.dial or self.listen)

    def line(self) -> str:
        return msgspec.json.encode(self).decode()

    @classmethod
    def parse(cls, line: str) -> Target:
        """Raises InvalidRequest."""
        try:
            target = msgspec.json.decode(line, type=cls)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise InvalidRequest(f"what was said about the worker is not understood: {error}") from error
        for address in (target.dial, target.listen):
            if address is not None:
                config.split_address(address)
        if target.dial and target.listen:
            raise InvalidRequest("a worker either calls or is called")
        return target
