"""What settings and their choices are called. A setting that is not here yet is called by its own name."""

from __future__ import annotations

from app.pages.settings.declared import Declared
from app.words import QT_TRANSLATE_NOOP, translate

_TITLES = {
    "name": QT_TRANSLATE_NOOP("Settings", "Name"),
    "keep_awake": QT_TRANSLATE_NOOP("Settings", "Keep this computer awake"),
    "node_port": QT_TRANSLATE_NOOP("Settings", "Port for the other computer"),
    "keyring": QT_TRANSLATE_NOOP("Settings", "System keyring"),
    "port": QT_TRANSLATE_NOOP("Settings", "Port"),
    "host": QT_TRANSLATE_NOOP("Settings", "Address it listens on"),
    "api_key": QT_TRANSLATE_NOOP("Settings", "Key"),
    "route": QT_TRANSLATE_NOOP("Settings", "Where prompts are prefilled"),
    "codec": QT_TRANSLATE_NOOP("Settings", "How the cache travels"),
    "chunk": QT_TRANSLATE_NOOP("Settings", "Chunk"),
    "prefills": QT_TRANSLATE_NOOP("Settings", "Prompts prefilled at once"),
    "pass_tokens": QT_TRANSLATE_NOOP("Settings", "Tokens in one pass"),
    "data_streams": QT_TRANSLATE_NOOP("Settings", "Connections"),
    "measure": QT_TRANSLATE_NOOP("Settings", "Measure models"),
    "models": QT_TRANSLATE_NOOP("Settings", "Models folder"),
    "preload": QT_TRANSLATE_NOOP("Settings", "Load at the start"),
    "slots": QT_TRANSLATE_NOOP("Settings", "Answers at once"),
    "ctx": QT_TRANSLATE_NOOP("Settings", "Context"),
    "kv_type": QT_TRANSLATE_NOOP("Settings", "Cache precision"),
    "weights": QT_TRANSLATE_NOOP("Settings", "Weights"),
    "device": QT_TRANSLATE_NOOP("Settings", "Computes on"),
    "threads": QT_TRANSLATE_NOOP("Settings", "Processor threads"),
    "standby": QT_TRANSLATE_NOOP("Settings", "Keep a start ready"),
    "prefix_cache": QT_TRANSLATE_NOOP("Settings", "Memory for past chats"),
}

_CHOICES = {
    ("route", "always"): QT_TRANSLATE_NOOP("Settings", "Other computer"),
    ("route", "never"): QT_TRANSLATE_NOOP("Settings", "This computer"),
    ("measure", "auto"): QT_TRANSLATE_NOOP("Settings", "When there is time"),
    ("keep_awake", "auto"): QT_TRANSLATE_NOOP("Settings", "While serving"),
    ("standby", "auto"): QT_TRANSLATE_NOOP("Settings", "While serving"),
    ("codec", "raw"): QT_TRANSLATE_NOOP("Settings", "Raw"),
    ("codec", "lossless"): QT_TRANSLATE_NOOP("Settings", "Packed"),
    ("keyring", "auto"): QT_TRANSLATE_NOOP("Settings", "Use it"),
    ("device", "cpu"): QT_TRANSLATE_NOOP("Settings", "Processor"),
    ("device", "cuda"): QT_TRANSLATE_NOOP("Settings", "CUDA"),
    ("device", "mps"): QT_TRANSLATE_NOOP("Settings", "Metal"),
    ("weights", "packed"): QT_TRANSLATE_NOOP("Settings", "Packed"),
    ("", "auto"): QT_TRANSLATE_NOOP("Settings", "Automatic"),
    ("", "never"): QT_TRANSLATE_NOOP("Settings", "Never"),
    ("", "always"): QT_TRANSLATE_NOOP("Settings", "Always"),
}


# What the node calls the groups of its settings.
_GROUPS = {
    "This computer": QT_TRANSLATE_NOOP("Settings", "This computer"),
    "Endpoint": QT_TRANSLATE_NOOP("Settings", "Endpoint"),
    "Handoff": QT_TRANSLATE_NOOP("Settings", "Handoff"),
    "Models and memory": QT_TRANSLATE_NOOP("Settings", "Models and memory"),
}


def group_title(group: str) -> str:
    return translate("Settings", _GROUPS.get(group, group))


def title_of(declared: Declared) -> str:
    known = _TITLES.get(declared.name)
    return translate("Settings", known) if known else declared.name.replace("_", " ").capitalize()


def without(title: str, sentence: str) -> str:
    """What a setting's help says beside its title: nothing where that is all, and no title before a colon or comma."""
    if not sentence.startswith(title):
        return sentence
    rest = sentence[len(title) :].lstrip(":, ").removesuffix(".")
    if sentence[len(title)] not in ":,.":
        return sentence
    return f"{rest[:1].upper()}{rest[1:]}." if rest else ""


def choice_text(declared: Declared, choice: str) -> str:
    known = _CHOICES.get((declared.name, choice)) or _CHOICES.get(("", choice))
    return translate("Settings", known) if known else choice
