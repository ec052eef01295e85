"""The look: every text can be read on every ground it is put on, in both themes, and is as large as it is wanted."""

from __future__ import annotations

import re

import pytest
from PySide6.QtCore import QEvent, QObject
from PySide6.QtWidgets import QWidget

from app.look.look import Look, Theme
from app.look.measures import text_scale
from app.look.palette import DARK, LIGHT, Palette, contrast
from app.look.sheet import style_sheet
from app.widgets.basics import Text
from app.widgets.controls import Switch

GROUNDS = ("ground", "surface", "sunken")
HUES = ("local", "peer", "warning", "danger")
SOFT = tuple(f"{hue}_soft" for hue in HUES)
CODE = ("code_word", "code_string", "code_number", "code_name")
PAIRS = [
    *((text, ground) for text in ("text", "text_soft", "text_faint", *HUES) for ground in GROUNDS),
    *zip(HUES, SOFT, strict=True),
    *(("text", ground) for ground in ("hover", "pressed", "selection", *SOFT)),
    *(
        (text, ground)
        for text in ("text_soft", "text_faint", "local", "peer")
        for ground in ("hover", "pressed")
    ),
    *((code, ground) for code in CODE for ground in ("surface", "sunken")),
    ("text_soft", "selection"),
    # a tooltip
    ("ground", "text"),
    ("on_local", "local"),
    ("on_local", "local_hover"),
    ("on_danger", "danger"),
    ("on_danger", "danger_hover"),
]


# Icons, the rings of what has the focus, boxes to tick, and what has flowed of a bar.
MARKS = [
    *((mark, ground) for mark in ("text_faint", *HUES) for ground in (*GROUNDS, "hover", "pressed")),
    *((mark, "border") for mark in ("local", "peer")),
    # the outline of what is typed into, chosen from or switched on
    *(("border_input", ground) for ground in GROUNDS),
]


@pytest.mark.parametrize("palette", [LIGHT, DARK], ids=["light", "dark"])
@pytest.mark.parametrize(("text", "ground"), PAIRS)
def test_text_stands_out_from_its_ground(palette: Palette, text: str, ground: str) -> None:
    assert contrast(getattr(palette, text), getattr(palette, ground)) >= 4.5


@pytest.mark.parametrize("palette", [LIGHT, DARK], ids=["light", "dark"])
@pytest.mark.parametrize(("mark", "ground"), MARKS)
def test_marks_and_icons_stand_out_from_their_ground(palette: Palette, mark: str, ground: str) -> None:
    assert contrast(getattr(palette, mark), getattr(palette, ground)) >= 3.0


def test_contrast_is_that_of_wcag() -> None:
    assert round(contrast("#000000", "#ffffff"), 2) == 21.0
    assert round(contrast("#777777", "#ffffff"), 2) == 4.48


@pytest.mark.parametrize(
    ("points", "platform", "scale"),
    [
        *((9.0, "linux", 1.0), (11.0, "linux", 1.0), (13.75, "linux", 1.25), (40.0, "linux", 1.5)),
        *((13.0, "darwin", 1.0), (9.0, "win32", 1.0), (11.25, "win32", 1.25)),
        *((8.1, "win32", 0.9), (4.0, "win32", 0.85), (-1.0, "linux", 1.0)),
    ],
)
def test_text_is_as_large_as_the_system_has_it(points: float, platform: str, scale: float) -> None:
    assert text_scale(points, platform) == pytest.approx(scale)


def test_all_text_grows_with_its_scale(look: Look, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = {each for each in re.findall(r"font-size: (\d+)px", style_sheet(LIGHT, "A", "B", round))}
    larger = {
        each
        for each in re.findall(r"font-size: (\d+)px", style_sheet(LIGHT, "A", "B", lambda px: 2 * round(px)))
    }
    assert larger == {str(2 * int(each)) for each in sizes}
    usual = Text("Baton").sizeHint()
    monkeypatch.setattr(look, "text_scale", 1.5)
    assert (look.font().pixelSize(), look.font(12).pixelSize()) == (21, 18)
    look.set_theme(look.theme)
    assert Text("Baton").sizeHint().height() >= 1.4 * usual.height()
    monkeypatch.undo()
    look.set_theme(look.theme)


@pytest.mark.parametrize(
    "control", ["QLineEdit", "QPlainTextEdit", "QSpinBox", "QComboBox", 'QFrame[kind="card"][tone="input"]']
)
def test_what_takes_input_is_outlined_so_that_it_is_seen(control: str) -> None:
    rules = re.findall(r"([^{}]+)\{([^}]+)\}", style_sheet(DARK, "A", "B", round))
    bodies = [body for chosen, body in rules if control in [each.strip() for each in chosen.split(",")]]
    assert any("border" in body and DARK.border_input in body for body in bodies)


@pytest.mark.parametrize("theme", [Theme.LIGHT, Theme.DARK])
def test_a_switch_that_is_off_is_outlined_so_that_it_is_seen(look: Look, theme: Theme) -> None:
    look.set_theme(theme)
    switch = Switch("Notifications")
    picture = switch.grab().toImage()
    edge = [picture.pixelColor(x, y).name() for x in range(16, 22) for y in range(2, 6)]
    assert max(contrast(each, look.palette.surface) for each in edge) >= 3.0
    look.set_theme(Theme.SYSTEM)


class _Changes(QObject):
    """Counts how often a widget is told of another style."""

    def __init__(self, widget: QWidget) -> None:
        super().__init__(widget)
        self.n = 0
        widget.installEventFilter(self)

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        self.n += event.type() is QEvent.Type.StyleChange
        return False


def test_another_theme_is_put_on_each_widget_once_however_deep_it_is(look: Look) -> None:
    top = innermost = QWidget()
    for _ in range(12):
        innermost = QWidget(innermost)
    label = Text("Baton", tone="peer")
    label.setParent(innermost)
    top.show()
    changes = _Changes(label)
    look.set_theme(Theme.DARK)
    assert label.palette().windowText().color().name() == DARK.peer
    # it loses the one, and gets the other
    assert changes.n <= 2
    look.set_theme(Theme.LIGHT)
    assert label.palette().windowText().color().name() == LIGHT.peer
    changes.n = 0
    look.set_theme(Theme.LIGHT)
    assert changes.n == 0
    look.set_theme(Theme.SYSTEM)
