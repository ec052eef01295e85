"""llama.cpp as the other contestant: how it is started, whether it was built for this computer, its best threads.

Its prebuilt packages know only the features that all processors have, and a comparison with them would flatter Baton.
"""

from __future__ import annotations

import os
import re
import statistics
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from engine.bench.processor import expected_features
from engine.bench.subject import Subject
from engine.errors import InvalidRequest, ProcessFailed
from engine.waiting import environment_of_others

NAME = "llama.cpp"
PEERS = (NAME,)

# Names the Python that has `llama_cpp`, where it is not the one that runs Baton.
PYTHON_VARIABLE = "BATON_PEER_PYTHON"

PROGRAM = Path(__file__).with_name("llama_cpp_program.py")

# Trials of a number of threads: enough to tell one from another.
_TRIAL_PREFILL_TOKENS = 128
_TRIAL_DECODE_TOKENS = 8
_TRIALS = 3


@dataclass(frozen=True, kw_only=True)
class PeerInfo:
    """What a peer says of itself; `missing` are features of this processor that it was not built for."""

    version: str
    features: tuple[str, ...]
    missing: tuple[str, ...]
    gpu: bool


@dataclass(frozen=True, kw_only=True)
class Threads:
    """How many threads suit each kind of work best."""

    decode: int
    prefill: int


def start_peer(program: Path = PROGRAM) -> Subject:
    """llama.cpp in a process of its own. Raises ProcessFailed with what to do where it is not installed."""
    python = os.environ.get(PYTHON_VARIABLE) or sys.executable
    try:
        # -P: the program's folder holds modules of Baton that the peer's Python must not take for its own.
        return Subject(NAME, [python, "-P", str(program)], env=environment_of_others())
    except ProcessFailed as error:
        raise ProcessFailed(
            f"{error}\n`make peer` builds {NAME} for this computer; "
            f"${PYTHON_VARIABLE} names a Python that has it already"
        ) from error


def peer_info(peer: Subject) -> PeerInfo:
    answer = peer.ask("info")
    features = features_of(answer["system_info"])
    return PeerInfo(
        version=answer["version"],
        features=features,
        missing=tuple(sorted(expected_features() - set(features))),
        gpu=answer["gpu"],
    )


def features_of(system_info: str) -> tuple[str, ...]:
    """The features that llama.cpp's line about itself says it has."""
    return tuple(re.findall(r"(\w+) = [1-9]\d*", system_info))


def check_native(info: PeerInfo, *, on_gpu: bool, allow_generic: bool) -> None:
    """Raises InvalidRequest for a peer that this computer could run faster, unless that is allowed."""
    if allow_generic:
        return
    if on_gpu and not info.gpu:
        raise InvalidRequest(
            f"{NAME} was built without a GPU, and Baton would use one: the comparison would not be fair. "
            "Build it for this computer, take --device cpu, or say --allow-generic-peer"
        )
    if info.missing:
        raise InvalidRequest(
            f"{NAME} was not built for this processor (it lacks {', '.join(info.missing)}): the comparison would not "
            "be fair. Build it with `make peer`, or say --allow-generic-peer"
        )


def find_threads(peer: Subject, *, n_cores: int, tokens: list[int]) -> Threads:
    """Try numbers of threads on the loaded model, briefly, and set the best."""
    prompt, answer = tokens[:_TRIAL_PREFILL_TOKENS], tokens[:_TRIAL_DECODE_TOKENS]
    prefill_s: dict[int, float] = {}
    decode_s: dict[int, float] = {}
    for n in thread_counts(n_cores):
        peer.ask("threads", decode=n, prefill=n)
        peer.ask("prefill", tokens=prompt[:8], depth=[])
        prefill_s[n] = _median(
            peer.ask("prefill", tokens=prompt, depth=[])["seconds"] for _ in range(_TRIALS)
        )
        decode_s[n] = _median(peer.ask("decode", tokens=answer, depth=[])["seconds"] for _ in range(_TRIALS))
    best = Threads(
        decode=min(decode_s, key=decode_s.__getitem__), prefill=min(prefill_s, key=prefill_s.__getitem__)
    )
    peer.ask("threads", decode=best.decode, prefill=best.prefill)
    return best


def thread_counts(n_cores: int) -> list[int]:
    """Numbers worth a trial: every one where they are few, else halves and quarters of all."""
    if n_cores <= 8:
        return list(range(1, n_cores + 1))
    return sorted({n_cores, n_cores * 3 // 4, n_cores // 2, n_cores // 4})


def _median(values: Iterable[float]) -> float:
    return statistics.median(list(values))
