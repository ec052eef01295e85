"""The memory of the device where models are computed, as far as it can be known without a framework.

How much there is was measured with a model, or an engine has said so; what other programs hold of it an engine says
when it is ready. A computer without such a device has its own memory for models.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from engine.node.engines import Memory


class ModelMemory:
    """`host` tells the computer's own memory."""

    def __init__(self, host: Callable[[], Memory]) -> None:
        self._host = host
        self._total_bytes = 0
        self._others_bytes = 0
        self._is_host = False

    def hear(self, told: Mapping[str, Any], *, held_bytes: int) -> None:
        """What an engine says of its device, while those of this node hold `held_bytes` of it."""
        self._total_bytes = int(told["total_bytes"])
        self._others_bytes = max(0, self._total_bytes - int(told["free_bytes"]) - held_bytes)
        self._is_host = bool(told["is_host"])

    def memory(self, *, measured_bytes: int, held_bytes: int) -> Memory:
        """What models may have, of which `held_bytes` are taken; `measured_bytes` is all of it until that is told.

        It is 0 where no such device was met.
        """
        total = self._total_bytes or measured_bytes
        host = self._host()
        if not total:
            return host
        available = max(0, total - self._others_bytes - held_bytes)
        if self._is_host:
            total, available = min(total, host.total_bytes), min(available, host.available_bytes)
        return Memory(total_bytes=total, available_bytes=available)
