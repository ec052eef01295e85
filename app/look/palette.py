"""The colours of Baton's window, light and dark. Knows nothing of Qt.

Two hues mean one thing each, everywhere: teal is this computer and the primary action, violet is the other computer.
Text keeps a contrast of 4.5 to 1 with every ground that it is put on, and what is typed into or switched is outlined
by 3 to 1.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Palette:
    """Each a `#rrggbb`. `*_soft` is a ground for text of its own hue; `on_*` is text upon that hue."""

    is_dark: bool
    ground: str
    surface: str
    sunken: str
    hover: str
    pressed: str
    border: str
    border_strong: str
    border_input: str
    text: str
    text_soft: str
    text_faint: str
    local: str
    local_hover: str
    local_soft: str
    on_local: str
    peer: str
    peer_soft: str
    warning: str
    warning_soft: str
    danger: str
    danger_hover: str
    danger_soft: str
    on_danger: str
    selection: str
    shadow: str
    code_word: str
    code_string: str
    code_number: str
    code_name: str


LIGHT = Palette(
    is_dark=False,
    ground="#faf9f7",
    surface="#ffffff",
    sunken="#f3f1ed",
    hover="#edeae5",
    pressed="#e4e0d9",
    border="#e5e1da",
    border_strong="#c9c4ba",
    border_input="#8f897d",
    text="#1f1d1a",
    text_soft="#575349",
    text_faint="#68635a",
    local="#0d6f67",
    local_hover="#0a5850",
    local_soft="#dff0ed",
    on_local="#ffffff",
    peer="#6a45c2",
    peer_soft="#ece6f9",
    warning="#8a5200",
    warning_soft="#fcf0da",
    danger="#b3261e",
    danger_hover="#8f1d17",
    danger_soft="#fbe8e6",
    on_danger="#ffffff",
    selection="#cbe9e4",
    shadow="#d6d1c7",
    code_word="#9a3060",
    code_string="#4a661b",
    code_number="#8a4b08",
    code_name="#255c99",
)

DARK = Palette(
    is_dark=True,
    ground="#191816",
    surface="#211f1d",
    sunken="#141311",
    hover="#2b2926",
    pressed="#36332f",
    border="#34312d",
    border_strong="#514d46",
    border_input="#746e65",
    text="#ece9e3",
    text_soft="#b3aea4",
    text_faint="#a39e94",
    local="#4fc1b3",
    local_hover="#72d2c6",
    local_soft="#1c3531",
    on_local="#0a1e1b",
    peer="#b49cf2",
    peer_soft="#2e2744",
    warning="#e9b85f",
    warning_soft="#392d17",
    danger="#f28b82",
    danger_hover="#f7a9a2",
    danger_soft="#3e2321",
    on_danger="#2a0c0a",
    selection="#1c3d38",
    shadow="#0c0b0a",
    code_word="#e898bd",
    code_string="#b3cb80",
    code_number="#e0ae72",
    code_name="#8ebaea",
)


def contrast(one: str, other: str) -> float:
    """The contrast ratio of two colours, 1 to 21, as WCAG 2 defines it."""
    lighter, darker = sorted((_luminance(one), _luminance(other)), reverse=True)
    return (lighter + 0.05) / (darker + 0.05)


def _luminance(colour: str) -> float:
    shares = (int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5))
    linear = [share / 12.92 if share <= 0.04045 else ((share + 0.055) / 1.055) ** 2.4 for share in shares]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
