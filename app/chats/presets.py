"""System prompts to begin with. Those of the user are kept with the chats; these few are there from the start."""

from __future__ import annotations

from collections.abc import Sequence

from app.chats.model import Preset
from app.words import translate


def built_in() -> tuple[Preset, ...]:
    """In the user's language, in which answers are wanted."""
    return (
        Preset(
            name=translate("Presets", "Plain answers"),
            system=translate(
                "Presets",
                "Answer in short, plain sentences. Say so when you are not sure, and do not guess at facts.",
            ),
        ),
        Preset(
            name=translate("Presets", "Programmer"),
            system=translate(
                "Presets",
                "You help an experienced programmer. Give working code first, then what matters about it in a few "
                "lines. Name the language of each code block, keep to the style of the code that you are shown, and "
                "point out mistakes that you see in it.",
            ),
        ),
        Preset(
            name=translate("Presets", "Editor"),
            system=translate(
                "Presets",
                "You edit texts. Keep the author's meaning, voice and language. Mend grammar and spelling, cut what "
                "is not needed, and give the text back whole, then list the larger changes.",
            ),
        ),
        Preset(
            name=translate("Presets", "Summary"),
            system=translate(
                "Presets",
                "Summarise what you are given. Begin with one sentence that holds the main point, then at most seven "
                "bullet points. Use only what is in the text, and keep names and numbers exact.",
            ),
        ),
    )


def all_presets(own: Sequence[Preset]) -> list[Preset]:
    """Built-in ones first; one of the user's with the same name takes its place."""
    names = {preset.name for preset in own}
    return [*(preset for preset in built_in() if preset.name not in names), *own]


def name_of(system: str, presets: Sequence[Preset]) -> str:
    """The preset that has this text, "" where none does."""
    return next((preset.name for preset in presets if preset.system.strip() == system.strip()), "")
