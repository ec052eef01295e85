"""Changes settings while the node runs: checked, kept, and felt at once or when models are loaded anew.

It knows which settings engines and workers were started with; what a change means to other parts is `apply`'s.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from engine.config import NODE_SETTINGS, Needs, Setting
from engine.node.engines import Engines
from engine.node.settings import NodeSettings
from engine.node.trust.secrets import Secrets
from engine.node.workers import Workers


class Changes:
    """On the node's event loop; `on_change` is called when the snapshot is another."""

    def __init__(
        self,
        settings: NodeSettings,
        secrets: Secrets,
        engines: Engines,
        workers: Workers,
        *,
        apply: Callable[[], Awaitable[None]],
        on_change: Callable[[], None],
    ) -> None:
        self._settings = settings
        self._secrets = secrets
        self._engines = engines
        self._workers = workers
        self._apply = apply
        self._on_change = on_change
        self._changing = asyncio.Lock()
        self._at_start = {s: settings.value(s) for s in NODE_SETTINGS if s.needs is Needs.RESTART}
        self._waiting: frozenset[Setting] = frozenset()
        self._reloading: asyncio.Task[None] | None = None
        self._is_wanted = False
        self._fault = ""

    async def close(self) -> None:
        if self._reloading is not None:
            self._reloading.cancel()
            await asyncio.gather(self._reloading, return_exceptions=True)

    @property
    def is_reloading(self) -> bool:
        return self._reloading is not None and not self._reloading.done()

    def snapshot(self) -> dict[str, Any]:
        """As the settings', with what a change waits for; `reload_fault` says what did not come back."""
        waiting = self._look()
        return {
            **self._settings.snapshot(lambda setting: setting.needs if setting in waiting else Needs.NOTHING),
            "is_reloading": self.is_reloading,
            "reload_fault": self._fault,
        }

    async def change(self, changes: Mapping[str, Any]) -> None:
        """All of it or nothing; returns when it is kept and is felt where it can be. Raises as `NodeSettings` does."""
        async with self._changing:
            checked = self._settings.check(changes)
            await asyncio.to_thread(self._settings.keep, checked, self._secrets)
        await self._apply()
        self._waiting = self._look()
        self._on_change()

    def reload(self) -> None:
        """Load all that waits for it anew, one after the other. Returns at once."""
        self._is_wanted = True
        if not self.is_reloading:
            self._reloading = asyncio.create_task(self._reload(), name="reload")
            self._on_change()

    def look_again(self) -> None:
        """What is loaded may be something else."""
        waiting = self._look()
        if waiting != self._waiting:
            self._waiting = waiting
            self._on_change()

    async def _reload(self) -> None:
        try:
            while self._is_wanted:
                self._is_wanted = False
                self._fault = await self._engines.reload_outdated()
                await self._workers.reload_outdated()
        finally:
            # told when this task counts as done
            asyncio.get_running_loop().call_soon(self._on_change)

    def _look(self) -> frozenset[Setting]:
        """The settings of which something that runs has another value than holds now."""
        running = [
            self._at_start,
            *(engine.settings for engine in self._engines.outdated()),
            *self._workers.outdated_settings(),
        ]
        return frozenset(
            setting
            for values in running
            for setting, value in values.items()
            if value != self._settings.value(setting)
        )
