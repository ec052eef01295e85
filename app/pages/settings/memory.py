"""The memory that a model takes with some context and slots, and whether it fits. Knows nothing of Qt."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

# Nearly full is where other programs begin to be in need.
_TIGHT_SHARE = 0.9


@dataclass(frozen=True, kw_only=True)
class Need:
    """`room_bytes` is what can be had for it; `is_loaded` whether the model is in memory now."""

    model: str
    is_loaded: bool
    needed_bytes: int
    room_bytes: int
    total_bytes: int
    n_ctx_train: int = 0

    @property
    def share(self) -> float:
        return self.needed_bytes / self.room_bytes if self.room_bytes else 1.0

    @property
    def fit(self) -> str:
        """fits, tight or too large."""
        if self.share > 1:
            return "too large"
        return "tight" if self.share > _TIGHT_SHARE else "fits"

    @property
    def tone(self) -> str:
        return {"fits": "local", "tight": "warning", "too large": "danger"}[self.fit]


def need_of(told: Mapping[str, Any], preferred: str = "") -> Need | None:
    """Of the node's answer: the loaded model that takes most; else the preferred one; else the largest there is."""
    models = list(told.get("models", []))
    if not models:
        return None
    chosen = max(
        models,
        key=lambda one: (one["is_loaded"], one["model"] == preferred, one["needed_bytes"]),
    )
    return Need(
        model=chosen["model"],
        is_loaded=chosen["is_loaded"],
        needed_bytes=chosen["needed_bytes"],
        n_ctx_train=chosen.get("n_ctx_train") or 0,
        room_bytes=told["room_bytes"],
        total_bytes=told["total_bytes"],
    )
