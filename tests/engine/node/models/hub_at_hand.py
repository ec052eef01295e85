"""A small hub on this computer: it is searched, lists repositories, and gives their files, as slowly as is wished."""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

# So much of a file comes before it stops where it is to.
BLOCK_BYTES = 1 << 16


@dataclass(kw_only=True)
class Repository:
    """`gated`: its files are not given. `unpublished` are files of which it says no digest."""

    files: dict[str, bytes]
    architecture: str = "llama"
    downloads: int = 1000
    likes: int = 10
    gated: bool = False
    unpublished: set[str] = field(default_factory=set)


class HubAtHand(ThreadingHTTPServer):
    """`stop_at`: files come so far and no further, until `go_on` is set. `said` are the paths that were asked."""

    daemon_threads = True

    def __init__(self, repositories: dict[str, Repository]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.repositories = repositories
        self.stop_at: int | None = None
        self.go_on = threading.Event()
        self.said: list[str] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


@contextlib.contextmanager
def hub_at_hand(repositories: dict[str, Repository]) -> Iterator[HubAtHand]:
    with HubAtHand(repositories) as hub:
        thread = threading.Thread(target=hub.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield hub
        finally:
            hub.go_on.set()
            hub.shutdown()
            thread.join(10)


class _Handler(BaseHTTPRequestHandler):
    server: HubAtHand

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def _answer(self, *, with_body: bool) -> None:
        address = urlsplit(self.path)
        path = unquote(address.path)
        self.server.said.append(path)
        if path == "/api/models":
            words = parse_qs(address.query).get("search", [""])[0].lower()
            found = sorted(
                self.server.repositories, key=lambda name: -self.server.repositories[name].downloads
            )
            self._say(
                [self._about(name) for name in found if all(word in name.lower() for word in words.split())]
            )
        elif match := re.fullmatch(r"/api/models/([^/]+/[^/]+)(/tree/main)?", path):
            if match[1] not in self.server.repositories:
                self.send_error(401)
            elif match[2]:
                self._say(self._tree(self.server.repositories[match[1]]))
            else:
                architecture = self.server.repositories[match[1]].architecture
                header = {"architecture": architecture, "context_length": 8192, "total": 1024}
                self._say(self._about(match[1]) | {"gguf": header})
        elif match := re.fullmatch(r"/([^/]+/[^/]+)/resolve/main/(.+)", path):
            self._give(match[1], match[2], with_body=with_body)
        else:
            self.send_error(404)

    def _about(self, name: str) -> dict[str, Any]:
        repository = self.server.repositories[name]
        return {
            "id": name,
            "downloads": repository.downloads,
            "likes": repository.likes,
            "lastModified": "2026-10-02T08:00:00.000Z",
            "gated": "manual" if repository.gated else False,
            "private": False,
        }

    def _tree(self, repository: Repository) -> list[dict[str, Any]]:
        files: list[dict[str, Any]] = [{"type": "directory", "path": "more", "size": 0}]
        for path, content in repository.files.items():
            file = {"type": "file", "path": path, "size": len(content)}
            if path not in repository.unpublished:
                file["lfs"] = {"oid": hashlib.sha256(content).hexdigest(), "size": len(content)}
            files.append(file)
        return files

    def _give(self, name: str, file: str, *, with_body: bool) -> None:
        repository = self.server.repositories.get(name)
        if repository is None or repository.gated:
            self.send_response(401)
            if repository is not None:
                self.send_header("X-Error-Code", "GatedRepo")
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        content = repository.files.get(file)
        if content is None:
            self.send_error(404)
            return
        wanted = re.fullmatch(r"bytes=(\d+)-", self.headers.get("range") or "")
        start = int(wanted[1]) if wanted else 0
        self.send_response(206 if start else 200)
        self.send_header("ETag", f'"{hashlib.sha256(content).hexdigest()}"')
        self.send_header("X-Repo-Commit", "0" * 40)
        self.send_header("Content-Length", str(len(content) - start))
        self.end_headers()
        if with_body:
            with contextlib.suppress(OSError):
                self._send(content, start)
        self.close_connection = True

    def _send(self, content: bytes, at: int) -> None:
        while at < len(content):
            if self.server.stop_at is not None and at >= self.server.stop_at:
                self.server.go_on.wait()
            stop = at + BLOCK_BYTES
            if self.server.stop_at is not None and at < self.server.stop_at:
                stop = min(stop, self.server.stop_at)
            self.wfile.write(content[at:stop])
            self.wfile.flush()
            at = stop

    def _say(self, body: Any) -> None:
        content = json.dumps(body).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        pass
