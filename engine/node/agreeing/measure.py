"""How fast this computer runs a model: measured once by a process of its own, and kept by what it depends on."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from engine.errors import HostError, ProcessFailed
from engine.files import write_whole
from engine.paths import own_command

# Loading a large model from a slow disk, then a few seconds of computing.
_TIMEOUT_S = 600.0

_MAX_FILE_BYTES = 65_536

Rate = Annotated[float, Meta(gt=0, le=1e9)]


class Measurement(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One model on one computer: tokens a second of a prompt and of an answer, and the seconds to load it.

    `device_bytes` is the memory that the device lets programs have, 0 where that is the computer's own.
    """

    prefill_tokens_per_s: Rate
    decode_tokens_per_s: Rate
    load_s: Annotated[float, Meta(ge=0, le=1e6)]
    device: Annotated[str, Meta(max_length=32)]
    device_name: Annotated[str, Meta(max_length=256)] = ""
    device_bytes: Annotated[int, Meta(ge=0, le=1 << 60)] = 0


class Measurements:
    """Measures models; results are kept in `folder` by the model's digest, the device asked for and the version."""

    def __init__(self, folder: Path, *, device: str, version: str) -> None:
        self._folder = folder
        self._device = device
        self._version = version
        self._measuring = asyncio.Lock()

    def known(self, digest: str) -> Measurement | None:
        """What was measured before, if it was."""
        try:
            with self._path(digest).open("rb") as file:
                return msgspec.json.decode(file.read(_MAX_FILE_BYTES), type=Measurement)
        except (OSError, msgspec.DecodeError, UnicodeDecodeError):
            return None

    async def measure(self, model: Path, digest: str) -> Measurement:
        """Measure it now, one model at a time, unless it was measured before. Raises ProcessFailed or HostError."""
        async with self._measuring:
            known = self.known(digest)
            if known is not None:
                return known
            found = await self._run(model)
            with contextlib.suppress(OSError):
                self._folder.mkdir(parents=True, exist_ok=True)
                write_whole(self._path(digest), msgspec.json.encode(found))
            return found

    def _path(self, digest: str) -> Path:
        key = hashlib.sha256(repr((digest, self._device, self._version)).encode()).hexdigest()[:32]
        return self._folder / f"{key}.json"

    async def _run(self, model: Path) -> Measurement:
        words = ["measure", "--model", str(model), "--device", self._device, "--json", "--exit-with-stdin"]
        starting = asyncio.create_subprocess_exec(
            *own_command(),
            *words,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            process = await starting
        except OSError as error:
            raise ProcessFailed(f"the model cannot be measured: {error}") from error
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                said, complaint = await _hear(process)
        except TimeoutError:
            raise HostError(f"measuring {model.name} took more than {_TIMEOUT_S:.0f} s") from None
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        try:
            return msgspec.json.decode(said, type=Measurement)
        except msgspec.DecodeError:
            words_s = complaint.decode(errors="replace").strip().removeprefix("baton: ")[-500:]
            raise ProcessFailed(
                f"{model.name} could not be measured: {words_s or 'no reason was given'}"
            ) from None


async def _hear(process: asyncio.subprocess.Process) -> tuple[bytes, bytes]:
    """All that it says, and complains, until it ends; its standard input stays open as long as we live."""
    if process.stdout is None or process.stderr is None:
        raise ProcessFailed("the measuring process has no output")
    said, complaint = await asyncio.gather(process.stdout.read(), process.stderr.read())
    await process.wait()
    if process.stdin is not None:
        process.stdin.close()
    return said, complaint
