"""What a value of a setting means, in a sentence that changes as it is tried out."""

from __future__ import annotations

from typing import Any

from app.amounts import memory_text
from app.pages.settings.declared import Snapshot
from app.pages.settings.memory import Need
from app.words import translate

# A long chat or a long document, as an example.
_EXAMPLE_TOKENS = 28_800

# English prose, by and large.
_TOKENS_PER_PAGE = 650


def explanation(name: str, value: Any, snapshot: Snapshot) -> str:
    """ "" where the help says all there is."""
    match name:
        case "prefills":
            return _prefills(value, snapshot.number("slots", 4))
        case "chunk" if isinstance(value, int) and value > 0:
            return translate(
                "Settings",
                "A prompt of {0:,} tokens goes in {1:,} steps. Smaller ones are sent sooner and let others in between; "
                "larger ones compute faster.",
            ).format(_EXAMPLE_TOKENS, -(-_EXAMPLE_TOKENS // value))
        case "ctx" if isinstance(value, int):
            pages = max(1, round(value / _TOKENS_PER_PAGE))
            return translate(
                "Settings", "Each answer has room for {0:,} tokens, about {1:,} pages of text."
            ).format(value, pages)
        case "slots" if value == 1:
            return translate("Settings", "One answer at a time: whoever asks meanwhile waits.")
        case "slots" if isinstance(value, int):
            return translate(
                "Settings", "{0} answers at the same time share the computer; one more waits for its turn."
            ).format(value)
        case "route":
            return {
                "auto": translate(
                    "Settings", "Each prompt is prefilled where it is expected to be done sooner."
                ),
                "always": translate(
                    "Settings", "The other computer prefills whenever it is there and has room."
                ),
                "never": translate("Settings", "Nothing is handed over: this computer does it all."),
            }.get(str(value), "")
    return ""


def _prefills(value: Any, slots: int) -> str:
    n = value if isinstance(value, int) else slots
    if n == 1:
        return translate(
            "Settings",
            "One prompt at a time, and that one soonest. Others are prefilled where they are decoded.",
        )
    text = translate(
        "Settings",
        "Up to {0} prompts share each pass: all get on, each more slowly. One more is prefilled where it is decoded.",
    )
    return text.format(n)


def need_text(need: Need) -> str:
    """The memory that a model takes, and whether it fits."""
    takes, room = memory_text(need.needed_bytes), memory_text(need.room_bytes)
    if need.fit == "too large":
        return translate("Settings", "{0} would take {1}, and only {2} can be had: it does not fit.").format(
            need.model, takes, room
        )
    if need.fit == "tight":
        return translate("Settings", "{0} takes {1} of the {2} that can be had: it just fits.").format(
            need.model, takes, room
        )
    return translate("Settings", "{0} takes {1} of the {2} that can be had: it fits.").format(
        need.model, takes, room
    )
