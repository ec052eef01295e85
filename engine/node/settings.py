"""The node's settings: what a flag, the environment and the file say of each, what holds, and how it is changed.

Which settings there are, and what each may be, is declared in engine/config.py. What a change brings about is the
business of `daemon`.
"""

from __future__ import annotations

import enum
import os
from collections.abc import Callable, Mapping
from typing import Any

from engine import config
from engine.config import NODE_SETTINGS, Needs, Setting, is_loopback
from engine.errors import HostError, InvalidRequest, UserError
from engine.files import keeping_fault, user_path
from engine.node.listening import listening_fault
from engine.node.trust.secrets import Secrets
from engine.paths import identity_dir
from engine.settings_file import SettingsFile

# Of the engines that decode, and of those that prefill for others.
DECODE_SETTINGS = (
    *(config.SLOTS, config.CTX, config.KV_TYPE, config.PREFIX_CACHE, config.DATA_STREAMS),
    *(config.WEIGHTS, config.DEVICE, config.THREADS, config.ROUTE, config.CODEC, config.CHUNK),
)
PREFILL_SETTINGS = (
    *(config.PREFIX_CACHE, config.DATA_STREAMS, config.WEIGHTS, config.DEVICE, config.THREADS),
    *(config.PREFILLS, config.PASS_TOKENS),
)

# Under this the secret of a setting is kept.
_SECRET_PREFIX = "setting:"

_BY_NAME = {setting.name: setting for setting in NODE_SETTINGS}


class Source(enum.StrEnum):
    """Where a value comes from; who comes first has it."""

    FLAG = "flag"
    ENVIRONMENT = "environment"
    FILE = "file"
    DEFAULT = "default"


class NodeSettings:
    """What holds now. `flags` are the values that were given when the node was started, by names.

    Made at once and without secrets; `recall` them before they are asked for. `identity` is the folder of the key.
    """

    def __init__(
        self,
        file: SettingsFile,
        *,
        flags: Mapping[str, Any] | None = None,
        identity: str | None = None,
        environ: Mapping[str, str] = os.environ,
    ) -> None:
        self.identity = identity
        self.file = file
        self._flags = {name: value for name, value in (flags or {}).items() if value is not None}
        self._secrets: dict[str, str] = {}
        self._ignored: dict[str, str] = {}
        self._environment = {
            setting.name: text
            for setting in NODE_SETTINGS
            if setting.environment and (text := environ.get(setting.environment))
        }
        self._host_fault = self._port_fault = ""
        found, self._fault = file.read()
        self._file = self._checked(found)

    def faults(self) -> list[str]:
        """What is not followed of the file, and what cannot be had, a sentence each."""
        faults = [*([self._fault] if self._fault else []), *self._ignored.values()]
        if self._host_fault:
            faults.append(
                f"the endpoint answers this computer alone, as it cannot listen at {self.value(config.HOST)}: "
                f"{self._host_fault}. Set another {config.HOST.name} (baton config set {config.HOST.name}), or start "
                "the node anew once it can"
            )
        elif self.host != self.value(config.HOST):
            faults.append(
                f"the endpoint answers this computer alone, though {config.HOST.name} opens it to the network: that "
                f"needs a key that programs must send (baton config set {config.API_KEY.name} --new), and the node "
                "started anew"
            )
        if self._port_fault:
            faults.append(
                f"the endpoint is at another port than {self.value(config.PORT)}, where programs may look for it: "
                f"{self._port_fault}. Set another {config.PORT.name} (baton config set {config.PORT.name}), or start "
                "the node anew once that one is free"
            )
        return faults

    def value(self, setting: Setting) -> Any:
        return self._found(setting)[0]

    def source(self, setting: Setting) -> Source:
        return self._found(setting)[1]

    def values(self, settings: tuple[Setting, ...]) -> dict[Setting, Any]:
        return {setting: self.value(setting) for setting in settings}

    @property
    def host(self) -> str:
        """Where the endpoint listens: without a key, or where it cannot, for this computer alone.

        A flag is never taken back so.
        """
        host: str = self.value(config.HOST)
        is_kept = self.source(config.HOST) is Source.FILE and not is_loopback(host)
        if is_kept and (self.api_key is None or self._host_fault):
            return str(config.HOST.default)
        return host

    @property
    def port(self) -> int:
        """The endpoint's; a free one where nobody can listen at that of the file or the usual one."""
        port: int = self.value(config.PORT)
        return 0 if self._port_fault else port

    def look_at_address(self) -> None:
        """Find out whether the endpoint can listen at a host of the file, as a cable may be out, and at its port, which
        another program may have. Slow, as `recall` is."""
        if self.source(config.HOST) is Source.FILE and self.api_key is not None:
            self._host_fault = listening_fault(self.value(config.HOST), 0)
        if self.source(config.PORT) in (Source.FILE, Source.DEFAULT):
            self._port_fault = listening_fault(self.host, self.value(config.PORT))

    @property
    def api_key(self) -> str | None:
        key: str | None = self.value(config.API_KEY)
        return key

    def open_secrets(self) -> Secrets:
        """Where this computer's secrets are, as the settings have it."""
        return Secrets(identity_dir(self.identity), use_keyring=self.value(config.KEYRING) != "never")

    def recall(self, secrets: Secrets) -> None:
        """Read the secrets. Slow: never on an event loop. One that cannot be read counts as not set, and is said."""
        for setting in NODE_SETTINGS:
            if not setting.is_secret:
                continue
            try:
                secret = secrets.recall(_SECRET_PREFIX + setting.name)
            except HostError as error:
                self._ignored[setting.name] = f"{setting.name} cannot be read: {error}"
                continue
            if secret is not None:
                self._secrets[setting.name] = secret

    def check(self, changes: Mapping[str, Any]) -> dict[Setting, Any]:
        """The changes as they will be kept; None takes a value back. Raises InvalidRequest, which names the setting."""
        checked = {
            setting_named(name): None if value is None else setting_named(name).from_plain(value)
            for name, value in changes.items()
        }
        after = {setting: self._found(setting, checked)[0] for setting in (config.HOST, config.API_KEY)}
        is_concerned = config.HOST in checked or config.API_KEY in checked
        if is_concerned and not is_loopback(after[config.HOST]) and after[config.API_KEY] is None:
            host, key = config.HOST.name, config.API_KEY.name
            raise InvalidRequest(
                f"{host} {after[config.HOST]} opens the endpoint to the network, which needs an {key} that programs "
                f"must send: set one with it, or before it; without one {host} has to be {config.HOST.default}",
                param=host if config.HOST in checked else key,
            )
        self._check_folder(checked.get(config.MODELS_FOLDER))
        return checked

    @staticmethod
    def _check_folder(chosen: str | None) -> None:
        """Only of one that is chosen now: the disk of one that was may be unplugged for a while."""
        if chosen is not None and (fault := keeping_fault(user_path(chosen))):
            name = config.MODELS_FOLDER.name
            raise InvalidRequest(f"{name} {chosen}: {fault}; choose another folder, or mend that", param=name)

    def keep(self, checked: Mapping[Setting, Any], secrets: Secrets) -> None:
        """Write down what `check` gave; it holds from then on. Slow: never on an event loop. Raises HostError."""
        plain = {setting.name: value for setting, value in checked.items() if not setting.is_secret}
        if plain:
            self.file.change(plain)
            self._file, self._fault = _after(self._file, plain), ""
        for setting, value in checked.items():
            if setting.is_secret and value is None:
                secrets.forget(_SECRET_PREFIX + setting.name)
            elif setting.is_secret:
                secrets.keep(_SECRET_PREFIX + setting.name, value)
        if config.HOST in checked:
            self._host_fault = ""
        if config.PORT in checked:
            self._port_fault = ""
        self._secrets = _after(self._secrets, {s.name: v for s, v in checked.items() if s.is_secret})
        self._ignored = {
            name: fault for name, fault in self._ignored.items() if name not in {s.name for s in checked}
        }

    def snapshot(
        self, waits_for: Callable[[Setting], Needs] = lambda setting: Needs.NOTHING
    ) -> dict[str, Any]:
        """Each declaration with what holds. `waits_for(setting)` is what a change still needs to be felt."""
        return {
            "file": str(self.file.path),
            "faults": self.faults(),
            "settings": [self._described(setting, waits_for(setting)) for setting in NODE_SETTINGS],
        }

    def _described(self, setting: Setting, waits_for: Needs) -> dict[str, Any]:
        value, source = self._found(setting)
        kept = self._secrets if setting.is_secret else self._file
        shown = {"value": value, "kept": kept.get(setting.name)}
        if setting.is_secret:
            shown = {"value": None, "kept": None, "is_set": value is not None}
        return {
            "name": setting.name,
            "group": setting.group,
            "type": setting.kind.__name__,
            "help": setting.help,
            "unit": setting.unit,
            "minimum": setting.minimum,
            "maximum": setting.maximum,
            "choices": list(setting.choices),
            "default": setting.default,
            "is_secret": setting.is_secret,
            "flag": setting.flag if setting.has_flag else None,
            "environment": setting.environment or None,
            "needs": setting.needs,
            **shown,
            "source": source,
            "waits_for": waits_for,
        }

    def _found(self, setting: Setting, changes: Mapping[Setting, Any] | None = None) -> tuple[Any, Source]:
        """The value and whose it is, as it would be with the changes."""
        kept: Mapping[str, Any] = self._secrets if setting.is_secret else self._file
        if changes is not None and setting in changes:
            kept = _after(kept, {setting.name: changes[setting]})
        for source, values in (
            (Source.FLAG, self._flags),
            (Source.ENVIRONMENT, self._environment),
            (Source.FILE, kept),
        ):
            if setting.name in values:
                return values[setting.name], source
        return setting.default, Source.DEFAULT

    def _checked(self, found: Mapping[str, Any]) -> dict[str, Any]:
        """What of the file can be followed; the rest is left in it, and said."""
        values = {}
        for name, value in found.items():
            setting = _BY_NAME.get(name)
            if setting is None:
                self._ignored[name] = f"{self.file.path}: {name[:100]} is no setting that this Baton knows"
            elif setting.is_secret:
                self._ignored[name] = (
                    f"{self.file.path}: {name} is a secret, and is not read from there: take it out, and set it with "
                    f"`baton config set {name}`"
                )
            else:
                try:
                    values[name] = setting.from_plain(value)
                except UserError as error:
                    self._ignored[name] = f"{self.file.path}: {error}; {_said(setting.default)} holds"
        return values


def setting_named(name: str) -> Setting:
    """Its words may be joined by - as in a flag. Raises InvalidRequest."""
    setting = _BY_NAME.get(name.strip().replace("-", "_"))
    if setting is None:
        raise InvalidRequest(
            f"there is no setting {name[:100]}; there are: {', '.join(_BY_NAME)}", param=name[:100]
        )
    return setting


def _said(value: Any) -> str:
    return "what Baton chooses" if value is None else str(value)


def _after(kept: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in {**kept, **changes}.items() if value is not None}
