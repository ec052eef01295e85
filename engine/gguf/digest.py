"""The digest of a model's content, by which two computers know that they hold the same file.

One file's digest is the SHA-256 of its bytes, as sha256sum prints it; a split model's is the SHA-256 of its parts'
digests in order, so it is not that of the same model in one file. Digests are kept in a cache folder by path, size
and time of change, so a file is read through only once. Where the cache cannot be written, nothing but time is lost.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path

from engine.errors import ModelFileError
from engine.files import write_whole

# Called with (bytes done, bytes in all).
Progress = Callable[[int, int], None]

_READ_BYTES = 1 << 20
# A cache entry is one short JSON object.
_MAX_ENTRY_BYTES = 65_536


def model_digest(paths: Sequence[Path], *, cache_dir: Path, on_progress: Progress | None = None) -> str:
    """The digest, in 64 hexadecimal digits, of the model whose files are `paths` (`GGUFFile.paths`), in order.

    `cache_dir` is made when it is missing. Raises ModelFileError when a file cannot be read, or changes meanwhile.
    """
    digests = file_digests(paths, cache_dir=cache_dir, on_progress=on_progress)
    return digest_of_parts(digests)


def digest_of_parts(digests: Sequence[str]) -> str:
    """A model's digest from those of its files, in order."""
    if len(digests) == 1:
        return digests[0]
    return hashlib.sha256(b"".join(bytes.fromhex(digest) for digest in digests)).hexdigest()


def file_digests(
    paths: Sequence[Path], *, cache_dir: Path, on_progress: Progress | None = None
) -> tuple[str, ...]:
    """The digest of each file; as `model_digest`."""
    if not paths:
        raise ValueError("a model has at least one file")
    sizes = [_stat(path).st_size for path in paths]
    digests = []
    for index, path in enumerate(paths):
        report: Callable[[int], None] | None = None
        if on_progress is not None:
            report = _Offset(on_progress, before=sum(sizes[:index]), total=sum(sizes))
        digests.append(_file_digest(path, cache_dir, report).hex())
    return tuple(digests)


def known_digest(path: Path, *, cache_dir: Path) -> str | None:
    """A file's digest if it has been computed before and the file has not changed since, else None."""
    try:
        entry, identity = _entry_of(path, path.stat(), cache_dir)
    except OSError:
        return None
    digest = _cached(entry, identity)
    return digest.hex() if digest is not None else None


def keep_digest(path: Path, digest: str, *, cache_dir: Path) -> None:
    """Keep what somebody else has computed over the file's bytes, so that it is not read again."""
    with contextlib.suppress(OSError):
        entry, identity = _entry_of(path, path.stat(), cache_dir)
        _keep(entry, identity, bytes.fromhex(digest))


class _Offset:
    """Reports one file's progress as that of all files."""

    def __init__(self, report: Progress, *, before: int, total: int) -> None:
        self._report = report
        self._before = before
        self._total = total

    def __call__(self, done: int) -> None:
        self._report(self._before + done, self._total)


def _file_digest(path: Path, cache_dir: Path, report: Callable[[int], None] | None) -> bytes:
    stat = _stat(path)
    entry, identity = _entry_of(path, stat, cache_dir)
    digest = _cached(entry, identity)
    if digest is None:
        digest = _computed(path, report)
        after = _stat(path)
        if (after.st_size, after.st_mtime_ns) != (stat.st_size, stat.st_mtime_ns):
            raise ModelFileError(f"{path}: the file changed while it was read; wait until it is complete")
        with contextlib.suppress(OSError):
            _keep(entry, identity, digest)
    elif report is not None:
        report(stat.st_size)
    return digest


def _entry_of(path: Path, stat: os.stat_result, cache_dir: Path) -> tuple[Path, dict[str, str | int]]:
    """Where the digest of that file is kept, and what it is kept for."""
    real = os.path.realpath(path)
    entry = cache_dir / f"{hashlib.sha256(os.fsencode(real)).hexdigest()}.json"
    return entry, {"path": real, "size": stat.st_size, "mtime_ns": stat.st_mtime_ns}


def _stat(path: Path) -> os.stat_result:
    try:
        return path.stat()
    except OSError as error:
        raise _unreadable(path, error) from None


def _computed(path: Path, report: Callable[[int], None] | None) -> bytes:
    hasher = hashlib.sha256()
    buffer = bytearray(_READ_BYTES)
    done = 0
    try:
        with path.open("rb", buffering=0) as file:
            while count := file.readinto(buffer):
                hasher.update(memoryview(buffer)[:count])
                done += count
                if report is not None:
                    report(done)
    except OSError as error:
        raise _unreadable(path, error) from None
    return hasher.digest()


def _unreadable(path: Path, error: OSError) -> ModelFileError:
    return ModelFileError(f"{path}: cannot be read ({error.strerror}); check the file and its permissions")


def _cached(entry: Path, identity: dict[str, str | int]) -> bytes | None:
    """The digest kept in `entry` for that identity; None where there is none, or none that can be trusted."""
    try:
        with entry.open("rb") as file:
            kept = json.loads(file.read(_MAX_ENTRY_BYTES))
        digest = bytes.fromhex(kept.pop("sha256"))
    except (OSError, ValueError, KeyError, AttributeError, TypeError, RecursionError):
        return None
    return digest if kept == identity and len(digest) == hashlib.sha256().digest_size else None


def _keep(entry: Path, identity: dict[str, str | int], digest: bytes) -> None:
    """Write `entry` whole or not at all."""
    entry.parent.mkdir(parents=True, exist_ok=True)
    write_whole(entry, json.dumps({**identity, "sha256": digest.hex()}).encode())
