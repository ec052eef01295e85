"""Puts the same Baton on another computer: over the system's ssh, by a line to paste there, or over a paired link.

All three carry the archive of `own_wheel.py`, whose own program does the work over there (`installer.py`). The line to
paste holds the archive's SHA-256: whatever comes over the network is run only where it is exactly what was promised.
So nothing has to be published anywhere, and no name of a package index has to be trusted.
"""

from __future__ import annotations

import contextlib
import http.server
import json
import re
import secrets
import shlex
import socket
import socketserver
import subprocess
import sys
import tempfile
import threading
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from engine.errors import HostError, PeerError, PeerUnreachable, UserError
from engine.node.setup.own_wheel import Archive

# The user and host that ssh is given: what it would take for an option, or a shell for more than a word, is none.
_TARGET = re.compile(r"[A-Za-z0-9_.%:\[\]@~+-]{1,255}")

_CONNECT_TIMEOUT_S = 15

# A connection that has died is noticed after three of these; while packages are installed nothing is said for long.
_ALIVE_EVERY_S = 15

# ssh's own status for what is not the command's, and a shell's for a command that is not there.
_SSH_FAILED = 255
_NO_PYTHON = 127

# Where the archive lies over there while it is run; the shell puts in the home folder.
_REMOTE_FOLDER = "$HOME/.cache/baton-setup"
_REMOTE_FILE = "baton-setup.pyz"

# One line of the installer's.
_MAX_LINE_BYTES = 1 << 16

# The line to paste works for so long, for so many callers at a time.
SERVE_FOR_S = 600.0
_REQUEST_TIMEOUT_S = 10.0
_MAX_CALLERS = 32
_POLL_S = 0.1


class RemoteRefused(PeerError):
    """The installer over there refused, with its sentence."""


@dataclass(frozen=True, kw_only=True)
class SetupOptions:
    """What the installer is told; `index` is one more package index."""

    index: str | None = None
    service: bool = False
    remove: bool = False

    def words(self) -> tuple[str, ...]:
        words = ("--json",)
        if self.remove:
            return (*words, "--remove")
        index = ("--index", self.index) if self.index else ()
        return (*words, *(("--service",) if self.service else ()), *index)


@dataclass(frozen=True, kw_only=True)
class Step:
    """One ssh call: what it is for, its words, and what it gets on standard input."""

    sentence: str
    words: tuple[str, ...]
    stdin: bytes = b""


def check_target(target: str) -> str:
    """USER@HOST or HOST as ssh takes it; raises UserError."""
    if not _TARGET.fullmatch(target) or target.startswith("-"):
        raise UserError(
            f"{target[:100]!r} is no computer that ssh could call: write USER@HOST, such as me@spark.local"
        )
    return target


def ssh_steps(
    target: str, archive: Archive, options: SetupOptions, *, control: Path | None = None
) -> tuple[Step, Step]:
    """Send the archive, then run it. `control` is a folder for ssh's socket: the second call needs no password then."""
    words: tuple[str, ...] = ("ssh", "-o", f"ConnectTimeout={_CONNECT_TIMEOUT_S}")
    words += ("-o", f"ServerAliveInterval={_ALIVE_EVERY_S}")
    if control is not None:
        words += ("-o", "ControlMaster=auto", "-o", f"ControlPath={control}/%C", "-o", "ControlPersist=10")
    words += ("--", check_target(target))
    send = f'umask 077; mkdir -p "{_REMOTE_FOLDER}" && cat > "{_REMOTE_FOLDER}/{_REMOTE_FILE}"'
    run = " ".join(map(shlex.quote, options.words()))
    install = f'cd "{_REMOTE_FOLDER}" && python3 {_REMOTE_FILE} {run}; status=$?; rm -f {_REMOTE_FILE}; exit $status'
    return (
        Step(
            sentence=f"send Baton {archive.version} to {target} ({len(archive.data) / 1e6:.1f} MB)",
            words=(*words, _in_sh(send)),
            stdin=archive.data,
        ),
        Step(
            sentence="undo what was installed there" if options.remove else "install and start it there",
            words=(*words, _in_sh(install)),
        ),
    )


def _in_sh(script: str) -> str:
    """For whatever shell the user has over there."""
    return f"sh -c {shlex.quote(script)}"


@contextlib.contextmanager
def control_folder() -> Iterator[Path | None]:
    """A private folder for ssh's socket, where its ssh knows of such."""
    if sys.platform == "win32":
        yield None
        return
    with tempfile.TemporaryDirectory(prefix="baton-ssh-") as folder:
        yield Path(folder)


def run_steps(steps: Sequence[Step], target: str) -> Generator[dict[str, Any], None, None]:
    """Run them one after the other, and give what the installer says, line by line; closing ends the one that runs.

    Raises HostError where there is no ssh, PeerUnreachable, or RemoteRefused with the installer's own sentence.
    """
    for step in steps:
        with contextlib.ExitStack() as cleanup:
            stdin = cleanup.enter_context(tempfile.TemporaryFile())
            stdin.write(step.stdin)
            stdin.seek(0)
            try:
                ssh = cleanup.enter_context(subprocess.Popen(step.words, stdin=stdin, stdout=subprocess.PIPE))
            except OSError as error:
                raise HostError(
                    "ssh cannot be run: install OpenSSH's client, or paste the line of --print-command there"
                ) from error
            cleanup.callback(ssh.kill)
            refused = None
            for said in _lines(ssh.stdout):
                refused = said.get("refused", refused)
                yield said
            status = ssh.wait()
            if isinstance(refused, str):
                raise RemoteRefused(f"{target}: {refused}")
            if status == _SSH_FAILED:
                raise PeerUnreachable(
                    f"ssh could not reach {target}, or broke off: try `ssh {target}` by itself, and once that works "
                    "run the same again"
                )
            if status == _NO_PYTHON:
                raise RemoteRefused(
                    f"{target}: there is no python3; install Python 3.11 or newer, then run the same again"
                )
            if status != 0:
                raise RemoteRefused(f"{target}: the installer ended with status {status}; run the same again")


def _lines(stream: IO[bytes] | None) -> Iterator[dict[str, Any]]:
    """Lines of JSON; anything else, a greeting of the shell's for example, is left out."""
    while stream is not None and (line := stream.readline(_MAX_LINE_BYTES)):
        with contextlib.suppress(ValueError, RecursionError):
            said = json.loads(line)
            if isinstance(said, dict):
                yield said


# What is run over there. In double quotes for every shell, and so without any inside.
_FETCH = (
    "import hashlib,os,runpy,sys,tempfile,urllib.request as u;"
    "d=u.urlopen('{url}',timeout=30).read({n_bytes});"
    "hashlib.sha256(d).hexdigest()=='{sha256}' or sys.exit('This is not what was promised: copy the line again');"
    "t=tempfile.TemporaryDirectory();"
    "f=os.path.join(t.name,'baton-setup.pyz');"
    "open(f,'wb').write(d);"
    "sys.argv=[f];"
    "runpy.run_path(f,run_name='__main__')"
)


class Offer:
    """Gives the archive out once, at one address of this computer, to whoever has the line. Close it."""

    def __init__(self, archive: Archive, host: str) -> None:
        """Raises UserError where `host` is no address of this computer."""
        self._archive = archive
        path = f"/{secrets.token_urlsafe(12)}"
        try:
            self._server = _OneFile((host, 0), path, archive.data)
        except OSError as error:
            raise UserError(
                f"--address {host}: this computer cannot be called there ({error.strerror or error})"
            ) from error
        port = self._server.server_address[1]
        self._url = f"http://{f'[{host}]' if ':' in host else host}:{port}{path}"

    def line(self, python: str = "python3") -> str:
        """For any shell of macOS, Linux or Windows."""
        archive = self._archive
        fetch = _FETCH.format(url=self._url, n_bytes=len(archive.data), sha256=archive.sha256)
        return f'{python} -c "{fetch}"'

    def wait(self, *, for_s: float = SERVE_FOR_S) -> str | None:
        """The address that it was given to, or None where nobody came in time."""
        serving = threading.Thread(target=self._server.serve_forever, args=(_POLL_S,), daemon=True)
        serving.start()
        try:
            self._server.is_taken.wait(for_s)
        finally:
            self._server.shutdown()
            serving.join()
        return self._server.taken_by

    def close(self) -> None:
        self._server.server_close()


class _OneFile(http.server.ThreadingHTTPServer):
    """Knows one path; `taken_by` is who has it whole. Strangers who call and say nothing keep nobody waiting."""

    def __init__(self, place: tuple[str, int], path: str, data: bytes) -> None:
        self.address_family = socket.AF_INET6 if ":" in place[0] else socket.AF_INET
        self.path = path
        self.data = data
        self.taken_by: str | None = None
        self.is_taken = threading.Event()
        self._seats = threading.BoundedSemaphore(_MAX_CALLERS)
        super().__init__(place, _Handler)

    def server_bind(self) -> None:
        # HTTPServer's own looks its name up, which takes long on a cable that leads to no name server.
        socketserver.TCPServer.server_bind(self)

    def verify_request(self, request: object, client_address: object) -> bool:
        return self._seats.acquire(blocking=False)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._seats.release()

    def handle_error(self, request: object, client_address: object) -> None:
        pass  # a caller that hangs up, or says nothing: the next one may be the right one


class _Handler(http.server.BaseHTTPRequestHandler):
    timeout = _REQUEST_TIMEOUT_S
    server: _OneFile

    def do_GET(self) -> None:
        if not secrets.compare_digest(self.path.encode(), self.server.path.encode()):
            self.send_error(404)
            return
        self.send_response(200)
        self.send_header("Content-Length", str(len(self.server.data)))
        self.end_headers()
        self.wfile.write(self.server.data)
        self.server.taken_by = str(self.client_address[0])
        self.server.is_taken.set()

    def log_message(self, format: str, *args: object) -> None:
        pass
