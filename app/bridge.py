"""The one way off the GUI thread: coroutines run on a loop of their own, and what they say arrives on the GUI thread.

Nothing that a coroutine gives is ever touched by two threads: it is made there and handed over once.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine
from typing import Any

from PySide6.QtCore import QObject, Qt, Signal, Slot

from app.node.faults import AppError
from app.words import translate

log = logging.getLogger(__name__)

_END_WITHIN_S = 3.0

OnError = Callable[[AppError], object]


class Job(QObject):
    """Something that runs; `cancel` it and nothing of it is heard any more. On the GUI thread only."""

    def __init__(
        self,
        on_item: Callable[[Any], object] | None,
        on_done: Callable[[Any], object] | None,
        on_error: OnError | None,
        on_end: Callable[[Job], object],
    ) -> None:
        super().__init__()
        self._on_item, self._on_done, self._on_error, self._on_end = on_item, on_done, on_error, on_end
        self.task: asyncio.Future[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self.is_running = True

    def started(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def cancel(self) -> None:
        if not self.is_running:
            return
        self.is_running = False
        self._on_end(self)
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._cancel_task)

    def _cancel_task(self) -> None:
        if self.task is not None:
            self.task.cancel()

    def hear(self, kind: str, value: Any) -> None:
        """What the coroutine said: an item, its result, or the error that ended it."""
        if not self.is_running:
            return
        if kind == "item":
            if self._on_item is not None:
                self._on_item(value)
            return
        self.is_running = False
        self._on_end(self)
        if kind == "done":
            if self._on_done is not None:
                self._on_done(value)
        elif self._on_error is not None:
            self._on_error(value)
        else:
            log.warning("nobody was told: %s", value)


class Bridge(QObject):
    """`run` a coroutine or `stream` a generator; callbacks are called on the GUI thread, in order.

    An AppError goes to `on_error`. Any other is a mistake of ours: it is logged, and told as one.
    """

    _said = Signal(object, str, object)

    def __init__(self, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._jobs: set[Job] = set()
        self._said.connect(self._hear, Qt.ConnectionType.QueuedConnection)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._work, name="bridge", daemon=True)
        self._thread.start()

    def run(
        self,
        coroutine: Coroutine[Any, Any, Any],
        on_done: Callable[[Any], object] | None = None,
        on_error: OnError | None = None,
    ) -> Job:
        async def work(job: Job) -> None:
            self._said.emit(job, "done", await coroutine)

        return self._start(work, Job(None, on_done, on_error, self._jobs.discard), coroutine.close)

    def stream(
        self,
        items: AsyncGenerator[Any, None],
        on_item: Callable[[Any], object],
        on_done: Callable[[Any], object] | None = None,
        on_error: OnError | None = None,
    ) -> Job:
        """`on_done` is called with None when the last item has been."""

        async def work(job: Job) -> None:
            try:
                async for item in items:
                    self._said.emit(job, "item", item)
            finally:
                await items.aclose()
            self._said.emit(job, "done", None)

        return self._start(work, Job(on_item, on_done, on_error, self._jobs.discard), lambda: None)

    def close(self, last: Coroutine[Any, Any, None]) -> None:
        """Cancel everything, run `last`, and end the thread. What takes longer than seconds is left."""
        for job in list(self._jobs):
            job.cancel()
        with contextlib.suppress(TimeoutError):
            asyncio.run_coroutine_threadsafe(last, self._loop).result(_END_WITHIN_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_END_WITHIN_S)

    def _start(
        self, work: Callable[[Job], Coroutine[Any, Any, None]], job: Job, forget: Callable[[], object]
    ) -> Job:
        self._jobs.add(job)
        job.started(self._loop)

        async def guarded() -> None:
            try:
                await work(job)
            except AppError as error:
                self._said.emit(job, "error", error)
            except Exception as error:
                log.exception("a mistake of Baton's window")
                self._said.emit(
                    job,
                    "error",
                    AppError(
                        translate("Window", "Baton made a mistake: {}. Its log has the details.").format(
                            error
                        )
                    ),
                )

        def begin() -> None:
            if job.is_running:
                job.task = asyncio.ensure_future(guarded())
                # One that is cancelled before its first step has not touched what it was to wait for.
                job.task.add_done_callback(lambda _: forget())
            else:
                forget()

        self._loop.call_soon_threadsafe(begin)
        return job

    def _work(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
        finally:
            tasks = asyncio.all_tasks(self._loop)
            for task in tasks:
                task.cancel()
            if tasks:
                self._loop.run_until_complete(asyncio.wait(tasks, timeout=_END_WITHIN_S))
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
            self._loop.close()

    @Slot(object, str, object)
    def _hear(self, job: Job, kind: str, value: object) -> None:
        job.hear(kind, value)
