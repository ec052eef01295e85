"""Fetching from the hub, against a small hub on this computer."""

from __future__ import annotations

import hashlib
import re
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
import pytest

from engine.errors import DownloadFailed, DownloadRefused
from engine.node.models.catalogue import HubSource
from engine.node.models.hub import MAX_FRUITLESS_TRIES, HubFile
from engine.node.models.hub_search import reason
from tests.engine.node.models.silent import Silent

CONTENT = bytes(range(251)) * 4000
DIGEST = hashlib.sha256(CONTENT).hexdigest()
PATH = "/someone/tiny/resolve/main/tiny.gguf"


class FakeHub(ThreadingHTTPServer):
    """Serves CONTENT at PATH. `cut_after` ends an answer early; `with_ranges` False ignores ranges.

    A `status` is all that it says, where there is one.
    """

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.etag = DIGEST
        self.cut_after: int | None = None
        self.with_ranges = True
        self.surplus = b""
        self.status = 0
        self.ranges: list[str | None] = []


class _Handler(BaseHTTPRequestHandler):
    server: FakeHub

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def do_GET(self) -> None:
        self.server.ranges.append(self.headers.get("range"))
        self._answer(with_body=True)

    def _answer(self, *, with_body: bool) -> None:
        if self.path != PATH or self.server.status:
            self.send_error(self.server.status or 404)
            return
        wanted = re.fullmatch(r"bytes=(\d+)-", self.headers.get("range") or "")
        start = int(wanted[1]) if wanted and self.server.with_ranges else 0
        self.send_response(206 if start else 200)
        self.send_header("ETag", f'"{self.server.etag}"')
        self.send_header("X-Repo-Commit", "0" * 40)
        if with_body and self.server.surplus:
            self.close_connection = True  # which ends the answer
        else:
            self.send_header("Content-Length", str(len(CONTENT) - start))
        self.end_headers()
        if with_body:
            stop = len(CONTENT) if self.server.cut_after is None else start + self.server.cut_after
            self.wfile.write(CONTENT[start:stop] + self.server.surplus)
        self.close_connection = True

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    with FakeHub() as server:
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join(10)


def source(**changes: object) -> HubSource:
    fields = {
        "repository": "someone/tiny",
        "revision": "main",
        "file": "tiny.gguf",
        "sha256": DIGEST,
        "checked": False,
    }
    return HubSource(**{**fields, **changes})  # type: ignore[arg-type]


def test_the_whole_file_comes(hub: FakeHub, tmp_path: Path) -> None:
    file = HubFile(source())
    assert (file.size_bytes, file.sha256) == (len(CONTENT), DIGEST)
    file.fetch(tmp_path / "partial", Silent())
    assert (tmp_path / "partial").read_bytes() == CONTENT
    assert hub.ranges == [None]


def test_an_unfinished_file_is_gone_on_with(hub: FakeHub, tmp_path: Path) -> None:
    (tmp_path / "partial").write_bytes(CONTENT[:777])
    HubFile(source()).fetch(tmp_path / "partial", Silent())
    assert (tmp_path / "partial").read_bytes() == CONTENT
    assert hub.ranges == ["bytes=777-"]


def test_a_server_without_ranges_sends_it_all_again(hub: FakeHub, tmp_path: Path) -> None:
    hub.with_ranges = False
    (tmp_path / "partial").write_bytes(CONTENT[:777])
    HubFile(source()).fetch(tmp_path / "partial", Silent())
    assert (tmp_path / "partial").read_bytes() == CONTENT


def test_a_connection_that_breaks_is_made_again(hub: FakeHub, tmp_path: Path) -> None:
    hub.cut_after = 300_000
    HubFile(source()).fetch(tmp_path / "partial", Silent())
    assert (tmp_path / "partial").read_bytes() == CONTENT
    assert len(hub.ranges) == 4


def test_a_hub_that_gives_nothing_is_given_up(hub: FakeHub, tmp_path: Path) -> None:
    hub.cut_after = 0
    with pytest.raises(DownloadFailed, match=r"does not give someone/tiny/tiny\.gguf"):
        HubFile(source()).fetch(tmp_path / "partial", Silent())
    assert len(hub.ranges) == MAX_FRUITLESS_TRIES


def test_a_hub_that_sends_without_end_fills_no_disk(hub: FakeHub, tmp_path: Path) -> None:
    hub.surplus = bytes(100_000)
    file = HubFile(source())
    with pytest.raises(DownloadFailed, match="more of someone/tiny"):
        file.fetch(tmp_path / "partial", Silent())
    assert (tmp_path / "partial").stat().st_size <= len(CONTENT)


def test_without_a_digest_of_ours_the_hubs_own_holds(hub: FakeHub) -> None:
    assert HubFile(source(sha256=None)).sha256 == DIGEST


def test_without_any_digest_nothing_is_fetched(hub: FakeHub) -> None:
    hub.etag = "0123456789abcdef"
    with pytest.raises(DownloadFailed, match="no digest"):
        HubFile(source(sha256=None))
    assert HubFile(source()).sha256 == DIGEST


def test_a_file_that_is_not_there_is_named(hub: FakeHub) -> None:
    with pytest.raises(DownloadFailed, match=r"someone/tiny/other\.gguf"):
        HubFile(source(file="other.gguf"))


@pytest.mark.parametrize(
    ("status", "words"),
    [(404, "tiny.gguf is not on the hub"), (429, "wait a minute"), (503, "a problem of its own")],
)
def test_what_the_hub_answers_is_said_in_words(hub: FakeHub, tmp_path: Path, status: int, words: str) -> None:
    file = HubFile(source())
    hub.status = status
    with pytest.raises(DownloadRefused, match=words) as refused:
        HubFile(source())
    assert "http" not in str(refused.value)
    with pytest.raises(DownloadRefused, match=words):
        file.fetch(tmp_path / "partial", Silent())
    # what may pass is tried again
    assert len(hub.ranges) == (1 if status == 404 else MAX_FRUITLESS_TRIES)


def test_no_hub_at_all_is_a_failed_download(monkeypatch: pytest.MonkeyPatch) -> None:
    with FakeHub() as closed:
        port = closed.server_port
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{port}")
    with pytest.raises(DownloadFailed, match="cannot be asked"):
        HubFile(source())


@pytest.mark.parametrize(
    ("cause", "words"),
    [
        (socket.gaierror(-3, "Temporary failure in name resolution"), "its name is not found"),
        (ConnectionRefusedError(111, "Connection refused"), "Connection refused"),
        (TimeoutError(), "did not answer in time"),
        (ValueError("no such thing\nand more"), "no such thing"),
    ],
)
def test_why_the_hub_is_not_reached_has_no_numbers_of_the_systems(cause: Exception, words: str) -> None:
    wrapped = httpx.ConnectError(str(cause))
    wrapped.__cause__ = cause
    assert words in reason(wrapped) and "Errno" not in reason(wrapped)
