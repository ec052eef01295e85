"""A client of the running node's control API, as the command line needs it: synchronous, and quick to import."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from engine.node.endpoint import READ_TIMEOUT_S, Endpoint, NoEndpoint
from engine.node.presence import NoNode, find_node


class NodeClient:
    """The node that runs here. Its methods raise UserError or HostError with the node's own sentence."""

    def __init__(self, port: int, token: str, endpoint: str = "") -> None:
        self._control = Endpoint("127.0.0.1", port, token)
        self.endpoint = endpoint

    @classmethod
    def find(cls) -> NodeClient:
        """Raises NoNode where none runs."""
        note = find_node()
        return cls(note.port, note.token, note.endpoint)

    def get(self, path: str, *, timeout_s: float = READ_TIMEOUT_S) -> Any:
        with _NoNodeThere():
            return self._control.get(path, timeout_s=timeout_s)

    def post(self, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        with _NoNodeThere():
            return self._control.ask(path, body or {})

    def delete(self, path: str) -> dict[str, Any]:
        with _NoNodeThere():
            return self._control.ask(path, None, method="DELETE")

    def watch(self, path: str, body: dict[str, Any] | None = None) -> Iterator[dict[str, Any]]:
        """Post `body`, and the answer's lines as they come: for what takes time."""
        with _NoNodeThere():
            yield from self._control.watch(path, body or {})


class _NoNodeThere:
    """A note may be left of a node that was killed."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, NoEndpoint):
            raise NoNode("no node runs on this computer: start one with `baton node`") from error
