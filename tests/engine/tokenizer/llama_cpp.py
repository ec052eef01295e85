"""llama.cpp's own tokenizer, asked through its server in this process."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import httpx
import xllamacpp


class LlamaCpp:
    def __init__(self, client: httpx.Client) -> None:
        self._client = client

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        body = {"content": text, "add_special": add_special, "parse_special": parse_special}
        reply = self._client.post("/tokenize", json=body)
        reply.raise_for_status()
        return reply.json()["tokens"]

    def tokenize_all(self, texts: Sequence[str], *, special: bool) -> list[list[int]]:
        return [self.tokenize(text, add_special=special, parse_special=special) for text in texts]


@contextmanager
def llama_cpp(path: Path) -> Iterator[LlamaCpp]:
    """A server that has loaded the model and answers nothing but questions of tokens."""
    parameters = xllamacpp.CommonParams()
    parameters.model.path = str(path)
    parameters.n_ctx = 64
    parameters.cpuparams.n_threads = parameters.cpuparams_batch.n_threads = 1
    parameters.n_parallel = 1
    parameters.warmup = False
    parameters.verbosity = -1
    server = xllamacpp.Server(parameters)
    with httpx.Client(base_url=server.listening_address, timeout=60) as client:
        yield LlamaCpp(client)
    del server
