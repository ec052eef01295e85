"""All that the window says can be translated: its words go through `tr`, or `translate` where no Qt is known, and Qt's
own tools find them there. What the node says, models and the system is not ours."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from xml.etree import ElementTree

import PySide6
import pytest
from PySide6.QtCore import QCoreApplication, QTranslator
from PySide6.QtWidgets import QApplication, QCheckBox, QWidget

import app
from app.farewell import Farewell
from app.telemetry import figures

FOLDER = Path(app.__path__[0])

# What takes a text to be translated.
TRANSLATED = frozenset({"tr", "translate", "QT_TRANSLATE_NOOP"})

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
        *("warning", "exception", "info", "error", "RuntimeError", "TypeVar", "NewType", "ParamSpec", "cast"),
        *("execute", "executemany", "executescript"),
    }
)

# Two words, or one that begins as a sentence does.
WORDS = re.compile(r"[A-Za-z]{2,}[.,:;]? +[A-Za-z]|^[A-Z][a-z]+[.…]?$")

# A word beside a figure, as a unit is.
BESIDE = re.compile(r"(?:^| )[A-Za-z]+(?:[.,:;]| |$)")

# By file: names, and what stands for something in the code alone.
NO_WORDS = {
    "__main__.py": {"Baton's window is not installed here"},
    "bridge.py": {"a mistake of Baton's window", "nobody was told"},
    "chats/answering.py": {"File: "},
    "chats/schema.py": {"TABLE", "TRIGGER", "PRAGMA"},
    "chats/store.py": {
        *("FROM", "SELECT", "UPDATE", "MATCH", "INSERT", "ORDER BY", "PRAGMA", "WHERE"),
        *("JOIN", "GROUP BY", "excluded.", "VALUES"),
    },
    "chats/tree.py": {"the message answers one that is not there"},
    "look/look.py": {"Fusion"},
    "look/sheet.py": {"px", "{", ";"},
    "node/client.py": {"Authorization", "Bearer "},
    "node/command.py": {"baton "},
    "node/link_report.py": {"round trips"},
    "pages/chat/page.py": {"Esc"},
    "pages/chat/transcript/formula.py": {"Big", "matrix"},
    "pages/chat/transcript/model.py": {"the window was closed"},
    "pages/chat/transcript/split.py": {"between pieces", "a paragraph", "code b", "a formula on"},
    "pages/cluster/trials.py": {"near tie"},
    "pages/models/page.py": {"import "},
    "pages/models/transits.py": {"copy out", "copy in", "left "},
    "pages/server/examples.py": {"Python"},
    "pages/server/snippets.py": {"Hello", "curl ", "Content-Type", "Authorization", "import "},
    "pages/settings/declared.py": {"no number", "too small", "too large", "at most --slots"},
    "pages/settings/explain.py": {"too large"},
    "pages/settings/memory.py": {"too large"},
    "pages/settings/own_rows.py": {"Pygments", "Classifier", "License", "Version"},
    "pages/settings/rows.py": {"no number", "too small"},
    "pages/settings/words.py": {"This computer", "Endpoint", "Handoff", "Models and memory"},
    "telemetry/sides.py": {
        "other computer",
        "this computer",
    },  # stands where there is nothing to show of them
    "troubles.py": {
        *("load again", "see cluster", "open setup"),
        *("engine failed", "engine restarting", "worker restarting", "permission denied", "peer away"),
    },
    "window.py": {
        "Baton",
        "engine failed",
        "engine restarting",
        "worker restarting",
        "peer away",
        "permission denied",
    },
    "wizard/found.py": {"Baton "},
    "wizard/words.py": {"There"},
}


@cache
def sources() -> dict[str, ast.Module]:
    """By their paths below `app`."""
    paths = sorted(FOLDER.rglob("*.py"))
    return {path.relative_to(FOLDER).as_posix(): ast.parse(path.read_text("utf-8")) for path in paths}


def untranslated(source: ast.Module) -> list[tuple[int, str]]:
    """Each text of words that is not translated, with its line."""
    found = _Finder()
    found.visit(source)
    return found.texts


class _Finder(ast.NodeVisitor):
    def __init__(self) -> None:
        self.texts: list[tuple[int, str]] = []

    def visit_Call(self, call: ast.Call) -> None:
        name = _called(call)
        if name in TRANSLATED | UNREAD:
            self.visit(call.func)
        else:
            self.generic_visit(call)

    def visit_Expr(self, expression: ast.Expr) -> None:
        """A docstring is none of them."""
        if not isinstance(expression.value, ast.Constant):
            self.generic_visit(expression)

    def visit_JoinedStr(self, joined: ast.JoinedStr) -> None:
        for part in joined.values:
            if isinstance(part, ast.Constant) and " " in part.value and BESIDE.search(part.value):
                self.texts.append((part.lineno, part.value))
            else:
                self.visit(part)

    def visit_Constant(self, constant: ast.Constant) -> None:
        if isinstance(constant.value, str) and WORDS.search(constant.value):
            self.texts.append((constant.lineno, constant.value))


def _called(call: ast.Call) -> str:
    function = call.func
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def test_words_are_found_where_they_are_not_translated() -> None:
    source = '''
def show(self):
    """Says what is so."""
    self.setText("two words")
    self.setText(self.tr("two words"))
    self.setText(f"{self.name} is away")
    self.setText(f"{self.n} tokens")
    self.setToolTip(self.tr("Show {}").format("Nothing"))
    self.setProperty("kind", "Two words")
    self.say(name="lower", path="/a/b.c")
'''
    assert [text for _, text in untranslated(ast.parse(source))] == [
        "two words",
        " is away",
        " tokens",
        "Nothing",
    ]


def test_what_the_window_says_can_be_translated() -> None:
    missing = []
    for name, source in sources().items():
        for line, text in untranslated(source):
            if not any(known in text for known in NO_WORDS.get(name, ())):
                missing.append(f"app/{name}:{line}: {text!r}")
    assert missing == []


def said() -> set[tuple[str, str]]:
    """All texts of the sources that are to be translated, each with the context in which Qt looks for it."""
    return {each for source in sources().values() for each in _texts_in(source, "")}


def _texts_in(node: ast.AST, within: str) -> Iterator[tuple[str, str]]:
    if isinstance(node, ast.ClassDef):
        within = node.name
    if isinstance(node, ast.Call) and _called(node) in TRANSLATED:
        texts = [each.value for each in node.args if isinstance(each, ast.Constant)]
        texts = [each for each in texts if isinstance(each, str)]
        if _called(node) == "tr" and len(texts) == 1:
            yield within, texts[0]
        elif len(texts) == 2:
            yield texts[0], texts[1]
    for child in ast.iter_child_nodes(node):
        yield from _texts_in(child, within)


@pytest.fixture(scope="module")
def catalogue(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What Qt's own tool finds in the sources."""
    file = tmp_path_factory.mktemp("catalogue") / "baton_xx.ts"
    _run("lupdate", *map(str, sorted(FOLDER.rglob("*.py"))), "-ts", str(file))
    return file


def _run(tool: str, *words: str) -> None:
    ending = ".exe" if sys.platform == "win32" else ""
    program = Path(PySide6.__path__[0]) / f"{tool}{ending}"
    done = subprocess.run([str(program), *words], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_a_translator_gets_all_of_it_to_translate(catalogue: Path) -> None:
    listed = {
        (context.findtext("name") or "", message.findtext("source") or "")
        for context in ElementTree.parse(catalogue).iterfind("context")
        for message in context.iterfind("message")
    }
    assert len(listed) > 1000
    assert said() - listed == set()


def test_a_translation_reaches_what_knows_of_qt_and_what_does_not(
    catalogue: Path, qapp: QApplication, tmp_path: Path
) -> None:
    tree = ElementTree.parse(catalogue)
    for message in tree.iterfind("context/message"):
        translation = message.find("translation")
        assert translation is not None
        translation.text = f"«{message.findtext('source')}»"
        translation.attrib.clear()
    done, packed = tmp_path / "baton_xx.ts", tmp_path / "baton_xx.qm"
    tree.write(done, encoding="utf-8")
    _run("lrelease", str(done), "-qm", str(packed))
    translator = QTranslator()
    assert translator.load(str(packed))
    QCoreApplication.installTranslator(translator)
    try:
        assert figures.speed(24.8) == "«24.8 tok/s»"
        window = QWidget()
        (box,) = Farewell(window, is_answering=False).findChildren(QCheckBox)
        assert box.text() == "«Do this every time»"
    finally:
        QCoreApplication.removeTranslator(translator)


def test_words_stay_as_they_are_without_qt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "PySide6.QtCore")
    assert figures.speed(24.8) == "24.8 tok/s"
