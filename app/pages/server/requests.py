"""What the endpoint was asked lately, as rows of a table. Knows nothing of Qt."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from app.words import translate

# As many as the node keeps.
MAX_ROWS = 200

# The model was being loaded, or there was no room: whoever asked is told to come back.
NOT_READY = 503

# It came without the key, or with another.
NO_KEY = 401


@dataclass(frozen=True, kw_only=True)
class Row:
    """`tone` is that of `status`; `computer` answered, "" for this one.

    `place` is where that one had the prompt prefilled: local, remote or cached, "" where it is not known.
    """

    number: int
    clock: str
    what: str
    model: str
    prompt: str
    answer: str
    took: str
    place: str
    computer: str
    stage: str
    status: str
    tone: str


class RequestList:
    """The requests by their numbers, the newest first."""

    def __init__(self) -> None:
        self._rows: dict[int, Row] = {}

    def begin(self, told: Iterable[Mapping[str, Any]]) -> None:
        self._rows = {}
        self.add(told)

    def add(self, told: Iterable[Mapping[str, Any]]) -> None:
        for each in told:
            self._rows[int(each["number"])] = row_of(each)
        for number in sorted(self._rows)[:-MAX_ROWS]:
            del self._rows[number]

    def rows(self) -> list[Row]:
        return [self._rows[number] for number in sorted(self._rows, reverse=True)]


def row_of(told: Mapping[str, Any]) -> Row:
    stage, status = str(told["stage"]), told.get("status")
    return Row(
        number=int(told["number"]),
        clock=time.strftime("%H:%M:%S", time.localtime(told["at"])),
        what=str(told["path"]).removeprefix("/v1").lstrip("/"),
        model=str(told.get("model") or ""),
        prompt=_prompt(told),
        answer=_count(told.get("n_decoded")),
        took=_took(told.get("duration_s")),
        place=_place(told),
        computer=str(told.get("computer") or ""),
        stage=stage,
        status="" if status is None else str(status),
        tone=_tone(stage, status),
    )


def _tone(stage: str, status: int | None) -> str:
    if stage == "failed" and status == NOT_READY:
        return "warning"
    return {"failed": "danger", "left": "warning", "done": "local"}.get(stage, "")


def _prompt(told: Mapping[str, Any]) -> str:
    """ "12,310", and how many of them were there already: "12,310 (11,904)"."""
    text = _count(told.get("n_prompt"))
    cached = told.get("n_cached")
    return f"{text} ({cached:,})" if text and cached else text


def _place(told: Mapping[str, Any]) -> str:
    prompt, cached = told.get("n_prompt"), told.get("n_cached")
    if prompt and cached and prompt - cached <= 1:
        return "cached"
    return str(told.get("prefill") or "")


def _count(n: int | None) -> str:
    return "" if n is None else f"{n:,}"


def _took(seconds: float | None) -> str:
    if seconds is None:
        return ""
    if seconds < 1:
        return translate("Figures", "{} ms").format(f"{seconds * 1e3:.0f}")
    return translate("Figures", "{} s").format(f"{seconds:.1f}")
