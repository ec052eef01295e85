"""What can be set of how words are chosen: each once, with its bounds and the engine's own value."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Setting:
    """`default` is the engine's own; None where it has none, as no limit. `decimals` 0 is a whole number."""

    name: str
    least: float
    most: float
    step: float
    decimals: int
    default: float | None


SETTINGS = (
    Setting(name="temperature", least=0.0, most=2.0, step=0.05, decimals=2, default=0.8),
    Setting(name="top_p", least=0.05, most=1.0, step=0.05, decimals=2, default=0.95),
    Setting(name="top_k", least=0, most=200, step=1, decimals=0, default=40),
    Setting(name="min_p", least=0.0, most=0.5, step=0.01, decimals=2, default=0.05),
    Setting(name="repeat_penalty", least=1.0, most=2.0, step=0.05, decimals=2, default=1.0),
    Setting(name="max_tokens", least=1, most=131072, step=1, decimals=0, default=None),
    Setting(name="seed", least=0, most=2**31 - 1, step=1, decimals=0, default=None),
)
