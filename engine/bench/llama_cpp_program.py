"""llama.cpp as a program that does what it is told, a JSON line in and a JSON line out.

Runs by its path under any Python that has `llama_cpp`, in a process of its own, and so imports nothing of Baton. It
answers the commands of `subject`; times are in seconds and take in neither tokenising nor sampling.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, BinaryIO

try:
    import llama_cpp as lib
    import numpy as np
except ModuleNotFoundError as error:
    print(json.dumps({"error": f"{sys.executable} has no package {error.name}"}), flush=True)
    sys.exit(1)
except Exception as error:  # whatever the package fails with where its library cannot be loaded
    print(json.dumps({"error": f"{sys.executable} cannot load llama_cpp: {error}"}), flush=True)
    sys.exit(1)

N_BATCH = 512

# How soon a program notices that whoever started it is gone.
_PARENT_POLL_S = 1.0


class Contestant:
    """One model with one context of one sequence."""

    def __init__(self) -> None:
        self._model: Any = None
        self._context: Any = None
        self._held: list[int] = []

    def info(self) -> dict[str, Any]:
        return {
            "version": lib.__version__,
            "system_info": lib.llama_print_system_info().decode(),
            "gpu": bool(lib.llama_supports_gpu_offload()),
        }

    def load(self, *, path: str, n_ctx: int, n_threads: int, n_gpu_layers: int) -> dict[str, Any]:
        """Load a model in place of the one before; with flash attention and a float16 cache."""
        self._free()
        begin = time.perf_counter()
        model = lib.llama_model_default_params()
        model.n_gpu_layers = n_gpu_layers
        self._model = lib.llama_model_load_from_file(path.encode(), model)
        if not self._model:
            raise RuntimeError(f"llama.cpp cannot load {path}")
        context = lib.llama_context_default_params()
        context.n_ctx = n_ctx
        context.n_batch = context.n_ubatch = N_BATCH
        context.n_threads = context.n_threads_batch = n_threads
        if hasattr(context, "flash_attn_type"):
            context.flash_attn_type = 1
        else:
            context.flash_attn = True
        self._context = lib.llama_init_from_model(self._model, context)
        if not self._context:
            raise RuntimeError(f"llama.cpp cannot make a context of {n_ctx} tokens")
        seconds = time.perf_counter() - begin
        self._held = []
        self._n_vocab = lib.llama_vocab_n_tokens(lib.llama_model_get_vocab(self._model))
        description = ctypes.create_string_buffer(256)
        lib.llama_model_desc(self._model, description, 256)
        return {
            "seconds": seconds,
            "model_type": description.value.decode(errors="replace"),
            "model_size": lib.llama_model_size(self._model),
            "model_n_params": lib.llama_model_n_params(self._model),
            "n_vocab": self._n_vocab,
        }

    def threads(self, *, decode: int, prefill: int) -> dict[str, Any]:
        lib.llama_set_n_threads(self._context, decode, prefill)
        return {}

    def prefill(self, *, tokens: list[int], depth: list[int]) -> dict[str, Any]:
        """Seconds for `tokens` as a prompt's next ones after `depth`, which is not timed."""
        self._hold(depth)
        begin = time.perf_counter()
        self._decode(tokens)
        return {"seconds": time.perf_counter() - begin}

    def decode(self, *, tokens: list[int], depth: list[int]) -> dict[str, Any]:
        """Seconds for `tokens` one by one after `depth`, which is not timed."""
        self._hold(depth)
        begin = time.perf_counter()
        for token in tokens:
            self._decode([token])
        return {"seconds": time.perf_counter() - begin}

    def logits(self, *, tokens: list[int], path: str, one_by_one: bool) -> dict[str, Any]:
        """Every token's logits as rows of float32 at `path`."""
        self._hold([])
        step = 1 if one_by_one else N_BATCH
        with open(path, "wb") as out:
            for first in range(0, len(tokens), step):
                self._write_logits(tokens[first : first + step], first, out)
        return {"n_vocab": self._n_vocab}

    def _write_logits(self, tokens: list[int], first: int, out: BinaryIO) -> None:
        batch = lib.llama_batch_init(len(tokens), 0, 1)
        try:
            batch.n_tokens = len(tokens)
            for row, token in enumerate(tokens):
                batch.token[row] = token
                batch.pos[row] = first + row
                batch.n_seq_id[row] = 1
                batch.seq_id[row][0] = 0
                batch.logits[row] = 1
            self._check(lib.llama_decode(self._context, batch))
            rows = np.ctypeslib.as_array(
                lib.llama_get_logits(self._context), shape=(len(tokens), self._n_vocab)
            )
            rows.tofile(out)
        finally:
            lib.llama_batch_free(batch)
        self._held += tokens

    def _hold(self, depth: list[int]) -> None:
        """Have `depth` in the cache and nothing else; what it holds of `depth` already stays."""
        memory = lib.llama_get_memory(self._context)
        keep = len(depth) if self._held[: len(depth)] == depth else 0
        if keep == 0 or not lib.llama_memory_seq_rm(memory, 0, keep, -1):
            lib.llama_memory_clear(memory, True)
            keep = 0
        self._held = self._held[:keep]
        self._decode(depth[keep:])

    def _decode(self, tokens: list[int]) -> None:
        for first in range(0, len(tokens), N_BATCH):
            part = tokens[first : first + N_BATCH]
            array = (lib.llama_token * len(part))(*part)  # the batch only points to it
            self._check(lib.llama_decode(self._context, lib.llama_batch_get_one(array, len(part))))
            lib.llama_synchronize(self._context)
        self._held += tokens

    def _check(self, status: int) -> None:
        if status != 0:
            raise RuntimeError(f"llama_decode gave {status}")

    def _free(self) -> None:
        if self._context:
            lib.llama_free(self._context)
            self._context = None
        if self._model:
            lib.llama_model_free(self._model)
            self._model = None


def _end_with_parent() -> None:
    """A killed parent cannot close our standard input in time: a long command would go on for nobody."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_PARENT_POLL_S)
        os._exit(1)

    threading.Thread(target=watch, name="parent-watch", daemon=True).start()


def main() -> None:
    # Native code writes to descriptor 1 as it likes: answers go out by a copy of it that nobody else knows.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    lib.llama_backend_init()
    contestant = Contestant()
    commands: dict[str, Callable[..., dict[str, Any]]] = {
        "info": contestant.info,
        "load": contestant.load,
        "threads": contestant.threads,
        "prefill": contestant.prefill,
        "decode": contestant.decode,
        "logits": contestant.logits,
    }
    _end_with_parent()
    print('{"ready": true}', file=answers, flush=True)
    for line in sys.stdin:
        fields = json.loads(line)
        try:
            answer = commands[fields.pop("command")](**fields)
        except Exception as error:  # told to whoever asked
            answer = {"error": str(error)}
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
