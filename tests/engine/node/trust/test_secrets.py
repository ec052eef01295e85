"""Secrets lie in the keyring, or in a file of their owner's, whatever the keyring does; the key is never lost by it."""

from __future__ import annotations

import errno
import json
import os
import stat
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from engine.errors import HostError
from engine.node.trust.identity import PASSPHRASE_VARIABLE, Identity, fingerprint_of, mutual_context
from engine.node.trust.secrets import NoKeyring, Secrets

posix_only = pytest.mark.skipif(os.name != "posix", reason="modes of files as POSIX has them")


class FakeKeyring:
    """A keyring in memory. `fault` is raised by each call; `is_deaf` takes everything and keeps nothing."""

    def __init__(self, *, priority: float = 5.0) -> None:
        self.priority = priority
        self.kept: dict[str, str] = {}
        self.fault: Exception | None = None
        self.is_deaf = False
        self.n_calls = 0

    def get_password(self, service: str, name: str) -> str | None:
        self._call()
        return self.kept.get(name)

    def set_password(self, service: str, name: str, value: str) -> None:
        self._call()
        if not self.is_deaf:
            self.kept[name] = value

    def delete_password(self, service: str, name: str) -> None:
        self._call()
        del self.kept[name]

    def _call(self) -> None:
        self.n_calls += 1
        if self.fault is not None:
            raise self.fault


def with_keyring(folder: Path, keyring: Any, *, use_keyring: bool = True) -> Secrets:
    return Secrets(folder, backend=keyring, use_keyring=use_keyring)


@pytest.fixture
def keyring() -> FakeKeyring:
    return FakeKeyring()


# Names and values


def test_the_keyring_keeps_what_it_can(tmp_path: Path, keyring: FakeKeyring) -> None:
    secrets = with_keyring(tmp_path, keyring)
    secrets.keep("api key", "wonder")

    assert keyring.kept == {"api key": "wonder"}
    assert secrets.recall("api key") == "wonder"
    assert secrets.recall("other") is None
    assert secrets.note() == ""
    assert not (tmp_path / "secrets.json").exists()
    secrets.forget("api key")
    secrets.forget("api key")
    assert keyring.kept == {} and secrets.recall("api key") is None


@posix_only
def test_without_a_keyring_a_file_of_the_owner_keeps_it(tmp_path: Path) -> None:
    secrets = with_keyring(tmp_path / "settings", FakeKeyring(priority=0))
    secrets.keep("api key", "wonder")
    secrets.keep("other", "wall")

    file = tmp_path / "settings" / "secrets.json"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    file.chmod(0o644)
    again = with_keyring(tmp_path / "settings", FakeKeyring(priority=0))
    assert again.recall("api key") == "wonder"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    again.forget("api key")
    assert (again.recall("api key"), again.recall("other")) == (None, "wall")
    assert "not used (this system offers none here" in again.note()
    assert str(tmp_path / "settings") in again.note()


def test_a_keyring_that_fails_is_asked_once_and_named(tmp_path: Path, keyring: FakeKeyring) -> None:
    keyring.fault = RuntimeError("the collection\nis locked")
    secrets = with_keyring(tmp_path, keyring)
    secrets.keep("api key", "wonder")

    assert secrets.recall("api key") == "wonder"
    assert "it failed: the collection is locked" in secrets.note()
    assert keyring.n_calls == 1


def test_a_keyring_that_keeps_nothing_is_found_out(tmp_path: Path, keyring: FakeKeyring) -> None:
    keyring.is_deaf = True
    secrets = with_keyring(tmp_path, keyring)
    secrets.keep("api key", "wonder")
    assert secrets.recall("api key") == "wonder"
    assert "does not keep" in secrets.note()


def test_a_keyring_that_never_answers_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.node.trust.secrets._KEYRING_TIMEOUT_S", 0.01)
    done = threading.Event()

    class Hung(FakeKeyring):
        def _call(self) -> None:
            done.wait(10)

    secrets = with_keyring(tmp_path, Hung())
    try:
        with pytest.raises(NoKeyring, match="no answer"):
            secrets.recall_from_keyring("api key")
    finally:
        done.set()


def test_what_the_file_held_goes_when_the_keyring_has_it(tmp_path: Path, keyring: FakeKeyring) -> None:
    with_keyring(tmp_path, keyring, use_keyring=False).keep("api key", "old")
    assert keyring.kept == {}
    secrets = with_keyring(tmp_path, keyring)
    assert secrets.recall("api key") == "old"
    secrets.keep("api key", "new")
    assert (tmp_path / "secrets.json").read_text() == "{}"
    assert secrets.recall("api key") == "new"


@pytest.mark.parametrize("content", [b"", b"garbage", b"[]", b'{"a": 3}', b"\xff", b"[" * 50_000])
def test_a_damaged_file_is_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "secrets.json").write_bytes(content)
    secrets = with_keyring(tmp_path, None, use_keyring=False)
    for act in (lambda: secrets.recall("api key"), lambda: secrets.keep("api key", "wonder")):
        with pytest.raises(HostError, match=r"secrets\.json is damaged: delete it"):
            act()
    assert (tmp_path / "secrets.json").read_bytes() == content


# The key of this computer


def test_the_key_moves_into_the_keyring(tmp_path: Path, keyring: FakeKeyring) -> None:
    plain = Identity.load_or_create(tmp_path)
    guarded = plain.settled(with_keyring(tmp_path, keyring))

    assert guarded.fingerprint == plain.fingerprint
    assert b"ENCRYPTED" in guarded.key_path.read_bytes()
    assert guarded.passphrase == keyring.kept[f"key of {plain.node_id}"]
    assert guarded.passphrase not in repr(guarded)
    mutual_context(guarded, server_side=True, peer_der=guarded.certificate_der)

    again = Identity.load_or_create(tmp_path, with_keyring(tmp_path, keyring))
    assert again == guarded
    assert again.settled(with_keyring(tmp_path, keyring)) == guarded


def test_a_child_never_asks_the_keyring(
    tmp_path: Path, keyring: FakeKeyring, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = Identity.load_or_create(tmp_path)
    assert plain.environment() == {}
    guarded = plain.settled(with_keyring(tmp_path, keyring))

    for name, value in guarded.environment().items():
        monkeypatch.setenv(name, value)
    n_calls = keyring.n_calls
    assert Identity.load_or_create(tmp_path, with_keyring(tmp_path, keyring)) == guarded
    assert keyring.n_calls == n_calls


@pytest.mark.parametrize("how", ["none", "fails", "deaf", "unwanted"])
def test_without_a_keyring_the_key_stays_plain(tmp_path: Path, keyring: FakeKeyring, how: str) -> None:
    keyring.priority = 0 if how == "none" else 5
    keyring.fault = RuntimeError("locked") if how == "fails" else None
    keyring.is_deaf = how == "deaf"
    secrets = with_keyring(tmp_path, keyring, use_keyring=how != "unwanted")
    plain = Identity.load_or_create(tmp_path)
    pem = plain.key_path.read_bytes()

    assert plain.settled(secrets) == plain
    assert plain.key_path.read_bytes() == pem
    assert str(tmp_path) in secrets.note()


def test_a_key_comes_back_out_of_the_keyring(tmp_path: Path, keyring: FakeKeyring) -> None:
    guarded = Identity.load_or_create(tmp_path).settled(with_keyring(tmp_path, keyring))
    unwanted = with_keyring(tmp_path, keyring, use_keyring=False)

    released = Identity.load_or_create(tmp_path, unwanted).settled(unwanted)
    assert released.passphrase is None
    assert released.fingerprint == guarded.fingerprint
    keyring.fault = RuntimeError("gone")
    assert Identity.load_or_create(tmp_path, with_keyring(tmp_path, keyring)) == released


@pytest.mark.parametrize("how", ["none", "fails", "empty"])
def test_a_keyring_that_went_away_is_explained(tmp_path: Path, keyring: FakeKeyring, how: str) -> None:
    guarded = Identity.load_or_create(tmp_path).settled(with_keyring(tmp_path, keyring))
    pem = guarded.key_path.read_bytes()
    kept = dict(keyring.kept)
    keyring.priority = 0 if how == "none" else 5
    keyring.fault = RuntimeError("locked") if how == "fails" else None
    keyring.kept = {} if how == "empty" else keyring.kept

    with pytest.raises(HostError, match="unlock the keyring, then start Baton again") as caught:
        Identity.load_or_create(tmp_path, with_keyring(tmp_path, keyring))
    assert str(guarded.key_path) in str(caught.value)
    assert guarded.key_path.read_bytes() == pem

    keyring.priority, keyring.fault, keyring.kept = 5, None, kept
    assert Identity.load_or_create(tmp_path, with_keyring(tmp_path, keyring)) == guarded


def test_a_wrong_passphrase_never_advises_to_delete(
    tmp_path: Path, keyring: FakeKeyring, monkeypatch: pytest.MonkeyPatch
) -> None:
    Identity.load_or_create(tmp_path).settled(with_keyring(tmp_path, keyring))
    monkeypatch.setenv(PASSPHRASE_VARIABLE, "another")

    with pytest.raises(HostError, match="BATON_KEY_PASSPHRASE") as caught:
        Identity.load_or_create(tmp_path, with_keyring(tmp_path, keyring))
    assert "delete" not in str(caught.value)


def test_a_key_that_was_moved_since_the_start_is_explained(tmp_path: Path, keyring: FakeKeyring) -> None:
    plain = Identity.load_or_create(tmp_path)
    plain.settled(with_keyring(tmp_path, keyring))
    with pytest.raises(HostError, match="start it again"):
        mutual_context(plain, server_side=True, peer_der=plain.certificate_der)


def test_a_disk_that_fills_up_in_between_loses_no_key(
    tmp_path: Path, keyring: FakeKeyring, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    plain = Identity.load_or_create(tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr("engine.node.trust.identity.write_whole", full)
        with pytest.raises(HostError, match="disk is full"):
            plain.settled(with_keyring(tmp_path, keyring))
    assert Identity.load_or_create(tmp_path, with_keyring(tmp_path, keyring)) == plain
    assert plain.settled(with_keyring(tmp_path, keyring)).passphrase is not None


def test_a_copied_computer_gets_another_identity(tmp_path: Path, keyring: FakeKeyring) -> None:
    secrets = with_keyring(tmp_path, keyring)
    old = Identity.load_or_create(tmp_path).settled(secrets)
    new = old.renew(secrets)

    assert new.node_id != old.node_id
    assert new.fingerprint == fingerprint_of(new.certificate_der) != old.fingerprint
    assert list(keyring.kept) == [f"key of {new.node_id}"]
    assert Identity.load_or_create(tmp_path, secrets) == new


_BACKEND = """
import json, pathlib
from keyring.backend import KeyringBackend

FILE = pathlib.Path(__file__).with_name("kept.json")

class FileKeyring(KeyringBackend):
    priority = 3

    def get_password(self, service, username):
        kept = json.loads(FILE.read_text()) if FILE.exists() else {}
        return kept.get(f"{service} {username}")

    def set_password(self, service, username, password):
        FILE.write_text(json.dumps({f"{service} {username}": password}))
"""

_PROCESS = """
import pathlib, sys
from engine.node.trust.identity import Identity
from engine.node.trust.secrets import Secrets
folder = pathlib.Path(sys.argv[1])
secrets = Secrets(folder)
identity = Identity.load_or_create(folder, secrets).settled(secrets)
print(identity.fingerprint, identity.passphrase)
"""


def test_the_system_keyring_is_found_by_the_library(tmp_path: Path) -> None:
    """Three processes: a node that moves its key, the same started again, and a child that has no keyring."""
    (tmp_path / "system_keyring.py").write_text(_BACKEND)
    folder = tmp_path / "identity"

    def start(backend: str, **more: str) -> list[str]:
        paths = os.pathsep.join([str(tmp_path), str(Path.cwd())])
        env = {**os.environ, "PYTHONPATH": paths, "PYTHON_KEYRING_BACKEND": backend, **more}
        words = [sys.executable, "-c", _PROCESS, str(folder)]
        return subprocess.run(
            words, env=env, capture_output=True, text=True, check=True, timeout=60
        ).stdout.split()

    first = start("system_keyring.FileKeyring")
    (kept,) = json.loads((tmp_path / "kept.json").read_text()).items()
    assert kept[0].startswith("baton key of ") and kept[1] == first[1]
    assert start("system_keyring.FileKeyring") == first
    assert start("keyring.backends.fail.Keyring", **{PASSPHRASE_VARIABLE: first[1]}) == first
