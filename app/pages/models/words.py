"""Sentences about models that several parts of the page say: whom one fits, and what memory it needs."""

from __future__ import annotations

from app.amounts import memory_text
from app.pages.models.rows import Fit, Memory
from app.words import translate


def fit_words(needed_bytes: float, here: Memory, there: Memory | None) -> tuple[str, str]:
    """A short sentence of whom a model fits, and its tone."""
    ours = here.fit(needed_bytes)
    theirs = there.fit(needed_bytes) if there is not None else None
    if ours is Fit.UNKNOWN:
        return "", ""
    if there is None or theirs is None or theirs is Fit.UNKNOWN:
        return _alone(ours, needed_bytes, here)
    if theirs is Fit.NO:
        if ours is Fit.NO:
            words = translate("Models", "Too large for both: needs {0}, {1} has {2} and {3} has {4}")
            return (
                words.format(
                    memory_text(needed_bytes),
                    here.name,
                    memory_text(here.total_bytes),
                    there.name,
                    memory_text(there.total_bytes),
                ),
                "warning",
            )
        return translate("Models", "Fits here, too large for {0}: needs {1} of {2}").format(
            there.name, memory_text(needed_bytes), memory_text(there.total_bytes)
        ), "local"
    if ours is Fit.NO:
        return translate("Models", "Fits {0}, too large for here: needs {1} of {2}").format(
            there.name, memory_text(needed_bytes), memory_text(here.total_bytes)
        ), "peer"
    if ours is Fit.CROWDED:
        return translate(
            "Models", "Fits {0}. Here it needs {1} and {2} are free: other models give way"
        ).format(there.name, memory_text(needed_bytes), memory_text(max(here.free_bytes, 0))), "warning"
    if theirs is Fit.CROWDED:
        return translate("Models", "Fits here. {0} has {1} free, it needs {2}").format(
            there.name, memory_text(max(there.free_bytes, 0)), memory_text(needed_bytes)
        ), "local"
    return translate("Models", "Fits here and on {0}, needs {1}").format(
        there.name, memory_text(needed_bytes)
    ), "local"


def _alone(fit: Fit, needed_bytes: float, here: Memory) -> tuple[str, str]:
    needed = memory_text(needed_bytes)
    match fit:
        case Fit.NO:
            return translate("Models", "Too large for this computer: needs {0} of {1}").format(
                needed, memory_text(here.total_bytes)
            ), "warning"
        case Fit.CROWDED:
            return translate("Models", "Needs {0} and {1} are free now: other models give way").format(
                needed, memory_text(max(here.free_bytes, 0))
            ), "warning"
    return translate("Models", "Fits here, needs {0}").format(needed), "local"
