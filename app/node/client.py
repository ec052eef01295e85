"""A client of the node: its control API and its OpenAI endpoint, over HTTP on loopback. Knows nothing of Qt.

Every call is a coroutine of the bridge's loop, and may be cancelled at any time, which closes its connection.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from app.node import sse
from app.node.faults import AppError, NodeGone, NodeRefused, sentence
from app.words import translate

# Slow to import: by the bridge's thread, while the window is being shown already.
if TYPE_CHECKING:
    import httpx

_CONNECT_S = 3.0

# What is asked is answered at once, or as lines; pairing alone calls the other computer before it answers.
_ANSWER_S = 90.0


@dataclass(frozen=True, kw_only=True)
class Address:
    """Where a node is: its control API's port and token, and its OpenAI endpoint's URL."""

    pid: int
    port: int
    token: str
    endpoint: str


class NodeClient:
    """`find` gives the running node's address, or None; it is asked anew whenever the node seems to have changed."""

    def __init__(self, find: Callable[[], Address | None]) -> None:
        self._find = find
        self._address: Address | None = None
        self._http: httpx.AsyncClient | None = None

    @property
    def address(self) -> Address | None:
        return self._address

    @property
    def endpoint(self) -> str:
        """The OpenAI endpoint's URL, "" where no node is known."""
        return self._address.endpoint if self._address else ""

    def look(self) -> bool:
        """Look where the node is now; whether there is one. Reads a file."""
        self._address = self._find()
        return self._address is not None

    async def close(self) -> None:
        if self._http is not None:
            await self._http.aclose()

    # The control API.

    async def get(self, path: str, **query: str) -> Any:
        return await self._ask("GET", path, params=query or None)

    async def post(self, path: str, body: dict[str, Any] | None = None) -> Any:
        return await self._ask("POST", path, json=body or {})

    async def patch(self, path: str, body: dict[str, Any]) -> Any:
        return await self._ask("PATCH", path, json=body)

    async def delete(self, path: str) -> Any:
        return await self._ask("DELETE", path)

    async def lines(
        self, path: str, body: dict[str, Any] | None = None
    ) -> AsyncGenerator[dict[str, Any], None]:
        """Post, and each line of the answer as it comes: for what takes time. Raises NodeRefused where one says so."""
        async with self._opened(
            "POST", self._control(path), headers=self._token(), json=body or {}
        ) as answer:
            async for line in _text_lines(answer):
                if not line.strip():
                    continue
                item = json.loads(line)
                if isinstance(item.get("error"), dict):
                    raise _refused(answer.status_code, item)
                yield item

    async def events(self) -> AsyncGenerator[tuple[str, dict[str, Any]], None]:
        """`state` with all parts, then `changed` with those that changed, for as long as the node lives."""
        async for event in self._events(self._control("/events"), self._token()):
            yield event

    async def logs(self, last: int) -> AsyncGenerator[tuple[str, dict[str, Any]], None]:
        """`all` with the last lines, then `more` as they come."""
        async for event in self._events(self._control(f"/logs?last={last}"), self._token()):
            yield event

    async def requests(self) -> AsyncGenerator[tuple[str, dict[str, Any]], None]:
        """`all` that the endpoint was asked lately, then `more`: each anew at its begin, its status and its end."""
        async for event in self._events(self._control("/requests"), self._token()):
            yield event

    # The endpoint, which takes the node's token where it wants a key.

    async def endpoint_get(self, path: str, **query: str) -> Any:
        return await self._ask_endpoint("GET", path, params=query or None)

    async def endpoint_post(self, path: str, body: dict[str, Any]) -> Any:
        return await self._ask_endpoint("POST", path, json=body)

    async def endpoint_events(self, model: str) -> AsyncGenerator[tuple[str, dict[str, Any]], None]:
        """Slots, requests and chunks of the engine that has that model; NodeRefused while none has."""
        async for event in self._events(self._endpoint(f"/events?model={quote(model)}"), self._token()):
            yield event

    async def chat(self, body: dict[str, Any]) -> AsyncGenerator[dict[str, Any], None]:
        """The chunks of a streamed chat completion, each as OpenAI's API has it."""
        async with self._opened(
            "POST", self._endpoint("/v1/chat/completions"), headers=self._token(), json=body
        ) as answer:
            async for event in sse.events(_text_lines(answer)):
                if event.data == "[DONE]":
                    return
                item = json.loads(event.data)
                if isinstance(item.get("error"), dict):
                    raise _refused(answer.status_code, item)
                yield item

    async def _ask(self, method: str, path: str, **more: Any) -> Any:
        return await self._answer(method, self._control(path), headers=self._token(), **more)

    async def _ask_endpoint(self, method: str, path: str, **more: Any) -> Any:
        return await self._answer(method, self._endpoint(path), headers=self._token(), **more)

    async def _answer(self, method: str, url: str, **more: Any) -> Any:
        with _told():
            answer = await self._client().request(method, url, **more)
        if answer.is_error:
            raise _refused_by(answer)
        return answer.json()

    async def _events(
        self, url: str, headers: dict[str, str]
    ) -> AsyncGenerator[tuple[str, dict[str, Any]], None]:
        async with self._opened("GET", url, headers=headers) as answer:
            async for event in sse.events(_text_lines(answer)):
                yield event.name, json.loads(event.data)

    @contextlib.asynccontextmanager
    async def _opened(self, method: str, url: str, **more: Any) -> AsyncIterator[httpx.Response]:
        with _told():
            async with self._client().stream(method, url, **more) as answer:
                if answer.is_error:
                    await answer.aread()
                    raise _refused_by(answer)
                yield answer

    def _client(self) -> httpx.AsyncClient:
        import httpx

        if self._http is None:
            limits = httpx.Limits(max_connections=None, max_keepalive_connections=8)
            timeout = httpx.Timeout(_ANSWER_S, connect=_CONNECT_S, read=_ANSWER_S)
            # Nothing on the way to one's own computer is a proxy's business.
            self._http = httpx.AsyncClient(timeout=timeout, limits=limits, trust_env=False)
        return self._http

    def _control(self, path: str) -> str:
        return f"http://127.0.0.1:{self._known().port}{path}"

    def _endpoint(self, path: str) -> str:
        return own_url(self._known().endpoint) + path

    def _token(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self._known().token}"}

    def _known(self) -> Address:
        if self._address is None and not self.look():
            raise _gone()
        assert self._address is not None
        return self._address


def own_url(endpoint: str) -> str:
    """Where programs of this computer reach an endpoint that may listen at all its addresses; without /v1."""
    url = endpoint.removesuffix("/").removesuffix("/v1")
    return url.replace("//0.0.0.0:", "//127.0.0.1:").replace("//[::]:", "//[::1]:")


async def _text_lines(answer: httpx.Response) -> AsyncIterator[str]:
    async for line in answer.aiter_lines():
        yield line


def _gone() -> NodeGone:
    return NodeGone(
        translate(
            "Node",
            "Baton's node on this computer does not answer. It is what finds the other computer and runs the models.",
        )
    )


@contextlib.contextmanager
def _told() -> Any:
    """httpx's errors as ours."""
    import httpx

    try:
        yield
    except httpx.TimeoutException as error:
        raise NodeGone(translate("Node", "Baton's node on this computer has stopped answering.")) from error
    except (httpx.TransportError, json.JSONDecodeError) as error:
        raise _gone() from error


def _refused_by(answer: httpx.Response) -> AppError:
    try:
        refused = _refused(answer.status_code, answer.json())
    except ValueError:
        refused = _refused(answer.status_code, None)
    with contextlib.suppress(KeyError, ValueError):
        refused.retry_after_s = float(answer.headers["Retry-After"])
    return refused


def _refused(status: int, body: Any) -> NodeRefused:
    error = body.get("error") if isinstance(body, dict) else None
    if not isinstance(error, dict):
        return NodeRefused(
            translate("Node", "the node answered with status {}").format(status), status=status
        )
    message = str(error.get("message") or "")
    return NodeRefused(
        sentence(message),
        status=status,
        kind=str(error.get("type") or ""),
        code=str(error.get("code") or ""),
        fields=error,
    )
