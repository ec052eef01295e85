"""What a computer is good at, in plain sentences, from its parts and from what was measured. Knows nothing of Qt."""

from __future__ import annotations

from typing import Any

from app.amounts import memory_text, rate_text
from app.words import QT_TRANSLATE_NOOP, translate

# Of memory, what a model may take; the node reckons with the same.
_USABLE_SHARE = 0.8

# Letters of a fingerprint that people compare, in groups.
_SHOWN_FINGERPRINT, _GROUP = 16, 4


def good_at(computer: dict[str, Any], roles: dict[str, Any]) -> str:
    """By what was measured of the model that it runs best, else by what it is made of."""
    measured = roles.get("measured") or {}
    if measured:
        name, best = max(measured.items(), key=lambda item: float(item[1]["decode_tokens_per_s"]))
        return translate("Wizard", "Measured with {0}: it reads {1} and writes {2}.").format(
            name, rate_text(best["prefill_tokens_per_s"]), rate_text(best["decode_tokens_per_s"])
        )
    room = memory_text(_USABLE_SHARE * (computer.get("gpu_limit_bytes") or computer["memory_bytes"]))
    if computer["gpu"] and computer["shares_memory"]:
        what = translate(
            "Wizard", "Its GPU works in the same memory, so models of up to {} fit and run at its full speed."
        ).format(room)
    elif computer["gpu"]:
        what = translate(
            "Wizard", "Its GPU reads long prompts fast, and {} of memory hold what does not fit the GPU."
        ).format(room)
    else:
        what = translate(
            "Wizard", "It computes with its {0} cores, and {1} of memory hold models of that size."
        ).format(computer["n_cores"], room)
    speed = translate("Wizard", "How fast it is gets measured once a model is here.")
    return f"{what} {speed}"


def short_fingerprint(fingerprint: str) -> str:
    """The beginning of it, in groups that can be read aloud."""
    letters = fingerprint.rpartition(":")[2] if ":" in fingerprint and len(fingerprint) < 80 else fingerprint
    letters = "".join(letter for letter in letters if letter.isalnum())[:_SHOWN_FINGERPRINT]
    return " ".join(letters[at : at + _GROUP] for at in range(0, len(letters), _GROUP))


def pairing_fault(code: str, message: str, *, name: str, wait_s: float = 0.0) -> tuple[str, str]:
    """What went wrong with a code, and what to do, as a title and a sentence. `name` is the other computer's."""
    there = name or translate("Pairing", "the other computer")
    title, sentence = _FAULTS.get(code, _UNKNOWN)
    blanks = {
        "there": there,
        "There": f"{there[:1].upper()}{there[1:]}",
        "wait_s": max(1, round(wait_s)),
    }
    said = translate("Pairing", sentence).format(**blanks) if sentence else message
    return translate("Pairing", title).format(**blanks), said


_UNREACHABLE = (
    QT_TRANSLATE_NOOP("Pairing", "{There} cannot be reached."),
    QT_TRANSLATE_NOOP(
        "Pairing", "Look at the cable and at the address. Or show the code here, and type it there."
    ),
)

# A title and a sentence; where there is none, the node has it.
_UNKNOWN = QT_TRANSLATE_NOOP("Pairing", "Pairing did not work."), ""

# By the node's code for it.
_FAULTS = {
    "wrong_code": (
        QT_TRANSLATE_NOOP("Pairing", "That is not the code that is shown there."),
        QT_TRANSLATE_NOOP(
            "Pairing", "A code is good for one try. Have {there} show a new one, and type that."
        ),
    ),
    "spent": (
        QT_TRANSLATE_NOOP("Pairing", "That code is used up."),
        QT_TRANSLATE_NOOP(
            "Pairing",
            "It was used before, tried wrongly, or its five minutes have passed. Have {there} show a new one.",
        ),
    ),
    "no_code": (
        QT_TRANSLATE_NOOP("Pairing", "A code has eight digits."),
        QT_TRANSLATE_NOOP("Pairing", "Type them as {there} shows them; the line between does not matter."),
    ),
    "wait": (
        QT_TRANSLATE_NOOP("Pairing", "One moment."),
        QT_TRANSLATE_NOOP(
            "Pairing", "After a wrong code Baton waits, so that nobody can guess. Try again in {wait_s} s."
        ),
    ),
    "expired": (
        QT_TRANSLATE_NOOP("Pairing", "The code has expired."),
        QT_TRANSLATE_NOOP(
            "Pairing", "Nobody typed it within five minutes. Show a new one when you are there."
        ),
    ),
    "side": (
        QT_TRANSLATE_NOOP("Pairing", "Both computers do the same."),
        QT_TRANSLATE_NOOP("Pairing", "Have one of them show a code, and type it on the other."),
    ),
    "none_found": (
        QT_TRANSLATE_NOOP("Pairing", "No computer shows a code."),
        QT_TRANSLATE_NOOP(
            "Pairing",
            "Have {there} show one first. If it does, type its address here, which stands under the code.",
        ),
    ),
    "no_code_shown": (
        QT_TRANSLATE_NOOP("Pairing", "No code is shown there."),
        QT_TRANSLATE_NOOP("Pairing", "Have {there} show a code, then type it here."),
    ),
    "no_such_name": _UNREACHABLE,
    "unreachable": _UNREACHABLE,
    "version": (QT_TRANSLATE_NOOP("Pairing", "The two have different versions of Baton."), ""),
    "same_identity": (
        QT_TRANSLATE_NOOP("Pairing", "Both computers have the same identity."),
        QT_TRANSLATE_NOOP(
            "Pairing",
            "That is so after a disk was copied. Run `baton pair renew` on one of them, then pair again.",
        ),
    ),
    "key_changed": (
        QT_TRANSLATE_NOOP("Pairing", "{There} has another key than before."),
        QT_TRANSLATE_NOOP(
            "Pairing", "Remove the earlier pairing on the Cluster page of both, then pair again."
        ),
    ),
    "lost": (
        QT_TRANSLATE_NOOP("Pairing", "The connection broke."),
        QT_TRANSLATE_NOOP("Pairing", "Look at the cable, then pair again with a new code."),
    ),
}
