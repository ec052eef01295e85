"""What a node offers to paired ones: its methods by name, who answers each, and what each takes.

It knows nothing of connections; `peer_link` has the methods called.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import msgspec

from engine.errors import InvalidRequest
from engine.node.peering.peer_messages import MAX_PARAMS_BYTES

if TYPE_CHECKING:
    from engine.node.peering.peer_link import PeerLink

Handler = Callable[["PeerLink", Any], Awaitable[Any]]
StreamHandler = Callable[["PeerLink", Any], AsyncGenerator[Any, None]]
TellHandler = Callable[["PeerLink", Any], None]

_AnyHandler = TypeVar("_AnyHandler", Handler, StreamHandler, TellHandler)


@dataclass(frozen=True)
class Method(Generic[_AnyHandler]):
    """Who answers, the type of what he takes, and how many bytes that may have."""

    handler: _AnyHandler
    takes: Any = Any
    max_bytes: int = MAX_PARAMS_BYTES

    def params(self, raw: msgspec.Raw) -> Any:
        """What was sent, as `takes`. Raises InvalidRequest."""
        n_bytes = memoryview(raw).nbytes
        if n_bytes > self.max_bytes:
            raise InvalidRequest(f"what was asked has {n_bytes} bytes, of {self.max_bytes} that it may have")
        try:
            return msgspec.msgpack.decode(raw, type=self.takes)
        except (msgspec.MsgspecError, RecursionError) as error:
            raise InvalidRequest(f"what was asked is not valid: {error}") from None


@dataclass(frozen=True, kw_only=True)
class Offers:
    """The methods that a peer may call here, by name.

    A BatonError of a method reaches the caller as PeerRefused, with its sentence.
    """

    calls: dict[str, Method[Handler]] = field(default_factory=dict)
    streams: dict[str, Method[StreamHandler]] = field(default_factory=dict)
    news: dict[str, Method[TellHandler]] = field(default_factory=dict)
