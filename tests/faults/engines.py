"""A worker and a decoder as processes of their own, with a real model, and questions that have one right answer.

The right answer is what the decoder gives alone: greedy, with the same seed, all of it computed on one computer. The
two are joined through a `Relay`, so that the link can be cut where no process ends.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from engine.cli.children import Child, ended_together
from engine.node.trust.identity import Identity
from tests.faults.relay import Relay

# Real processes on a computer that has other things to do.
TIMEOUT_S = 30.0

N_TOKENS = 300
CHUNK = 32
N_CHUNKS = 10
_MAX_TOKENS = 16

# In another order for each prompt: what comes next depends on all of it.
_SENTENCES = [
    "The first runner was quick out of the blocks",
    "A storm had washed the old bridge away",
    "Nobody had seen the key since March",
    "Seven boats came back before noon",
    "The baker opened his shop at four",
    "She counted the steps and lost count",
    "It rained on the last day of the fair",
    "His uncle kept bees behind the mill",
    "The letter was written in green ink",
    "Two of the lamps did not burn",
    "They sold the horse and bought a clock",
    "The river is wide and slow there",
    "A dog barked at the postman",
    "The train from the coast was late again",
    "Her sister knew all the songs",
    "The apples were small that year.",
]


def moments(n_sample: int, n_all: int) -> list[Any]:
    """Seeds; all but the first `n_sample` are for `make soak` alone."""
    return [
        *range(n_sample),
        *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(n_sample, n_all)),
    ]


News = Callable[[str, dict[str, Any]], bool]


@dataclass(kw_only=True)
class Answer:
    """`tokens` of the answer, and where its prompt was prefilled."""

    tokens: list[int]
    handoff: dict[str, Any]


@dataclass
class Asking:
    """A question under way, and what the endpoint says of it meanwhile."""

    answer: Future[Answer]
    _told: Iterator[tuple[str, dict[str, Any]]]

    def wait_for(self, is_it: News) -> dict[str, Any]:
        """Read on until that piece of news."""
        for name, data in self._told:
            if is_it(name, data):
                return data
        raise AssertionError("the endpoint ended its news")

    def wait_for_chunks(self, count: int) -> None:
        """Until so many chunks of the handoff have been committed."""
        for _ in range(count):
            self.wait_for(lambda name, _: name == "chunk")

    def wait_for_state(self, state: str) -> dict[str, Any]:
        return self.wait_for(lambda name, data: name == "request" and data["state"] == state)


@dataclass
class Engines:
    """Both processes; any of them may be ended and started again. `address` is the worker's where no relay is wanted,
    and `logs` a folder for what they write.
    """

    model: Path
    folder: Path
    address: str | None = None
    logs: Path | None = None
    worker_words: list[str] = field(default_factory=list)
    decoder_words: list[str] = field(default_factory=list)

    worker: Child | None = None
    decoder: Child | None = None

    def __post_init__(self) -> None:
        self.relay = Relay()
        self._users = ThreadPoolExecutor(4)
        self._client: httpx.Client | None = None
        self._right: dict[tuple[int, ...], list[int]] = {}
        self._ids = {name: Identity.load_or_create(self.folder / name) for name in ("worker", "decoder")}

    def start_worker(self) -> None:
        self.worker = self._child(
            "worker", ["worker", "--listen", self.address or "127.0.0.1:0", *self.worker_words]
        )
        self.relay.target = self.worker.wait_for("ready", timeout_s=TIMEOUT_S)["port"]

    def start_decoder(self) -> None:
        words = [
            "serve",
            "--port",
            "0",
            "--chunk",
            str(CHUNK),
            "--peer",
            self.address or f"127.0.0.1:{self.relay.port}",
        ]
        self.decoder = self._child("decoder", [*words, *self.decoder_words])
        self.port = self.decoder.wait_for("ready", timeout_s=TIMEOUT_S)["port"]
        if self._client is not None:
            self._client.close()
        self._client = httpx.Client(base_url=f"http://127.0.0.1:{self.port}", timeout=TIMEOUT_S)

    def _child(self, name: str, words: list[str]) -> Child:
        other = self._ids["decoder" if name == "worker" else "worker"]
        words += ["--identity", str(self.folder / name), "--trust", other.fingerprint]
        # With room for one prompt, a worker that keeps one for nobody has none for the next.
        words += ["--slots", "1" if name == "worker" else "2"]
        words += ["--model", str(self.model), "--ctx", "1024", "--threads", "1"]
        return Child(name, words, (self.logs or self.folder) / f"{name}.log")

    def make_whole(self) -> None:
        """Start what does not run, and wait until the two have found each other."""
        if self.worker is None or not self.worker.is_running:
            self.start_worker()
        if self.decoder is None or not self.decoder.is_running:
            self.start_decoder()
        self.wait_for_link()

    def close(self) -> None:
        children = [child for child in (self.worker, self.decoder) if child is not None]
        with ended_together(*children):
            self.relay.close()
        for child in children:
            child.close()
        self._users.shutdown(cancel_futures=True)
        if self._client is not None:
            self._client.close()

    # Questions.

    def prompt(self, seed: int, n_tokens: int = N_TOKENS) -> list[int]:
        """A prompt that begins like no other seed's."""
        text = ". ".join(random.Random(seed).choices(_SENTENCES, k=n_tokens // 4))
        tokens: list[int] = self._client.post("/tokenize", json={"content": text}).json()["tokens"]
        return tokens[:n_tokens]

    def ask(self, prompt: list[int], prefill: str = "remote", **body: Any) -> Answer:
        response = self._client.post("/v1/completions", json=self._wish(prompt, prefill) | body)
        assert response.status_code == 200, response.text
        answer = response.json()
        return Answer(tokens=answer["tokens"], handoff=answer["timings"]["handoff"])

    def _wish(self, prompt: list[int], prefill: str) -> dict[str, Any]:
        wish = {"max_tokens": _MAX_TOKENS, "temperature": 0, "seed": 7, "ignore_eos": True}
        return wish | {"cache_prompt": False, "return_tokens": True, "prompt": prompt, "prefill": prefill}

    def right(self, prompt: list[int]) -> list[int]:
        """The answer that this prompt has where nothing is handed over."""
        key = tuple(prompt)
        if key not in self._right:
            answer = self.ask(prompt, "local")
            assert answer.handoff["prefill"] == "local"
            self._right[key] = answer.tokens
        return self._right[key]

    @contextlib.contextmanager
    def asking(self, prompt: list[int], **body: Any) -> Iterator[Asking]:
        """Ask, and do something to the engines meanwhile."""
        with self.news() as told:
            yield Asking(self._users.submit(self.ask, prompt, **body), told)

    @contextlib.contextmanager
    def news(self) -> Iterator[Iterator[tuple[str, dict[str, Any]]]]:
        """What happens at the endpoint, from the snapshot on."""
        with self._client.stream("GET", "/events") as response:
            yield _events(response)

    def wait_for_link(self, connected: bool = True) -> None:
        with self.news() as told:
            for name, data in told:
                worker = data["worker"] if name == "snapshot" else data if name == "link" else None
                if worker is not None and worker["connected"] is connected:
                    return

    def is_right(self, prompt: list[int], answer: Answer) -> None:
        assert answer.tokens == self.right(prompt), answer.handoff

    def goes_on(self) -> None:
        """The two work together again, and right. What broke a moment ago may not have been noticed yet."""
        self.make_whole()
        prompt, deadline = self.prompt(0, n_tokens=50), time.monotonic() + TIMEOUT_S
        while True:
            answer = self.ask(prompt)
            self.is_right(prompt, answer)
            if answer.handoff["prefill"] == "remote":
                return
            assert time.monotonic() < deadline, answer.handoff
            self.make_whole()

    def wait_for_idle(self, within_s: float) -> None:
        """Every slot of the decoder is idle within that time."""
        begun = time.monotonic()
        with self.news() as told:
            _, data = next(told)
            busy = {slot["id"] for slot in data["slots"] if slot["state"] != "idle"}
            while busy:
                name, data = next(told)
                if name == "slots":
                    busy = {slot["id"] for slot in data["slots"] if slot["state"] != "idle"}
        assert time.monotonic() - begun < within_s

    def worker_says(self, words: str, within_s: float) -> None:
        """What it has to tell of the link has these words in it, within that time."""
        deadline = time.monotonic() + within_s
        while words not in self.worker.wait_for("note", timeout_s=deadline - time.monotonic())["note"]:
            pass

    def wait_for_note(self, words: str) -> None:
        """The decoder says of the link to its worker what has these words in it."""
        with self.news() as told:
            for name, data in told:
                worker = data["worker"] if name == "snapshot" else data if name == "link" else None
                if worker is not None and words in (worker["note"] or ""):
                    return

    # Faults.

    @contextlib.contextmanager
    def asking_and_leaving(self, prompt: list[int], **body: Any) -> Iterator[Asking]:
        """Ask, and hang up at the end of the context."""
        with self.news() as told, socket.create_connection(("127.0.0.1", self.port)) as caller:
            content = json.dumps(self._wish(prompt, "remote") | {"stream": True} | body).encode()
            head = f"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1:{self.port}\r\nContent-Length: {len(content)}"
            caller.sendall(f"{head}\r\nContent-Type: application/json\r\n\r\n".encode() + content)
            yield Asking(Future(), told)

    def kill_worker(self, whom: str) -> None:
        self._kill(self.worker, whom)

    def kill_decoder(self, whom: str) -> None:
        self._kill(self.decoder, whom)

    def _kill(self, child: Child, whom: str) -> None:
        for pid in self.pids(child, whom):
            os.kill(pid, signal.SIGKILL)
        if whom != "courier":
            child.close()

    @contextlib.contextmanager
    def worker_stopped(self, whom: str) -> Iterator[None]:
        """Inside, it does not move; afterwards it goes on as if nothing had been."""
        pids = self.pids(self.worker, whom)
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            for pid in pids:
                # A courier that stood still may have been replaced by now.
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)

    def pids(self, child: Child, whom: str) -> list[int]:
        """Of an engine, of its courier, or of the whole "computer"."""
        (courier,) = (
            int(number)
            for task in Path(f"/proc/{child.pid}/task").iterdir()
            for number in (task / "children").read_text().split()
        )
        return {"engine": [child.pid], "courier": [courier], "computer": [child.pid, courier]}[whom]


def _events(response: httpx.Response) -> Iterator[tuple[str, dict[str, Any]]]:
    name, deadline = "", time.monotonic() + TIMEOUT_S
    for line in response.iter_lines():
        # Where nothing happens, a comment comes every second.
        assert time.monotonic() < deadline, "it did not happen"
        if line.startswith("event: "):
            name = line.removeprefix("event: ")
        elif line.startswith("data: "):
            yield name, json.loads(line.removeprefix("data: "))
