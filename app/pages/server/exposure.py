"""Whether other computers may use the endpoint, and what stands in the way of changing that. Knows nothing of Qt."""

from __future__ import annotations

import ipaddress
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

# Every address that this computer has.
EVERYWHERE = "0.0.0.0"

_KEY_BYTES = 32


@dataclass(frozen=True, kw_only=True)
class Exposure:
    """`is_open` as it is just now, `is_wanted` as the settings have it; both differ until the node starts again.

    `fixed_by` is the flag or variable that decides, "" where the switch does. `key_fixed_by` is the same of the key.
    """

    is_open: bool
    is_wanted: bool
    has_key: bool
    fixed_by: str = ""
    key_fixed_by: str = ""

    @property
    def waits(self) -> bool:
        return self.is_open != self.is_wanted


def exposure_of(settings: Mapping[str, Any], endpoint: str) -> Exposure:
    """Of the node's part `settings`, and the URL that its endpoint has."""
    declared = {one["name"]: one for one in settings.get("settings", [])}
    host, key = declared.get("host", {}), declared.get("api_key", {})
    return Exposure(
        is_open=bool(endpoint) and not is_loopback(_host_of(endpoint)),
        is_wanted=not is_loopback(str(host.get("value") or "127.0.0.1")),
        has_key=bool(key.get("is_set")),
        fixed_by=fixed_by(host),
        key_fixed_by=fixed_by(key),
    )


def change_for(exposure: Exposure, *, is_open: bool) -> tuple[dict[str, Any], str]:
    """What to set so that the endpoint is open or not, and the new key that is among it, "" where it needs none."""
    if not is_open:
        return {"host": None}, ""
    if exposure.has_key:
        return {"host": EVERYWHERE}, ""
    key = new_key()
    return {"host": EVERYWHERE, "api_key": key}, key


def new_key() -> str:
    return secrets.token_urlsafe(_KEY_BYTES)


def fixed_by(declared: Mapping[str, Any]) -> str:
    """The flag or variable that goes before what is set, "" where there is none."""
    source = declared.get("source")
    if source == "flag":
        return str(declared.get("flag") or "")
    return str(declared.get("environment") or "") if source == "environment" else ""


def outside_hosts(addresses: Sequence[str]) -> list[str]:
    """Where others reach this computer; loopback and what no router passes on come last or not at all."""
    found = [address for address in addresses if not is_loopback(address)]
    return sorted(found, key=lambda address: address.startswith("169.254."))


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _host_of(endpoint: str) -> str:
    return endpoint.partition("://")[2].rpartition(":")[0].strip("[]")
