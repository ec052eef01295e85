"""The chats' store on a thread of its own: asked from coroutines, told things from anywhere, and never waited for."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Concatenate, ParamSpec, TypeVar

from app.chats.faults import ChatsError
from app.chats.store import Store

log = logging.getLogger(__name__)

Args = ParamSpec("Args")
Result = TypeVar("Result")


class Keeper:
    """Opens the store when it is first asked for something, and again each time that this failed."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._store: Store | None = None
        self._is_closed = False
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="chats")

    async def do(
        self,
        method: Callable[Concatenate[Store, Args], Result],
        *args: Args.args,
        **kwargs: Args.kwargs,
    ) -> Result:
        """Have the store do it; raises as it does. Whoever is cancelled meanwhile does not undo it."""
        work = partial(self._do, method, *args, **kwargs)
        return await asyncio.shield(asyncio.get_running_loop().run_in_executor(self._thread, work))

    def tell(
        self,
        method: Callable[Concatenate[Store, Args], object],
        *args: Args.args,
        **kwargs: Args.kwargs,
    ) -> None:
        """Have it done for nobody who waits, in turn with all else; nothing once it is closed. From any thread."""
        if self._is_closed:
            return
        self._thread.submit(self._try, partial(self._do, method, *args, **kwargs))

    def close(self) -> None:
        """All that was told is done first. More than once is no harm."""
        if self._is_closed:
            return
        self._is_closed = True
        self._thread.submit(self._end)
        self._thread.shutdown()

    def _do(
        self,
        method: Callable[Concatenate[Store, Args], Result],
        *args: Args.args,
        **kwargs: Args.kwargs,
    ) -> Result:
        if self._store is None:
            self._store = Store(self._path)
        return method(self._store, *args, **kwargs)

    def _try(self, work: Callable[[], object]) -> None:
        try:
            work()
        except ChatsError as error:
            log.warning("not kept: %s", error)

    def _end(self) -> None:
        if self._store is not None:
            self._store.close()
            self._store = None
