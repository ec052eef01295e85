"""One answer, from the question to its end: asked of the endpoint, told as it grows, and kept each second.

Runs on the bridge's loop. Knows no Qt. Whatever happens, what has come is kept, and the last event is `Ended`.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from app.chats.faults import ChatsError
from app.chats.keeper import Keeper
from app.chats.model import File, Message, Sampling
from app.chats.models import Computers
from app.chats.progress import PrefillProgress
from app.chats.store import Store
from app.chats.thinking import Thinking
from app.node.client import NodeClient
from app.node.faults import AppError, NodeGone, NodeRefused
from app.pages.chat.transcript.model import CUT_OFF, STOPPED, Prefill, Stats
from app.words import translate

# What a crash may take of a stream.
KEEP_EVERY_S = 1.0

# The window is told as often as it can show something new.
_TELL_EVERY_S = 1 / 30

# The endpoint waits for a model that loads by itself, so that this is no busy asking.
_MAX_RETRY_S = 2.0


@dataclass(frozen=True, kw_only=True)
class Question:
    """What is asked: the messages that lead to `answer`, which is kept already, and what goes with them.

    `goes_on` says that the answer has text, which is to be continued. `prefill` is the endpoint's wish.
    """

    answer: Message
    messages: Sequence[Message]
    system: str
    sampling: Sampling
    model: str
    goes_on: bool = False
    prefill: str = "auto"
    computers: Computers


@dataclass(frozen=True, kw_only=True)
class Loading:
    """The model is being loaded; `progress` from 0 to 1, None where not told. None of it is left once it answers."""

    progress: float | None


@dataclass(frozen=True, kw_only=True)
class Prefilling:
    """How far the prompt is; None when the answer begins."""

    prefill: Prefill | None


@dataclass(frozen=True, kw_only=True)
class Grew:
    """What came since. `is_anew`: these are all of it, as what was taken for the answer was thought."""

    text: str
    reasoning: str
    is_anew: bool = False


@dataclass(frozen=True, kw_only=True)
class NotKept:
    """The store cannot write just now; it is tried again."""

    error: ChatsError


@dataclass(frozen=True, kw_only=True)
class Ended:
    """The answer as it is in the end, with a note where it ended early."""

    answer: Message


Event = Loading | Prefilling | Grew | NotKept | Ended


class Answering:
    """`stop` it from any thread; `events` runs once."""

    def __init__(
        self,
        client: NodeClient,
        keeper: Keeper,
        question: Question,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client, self._keeper, self._question, self._clock = client, keeper, question, clock
        self._answer = question.answer
        self._thinking = Thinking(question.answer.text, question.answer.reasoning)
        self._told_text, self._told_reasoning = self._thinking.text, self._thinking.reasoning
        self._asked_at = self._first_at = self._thought_until = None  # type: float | None
        self._last: dict[str, Any] = {}
        self._finish = ""
        self._news: asyncio.Queue[Event | dict[str, Any] | AppError | None] = asyncio.Queue()
        self._watching: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_stopped = False
        self._note = ""
        self._kept_at = clock()
        self._could_keep = True

    def stop(self) -> None:
        """End the answer where it is; its connection is closed, which ends the work for it."""
        self._is_stopped = True
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._news.put_nowait, None)

    async def events(self) -> AsyncGenerator[Event, None]:
        self._loop = asyncio.get_running_loop()
        reading = asyncio.create_task(self._read())
        note = CUT_OFF
        try:
            async with contextlib.aclosing(self._told()) as told:
                async for event in told:
                    yield event
            note = self._note
        finally:
            tasks = [task for task in (reading, self._watching) if task is not None]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._end(note)
            fault = await self._keep(note)
            if not self._could_keep:
                self._keeper.tell(Store.change_answer, self._answer)
        if fault is not None:
            yield fault
        yield Ended(answer=self._answer)

    async def _told(self) -> AsyncGenerator[Event, None]:
        """All events but the last ones; returns when nothing more comes, having set `_note`."""
        self._note = STOPPED if self._is_stopped else ""
        while not self._is_stopped:
            first = await self._next()
            for item in (first, *self._waiting()) if first is not _NOTHING else ():
                if isinstance(item, dict):
                    if self._take(item):
                        yield Prefilling(prefill=None)
                elif isinstance(item, Loading):
                    yield item
                elif isinstance(item, Prefilling):
                    # The two streams come by two connections: what is told of the prompt may come late.
                    if item.prefill is None or self._first_at is None:
                        yield item
                elif isinstance(item, AppError):
                    self._note = fault_words(
                        item, has_text=bool(self._thinking.text or self._thinking.reasoning)
                    )
                    return
                elif item is None:
                    if grown := self._grown():
                        yield grown
                    self._note = STOPPED if self._is_stopped else self._early()
                    return
            if grown := self._grown():
                yield grown
            if self._clock() - self._kept_at >= KEEP_EVERY_S and (fault := await self._keep()):
                yield fault
            await asyncio.sleep(_TELL_EVERY_S)
        self._note = STOPPED

    async def _next(self) -> Any:
        """The next piece of news, _NOTHING where it is time to keep what there is."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(KEEP_EVERY_S):
                return await self._news.get()
        return _NOTHING

    def _waiting(self) -> list[Any]:
        return [self._news.get_nowait() for _ in range(self._news.qsize())]

    # Towards the endpoint.

    async def _read(self) -> None:
        try:
            while True:
                self._asked_at = self._clock()
                try:
                    await self._read_once()
                except NodeRefused as error:
                    if error.code != "model_loading":
                        raise
                    progress = error.fields.get("progress")
                    self._put(
                        Loading(progress=float(progress) if isinstance(progress, int | float) else None)
                    )
                    await asyncio.sleep(min(error.retry_after_s or _MAX_RETRY_S, _MAX_RETRY_S))
                else:
                    break
            self._put(None)
        except AppError as error:
            self._put(error)

    async def _read_once(self) -> None:
        async with contextlib.aclosing(self._client.chat(request_body(self._question))) as chunks:
            async for chunk in chunks:
                if (
                    self._watching is None
                    and "prompt_progress" in chunk
                    and _is_long(chunk["prompt_progress"])
                ):
                    self._watching = asyncio.create_task(self._watch(f"{chunk['id']}-0"))
                self._put(chunk)

    async def _watch(self, request_id: str) -> None:
        """Tell of the prompt until the answer begins. Without it there is an answer all the same."""
        progress = PrefillProgress(request_id, self._question.computers)
        with contextlib.suppress(AppError):
            async with contextlib.aclosing(self._client.endpoint_events(self._question.model)) as events:
                async for name, data in events:
                    if progress.hear(name, data):
                        self._put(Prefilling(prefill=progress.prefill))
                    if progress.is_over:
                        return

    def _put(self, item: Event | dict[str, Any] | AppError | None) -> None:
        self._news.put_nowait(item)

    def _take(self, chunk: dict[str, Any]) -> bool:
        """Take in what a chunk says; whether the answer begins with it."""
        begins = False
        if "timings" in chunk:
            self._last = chunk["timings"]
        for choice in chunk.get("choices") or ():
            delta = choice.get("delta") or {}
            self._finish = choice.get("finish_reason") or self._finish
            text, reasoning = delta.get("content"), delta.get("reasoning_content")
            if not text and not reasoning:
                continue
            if self._first_at is None:
                self._first_at = self._clock()
                begins = True
            if reasoning:
                self._thinking.add_reasoning(reasoning)
                self._thought_until = self._clock()
            if text:
                self._thinking.add(text)
            if self._thinking.is_thinking:
                self._thought_until = self._clock()
        return begins

    def _grown(self) -> Grew | None:
        """What the window does not know yet."""
        text, reasoning = self._thinking.text, self._thinking.reasoning
        if (text, reasoning) == (self._told_text, self._told_reasoning):
            return None
        if text.startswith(self._told_text) and reasoning.startswith(self._told_reasoning):
            grown = Grew(text=text[len(self._told_text) :], reasoning=reasoning[len(self._told_reasoning) :])
        else:
            grown = Grew(text=text, reasoning=reasoning, is_anew=True)
        self._told_text, self._told_reasoning = text, reasoning
        return grown

    def _early(self) -> str:
        """What is to be said of an answer that ended by itself."""
        if self._finish == "length":
            n_answer = self._last.get("predicted_n")
            if not n_answer:
                return translate("Answer", "It reached its limit. Continue goes on from here.")
            words = translate("Answer", "It reached its limit of {} tokens. Continue goes on from here.")
            return words.format(f"{n_answer:,}")
        if not self._thinking.text.strip():
            return translate("Answer", "The model had nothing to say. Ask again, or in other words.")
        return ""

    # Towards the store.

    def _end(self, note: str) -> None:
        self._thinking.end()
        self._answer = replace(
            self._answer,
            note=note,
            stats=self._stats() if self._last else self._answer.stats,
            model=self._question.model,
        )

    async def _keep(self, note: str = CUT_OFF) -> NotKept | None:
        """Write what there is; told once for as long as it cannot be.

        While more is to come it is kept as cut off: where Baton itself is ended, nobody comes to say so later.
        """
        self._kept_at = self._clock()
        thought_s = self._answer.reasoning_s
        if self._thinking.reasoning and self._thought_until is not None and self._first_at is not None:
            thought_s = self._thought_until - self._first_at
        self._answer = replace(
            self._answer, text=self._thinking.text, reasoning=self._thinking.reasoning, reasoning_s=thought_s
        )
        try:
            await self._keeper.do(Store.change_answer, replace(self._answer, note=note))
        except ChatsError as error:
            was_told, self._could_keep = not self._could_keep, False
            return None if was_told else NotKept(error=error)
        self._could_keep = True
        return None

    def _stats(self) -> Stats:
        first_s = None
        if self._first_at is not None and self._asked_at is not None:
            first_s = self._first_at - self._asked_at
        return stats_of(self._last, first_token_s=first_s, computers=self._question.computers)


_NOTHING = object()


def request_body(question: Question) -> dict[str, Any]:
    """What the endpoint is asked."""
    messages = [{"role": "system", "content": question.system}] if question.system.strip() else []
    for message in question.messages:
        if not (content := content_of(message)):
            continue
        if messages and messages[-1]["role"] == message.role:
            # An answer between them came to nothing, and many templates refuse two questions in a row.
            messages[-1]["content"] += f"\n\n{content}"
        else:
            messages.append({"role": message.role, "content": content})
    body: dict[str, Any] = {
        "model": question.model,
        "messages": messages,
        "stream": True,
        "return_progress": True,
        **question.sampling.wishes(),
    }
    if question.prefill != "auto":
        body["prefill"] = question.prefill
    if question.goes_on:
        messages.append({"role": "assistant", "content": question.answer.text})
        body["continue_final_message"] = True
    return body


def content_of(message: Message) -> str:
    """A message with the text of its files before it."""
    return "\n\n".join(
        [*(file_content(file) for file in message.files), *([message.text] if message.text else [])]
    )


def file_content(file: File) -> str:
    """A file's text as the model reads it: with its name, fenced by more backticks than are in it."""
    fence = "```"
    while fence in file.text:
        fence += "`"
    return f"File: {file.name}\n{fence}\n{file.text}\n{fence}"


def stats_of(timings: dict[str, Any], *, first_token_s: float | None, computers: Computers) -> Stats:
    """How an answer came about, out of the endpoint's `timings`."""
    handoff = timings.get("handoff") or {}
    by_worker = handoff.get("prefill") == "remote"
    where, is_other = computers.prefilled(by_worker=by_worker)
    cached, evaluated = timings.get("cache_n"), timings.get("prompt_n")
    return Stats(
        first_token_s=first_token_s,
        tokens_per_s=timings.get("predicted_per_second") or None,
        n_reused=cached,
        n_prompt=None if cached is None or evaluated is None else cached + evaluated,
        prefilled_on=where if handoff else "",
        is_remote=bool(handoff) and is_other,
        tail_ms=handoff.get("tail_ms"),
        saved_s=_saved_s(handoff) if by_worker else None,
        n_answer=timings.get("predicted_n"),
    )


def _saved_s(handoff: dict[str, Any]) -> float | None:
    """Against doing it alone, from the rates that were measured earlier either way; None where it was no gain."""
    predicted = handoff.get("predicted") or {}
    local_ms, remote_ms = predicted.get("local_ms"), predicted.get("remote_ms")
    if local_ms is None or remote_ms is None or local_ms <= remote_ms:
        return None
    return float(local_ms - remote_ms) / 1000


def fault_words(error: AppError, *, has_text: bool) -> str:
    """Why there is no answer, or no more of it, and what to do."""
    # Not every error of the endpoint is a whole sentence.
    said = str(error) if str(error).endswith((".", "?", "!")) else f"{error}."
    if isinstance(error, NodeRefused) and error.kind == "exceed_context_size_error":
        have, room = error.fields.get("n_prompt_tokens"), error.fields.get("n_ctx")
        words = [translate("Answer", "This conversation is too long for the model.")]
        if isinstance(have, int) and isinstance(room, int):
            counts = translate("Answer", "It has {0} tokens, and {1} fit.").format(f"{have:,}", f"{room:,}")
            words.append(counts)
        words.append(
            translate(
                "Answer", "Start a new chat, take out a file, or give the model more context in Settings."
            )
        )
        return " ".join(words)
    if isinstance(error, NodeRefused) and error.status == 200 and has_text:
        return translate("Answer", "The answer broke off: {} Continue goes on from here.").format(said)
    if isinstance(error, NodeGone) and has_text:
        return translate("Answer", "{} What came is kept, and Continue goes on from here.").format(said)
    return said


def _is_long(progress: dict[str, Any]) -> bool:
    """Whether some of the prompt is still to come."""
    return int(progress.get("processed") or 0) < int(progress.get("total") or 0) - 1
