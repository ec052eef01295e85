"""The chats' store on a thread of its own: asked from coroutines, told things from anywhere, and never waited for."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

from app.chats.faults import ChatsBusy, ChatsError, ChatsUnreadable
from app.chats.store import Store

log = logging.getLogger(__name__)

Args = ParamSpec("Args")
Result = TypeVar("Result")


@dataclass(frozen=True, kw_only=True)
class _Told:
    """Something to be done with the store that nobody waits for."""

    method: Callable[..., object]
    args: tuple[Any, ...]
    more: Mapping[str, Any]

    def covers(self, other: _Told) -> bool:
        """Whether nothing is left of `other` once this is done: a conversation is kept with all its fields."""
        return self.method is other.method is Store.keep and self.args[0].id == other.args[0].id


class Keeper:
    """Opens the store when it is first asked for something, and again each time that this failed.

    What was told and cannot be kept just now is tried again before whatever comes next. `on_fault`, on the store's
    thread, is told why, and not again until something could be kept, of which it is told by None.
    """

    def __init__(self, path: Path, on_fault: Callable[[ChatsError | None], object] = lambda _: None) -> None:
        self._path, self._on_fault = path, on_fault
        self._store: Store | None = None
        self._unkept: list[_Told] = []
        self._could_keep = True
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
        self._thread.submit(self._take, _Told(method=method, args=args, more=kwargs))

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
        self._catch_up()
        return method(self._opened(), *args, **kwargs)

    def _opened(self) -> Store:
        if self._store is None:
            self._store = Store(self._path)
        return self._store

    def _take(self, told: _Told) -> None:
        at = next((at for at, one in enumerate(self._unkept) if told.covers(one)), len(self._unkept))
        self._unkept[at : at + 1] = [told]
        self._catch_up()

    def _catch_up(self) -> None:
        """Do what was told, in turn, as far as it goes just now."""
        while self._unkept:
            told = self._unkept[0]
            try:
                told.method(self._opened(), *told.args, **told.more)
            except (ChatsBusy, ChatsUnreadable) as error:
                self._complain(error)
                return
            except ChatsError as error:
                self._complain(error)
            except Exception:
                log.exception("a mistake of Baton's window")
            else:
                if not self._could_keep:
                    self._could_keep = True
                    self._on_fault(None)
            del self._unkept[0]

    def _complain(self, error: ChatsError) -> None:
        if self._could_keep:
            self._could_keep = False
            log.warning("not kept: %s", error)
            self._on_fault(error)

    def _end(self) -> None:
        self._catch_up()
        if self._store is not None:
            self._store.close()
            self._store = None
