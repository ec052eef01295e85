"""What a computer is good at, in plain sentences, from its parts and from what was measured. Knows nothing of Qt."""

from __future__ import annotations

from typing import Any

from app.amounts import memory_text, rate_text

# Of memory, what a model may take; the node reckons with the same.
_USABLE_SHARE = 0.8

# Letters of a fingerprint that people compare, in groups.
_SHOWN_FINGERPRINT, _GROUP = 16, 4


def good_at(computer: dict[str, Any], roles: dict[str, Any]) -> str:
    """By what was measured of the model that it runs best, else by what it is made of."""
    measured = roles.get("measured") or {}
    if measured:
        name, best = max(measured.items(), key=lambda item: float(item[1]["decode_tokens_per_s"]))
        return (
            f"Measured with {name}: it reads {rate_text(best['prefill_tokens_per_s'])} "
            f"and writes {rate_text(best['decode_tokens_per_s'])}."
        )
    room = memory_text(_USABLE_SHARE * (computer.get("gpu_limit_bytes") or computer["memory_bytes"]))
    if computer["gpu"] and computer["shares_memory"]:
        what = f"Its GPU works in the same memory, so models of up to {room} fit and run at its full speed."
    elif computer["gpu"]:
        what = f"Its GPU reads long prompts fast, and {room} of memory hold what does not fit the GPU."
    else:
        what = f"It computes with its {computer['n_cores']} cores, and {room} of memory hold models of that size."
    return f"{what} How fast it is gets measured once a model is here."


def short_fingerprint(fingerprint: str) -> str:
    """The beginning of it, in groups that can be read aloud."""
    letters = fingerprint.rpartition(":")[2] if ":" in fingerprint and len(fingerprint) < 80 else fingerprint
    letters = "".join(letter for letter in letters if letter.isalnum())[:_SHOWN_FINGERPRINT]
    return " ".join(letters[at : at + _GROUP] for at in range(0, len(letters), _GROUP))


def pairing_fault(code: str, message: str, *, name: str, wait_s: float = 0.0) -> tuple[str, str]:
    """What went wrong with a code, and what to do, as a title and a sentence. `name` is the other computer's."""
    there = name or "the other computer"
    match code:
        case "wrong_code":
            return (
                "That is not the code that is shown there.",
                f"A code is good for one try. Have {there} show a new one, and type that.",
            )
        case "spent":
            return (
                "That code is used up.",
                f"It was used before, tried wrongly, or its five minutes have passed. Have {there} show a new one.",
            )
        case "no_code":
            return (
                "A code has eight digits.",
                f"Type them as {there} shows them; the line between does not matter.",
            )
        case "wait":
            return (
                "One moment.",
                f"After a wrong code Baton waits, so that nobody can guess. Try again in {max(1, round(wait_s))} s.",
            )
        case "expired":
            return (
                "The code has expired.",
                "Nobody typed it within five minutes. Show a new one when you are there.",
            )
        case "side":
            return (
                "Both computers do the same.",
                "Have one of them show a code, and type it on the other.",
            )
        case "none_found":
            return (
                "No computer shows a code.",
                f"Have {there} show one first. If it does, type its address here, which stands under the code.",
            )
        case "no_code_shown":
            return "No code is shown there.", f"Have {there} show a code, then type it here."
        case "no_such_name" | "unreachable":
            return (
                f"{there[:1].upper()}{there[1:]} cannot be reached.",
                "Look at the cable and at the address. Or show the code here, and type it there.",
            )
        case "version":
            return "The two have different versions of Baton.", message
        case "same_identity":
            return (
                "Both computers have the same identity.",
                "That is so after a disk was copied. Run `baton pair renew` on one of them, then pair again.",
            )
        case "key_changed":
            return (
                f"{there[:1].upper()}{there[1:]} has another key than before.",
                "Remove the earlier pairing on the Cluster page of both, then pair again.",
            )
        case "lost":
            return "The connection broke.", "Look at the cable, then pair again with a new code."
    return "Pairing did not work.", message
