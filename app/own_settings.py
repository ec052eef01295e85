"""The window's own settings, declared once: what they are called in its preferences, and what they may be. No Qt."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class OwnSetting:
    """One preference. `choices` are its values in the order in which they are shown; none where it is on or off."""

    name: str
    default: str | bool
    choices: tuple[str, ...] = ()


THEME = OwnSetting(name="theme", default="system", choices=("system", "light", "dark"))
PARTING = OwnSetting(name="parting", default="ask", choices=("ask", "keep", "stop"))
NOTIFICATIONS = OwnSetting(name="notifications", default=True)
