"""A newer Baton over the paired cable: one node sends its own archive, the other installs it and starts anew.

Whoever may send one may run anything here. So it has to be a paired computer, and a person on this one has to have
allowed it; a file in the settings says so.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from engine.errors import DiskFull, HostError, InvalidRequest, PeerRefused, ProtocolError
from engine.files import file_error
from engine.node.peering.offers import Handler, Method
from engine.node.peering.peer_link import PeerLink
from engine.node.peering.peer_messages import MAX_MESSAGE_BYTES
from engine.node.scratch import private_folder
from engine.node.setup.own_wheel import Archive, is_development, make_archive
from engine.paths import is_bundled

# Ours are half a megabyte.
MAX_ARCHIVE_BYTES = 16 << 20

# Packages may have to be fetched first; the same limit as the installer's own.
_INSTALL_TIMEOUT_S = 3600.0

# The answer has to leave before this process does.
_RESTART_AFTER_S = 0.5


class _Update(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    version: Annotated[str, Meta(pattern=r"^[0-9A-Za-z.+-]{1,40}\Z")]
    sha256: Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]
    data: Annotated[bytes, Meta(max_length=MAX_ARCHIVE_BYTES)]


class Updates:
    """A part of the node. `allowance` is the file that allows it; `restart` starts this node anew.

    `version` is what runs here, and `name` how this computer is called. `is_fixed`: nothing may be installed over it.
    """

    def __init__(
        self,
        *,
        version: str,
        name: str,
        allowance: Path,
        restart: Callable[[], None],
        make: Callable[[], Archive] = make_archive,
        is_fixed: Callable[[], bool] = lambda: is_bundled() or is_development(),
    ) -> None:
        self._version = version
        self.name = name
        self._allowance = allowance
        self._restart = restart
        self._make = make
        self._is_fixed = is_fixed
        self._installing = asyncio.Lock()

    def methods(self) -> dict[str, Method[Handler]]:
        return {"setup.update": Method(self._update, _Update, MAX_MESSAGE_BYTES)}

    @property
    def is_allowed(self) -> bool:
        return self._allowance.exists()

    async def send(self, link: PeerLink) -> str:
        """Have the other end run what runs here; its new version. Raises PeerRefused with its sentence, or PeerLost."""
        archive = await asyncio.to_thread(self._make)
        update = {"version": archive.version, "sha256": archive.sha256, "data": archive.data}
        answer = await link.call("setup.update", update, timeout_s=_INSTALL_TIMEOUT_S)
        if not isinstance(answer, dict) or answer.get("version") != archive.version:
            raise PeerRefused("the other computer did not say that it is updated")
        return archive.version

    async def _update(self, link: PeerLink, update: _Update) -> dict[str, str]:
        self._check(update, link.peer.name)
        if self._installing.locked():
            raise InvalidRequest(f"{self.name} is being updated already: wait until that is done")
        async with self._installing:
            await _install(update.data)
        asyncio.get_running_loop().call_later(_RESTART_AFTER_S, self._restart)
        return {"version": update.version}

    def _check(self, update: _Update, sender: str) -> None:
        if not self.is_allowed:
            raise InvalidRequest(
                f"{self.name} takes no updates from other computers: allow it there once with "
                f"`baton setup-peer --allow-updates yes`, if {sender} is yours"
            )
        if self._is_fixed():
            raise InvalidRequest(
                f"Baton on {self.name} is an app's bundle or a checkout: update it there, in the way it was installed"
            )
        if hashlib.sha256(update.data).hexdigest() != update.sha256:
            raise ProtocolError("the update is not what its digest says")
        if _numbers(update.version) < _numbers(self._version):
            raise InvalidRequest(
                f"{self.name} runs Baton {self._version}, and {update.version} is older: update {sender} instead"
            )


async def _install(data: bytes) -> None:
    """Run the archive on this very environment. Raises HostError with its sentence."""
    with private_folder("update") as folder:
        file = folder / "baton-setup.pyz"
        try:
            file.write_bytes(data)
        except OSError as error:
            raise DiskFull(f"the update cannot be kept in {folder} ({error.strerror})") from error
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, str(file), "--json", "--into", sys.prefix),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )
        try:
            said, _ = await asyncio.wait_for(process.communicate(), _INSTALL_TIMEOUT_S)
        except TimeoutError as error:
            raise HostError(
                "the update took longer than an hour: see whether the package index can be reached there, and try again"
            ) from error
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
    if process.returncode != 0:
        raise HostError(f"the update failed: {_refusal(said)}")


def _refusal(said: bytes) -> str:
    for line in reversed(said.splitlines()):
        try:
            found = json.loads(line)
        except ValueError:
            continue
        if isinstance(found, dict) and isinstance(found.get("refused"), str):
            return str(found["refused"])
    return "the installer does not say why"


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", version))


def set_allowance(file: Path, *, allowed: bool) -> None:
    """Keep what a person on this computer said. Raises HostError."""
    try:
        if allowed:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.touch()
        else:
            file.unlink(missing_ok=True)
    except OSError as error:
        raise file_error(str(file), error) from error
