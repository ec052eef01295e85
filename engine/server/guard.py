"""Who may talk to the endpoint: Host and Origin checks, the API key, and cross-origin headers for loopback pages.

A page of any website can make the browser send requests to this computer; what gives it away is the Origin, or, after
DNS rebinding, the Host. Loopback is a network too.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from engine.server.errors import Refused, error_response
from engine.server.settings import ServerSettings

_LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})
OPEN_PATHS = frozenset({"/health", "/v1/health"})


class Guard:
    """ASGI middleware in front of everything; `open_paths` need no key.

    `keys` are those that are taken at each request, in place of that of `settings`; with none of them no key is needed.
    """

    def __init__(
        self,
        app: ASGIApp,
        settings: ServerSettings,
        open_paths: frozenset[str] = OPEN_PATHS,
        keys: Callable[[], Collection[str]] | None = None,
    ) -> None:
        self._app = app
        self._open_paths = open_paths
        own_keys = () if settings.api_key is None else (settings.api_key,)
        self._keys = keys or (lambda: own_keys)
        self._settings = settings
        self._hosts = _LOOPBACK_NAMES | {name.lower() for name in settings.allowed_hosts}
        self._origins = {origin.lower().rstrip("/") for origin in settings.allowed_origins}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        origin = headers.get("origin")
        try:
            self._check_host(headers.get("host"))
            self._check_origin(origin)
            if scope["method"] == "OPTIONS" and origin is not None:
                await _preflight(origin, headers)(scope, receive, send)
                return
            self._check_key(scope["path"], headers)
        except Refused as error:
            await error_response(error)(
                scope, receive, send if origin is None else self._with_cors(send, origin)
            )
            return
        await self._app(scope, receive, send if origin is None else self._with_cors(send, origin))

    def _check_host(self, host: str | None) -> None:
        if self._settings.check_host and host is not None and _host_name(host) not in self._hosts:
            raise Refused(
                f"the name {host!r} is not one of this endpoint's: use 127.0.0.1 or localhost",
                status=403,
                kind="permission_error",
            )

    def _check_origin(self, origin: str | None) -> None:
        if origin is not None and not self._is_allowed(origin):
            raise Refused(f"pages of {origin} may not use this endpoint", status=403, kind="permission_error")

    def _is_allowed(self, origin: str) -> bool:
        if origin.lower() in self._origins:
            return True
        try:
            parts = urlsplit(origin)
            return parts.scheme in ("http", "https") and parts.hostname in _LOOPBACK_NAMES
        except ValueError:
            return False

    def _check_key(self, path: str, headers: Headers) -> None:
        keys = self._keys()
        if not keys or path in self._open_paths:
            return
        given = headers.get("authorization", "").removeprefix("Bearer ").strip()
        given = given or headers.get("x-api-key", "")
        if not any([secrets.compare_digest(given.encode(), key.encode()) for key in keys]):
            raise Refused(
                "the API key is missing or wrong: send it as 'Authorization: Bearer KEY'",
                status=401,
                kind="authentication_error",
            )

    def _with_cors(self, send: Send, origin: str) -> Send:
        """Tell the browser that the page may read the answer; a refused origin is not told so."""
        if not self._is_allowed(origin):
            return send

        async def send_with_cors(message: Message) -> None:
            if message["type"] == "http.response.start":
                _allow(MutableHeaders(scope=message), origin)
            await send(message)

        return send_with_cors


def _preflight(origin: str, headers: Headers) -> Response:
    response = Response(status_code=204)
    _allow(response.headers, origin)
    response.headers["access-control-allow-methods"] = "GET, POST"
    response.headers["access-control-allow-headers"] = headers.get("access-control-request-headers", "*")
    response.headers["access-control-max-age"] = "600"
    return response


def _allow(headers: MutableHeaders, origin: str) -> None:
    headers["access-control-allow-origin"] = origin
    headers.add_vary_header("Origin")


def _host_name(host: str) -> str:
    """The name in a Host header, without port and brackets."""
    if host.startswith("["):
        return host[1:].partition("]")[0].lower()
    return host.rpartition(":")[0].lower() if host.count(":") == 1 else host.lower()
