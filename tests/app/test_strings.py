"""All that the window says is ready to be translated: words in files that know of Qt go through `tr`.

What those say that do not know of Qt, as figures with their units, is not looked at.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import app

# What takes a text to be translated.
TRANSLATED = frozenset({"tr", "_tr", "translate", "QT_TRANSLATE_NOOP"})

# What takes words that no user reads.
UNREAD = frozenset(
    {
        *(
            "setProperty",
            "setApplicationName",
            "setOrganizationName",
            "setStyle",
            "setStyleSheet",
            "setObjectName",
        ),
        *("warning", "exception", "info", "error", "RuntimeError", "TypeVar", "NewType", "cast"),
    }
)

# Two words, or one that begins as a sentence does.
WORDS = re.compile(r"[A-Za-z]{2,}[.,:;]? +[A-Za-z]|^[A-Z][a-z]+[.…]?$")

# By file: names, what the node or a package calls something, and what is said without Qt's translator.
NO_WORDS = {
    "__main__.py": {"Baton's window is not installed here"},
    "bridge.py": {
        "a mistake of Baton's window",
        "nobody was told",
        "Baton made a mistake",
        "Its log has the details",
    },
    "look/look.py": {"Fusion"},
    "pages/chat/page.py": {"Esc"},
    "pages/cluster/trials.py": {"near tie"},
    "pages/settings/explain.py": {"too large"},
    "pages/settings/own_rows.py": {"Pygments", "Classifier", "License", "Version"},
    "pages/settings/rows.py": {"no number", "too small"},
    "pages/settings/words.py": {"Settings"},
    "state.py": {"Baton's node"},
    "window.py": {"Baton", "engine failed", "engine restarting", "peer away", "permission denied"},
}


def untranslated(source: str) -> Iterator[tuple[int, str]]:
    """Each text of words that is not translated, with its line."""
    found = _Finder()
    found.visit(ast.parse(source))
    yield from found.texts


class _Finder(ast.NodeVisitor):
    def __init__(self) -> None:
        self.texts: list[tuple[int, str]] = []

    def visit_Call(self, call: ast.Call) -> None:
        function = call.func
        name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
        if name in TRANSLATED | UNREAD:
            self.visit(function)
        else:
            self.generic_visit(call)

    def visit_Expr(self, expression: ast.Expr) -> None:
        """A docstring is none of them."""
        if not isinstance(expression.value, ast.Constant):
            self.generic_visit(expression)

    def visit_Constant(self, constant: ast.Constant) -> None:
        if isinstance(constant.value, str) and WORDS.search(constant.value):
            self.texts.append((constant.lineno, constant.value))


def test_words_are_found_where_they_are_not_translated() -> None:
    source = '''
def show(self):
    """Says what is so."""
    self.setText("two words")
    self.setText(self.tr("two words"))
    self.setText(f"{self.name} is away")
    self.setToolTip(self.tr("Show {}").format("Nothing"))
    self.setProperty("kind", "Two words")
    self.say(name="lower", path="/a/b.c")
'''
    assert [text for _, text in untranslated(source)] == ["two words", " is away", "Nothing"]


def test_what_the_window_says_can_be_translated() -> None:
    folder = Path(app.__path__[0])
    missing = []
    for path in sorted(folder.rglob("*.py")):
        source, name = path.read_text("utf-8"), path.relative_to(folder).as_posix()
        if "from PySide6" not in source:
            continue
        for line, text in untranslated(source):
            if not any(known in text for known in NO_WORDS.get(name, ())):
                missing.append(f"app/{name}:{line}: {text!r}")
    assert missing == []
