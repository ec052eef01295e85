"""A client of Baton's own OpenAI endpoint, as the command line needs it. Knows HTTP and nothing of the engine.

It imports nothing heavy, so that commands which only ask something answer at once.
"""

from __future__ import annotations

import contextlib
import functools
import http.client
import json
import os
import socket
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlsplit

from engine.config import HOST, PORT, is_loopback
from engine.errors import HostError, InvalidRequest, UserError
from engine.node.presence import find_node

# Between two parts of an answer; the endpoint says something every second, even while a prompt is prefilled.
READ_TIMEOUT_S = 60.0

# Far more than any answer or line of ours has; others may send without end.
_MAX_ANSWER_BYTES = 64 << 20


# What the answer at a path has to be, where a caller relies on it.
_FORMS: dict[str, Callable[[Any], bool]] = {
    "/health": lambda found: isinstance(found, dict) and isinstance(found.get("status"), str),
    "/v1/models": lambda found: isinstance(found, dict) and _are_objects(found.get("data"), "id"),
    "/slots": lambda found: _are_objects(found, "id", "state", "n_ctx", "n_cached_tokens"),
    "/worker": lambda found: _is_worker(found),
}


class NoEndpoint(UserError):
    """Nothing answers on that port."""


class NoAnswer(HostError):
    """Something takes the connection, and says nothing."""


class ModelLoading(HostError):
    """The model that was asked for is being loaded; `progress` is the share that is done."""

    def __init__(self, message: str, progress: float) -> None:
        super().__init__(message)
        self.progress = progress


class Endpoint:
    """The endpoint at host and port; UserError for port 0.

    `key` is sent, or `$BATON_API_KEY` where that is set, or the token of this user's node where that one answers there.
    """

    def __init__(self, host: str, port: int, key: str | None = None) -> None:
        if port == 0:
            raise UserError(
                "--port 0 stands for a free one when serving; to ask, name the port that `baton serve` prints, "
                "for example --port 7117"
            )
        self.host = host
        self.port = port
        self._key = key

    @classmethod
    def named(cls, host: str, port: int) -> Endpoint:
        """The one at `host` and `port`; where no other than the usual ones are named, that of the node that runs."""
        if (host, port) == (HOST.default, PORT.default):
            with contextlib.suppress(UserError):
                place = urlsplit(find_node().endpoint)
                host, port = place.hostname or host, place.port or port
        return cls(host, port)

    @property
    def key(self) -> str | None:
        return self._key or os.environ.get("BATON_API_KEY") or self._token

    @functools.cached_property
    def _token(self) -> str | None:
        if not is_loopback(self.host):
            return None
        try:
            node = find_node()
        except UserError:
            return None
        return node.token if urlsplit(node.endpoint).port == self.port else None

    @property
    def url(self) -> str:
        return f"http://[{self.host}]:{self.port}" if ":" in self.host else f"http://{self.host}:{self.port}"

    def get(self, path: str, *, timeout_s: float = READ_TIMEOUT_S) -> Any:
        """The JSON found at `path`. Raises NoEndpoint, or an error with the endpoint's own sentence."""
        with _Exchange(self, "GET", path, None, timeout_s) as response:
            found = _decode(_rest(response))
        if found is None or not _FORMS.get(path, lambda _: True)(found):
            raise self.stranger()
        return found

    def ask(
        self,
        path: str,
        body: dict[str, Any] | None,
        *,
        method: str = "POST",
        timeout_s: float = READ_TIMEOUT_S,
    ) -> dict[str, Any]:
        """Post `body`; the whole answer. Raises as `get` does."""
        with _Exchange(self, method, path, body, timeout_s) as response:
            found = _decode(_rest(response))
        if not isinstance(found, dict):
            raise self.stranger()
        return found

    def stream(self, path: str, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """Post `body` with `stream` set; the answer's chunks as they come. Raises as `get` does."""
        has_begun = False
        with _Exchange(self, "POST", path, {**body, "stream": True}, READ_TIMEOUT_S) as response:
            for line in _lines(response):
                has_begun = has_begun or line.startswith((b"data:", b":"))
                if not line.startswith(b"data:"):
                    continue
                data = line.removeprefix(b"data:").strip()
                if data == b"[DONE]":
                    return
                chunk = _decode(data)
                if not isinstance(chunk, dict):
                    raise self.stranger()
                if "error" in chunk:
                    raise _refusal(self, 500, chunk)
                yield chunk
        if not has_begun:
            raise self.stranger()
        raise HostError(f"the answer of {self.url} broke off: look at its log")

    def watch(self, path: str, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """Post `body`; the answer's lines as they come, an object each. Raises as `get` does, and for an error."""
        with _Exchange(self, "POST", path, body, READ_TIMEOUT_S) as response:
            for line in _lines(response):
                if not line:
                    continue
                news = _decode(line)
                if not isinstance(news, dict):
                    raise self.stranger()
                if "error" in news:
                    raise _refusal(self, 500, news)
                yield news

    def stranger(self, detail: str = "") -> HostError:
        """What to raise when something else answers there."""
        found = f" ({detail})" if detail else ""
        return HostError(
            f"what answers at {self.url} is not Baton{found}: name the --port that `baton serve` prints"
        )


class _Exchange:
    """One request on a connection of its own, closed at the end."""

    def __init__(
        self, endpoint: Endpoint, method: str, path: str, body: dict[str, Any] | None, timeout_s: float
    ) -> None:
        self._endpoint = endpoint
        self._connection = http.client.HTTPConnection(endpoint.host, endpoint.port, timeout=timeout_s)
        self._ask = (method, path, None if body is None else json.dumps(body).encode())

    def __enter__(self) -> http.client.HTTPResponse:
        try:
            return self._open()
        except BaseException:
            self._connection.close()
            raise

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._connection.close()

    def _open(self) -> http.client.HTTPResponse:
        endpoint = self._endpoint
        method, path, body = self._ask
        headers = {"Content-Type": "application/json"} if body is not None else {}
        if key := endpoint.key:
            if not (key.isascii() and key.isprintable()):
                raise UserError("BATON_API_KEY holds characters that cannot be sent: take letters and digits")
            headers["Authorization"] = f"Bearer {key}"
        try:
            self._connection.request(method, path, body, headers)
            response = self._connection.getresponse()
        except (socket.gaierror, UnicodeError) as error:
            raise UserError(
                f"--host {endpoint.host}: there is no computer of that name; check how it is written, or take its "
                "address, for example --host 127.0.0.1"
            ) from error
        except ConnectionError as error:
            raise NoEndpoint(
                f"no Baton answers at {endpoint.url}: start one with `baton node`, or name another --port"
            ) from error
        except TimeoutError as error:
            raise NoAnswer(
                f"nothing comes from {endpoint.url} in time: it is busy or hangs, or is not Baton's"
            ) from error
        except http.client.HTTPException as error:
            raise endpoint.stranger("it does not speak HTTP") from error
        except OSError as error:
            raise HostError(f"{endpoint.url} cannot be reached ({error.strerror or error})") from error
        if response.status >= 400:
            raise _refusal(endpoint, response.status, _decode(_rest(response)))
        return response


def _rest(response: http.client.HTTPResponse) -> bytes:
    try:
        content = response.read(_MAX_ANSWER_BYTES)
    except (OSError, http.client.HTTPException) as error:
        raise HostError(f"the answer broke off ({error}): look at Baton's log") from error
    return content


def _lines(response: http.client.HTTPResponse) -> Iterator[bytes]:
    try:
        while line := response.readline(_MAX_ANSWER_BYTES):
            yield line.rstrip(b"\r\n")
    except (OSError, http.client.HTTPException) as error:
        raise HostError(f"the answer broke off ({error}): look at Baton's log") from error


def _decode(content: bytes) -> Any:
    """The JSON of it, or None where it is none."""
    try:
        return json.loads(content)
    except (ValueError, RecursionError):
        return None


def _are_objects(found: Any, *keys: str) -> bool:
    return isinstance(found, list) and all(
        isinstance(item, dict) and all(key in item for key in keys) for item in found
    )


def _is_worker(found: Any) -> bool:
    if not isinstance(found, dict) or "configured" not in found:
        return False
    return not found["configured"] or ("peer" if found.get("connected") else "note") in found


def _refusal(endpoint: Endpoint, status: int, body: Any) -> UserError | HostError:
    error = body.get("error") if isinstance(body, dict) else None
    message = error.get("message") if isinstance(error, dict) else None
    if not isinstance(message, str):
        return endpoint.stranger(f"its answer has the status {status}")
    if status == 401:
        return UserError(
            f"{endpoint.url} wants its API key: set BATON_API_KEY to it, and run the same command again"
        )
    if isinstance(error, dict) and error.get("code") == "model_loading":
        progress = error.get("progress")
        return ModelLoading(message, progress if isinstance(progress, float) else 0.0)
    return InvalidRequest(message) if status < 500 else HostError(message)
