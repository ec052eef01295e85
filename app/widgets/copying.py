"""What is shown to be taken elsewhere: a line or a block of text with a button that copies it."""

from __future__ import annotations

from PySide6.QtCore import Qt, QTimer
from PySide6.QtGui import QFontMetrics
from PySide6.QtWidgets import QApplication, QFrame, QPlainTextEdit, QSizePolicy

from app.look.look import current_look
from app.look.measures import BODY_PX, CAPTION_PX, MEDIUM, SMALL
from app.widgets.basics import Button, Text, row

# Long enough to be seen, before the button is itself again.
_COPIED_MS = 1500


class CopyButton(Button):
    """Copies `text`, and shows that it has."""

    def __init__(self, name: str, text: str = "") -> None:
        super().__init__(kind="icon", icon="copy", name=name)
        self.text_to_copy = text
        self._back = QTimer(self, singleShot=True, interval=_COPIED_MS)
        self._back.timeout.connect(lambda: self.show_icon("copy"))
        self.clicked.connect(self._copy)

    def _copy(self) -> None:
        QApplication.clipboard().setText(self.text_to_copy)
        self.show_icon("check", "local")
        self._back.start()


class CopyLine(QFrame):
    """One line in the fixed font, cut in its middle where there is no room for it."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.setProperty("kind", "sunken")
        self._full = ""
        self._text = Text(mono=True, selectable=True)
        self._text.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Preferred)
        self._text.setFocusPolicy(Qt.FocusPolicy.NoFocus)
        self.button = CopyButton(name)
        layout = row(self._text, self.button, spacing=SMALL)
        layout.setStretch(0, 1)
        layout.setContentsMargins(MEDIUM, 2, 4, 2)
        self.setLayout(layout)
        self.setMinimumHeight(36)

    @property
    def text(self) -> str:
        return self._full

    def show_text(self, text: str, *, to_copy: str = "") -> None:
        """`to_copy` in place of what is shown; nothing is copied of a text that is empty."""
        self._full = text
        self.button.text_to_copy = to_copy or text
        self.button.setEnabled(bool(text))
        self._cut()

    def resizeEvent(self, event: object) -> None:
        super().resizeEvent(event)  # type: ignore[arg-type]
        self._cut()

    def _cut(self) -> None:
        metrics = QFontMetrics(current_look().font(BODY_PX, mono=True))
        room = self._text.width() - 2
        self._text.setText(metrics.elidedText(self._full, Qt.TextElideMode.ElideMiddle, max(room, 40)))
        self._text.setToolTip("" if self._text.text() == self._full else self._full)
        self._text.setAccessibleName(self._full)


class CodeBlock(QFrame):
    """Text in the fixed font that can be selected, as high as it is long, with its copy button in the corner."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.setProperty("kind", "sunken")
        self._edit = QPlainTextEdit()
        self._edit.setReadOnly(True)
        self._edit.setProperty("kind", "bare")
        self._edit.setProperty("mono", True)
        self._edit.setLineWrapMode(QPlainTextEdit.LineWrapMode.NoWrap)
        self._edit.setVerticalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self._edit.setAccessibleName(name)
        self._edit.setTabChangesFocus(True)
        self._edit.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Fixed)
        self.button = CopyButton(name)
        layout = row(self._edit, self.button, spacing=SMALL)
        layout.setContentsMargins(MEDIUM, SMALL, 4, SMALL)
        layout.setAlignment(self.button, Qt.AlignmentFlag.AlignTop)
        self.setLayout(layout)

    @property
    def text(self) -> str:
        return self._edit.toPlainText()

    def show_text(self, text: str, *, n_lines: int = 0) -> None:
        """At least `n_lines` high."""
        if text != self.text:
            self._edit.setPlainText(text)
        self.button.text_to_copy = text
        height = QFontMetrics(current_look().font(CAPTION_PX + 1, mono=True)).lineSpacing()
        lines = max(n_lines, text.count("\n") + 1)
        self._edit.setFixedHeight(lines * height + 2 * SMALL + MEDIUM)
