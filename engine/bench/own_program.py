"""Baton's engine as a contestant: the commands of `subject` that time something, answered by a model in this process.

`baton bench speed --contestant` runs it. A command of its own is `calls`, which counts torch's operations in a decode
step; and `load` says beside the seconds what they went to.
"""

from __future__ import annotations

import json
import mmap
import os
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from engine.batching.chunks import equal_chunks
from engine.cache.sequence import SequencePool, SequenceState
from engine.cache.spec import KVType
from engine.gguf.reader import GGUFFile
from engine.kernels import jit
from engine.layers.step import Segment
from engine.models.base import Model
from engine.models.registry import WeightsMode, begin_loading
from engine.tokenizer import Tokenizer

CHUNK = 512

# How soon a program notices that whoever started it is gone.
_PARENT_POLL_S = 1.0


class Contestant:
    """One model with a cache of one sequence."""

    def __init__(self) -> None:
        self._model: Model | None = None
        self._sequence: SequenceState | None = None

    def load(
        self, *, path: str, n_ctx: int, n_threads: int | None, device: str, weights: str, kv_type: str
    ) -> dict[str, Any]:
        """Load all that is needed to answer: both forms of the weights, the tokenizer, a cache of one slot."""
        if n_threads:
            torch.set_num_threads(n_threads)
        begin = time.perf_counter()
        file = GGUFFile.open(path)
        with ThreadPoolExecutor(1) as beside:
            finish = begin_loading(file, device=device, weights=WeightsMode(weights), prefill=False)
            loading = beside.submit(finish)
            tokenizer = Tokenizer.from_metadata(file.metadata, prepare=False)
            tokenizer_end = time.perf_counter()
            model = loading.result()
            model.device.synchronize()
        weights_end = time.perf_counter()
        spec = model.spec.cache_spec(kv_type=KVType(kv_type), n_ctx=n_ctx, n_slots=1)
        pool = SequencePool(spec, model.device, memoryview(mmap.mmap(-1, spec.total_bytes())))
        end = time.perf_counter()
        self._model, self._sequence = model, pool.sequence(0)
        # As when serving, this is done after the engine can answer.
        tokenizer.prepare()
        model.prepare()
        model.settle(lambda: False)
        prefill_form_end = time.perf_counter()
        return {
            "seconds": end - begin,
            "parts": {
                "vocabulary, beside the weights": tokenizer_end - begin,
                "weights": weights_end - tokenizer_end,
                "cache": end - weights_end,
                "merges, prefill form and huge pages, after": prefill_form_end - end,
            },
            "model_type": f"{model.spec.architecture} {model.spec.name}",
            "model_size": sum(info.n_bytes for info in file.tensors.values()),
            "model_n_params": sum(info.n_elements for info in file.tensors.values()),
            "n_vocab": model.spec.n_vocab,
            "n_threads": torch.get_num_threads(),
            "device": model.device.kind,
            "gpu_info": torch.cuda.get_device_name() if model.device.kind == "cuda" else "",
            "version": _version(),
        }

    def prefill(self, *, tokens: list[int], depth: list[int]) -> dict[str, Any]:
        """Seconds for `tokens` as a prompt's next ones after `depth`, which is not timed."""
        self._hold(depth)
        begin = time.perf_counter()
        self._prefill(tokens, n_logits=1)
        return {"seconds": time.perf_counter() - begin}

    def decode(self, *, tokens: list[int], depth: list[int]) -> dict[str, Any]:
        """Seconds for `tokens` one by one after `depth`, which is not timed."""
        self._hold(depth)
        begin = time.perf_counter()
        for token in tokens:
            self._decode(token)
        return {"seconds": time.perf_counter() - begin}

    def calls(self) -> dict[str, Any]:
        """How many operations torch is asked for in one decode step, views and all, and for how many layers."""
        self._hold([])
        self._decode(1)
        counter = _CallCounter()
        with counter:
            self._decode(1)
        model, _ = self._loaded()
        return {"calls": counter.n_calls, "n_layers": model.spec.n_layers}

    def _hold(self, depth: list[int]) -> None:
        """Have `depth` in the cache and nothing else; what it holds of `depth` already stays."""
        _, sequence = self._loaded()
        sequence.truncate(sequence.reusable(depth))
        if sequence.length < len(depth):
            self._prefill(depth[sequence.length :], n_logits=0)

    def _prefill(self, tokens: list[int], *, n_logits: int) -> None:
        model, sequence = self._loaded()
        start = sequence.length
        chunks = equal_chunks(start, start + len(tokens), CHUNK)
        for first, end in chunks:
            segment = Segment(
                sequence=sequence,
                tokens=tokens[first - start : end - start],
                n_logits=n_logits if (first, end) == chunks[-1] else 0,
            )
            model.forward([segment], [])
        model.device.synchronize()

    def _decode(self, token: int) -> None:
        model, sequence = self._loaded()
        model.forward([], [Segment(sequence=sequence, tokens=[token])])
        model.device.synchronize()

    def _loaded(self) -> tuple[Model, SequenceState]:
        if self._model is None or self._sequence is None:
            raise RuntimeError("no model is loaded")
        return self._model, self._sequence


class _CallCounter(TorchDispatchMode):
    """Counts what reaches torch's dispatcher while it is on."""

    def __init__(self) -> None:
        super().__init__()
        self.n_calls = 0

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        self.n_calls += 1
        return func(*args, **(kwargs or {}))


def _version() -> str:
    try:
        return f"{version('baton')} (torch {torch.__version__})"
    except PackageNotFoundError:
        return f"(torch {torch.__version__})"


def _end_with_parent() -> None:
    """A killed parent cannot close our standard input in time: a long command would go on for nobody."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_PARENT_POLL_S)
        os._exit(1)

    threading.Thread(target=watch, name="parent-watch", daemon=True).start()


def main() -> int:
    """Answer until standard input ends."""
    # Only loading is to be timed, not the importing of what compiles kernels.
    jit.available()
    # Native code writes to descriptor 1 as it likes: answers go out by a copy of it that nobody else knows.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    contestant = Contestant()
    commands: dict[str, Callable[..., dict[str, Any]]] = {
        "load": contestant.load,
        "prefill": contestant.prefill,
        "decode": contestant.decode,
        "calls": contestant.calls,
    }
    _end_with_parent()
    print('{"ready": true}', file=answers, flush=True)
    for line in sys.stdin:
        fields = json.loads(line)
        try:
            answer = commands[fields.pop("command")](**fields)
        except Exception as error:  # told to whoever asked
            answer = {"error": str(error) or type(error).__name__}
        print(json.dumps(answer), file=answers, flush=True)
    return 0
