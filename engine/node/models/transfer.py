"""Copies the files of one model from a paired computer to this one, or the other way: the process of either end.

Over one TLS connection the receiver says of each file how much of it it holds, with the digest of that; the sender
answers from where on it sends, and sends. An unfinished file keeps its bytes, under a name that holds the digest it is
to have, and all files get their names only when the digests of all are right. Who copies what, and when, is not known
here; nor how long to wait for a silent peer: whoever started the process ends it.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import hashlib
import json
import mmap
import os
import queue
import shutil
import socket
import ssl
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

import filelock
import msgspec
from msgspec import Meta

from engine.errors import (
    BatonError,
    DiskFull,
    DownloadFailed,
    HostError,
    ModelFileError,
    PeerLost,
    PeerUnreachable,
    ProtocolError,
)
from engine.gguf.digest import keep_digest, known_digest
from engine.handoff.transport import Address, connect, listen, start, tune
from engine.node.models.bulk_tls import BulkTLS
from engine.node.models.catalogue import load_catalogue
from engine.node.models.library import keep_note, origin_path, partial_path
from engine.node.trust.identity import MUTUAL_NAME, Identity, check_peer, mutual_context

# What the two ends agree on in the handshake.
COPY_PROTOCOL = "baton-copy/1"

# Far beyond any model there is; the disk's own limit comes first.
MAX_FILE_BYTES = 1 << 46

# Received bytes go from the connection to the disk and the digest in pieces of this size, so many of them in memory.
_PIECE_BYTES = 2 << 20
_N_PIECES = 8

# What a copy leaves of a disk: a full one stops more than Baton, and it is another computer that offers models.
_KEPT_FREE_BYTES = 256 << 20

# Writing past the system's cache is by whole blocks of the disk, which are no larger than this.
_BLOCK_BYTES = 1 << 16
_O_DIRECT: int = getattr(os, "O_DIRECT", 0)

_Pieces = queue.SimpleQueue[tuple[memoryview, int] | None]

_PROGRESS_EVERY_S = 0.2

# How long the port stays open for the peer's call, and how many callers may be at their handshake at the same time.
_CALL_TIMEOUT_S = 20.0
_MAX_CALLERS = 8
_ACCEPT_POLL_S = 0.5

# For each file: how much of it the receiver holds, and the SHA-256 of that.
_HELD = struct.Struct("!Q32s")
# From which position on the sender sends it.
_FROM = struct.Struct("!Q")
# The receiver's last word.
_VERIFIED = b"\x01"

_SHA256_HEX = r"^[0-9a-f]{64}\Z"


class FileEntry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One file of a model: its name, without a folder, its size and its digest."""

    name: Annotated[str, Meta(min_length=1, max_length=200)]
    size_bytes: Annotated[int, Meta(ge=1, le=MAX_FILE_BYTES)]
    sha256: Annotated[str, Meta(pattern=_SHA256_HEX)]


class TransferJob(msgspec.Struct, frozen=True, kw_only=True):
    """What one end is to do. Exactly one of `listen` and `dial` is given, each HOST:PORT.

    The sender reads `paths`, one for each of `files`; the receiver, which has none, writes into `folder`.
    """

    identity_dir: str
    peer_der: bytes
    files: tuple[FileEntry, ...]
    folder: str = ""
    digests_dir: str = ""
    paths: tuple[str, ...] = ()
    listen: str | None = None
    dial: str | None = None

    @property
    def n_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files)


class Reporter:
    """Tells whoever started this process how far it is, by lines of JSON."""

    def __init__(self, say: Callable[[dict[str, Any]], None]) -> None:
        self.say = say
        self._next_s = 0.0

    def done(self, n_bytes: int) -> None:
        """So many bytes are there; said a few times a second only."""
        now_s = time.monotonic()
        if now_s >= self._next_s:
            self._next_s = now_s + _PROGRESS_EVERY_S
            self.say({"done_bytes": n_bytes})


def run_job(job: TransferJob, say: Callable[[dict[str, Any]], None]) -> None:
    """Do all of it. `say` hears the port that is listened on, how far the copy is, and at last that it is done.

    Raises a BatonError that says why not.
    """
    reporter = Reporter(say)
    if job.paths:
        with _connected(job, reporter) as connection:
            send_files(connection, [Path(path) for path in job.paths], job.files, reporter)
        return
    with Receiver(Path(job.folder), Path(job.digests_dir), job.files, reporter) as receiver:
        if not receiver.is_complete:
            with _connected(job, reporter) as connection:
                begun_s = time.monotonic()
                receiver.receive(connection)
                say({"received_bytes": receiver.n_received, "took_s": time.monotonic() - begun_s})
                receiver.finish()
                _tell_verified(connection)
        else:
            receiver.finish()


def _tell_verified(connection: BulkTLS) -> None:
    # the files are there; a sender that has gone meanwhile changes nothing about that
    with contextlib.suppress(PeerLost):
        connection.send(memoryview(_VERIFIED))


# the sender


def send_files(
    connection: BulkTLS, paths: list[Path], files: tuple[FileEntry, ...], reporter: Reporter
) -> None:
    """Send what the receiver lacks of each file, and wait until it has verified all.

    Raises ModelFileError or PeerLost.
    """
    held = [_HELD.unpack(_receive(connection, _HELD.size)) for _ in files]
    sent = 0
    buffer = memoryview(mmap.mmap(-1, _PIECE_BYTES))
    for path, entry, (n_held, digest) in zip(paths, files, held, strict=True):
        with _open_to_send(path, entry) as file:
            at = _first_wanted(file, entry, n_held, digest)
            connection.send(memoryview(_FROM.pack(at)))
            file.seek(at)
            sent += at
            while at < entry.size_bytes:
                n_read = _read_piece(file, path, buffer[: entry.size_bytes - at])
                connection.send(buffer[:n_read])
                at += n_read
                sent += n_read
                reporter.done(sent)
    if _receive(connection, 1) != _VERIFIED:
        raise ProtocolError("the other computer ended the copy with a word that is not known")


@contextlib.contextmanager
def _open_to_send(path: Path, entry: FileEntry) -> Iterator[Any]:
    try:
        file = path.open("rb", buffering=0)
    except OSError as error:
        raise _unreadable(path, error) from error
    with file:
        if os.fstat(file.fileno()).st_size != entry.size_bytes:
            raise ModelFileError(f"{path}: the file has changed since it was offered; send it again")
        yield file


def _first_wanted(file: Any, entry: FileEntry, n_held: int, digest: bytes) -> int:
    """From where on to send: what the receiver holds is left out only where it is the beginning of this file."""
    if n_held > entry.size_bytes:
        raise ProtocolError(f"the other computer holds more of {entry.name} than there is")
    if not n_held:
        return 0
    if n_held == entry.size_bytes:
        return n_held if digest.hex() == entry.sha256 else 0
    return n_held if _hash_up_to(file, n_held, lambda n: None).digest() == digest else 0


def _read_piece(file: Any, path: Path, view: memoryview) -> int:
    try:
        n_read: int = file.readinto(view)
    except OSError as error:
        raise _unreadable(path, error) from error
    if not n_read:
        raise ModelFileError(f"{path}: the file became shorter while it was sent; send it again")
    return n_read


def _unreadable(path: Path, error: OSError) -> ModelFileError:
    return ModelFileError(
        f"{path}: cannot be read ({error.strerror}); check the file, its permissions and the disk"
    )


def _receive(connection: BulkTLS, n_bytes: int) -> bytes:
    data = bytearray(n_bytes)
    connection.fill(memoryview(data))
    return bytes(data)


# the receiver


class Receiver:
    """The files of one model on their way into `folder`; nobody else may fetch them while the context lasts.

    Raises DiskFull where they have no room, or HostError.
    """

    def __init__(
        self, folder: Path, digests_dir: Path, files: tuple[FileEntry, ...], reporter: Reporter
    ) -> None:
        self._folder = folder
        self._digests_dir = digests_dir
        self._reporter = reporter
        self._held = 0
        self.n_received = 0
        self._incoming = [_Incoming(folder / entry.name, entry, digests_dir, self._count) for entry in files]
        self._locks = contextlib.ExitStack()

    def __enter__(self) -> Receiver:
        try:
            with _disk_errors(self._folder):
                self._folder.mkdir(parents=True, exist_ok=True)
                self._lock()
                for incoming in self._incoming:
                    incoming.look()
                self._check_space()
        except BaseException:
            self._locks.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._locks.close()

    @property
    def is_complete(self) -> bool:
        """Whether all bytes are here and right."""
        return all(incoming.is_complete for incoming in self._incoming)

    def receive(self, connection: BulkTLS) -> None:
        """All that is missing, verified; what came is kept, if it is good.

        Raises PeerLost, DownloadFailed or DiskFull.
        """
        for incoming in self._incoming:
            connection.send(memoryview(incoming.held()))
        for incoming in self._incoming:
            (first,) = _FROM.unpack(_receive(connection, _FROM.size))
            with _disk_errors(self._folder):
                incoming.receive(connection, first)

    def finish(self) -> None:
        """Give all files their names."""
        with _disk_errors(self._folder):
            for incoming in self._incoming:
                incoming.finish()

    def _count(self, n_bytes: int, *, is_new: bool) -> None:
        self._held += n_bytes
        if is_new:
            self.n_received += n_bytes
        self._reporter.done(self._held)

    def _lock(self) -> None:
        # Its first file stands for the model; whoever downloads it takes the same lock.
        path = self._incoming[0].path
        lock = filelock.FileLock(path.with_name(f"{path.name}.lock"), timeout=0)
        try:
            self._locks.enter_context(lock)
        except filelock.Timeout:
            raise HostError(
                f"{path.name} is being fetched by another process there: wait until it is done"
            ) from None

    def _check_space(self) -> None:
        needed = sum(incoming.n_missing for incoming in self._incoming)
        free = shutil.disk_usage(self._folder).free
        if needed and free < needed + _KEPT_FREE_BYTES:
            raise DiskFull(
                f"the disk that holds {self._folder} has {free / 1e6:.0f} MB free, and "
                f"{(needed + _KEPT_FREE_BYTES) / 1e6:.0f} MB are needed: make room there, or choose a folder on "
                "another disk (baton config set models)"
            )


class _Incoming:
    """One file on its way."""

    def __init__(self, path: Path, entry: FileEntry, digests_dir: Path, count: Callable[..., None]) -> None:
        self.path = path
        self._entry = entry
        self._digests_dir = digests_dir
        self._count = count
        self._partial = partial_path(path, entry.sha256)
        self._hash = hashlib.sha256()
        self._n_held = 0
        self._has_name = False

    @property
    def n_missing(self) -> int:
        return self._entry.size_bytes - self._n_held

    @property
    def is_complete(self) -> bool:
        return not self.n_missing

    def look(self) -> None:
        """Read what is here of it already."""
        entry = self._entry
        if known_digest(self.path, cache_dir=self._digests_dir) == entry.sha256:
            self._has_name = True
            self._n_held = entry.size_bytes
            self._count(entry.size_bytes, is_new=False)
            return
        try:
            size = self._partial.stat().st_size
        except FileNotFoundError:
            return
        if size > entry.size_bytes:
            self._partial.unlink()
            return
        size -= size % _BLOCK_BYTES if size < entry.size_bytes else 0
        # what a killed copy had reserved behind it counts as free again
        os.truncate(self._partial, size)
        with self._partial.open("rb", buffering=0) as file:
            self._hash = _hash_up_to(file, size, lambda n: self._count(n, is_new=False))
        self._n_held = size
        if self.is_complete and self._hash.hexdigest() != entry.sha256:
            self._forget()

    def held(self) -> bytes:
        """What to tell the sender of it."""
        digest = bytes.fromhex(self._entry.sha256) if self._has_name else self._hash.digest()
        return _HELD.pack(self._n_held, digest)

    def receive(self, connection: BulkTLS, first: int) -> None:
        """The bytes from `first` on, which is where the sender wants to begin."""
        if first != self._n_held:
            if first or self._has_name:
                raise ProtocolError(f"the other computer sends {self._entry.name} from a wrong place")
            self._forget()
        if self.is_complete:
            return
        with _open_to_write(self._partial, self._n_held) as descriptor:
            _reserve(descriptor, self._entry.size_bytes)
            writer = _Writer(descriptor, self._hash)
            try:
                self._fill(connection, writer)
            finally:
                writer.close()
                os.ftruncate(descriptor, os.lseek(descriptor, 0, os.SEEK_CUR))
        writer.check()
        if self._hash.hexdigest() != self._entry.sha256:
            found = self._hash.hexdigest()
            self._forget()
            raise DownloadFailed(
                f"{self._entry.name} came with the wrong digest ({found[:12]}… where {self._entry.sha256[:12]}… is "
                "right), and was thrown away: send it again"
            )

    def finish(self) -> None:
        if self._has_name:
            return
        if self.path.exists():
            raise HostError(
                f"{self.path} is there by now, with other content: remove it, and send the model again"
            )
        os.replace(self._partial, self.path)
        origin_path(self._partial).unlink(missing_ok=True)
        keep_digest(self.path, self._entry.sha256, cache_dir=self._digests_dir)
        if any(model.file == self.path.name for model in load_catalogue().values()):
            keep_note(self.path, self._entry.sha256, self._entry.size_bytes)

    def _fill(self, connection: BulkTLS, writer: _Writer) -> None:
        while self.n_missing:
            piece = writer.free_piece()
            n_bytes = min(len(piece), self.n_missing)
            connection.fill(piece[:n_bytes])
            writer.put(piece, n_bytes)
            self._n_held += n_bytes
            self._count(n_bytes, is_new=True)

    def _forget(self) -> None:
        self._count(-self._n_held, is_new=False)
        self._partial.unlink(missing_ok=True)
        self._hash, self._n_held = hashlib.sha256(), 0


class _Writer:
    """Two threads that put pieces into a file's digest and then into the file, while the next ones come."""

    def __init__(self, descriptor: int, digest: Any) -> None:
        self._descriptor = descriptor
        self._hash = digest
        self._free: queue.SimpleQueue[memoryview] = queue.SimpleQueue()
        self._to_hash: _Pieces = queue.SimpleQueue()
        self._to_write: _Pieces = queue.SimpleQueue()
        self._error: OSError | None = None
        for _ in range(_N_PIECES):
            self._free.put(memoryview(mmap.mmap(-1, _PIECE_BYTES)))
        self._threads = [
            threading.Thread(target=run, name="copy-writer", daemon=True)
            for run in (self._hash_all, self._write_all)
        ]
        for thread in self._threads:
            start(thread)

    def free_piece(self) -> memoryview:
        """Memory for the next piece; waits for it. Raises what writing ran into."""
        piece = self._free.get()
        self.check()
        return piece

    def put(self, piece: memoryview, n_bytes: int) -> None:
        self._to_hash.put((piece, n_bytes))

    def close(self) -> None:
        """Wait until all is written that was put."""
        self._to_hash.put(None)
        for thread in self._threads:
            thread.join()

    def check(self) -> None:
        if self._error is not None:
            raise self._error

    def _hash_all(self) -> None:
        while (item := self._to_hash.get()) is not None:
            piece, n_bytes = item
            self._hash.update(piece[:n_bytes])
            self._to_write.put(item)
        self._to_write.put(None)

    def _write_all(self) -> None:
        while (item := self._to_write.get()) is not None:
            piece, n_bytes = item
            try:
                if self._error is None:
                    self._write(piece[:n_bytes])
            except OSError as error:
                self._error = error
            self._free.put(piece)

    def _write(self, view: memoryview) -> None:
        if len(view) % _BLOCK_BYTES:
            _write_through_cache(self._descriptor)
        while view:
            try:
                view = view[os.write(self._descriptor, view) :]
            except OSError as error:
                # some disks open a file so, and then want larger blocks
                if error.errno != errno.EINVAL or not _write_through_cache(self._descriptor):
                    raise


@contextlib.contextmanager
def _open_to_write(path: Path, first: int) -> Iterator[int]:
    """A descriptor at position `first`, past the system's cache where that can be: `first` is a whole number of blocks.

    A model would push all else out of the cache, and be pushed out itself before it is loaded.
    """
    flags = os.O_WRONLY | os.O_CREAT | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
    try:
        descriptor = os.open(path, flags | _O_DIRECT, 0o666)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        descriptor = os.open(path, flags, 0o666)
    try:
        os.ftruncate(descriptor, first)
        os.lseek(descriptor, first, os.SEEK_SET)
        yield descriptor
    finally:
        os.close(descriptor)


def _write_through_cache(descriptor: int) -> bool:
    """From now on; whether it was past the cache before."""
    if not _O_DIRECT:
        return False
    import fcntl

    flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
    fcntl.fcntl(descriptor, fcntl.F_SETFL, flags & ~_O_DIRECT)
    return bool(flags & _O_DIRECT)


def _hash_up_to(file: Any, n_bytes: int, count: Callable[[int], None]) -> Any:
    digest = hashlib.sha256()
    buffer = memoryview(bytearray(_PIECE_BYTES))
    while n_bytes:
        n_read = file.readinto(buffer[: min(n_bytes, _PIECE_BYTES)])
        if not n_read:
            raise ModelFileError("a file became shorter while it was read; try again")
        digest.update(buffer[:n_read])
        n_bytes -= n_read
        count(n_read)
    return digest


# Linux: take the room, and leave the file's length what was written of it.
_FALLOC_FL_KEEP_SIZE = 1


def _reserve(descriptor: int, n_bytes: int) -> None:
    """Take room on the disk for the whole file at once, where the system can.

    On ext4 that also makes writing cost a fifth. The file's length stays that of what is written, so that a killed copy
    knows what it has. Raises OSError where there is no such room.
    """
    if not sys.platform.startswith("linux"):
        return
    fallocate = getattr(ctypes.CDLL(None, use_errno=True), "fallocate", None)
    if fallocate is None:
        return
    if fallocate(descriptor, _FALLOC_FL_KEEP_SIZE, ctypes.c_int64(0), ctypes.c_int64(n_bytes)) != 0:
        number = ctypes.get_errno()
        if number in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise OSError(number, os.strerror(number))


@contextlib.contextmanager
def _disk_errors(folder: Path) -> Iterator[None]:
    try:
        yield
    except BatonError:
        raise
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise DiskFull(
                f"the disk that holds {folder} is full: make room there, or choose a folder on another disk (in "
                "Settings, or by `baton config set models`), and send the model again: what came is kept"
            ) from error
        raise HostError(f"{error.filename or folder}: {error.strerror or error}; check the folder") from error


# the connection


@contextlib.contextmanager
def _connected(job: TransferJob, reporter: Reporter) -> Iterator[BulkTLS]:
    """A connection whose other end is the peer, whoever called. Raises PeerUnreachable, PeerUntrusted or PeerLost."""
    identity = Identity.load_or_create(Path(job.identity_dir))
    context = mutual_context(
        identity, server_side=job.dial is None, peer_der=job.peer_der, protocols=(COPY_PROTOCOL,)
    )
    if job.dial is not None:
        connection = BulkTLS(connect(Address.parse(job.dial)), context, server_name=MUTUAL_NAME)
        check_peer(connection.tls, job.peer_der)
    else:
        connection = _called(Address.parse(job.listen or ""), context, job.peer_der, reporter)
    try:
        yield connection
    finally:
        connection.close()


def _called(address: Address, context: ssl.SSLContext, peer_der: bytes, reporter: Reporter) -> BulkTLS:
    """The first caller that proves to be the peer; others are turned away, and keep nobody waiting."""
    proven: queue.SimpleQueue[BulkTLS] = queue.SimpleQueue()
    seats = threading.Semaphore(_MAX_CALLERS)

    def check(connection: socket.socket) -> None:
        try:
            tune(connection)
            caller = BulkTLS(connection, context)
            check_peer(caller.tls, peer_der)
            proven.put(caller)
        except (BatonError, OSError):
            connection.close()
        finally:
            seats.release()

    def accept(listener: socket.socket) -> None:
        while not is_over.is_set():
            with contextlib.suppress(OSError):
                connection, _ = listener.accept()
                if seats.acquire(blocking=False):
                    threading.Thread(target=check, args=(connection,), daemon=True).start()
                else:
                    connection.close()

    is_over = threading.Event()
    with listen(address) as listener:
        listener.settimeout(_ACCEPT_POLL_S)
        reporter.say({"port": listener.getsockname()[1]})
        threading.Thread(target=accept, args=(listener,), name="accept", daemon=True).start()
        try:
            return proven.get(timeout=_CALL_TIMEOUT_S)
        except queue.Empty:
            raise PeerUnreachable(
                f"the other computer did not call within {_CALL_TIMEOUT_S:g} s: a firewall may stand between"
            ) from None
        finally:
            is_over.set()


def say_line(fields: dict[str, Any]) -> None:
    """A line on standard output, for whoever started this process."""
    sys.stdout.write(json.dumps(fields) + "\n")
    sys.stdout.flush()
