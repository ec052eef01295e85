"""Where secrets are kept: in the system's keyring, or in a file for this user alone where there is none to be used.

The keyring asks no questions of ours: it may be absent, locked, or wait for a person, so every call has an end.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import filelock

from engine.errors import HostError
from engine.files import file_error, write_whole

if TYPE_CHECKING:
    from keyring.backend import KeyringBackend

# Under this name the keyring's own window lists what Baton keeps.
_SERVICE = "baton"

# A locked keyring shows a window and waits for its password: as long as a person takes who sits there.
_KEYRING_TIMEOUT_S = 60.0

# Keyrings below are not for secrets, by their makers' own word: plain files, and the one that fails.
_MIN_PRIORITY = 1

_MAX_FILE_BYTES = 64 * 1024

_Result = TypeVar("_Result")


class NoKeyring(Exception):
    """The system keyring cannot be used now; the message is the end of a sentence that says why."""


class Secrets:
    """Small texts by name, kept in the keyring of this user, else in a file in `folder`.

    `backend` is found by itself where none is given. With `use_keyring` false everything goes into the file, for a
    computer where nobody logs in to open the keyring. Safe from any thread, and slow: never call it from an event loop.
    """

    def __init__(
        self, folder: Path, *, backend: KeyringBackend | None = None, use_keyring: bool = True
    ) -> None:
        self._path = folder / "secrets.json"
        self._backend = backend
        self.use_keyring = use_keyring
        self._fault = ""

    def keep(self, name: str, value: str) -> None:
        """Keep `value`, in place of what had that name. Raises HostError when neither place takes it."""
        try:
            self.keep_in_keyring(name, value)
        except NoKeyring:
            self._change_file(name, value)
        else:
            self._change_file(name, None)

    def recall(self, name: str) -> str | None:
        """What was kept by that name, or None."""
        value = self._read_file().get(name)
        if value is None and self.use_keyring:
            with contextlib.suppress(NoKeyring):
                value = self.recall_from_keyring(name)
        return value

    def forget(self, name: str) -> None:
        """Keep nothing by that name."""

        def delete(backend: KeyringBackend) -> None:
            if backend.get_password(_SERVICE, name) is not None:
                backend.delete_password(_SERVICE, name)

        with contextlib.suppress(NoKeyring):
            self._ask(delete)
        self._change_file(name, None)

    def note(self) -> str:
        """What the user should know of where secrets lie; nothing where the keyring has them."""
        why_not = self._fault if self.use_keyring else "as it was told to be"
        if not why_not:
            return ""
        return (
            f"the system keyring is not used ({why_not}): this computer's key and passwords lie in "
            f"{self._path.parent}, in files that only your user may read"
        )

    def keep_in_keyring(self, name: str, value: str) -> None:
        """As `keep`, in the keyring or nowhere: raises NoKeyring unless it gives back what it was given."""
        if not self.use_keyring:
            raise NoKeyring("it is not to be used")
        self._ask(lambda backend: backend.set_password(_SERVICE, name, value))
        if self.recall_from_keyring(name) != value:
            self._fault = "it does not keep what it is given"
            raise NoKeyring(self._fault)

    def recall_from_keyring(self, name: str) -> str | None:
        """As `recall`, from the keyring alone; raises NoKeyring where it cannot be asked."""
        return self._ask(lambda backend: backend.get_password(_SERVICE, name))

    def _ask(self, call: Callable[[KeyringBackend], _Result]) -> _Result:
        """What `call` returns. After a failure there is no other call: each might ask a person again."""
        if self._fault:
            raise NoKeyring(self._fault)
        found: list[_Result] = []
        failed: list[Exception] = []

        def run() -> None:
            try:
                found.append(call(self._found_backend()))
            except Exception as error:  # a backend raises what its system's library does
                failed.append(error)

        thread = threading.Thread(target=run, name="keyring", daemon=True)
        thread.start()
        thread.join(_KEYRING_TIMEOUT_S)
        if found:
            return found[0]
        self._fault = _reason(failed[0]) if failed else f"it gave no answer within {_KEYRING_TIMEOUT_S:.0f} s"
        raise NoKeyring(self._fault) from (failed[0] if failed else None)

    def _found_backend(self) -> KeyringBackend:
        if self._backend is None:
            import keyring

            self._backend = keyring.get_keyring()
        if float(self._backend.priority) < _MIN_PRIORITY:
            raise NoKeyring("this system offers none here, as without a desktop session")
        return self._backend

    def _read_file(self) -> dict[str, str]:
        try:
            with self._path.open("rb") as file:
                found = json.loads(file.read(_MAX_FILE_BYTES))
            if os.name == "posix":
                self._path.chmod(0o600)
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise file_error(str(self._path), error) from error
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, dict) or not all(isinstance(value, str) for value in found.values()):
            raise HostError(f"{self._path} is damaged: delete it, and set again what was kept there")
        return found

    def _change_file(self, name: str, value: str | None) -> None:
        try:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with filelock.FileLock(self._path.with_suffix(".lock"), timeout=_KEYRING_TIMEOUT_S, mode=0o600):
                kept = self._read_file()
                changed = {key: text for key, text in kept.items() if key != name}
                if value is not None:
                    changed[name] = value
                if changed != kept:
                    write_whole(self._path, json.dumps(changed).encode(), synced=True)
        except OSError as error:
            raise file_error(str(self._path), error) from error


def _reason(error: Exception) -> str:
    if isinstance(error, NoKeyring):
        return str(error)
    text = " ".join(str(error).split())[:200]
    return f"it failed: {text or type(error).__name__}"
