"""An answer from the question to its end, against an endpoint of plain data."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from app.chats import answering
from app.chats.answering import (
    Answering,
    Ended,
    Event,
    Grew,
    Loading,
    NotKept,
    Prefilling,
    Question,
    request_body,
    stats_of,
)
from app.chats.faults import ChatsBusy, ChatsError
from app.chats.keeper import Keeper
from app.chats.model import Conversation, File, Message, Sampling
from app.chats.models import Computers
from app.chats.store import Store
from app.node.faults import AppError, NodeGone, NodeRefused
from app.pages.chat.transcript.model import CUT_OFF, STOPPED

TIMINGS = {
    "cache_n": 100,
    "prompt_n": 20,
    "predicted_n": 2,
    "predicted_per_second": 50.0,
    "handoff": {
        "prefill": "remote",
        "tail_ms": 2.5,
        "predicted": {"local_ms": 900.0, "remote_ms": 400.0},
    },
}

COMPUTERS = Computers(decoder="studio", worker="spark")

ASKED = Message(id="q", parent=None, role="user", text="Why?", created=1.0)
ANSWER = Message(id="a", parent="q", role="assistant", text="", created=2.0)
QUESTION = Question(
    answer=ANSWER, messages=(ASKED,), system="", sampling=Sampling(), model="m", computers=COMPUTERS
)


def chunk(text: str = "", *, finish: str | None = None, **more: Any) -> dict[str, Any]:
    delta = {"content": text} if text else {}
    return {"id": "chatcmpl-1", "choices": [{"delta": delta, "finish_reason": finish}], **more}


class Endpoint:
    """Answers the requests with these lists in turn: chunks, an error to raise, or an event to wait for."""

    def __init__(self, *answers: list[Any], events: list[tuple[str, dict[str, Any]]] | None = None) -> None:
        self._answers = list(answers)
        self._events = events or []
        self.bodies: list[dict[str, Any]] = []
        self.n_closed = 0

    async def chat(self, body: dict[str, Any]) -> AsyncGenerator[dict[str, Any], None]:
        self.bodies.append(body)
        try:
            for item in self._answers.pop(0):
                if isinstance(item, AppError):
                    raise item
                if isinstance(item, asyncio.Event):
                    await item.wait()
                else:
                    yield item
        finally:
            self.n_closed += 1

    async def endpoint_events(self, model: str) -> AsyncGenerator[tuple[str, dict[str, Any]], None]:
        for event in self._events:
            yield event


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "chats.db"
    with Store(path) as store:
        store.keep(Conversation(id="c", created=1.0, updated=1.0))
        store.add("c", ASKED, ANSWER)
    return path


def kept(path: Path) -> Message:
    with Store(path) as store:
        return store.chat("c").messages[1]


def run(
    endpoint: Endpoint,
    path: Path,
    question: Question = QUESTION,
    hear: Callable[[Answering, Event], object] = lambda answering, event: None,
) -> list[Event]:
    async def work() -> list[Event]:
        one = Answering(endpoint, keeper, question)  # type: ignore[arg-type]
        heard = []
        async for event in one.events():
            heard.append(event)
            hear(one, event)
        return heard

    keeper = Keeper(path)
    try:
        return asyncio.run(asyncio.wait_for(work(), 60))
    finally:
        keeper.close()


def said(events: list[Event]) -> str:
    return "".join(event.text for event in events if isinstance(event, Grew))


def test_an_answer_grows_and_is_kept_with_its_figures(path: Path) -> None:
    endpoint = Endpoint([chunk("Because"), chunk(" so."), chunk(finish="stop", timings=TIMINGS)])
    events = run(endpoint, path)
    assert said(events) == "Because so."
    ended = events[-1]
    assert isinstance(ended, Ended) and ended.answer.text == "Because so." and ended.answer.note == ""
    stats = ended.answer.stats
    assert stats is not None and stats.first_token_s is not None
    assert (stats.n_prompt, stats.n_reused, stats.prefilled_on, stats.is_remote) == (120, 100, "spark", True)
    assert (stats.tail_ms, stats.saved_s, stats.tokens_per_s, stats.n_answer) == (2.5, 0.5, 50.0, 2)
    assert kept(path) == ended.answer


def test_thought_is_told_apart_and_a_late_mark_takes_it_back(path: Path) -> None:
    gate = asyncio.Event()
    endpoint = Endpoint(
        [chunk("Hm.\n"), gate, chunk("</think>\nYes."), chunk(finish="stop", timings=TIMINGS)]
    )
    events = run(endpoint, path, hear=lambda _, event: gate.set())
    grown = [event for event in events if isinstance(event, Grew)]
    assert grown[0] == Grew(text="Hm.\n", reasoning="")
    assert grown[1] == Grew(text="Yes.", reasoning="Hm.", is_anew=True)
    assert (kept(path).text, kept(path).reasoning) == ("Yes.", "Hm.")


def test_reasoning_of_the_server_is_timed(path: Path) -> None:
    thought = {"id": "1", "choices": [{"delta": {"reasoning_content": "Hm."}, "finish_reason": None}]}
    events = run(Endpoint([thought, chunk("Yes."), chunk(finish="stop", timings=TIMINGS)]), path)
    assert isinstance(events[-1], Ended) and events[-1].answer.reasoning == "Hm."
    assert events[-1].answer.reasoning_s is not None


def test_a_model_that_loads_is_waited_for(path: Path) -> None:
    loading = NodeRefused(
        "m is being loaded", status=503, code="model_loading", fields={"progress": 0.4}, retry_after_s=0.001
    )
    endpoint = Endpoint([loading], [loading], [chunk("Yes."), chunk(finish="stop", timings=TIMINGS)])
    events = run(endpoint, path)
    assert events[0] == Loading(progress=0.4)
    assert said(events) == "Yes." and len(endpoint.bodies) == 3


def test_a_prompt_that_is_too_long_is_said_with_both_counts(path: Path) -> None:
    error = NodeRefused(
        "too long",
        status=400,
        kind="exceed_context_size_error",
        fields={"n_prompt_tokens": 5120, "n_ctx": 4096},
    )
    (*_, ended) = run(Endpoint([error]), path)
    assert isinstance(ended, Ended) and "5,120" in ended.answer.note and "4,096" in ended.answer.note
    assert "Start a new chat" in kept(path).note


def test_an_engine_that_crashes_leaves_what_came(path: Path) -> None:
    crash = NodeRefused("The engine of m ended", status=200, kind="server_error")
    (*_, ended) = run(Endpoint([chunk("Beca"), crash]), path)
    assert isinstance(ended, Ended) and ended.answer.text == "Beca"
    assert ended.answer.note == "The answer broke off: The engine of m ended. Continue goes on from here."
    assert kept(path) == ended.answer


def test_a_node_that_goes_leaves_what_came(path: Path) -> None:
    (*_, ended) = run(Endpoint([chunk("Beca"), NodeGone("It is gone.")]), path)
    assert isinstance(ended, Ended)
    assert ended.answer.text == "Beca" and "Continue goes on" in ended.answer.note
    (*_, ended) = run(Endpoint([NodeGone("It is gone.")]), path)
    assert isinstance(ended, Ended) and ended.answer.note == "It is gone."


def test_stopping_closes_the_connection_and_keeps_what_came(path: Path) -> None:
    endpoint = Endpoint([chunk("Beca"), asyncio.Event()])
    events = run(endpoint, path, hear=lambda one, event: one.stop())
    assert isinstance(events[-1], Ended) and events[-1].answer.note == STOPPED
    assert events[-1].answer.text == "Beca" and endpoint.n_closed == 1
    assert kept(path) == events[-1].answer


def test_stopping_before_it_began_asks_nothing_more(path: Path) -> None:
    async def work() -> list[Event]:
        one = Answering(Endpoint([asyncio.Event()]), keeper, QUESTION)  # type: ignore[arg-type]
        one.stop()
        return [event async for event in one.events()]

    keeper = Keeper(path)
    (ended,) = asyncio.run(asyncio.wait_for(work(), 60))
    keeper.close()
    assert isinstance(ended, Ended) and ended.answer.note == STOPPED


def test_a_window_that_closes_keeps_what_came(path: Path) -> None:
    async def work() -> None:
        one = Answering(Endpoint([chunk("Beca"), asyncio.Event()]), keeper, QUESTION)  # type: ignore[arg-type]
        grown = asyncio.Event()

        async def follow() -> None:
            async for _ in one.events():
                grown.set()

        task = asyncio.create_task(follow())
        await grown.wait()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    keeper = Keeper(path)
    asyncio.run(asyncio.wait_for(work(), 60))
    keeper.close()
    assert kept(path).text == "Beca"


def test_what_streams_is_kept_meanwhile(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As much as a killed window would find."""
    monkeypatch.setattr(answering, "KEEP_EVERY_S", 0.01)
    gate = asyncio.Event()
    endpoint = Endpoint([chunk("Be"), chunk("ca"), gate, chunk("use"), chunk(finish="stop", timings=TIMINGS)])

    async def work() -> None:
        async def look() -> None:
            while kept(path).text != "Beca":
                await asyncio.sleep(0.005)
            assert kept(path).note == CUT_OFF
            gate.set()

        looking = asyncio.create_task(look())
        async for _ in Answering(endpoint, keeper, QUESTION).events():  # type: ignore[arg-type]
            pass
        await looking

    keeper = Keeper(path)
    asyncio.run(asyncio.wait_for(work(), 60))
    keeper.close()
    assert (kept(path).text, kept(path).note) == ("Because", "")


def test_a_store_that_cannot_write_is_said_once_and_costs_no_text(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(store: Store, message: Message) -> None:
        raise ChatsError("The disk is full.")

    monkeypatch.setattr(answering, "KEEP_EVERY_S", 0.0)
    monkeypatch.setattr(Store, "change_answer", full)
    events = run(Endpoint([chunk("Be"), chunk("cause."), chunk(finish="stop", timings=TIMINGS)]), path)
    assert [str(event.error) for event in events if isinstance(event, NotKept)] == ["The disk is full."]
    assert isinstance(events[-1], Ended) and events[-1].answer.text == "Because."


def test_an_answer_that_could_not_be_kept_at_its_end_is_kept_later(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep, is_full = Store.change_answer, True

    def change(store: Store, message: Message) -> None:
        if is_full:
            raise ChatsBusy("The disk is full.")
        keep(store, message)

    async def work() -> None:
        endpoint = Endpoint([chunk("Because."), chunk(finish="stop", timings=TIMINGS)])
        async for _ in Answering(endpoint, keeper, QUESTION).events():  # type: ignore[arg-type]
            pass

    monkeypatch.setattr(Store, "change_answer", change)
    keeper = Keeper(path)
    asyncio.run(asyncio.wait_for(work(), 60))
    is_full = False
    keeper.close()
    assert (kept(path).text, kept(path).note) == ("Because.", "")


def test_an_answer_at_its_limit_says_so(path: Path) -> None:
    (*_, ended) = run(Endpoint([chunk("Yes"), chunk(finish="length", timings=TIMINGS)]), path)
    assert isinstance(ended, Ended) and "limit of 2 tokens" in ended.answer.note


def test_an_answer_of_nothing_says_so(path: Path) -> None:
    (*_, ended) = run(Endpoint([chunk(finish="stop", timings=TIMINGS)]), path)
    assert isinstance(ended, Ended) and "nothing to say" in ended.answer.note


def test_a_long_prompt_is_followed_until_the_answer_begins(path: Path) -> None:
    news = {"id": "chatcmpl-1-0", "n_prompt_tokens": 900, "first": 0, "stop": 600, "prefill": "remote"}
    gate = asyncio.Event()
    endpoint = Endpoint(
        [
            chunk(prompt_progress={"total": 900, "cache": 0, "processed": 300, "time_ms": 9.0}),
            gate,
            chunk("Yes"),
            chunk(finish="stop", timings=TIMINGS),
        ],
        events=[("chunk", {**news, "at_ms": 500.0, "compute_ms": 250.0})],
    )
    events = run(endpoint, path, hear=lambda one, event: gate.set())
    told = [event.prefill for event in events if isinstance(event, Prefilling)]
    assert told[0] is not None and (told[0].done, told[0].total, told[0].where) == (600, 900, "spark")
    assert told[-1] is None


def test_the_body_has_what_was_chosen_and_no_more() -> None:
    file = File(id="f", name="log.txt", text="a ``` b", n_bytes=7)
    question = replace(
        QUESTION,
        messages=(replace(ASKED, files=(file,)), replace(ANSWER, text="")),
        system="Be short.",
        sampling=Sampling(temperature=0.0, top_k=5),
    )
    body = request_body(question)
    assert body["messages"] == [
        {"role": "system", "content": "Be short."},
        {"role": "user", "content": "File: log.txt\n````\na ``` b\n````\n\nWhy?"},
    ]
    assert (body["temperature"], body["top_k"], body["stream"]) == (0.0, 5, True)
    assert not {"top_p", "max_tokens", "prefill", "continue_final_message"} & set(body)


def test_questions_without_an_answer_between_them_are_one() -> None:
    again = replace(ASKED, id="r", parent="a", text="Why then?")
    body = request_body(replace(QUESTION, messages=(ASKED, ANSWER, again)))
    assert body["messages"] == [{"role": "user", "content": "Why?\n\nWhy then?"}]


def test_a_continued_answer_is_asked_for_as_it_is() -> None:
    question = replace(QUESTION, answer=replace(ANSWER, text="Beca"), goes_on=True, prefill="local")
    body = request_body(question)
    assert body["messages"][-1] == {"role": "assistant", "content": "Beca"}
    assert body["continue_final_message"] is True and body["prefill"] == "local"


def test_a_continued_answer_keeps_its_beginning(path: Path) -> None:
    question = replace(QUESTION, answer=replace(ANSWER, text="Beca", reasoning="Hm."), goes_on=True)
    events = run(Endpoint([chunk("use."), chunk(finish="stop", timings=TIMINGS)]), path, question)
    assert said(events) == "use."
    assert (kept(path).text, kept(path).reasoning) == ("Because.", "Hm.")


@pytest.mark.parametrize(
    ("handoff", "saved_s"),
    [
        ({"prefill": "remote", "predicted": {"local_ms": 100.0, "remote_ms": 400.0}}, None),
        ({"prefill": "remote", "predicted": None}, None),
        ({"prefill": "local", "predicted": {"local_ms": 900.0, "remote_ms": 400.0}}, None),
        (None, None),
    ],
)
def test_nothing_is_saved_where_nothing_was_gained(handoff: Any, saved_s: float | None) -> None:
    stats = stats_of({"handoff": handoff}, first_token_s=None, computers=COMPUTERS)
    assert stats.saved_s is saved_s and stats.n_prompt is None
