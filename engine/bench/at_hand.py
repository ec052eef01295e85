"""A short measurement of one model on this computer: enough to tell which of two computers is faster at what."""

from __future__ import annotations

from collections.abc import Callable

from engine.bench.own_program import Contestant
from engine.bench.processor import processor_name
from engine.device import device_of
from engine.node.agreeing.measure import Measurement

# As long as a chunk of a prompt: longer ones are computed as several.
PROMPT_TOKENS = 512
ANSWER_TOKENS = 32

# Each is done again until so much was measured: a single short run would be noise.
_MEASURE_S = 1.0
_MAX_ROUNDS = 5

_N_CTX = 1024


def measure(path: str, *, device: str) -> Measurement:
    """Load the model as it would be served, and time it. Raises as loading does."""
    contestant = Contestant()
    loaded = contestant.load(
        path=path, n_ctx=_N_CTX, n_threads=None, device=device, weights="auto", kv_type="bf16"
    )
    tokens = [1 + index % (loaded["n_vocab"] - 1) for index in range(PROMPT_TOKENS + ANSWER_TOKENS)]
    prompt, answer = tokens[:PROMPT_TOKENS], tokens[PROMPT_TOKENS:]
    # the first of each compiles and faults in what all later ones use
    contestant.prefill(tokens=prompt[:64], depth=[])
    contestant.decode(tokens=answer[:2], depth=prompt[:64])
    prefill_s = _best(lambda: contestant.prefill(tokens=prompt, depth=[])["seconds"])
    decode_s = _best(lambda: contestant.decode(tokens=answer, depth=prompt[:64])["seconds"])
    memory = device_of(loaded["device"]).memory()
    return Measurement(
        prefill_tokens_per_s=PROMPT_TOKENS / prefill_s,
        decode_tokens_per_s=ANSWER_TOKENS / decode_s,
        load_s=loaded["seconds"],
        device=loaded["device"],
        device_name=loaded["gpu_info"] or processor_name(),
        device_bytes=memory.total_bytes if memory is not None else 0,
    )


def _best(run: Callable[[], float]) -> float:
    """The seconds of the fastest of several runs: what else the computer does only ever adds to them."""
    taken = [run()]
    while sum(taken) < _MEASURE_S and len(taken) < _MAX_ROUNDS:
        taken.append(run())
    return min(taken)
