"""A client of the running node's control API, as the command line needs it: synchronous, and quick to import."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from engine.errors import HostError
from engine.node.endpoint import READ_TIMEOUT_S, Endpoint, NoAnswer, NoEndpoint
from engine.node.presence import NoNode, find_node

# Most of what is asked is known already; what takes long is posted.
_TIMEOUT_S = 10.0


class NodeClient:
    """The node that runs here. Its methods raise UserError or HostError with the node's own sentence."""

    def __init__(self, port: int, token: str, endpoint: str = "", pid: int = 0) -> None:
        self._control = Endpoint("127.0.0.1", port, token)
        self._asking = _Asking(pid)
        self.endpoint = endpoint

    @classmethod
    def find(cls) -> NodeClient:
        """Raises NoNode where none runs."""
        note = find_node()
        return cls(note.port, note.token, note.endpoint, note.pid)

    def get(self, path: str, *, timeout_s: float = _TIMEOUT_S) -> Any:
        with self._asking:
            return self._control.get(path, timeout_s=timeout_s)

    def post(
        self, path: str, body: dict[str, Any] | None = None, *, timeout_s: float = READ_TIMEOUT_S
    ) -> dict[str, Any]:
        with self._asking:
            return self._control.ask(path, body or {}, timeout_s=timeout_s)

    def stop(self) -> None:
        """Have it end, which it says at once and then takes a while to do."""
        self.post("/stop", timeout_s=_TIMEOUT_S)

    def patch(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        with self._asking:
            return self._control.ask(path, body, method="PATCH")

    def delete(self, path: str) -> dict[str, Any]:
        with self._asking:
            return self._control.ask(path, None, method="DELETE")

    def watch(self, path: str, body: dict[str, Any] | None = None) -> Iterator[dict[str, Any]]:
        """Post `body`, and the answer's lines as they come: for what takes time."""
        with self._asking:
            yield from self._control.watch(path, body or {})


class _Asking:
    """Says what is wrong with the node itself: a note may be left of one that was killed, and one may hang."""

    def __init__(self, pid: int) -> None:
        self._pid = pid

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, NoEndpoint):
            raise NoNode("no node runs on this computer: start one with `baton node`") from error
        if isinstance(error, NoAnswer):
            raise HostError(
                f"the node (process {self._pid}) does not answer: if it stays so, end that process, and start it again "
                "with `baton node`"
            ) from error
