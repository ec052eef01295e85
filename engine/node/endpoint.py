"""A client of Baton's own OpenAI endpoint, as the command line needs it. Knows HTTP and nothing of the engine.

Made of the standard library alone, so that commands which only ask something answer at once.
"""

from __future__ import annotations

import http.client
import json
import os
import socket
from collections.abc import Iterator
from typing import Any

from engine.errors import HostError, InvalidRequest, UserError

# Between two parts of an answer; the endpoint says something every second, even while a prompt is prefilled.
READ_TIMEOUT_S = 60.0


class NoEndpoint(UserError):
    """Nothing answers on that port."""


class Endpoint:
    """The endpoint at host and port; `$BATON_API_KEY` is sent where it is set."""

    def __init__(self, host: str, port: int) -> None:
        self.host = host
        self.port = port

    @property
    def url(self) -> str:
        return f"http://[{self.host}]:{self.port}" if ":" in self.host else f"http://{self.host}:{self.port}"

    def get(self, path: str, *, timeout_s: float = READ_TIMEOUT_S) -> Any:
        """The JSON found at `path`. Raises NoEndpoint, or an error with the endpoint's own sentence."""
        with _Exchange(self, "GET", path, None, timeout_s) as response:
            return _decode(response.read())

    def stream(self, path: str, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """Post `body` with `stream` set; the answer's chunks as they come. Raises as `get` does."""
        with _Exchange(self, "POST", path, {**body, "stream": True}, READ_TIMEOUT_S) as response:
            for line in _lines(response):
                if not line.startswith(b"data:"):
                    continue
                data = line.removeprefix(b"data:").strip()
                if data == b"[DONE]":
                    return
                chunk = _decode(data)
                if "error" in chunk:
                    raise _refusal(500, chunk)
                yield chunk
        raise HostError(f"the answer of {self.url} broke off: look at its log")


class _Exchange:
    """One request on a connection of its own, closed at the end."""

    def __init__(
        self, endpoint: Endpoint, method: str, path: str, body: dict[str, Any] | None, timeout_s: float
    ) -> None:
        self._endpoint = endpoint
        self._connection = http.client.HTTPConnection(endpoint.host, endpoint.port, timeout=timeout_s)
        self._ask = (method, path, None if body is None else json.dumps(body).encode())

    def __enter__(self) -> http.client.HTTPResponse:
        method, path, body = self._ask
        headers = {"Content-Type": "application/json"} if body is not None else {}
        if key := os.environ.get("BATON_API_KEY"):
            headers["Authorization"] = f"Bearer {key}"
        try:
            self._connection.request(method, path, body, headers)
            response = self._connection.getresponse()
        except (ConnectionError, socket.gaierror) as error:
            self._connection.close()
            raise NoEndpoint(
                f"no Baton answers at {self._endpoint.url}: start one with `baton serve`, or name another --port"
            ) from error
        except (OSError, http.client.HTTPException) as error:
            self._connection.close()
            raise HostError(f"{self._endpoint.url} does not answer as Baton does ({error})") from error
        if response.status >= 400:
            content = response.read()
            self._connection.close()
            raise _refusal(response.status, _decode(content))
        return response

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._connection.close()


def _lines(response: http.client.HTTPResponse) -> Iterator[bytes]:
    try:
        while line := response.readline():
            yield line.rstrip(b"\r\n")
    except (OSError, http.client.HTTPException) as error:
        raise HostError(f"the answer broke off ({error}): look at Baton's log") from error


def _decode(content: bytes) -> Any:
    try:
        return json.loads(content)
    except ValueError:
        return {}


def _refusal(status: int, body: Any) -> UserError | HostError:
    error = body.get("error") if isinstance(body, dict) else None
    message = error.get("message") if isinstance(error, dict) else None
    sentence = str(message or f"the endpoint answered with status {status}")
    return InvalidRequest(sentence) if status < 500 else HostError(sentence)
