"""Compiled kernels on disk, so that the next process starts without compiling them. Any failure is a miss.

Entries are files named by a digest of all that the machine code depends on, which is the caller's to collect. A file
holds the digest of its content before the content: one that was cut short or changed is not used. Writers put complete
files in place, so processes may share the folder. What the content means is not known here.
"""

from __future__ import annotations

import contextlib
import hashlib
from pathlib import Path

from engine import paths
from engine.files import write_whole

_DIGEST_BYTES = hashlib.sha256().digest_size

# A kernel takes some 5 kB and a model uses about ten; beyond this the oldest half is dropped.
MAX_ENTRIES = 400


def load(key: str) -> bytes | None:
    """What was saved under `key`, unchanged; None where there is nothing, or nothing sound."""
    try:
        data = _path(key).read_bytes()
    except OSError:
        return None
    digest, content = data[:_DIGEST_BYTES], data[_DIGEST_BYTES:]
    return content if digest == hashlib.sha256(content).digest() else None


def save(key: str, content: bytes) -> None:
    """Keep `content` under `key` if that can be done."""
    path = _path(key)
    with contextlib.suppress(OSError):
        # Code is run from here: nobody else may write.
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        _drop_old(path.parent)
        write_whole(path, hashlib.sha256(content).digest() + content)


def _path(key: str) -> Path:
    return paths.cache_dir() / "kernels" / hashlib.sha256(key.encode()).hexdigest()


def _drop_old(folder: Path) -> None:
    entries = list(folder.iterdir())
    if len(entries) < MAX_ENTRIES:
        return
    entries.sort(key=lambda entry: entry.stat().st_mtime)
    for entry in entries[: len(entries) // 2]:
        with contextlib.suppress(OSError):
            entry.unlink()
