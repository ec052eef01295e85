"""The user's language for what knows no Qt: its words go through `translate`, as those of a widget do through `tr`.

They stay English where Qt is not loaded, and where it has no translation of them.
"""

from __future__ import annotations

import sys


def translate(context: str, text: str) -> str:
    """`text` as the translations that Qt has installed say it. Both are written where it is called: they are found
    there by `pyside6-lupdate`."""
    core = sys.modules.get("PySide6.QtCore")
    return str(core.QCoreApplication.translate(context, text)) if core is not None else text


def QT_TRANSLATE_NOOP(context: str, text: str) -> str:
    """`text` as it is: it is put into the user's language later, where it is said."""
    return text
