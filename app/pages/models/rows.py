"""The models of both computers as one list: what each is, where it is, how far it is loaded, and whom it fits.

Made of what the node tells (`GET /models`, and its parts `engines` and `computer`). Knows nothing of Qt.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

# The system and other programs keep this share of the memory, as the node reckons.
KEPT_FREE_SHARE = 0.05

# What an engine takes beside the file, before it is known how large its cache is.
ENGINE_BYTES = 600_000_000


class State(enum.Enum):
    """`COMING`: from the other computer, which alone has it yet."""

    IDLE = "idle"
    LOADING = "loading"
    LOADED = "loaded"
    FAILED = "failed"
    COMING = "coming"


class Fit(enum.Enum):
    """`CROWDED`: it would, if what is loaded now were not."""

    YES = "yes"
    CROWDED = "crowded"
    NO = "no"
    UNKNOWN = "unknown"


class Order(enum.Enum):
    NAME = "name"
    SIZE = "size"
    PARAMETERS = "parameters"


@dataclass(frozen=True, kw_only=True)
class Memory:
    """Of one computer, for models: what it has, and what is free just now. 0: it is not known."""

    name: str
    total_bytes: float = 0
    free_bytes: float = 0

    @property
    def usable_bytes(self) -> float:
        return self.total_bytes * (1 - KEPT_FREE_SHARE)

    def fit(self, needed_bytes: float) -> Fit:
        if not needed_bytes or not self.total_bytes:
            return Fit.UNKNOWN
        if needed_bytes > self.usable_bytes:
            return Fit.NO
        kept_bytes = self.total_bytes * KEPT_FREE_SHARE
        return Fit.YES if needed_bytes <= self.free_bytes - kept_bytes else Fit.CROWDED


@dataclass(frozen=True, kw_only=True)
class ModelRow:
    """One model. `here` and `there`: whether each computer has it; `model_id` is its name where it is, here first.

    `program` keeps it on this computer, "" where Baton does. `answers_on` is the other computer's name where that one
    has it loaded and answers with it, "" else.
    """

    model_id: str
    here: bool = False
    there: bool = False
    program: str = ""
    title: str = ""
    architecture: str = ""
    quantization: str = ""
    n_params: int = 0
    n_ctx_train: int = 0
    size_bytes: int = 0
    needed_bytes: int = 0
    kv_bytes_per_token: int = 0
    is_link: bool = False
    path: str = ""
    digest: str = ""
    problem: str = ""
    state: State = State.IDLE
    progress: float = 0.0
    checked: float = 0.0
    fault: str = ""
    answers_on: str = ""

    @property
    def facts(self) -> tuple[str, ...]:
        """What it is, in the order in which people look for it; without what is not known."""
        known = (
            self.architecture,
            count_text(self.n_params) if self.n_params else "",
            self.quantization,
        )
        return tuple(filter(None, known))

    def matches(self, words: str) -> bool:
        """Whether each of the words is in its name, title, facts or program."""
        told = " ".join((self.model_id, self.title, *self.facts, self.program)).lower()
        return all(word in told for word in words.lower().split())


def rows_of(
    library: Mapping[str, Any],
    engines: Iterable[Mapping[str, Any]],
    peer: str = "",
    coming: Collection[str] = (),
    answering: Mapping[str, str] = MappingProxyType({}),
    checks: Mapping[str, float] = MappingProxyType({}),
) -> list[ModelRow]:
    """A row a model: the same content on both computers is one. `peer` is the node id of the other computer.

    `coming` are the ids there of what is being copied from it, `answering` the models that it has loaded and answers
    with for this one, with its name. `checks` is how far files here are read through.
    """
    rows = {told["id"]: _row(told, here=True) for told in library["here"]["models"]}
    for other in library["peers"]:
        if other["node_id"] == peer:
            for told in other["models"]:
                _add_theirs(rows, told, is_coming=told["id"] in coming)
    for engine in engines:
        if (row := rows.get(engine["model"])) is not None:
            rows[row.model_id] = _with_engine(row, engine)
    for model_id, share in checks.items():
        if model_id in rows:
            rows[model_id] = replace(rows[model_id], checked=share)
    return [replace(row, answers_on=answering.get(row.model_id, "")) for row in rows.values()]


def _add_theirs(rows: dict[str, ModelRow], told: Mapping[str, Any], *, is_coming: bool) -> None:
    digest = told["digest"] or ""
    same = [row for row in rows.values() if row.here and _is_same(row, told["id"], digest)]
    rows.update({row.model_id: replace(row, there=True) for row in same})
    if same:
        return
    key = told["id"]
    while key in rows:
        key += " "  # another model of the same name
    state = State.COMING if is_coming else State.IDLE
    rows[key] = replace(_row(told, here=False), state=state)


def _is_same(row: ModelRow, model_id: str, digest: str) -> bool:
    return row.digest == digest if row.digest and digest else row.model_id == model_id


def _row(told: Mapping[str, Any], *, here: bool) -> ModelRow:
    return ModelRow(
        model_id=told["id"],
        here=here,
        there=not here,
        program=told.get("program", "") if here else "",
        title=told["title"],
        architecture=told["architecture"],
        quantization=told.get("quantization", ""),
        n_params=told["n_params"],
        n_ctx_train=told["n_ctx_train"],
        size_bytes=told["size_bytes"],
        needed_bytes=told.get("needed_bytes", 0),
        kv_bytes_per_token=told.get("kv_bytes_per_token", 0),
        is_link=told["is_link"],
        path=told["path"],
        digest=told["digest"] or "",
        problem=told["problem"],
    )


def _with_engine(row: ModelRow, engine: Mapping[str, Any]) -> ModelRow:
    state = {"ready": State.LOADED, "failed": State.FAILED}.get(engine["state"], State.LOADING)
    exits = engine.get("last_exits") or ()
    fault = str(exits[-1].get("reason") or "") if exits and state is not State.LOADED else ""
    return replace(row, state=state, progress=float(engine["progress"]), fault=fault)


def memory_here(library: Mapping[str, Any], computer: Mapping[str, Any], name: str) -> Memory:
    """Of this computer. macOS lets its GPU have less than all."""
    told = library["here"].get("memory") or {}
    total = float(told.get("total_bytes", 0))
    limit = float(computer.get("gpu_limit_bytes") or total)
    return Memory(
        name=name, total_bytes=min(total, limit), free_bytes=min(float(told.get("free_bytes", 0)), limit)
    )


def memory_there(library: Mapping[str, Any], peer: str) -> Memory | None:
    """Of the paired computer with that node id; None where it is away."""
    for other in library["peers"]:
        if other["node_id"] == peer and not other["problem"]:
            told = other.get("memory") or {}
            return Memory(
                name=other["name"],
                total_bytes=float(told.get("total_bytes", 0)),
                free_bytes=float(told.get("free_bytes", 0)),
            )
    return None


def chosen(rows: Sequence[ModelRow], words: str, order: Order) -> list[ModelRow]:
    """Those that match, in order: what can be run before what cannot."""
    keys = {
        Order.NAME: lambda row: (),
        Order.SIZE: lambda row: (-row.size_bytes,),
        Order.PARAMETERS: lambda row: (-row.n_params,),
    }
    found = [row for row in rows if row.matches(words)]
    return sorted(found, key=lambda row: (bool(row.problem), *keys[order](row), row.model_id.lower()))


def count_text(number: float) -> str:
    """ "135M", "1.5B", "27.3B": parameters."""
    if number < 1e6:
        return f"{number / 1e3:.0f}K"
    if number < 1e9:
        return f"{number / 1e6:.0f}M"
    return f"{number / 1e9:.1f}".removesuffix(".0") + "B"


def tokens_text(number: int) -> str:
    """ "512", "8K", "128K", "1M": the length of a context, as people say it."""
    if number < 1024:
        return str(number)
    kilo = number / 1024 if number % 1024 == 0 else number / 1000
    return f"{kilo / 1024:.0f}M" if kilo >= 1000 and number % (1 << 20) == 0 else f"{kilo:.0f}K"
