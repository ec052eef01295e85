"""The look of the application: its palette, fonts, style sheet and icons, following the system's light or dark.

Widgets that paint themselves ask `current_look()` when they paint, and are painted anew when `changed` is heard.
"""

from __future__ import annotations

import sys
from enum import Enum
from functools import cache, lru_cache
from importlib import resources
from importlib.resources.abc import Traversable
from typing import cast

from PySide6.QtCore import QByteArray, QObject, QRectF, QSize, Qt, Signal
from PySide6.QtGui import QColor, QFont, QFontDatabase, QGuiApplication, QIcon, QPainter, QPalette, QPixmap
from PySide6.QtSvg import QSvgRenderer
from PySide6.QtWidgets import QApplication

from app.look.measures import BODY_PX, ICON, MOTION_MS, text_scale
from app.look.palette import DARK, LIGHT, Palette
from app.look.sheet import style_sheet


class Theme(Enum):
    SYSTEM = "system"
    LIGHT = "light"
    DARK = "dark"


class Look(QObject):
    """One for the application; `changed` is sent after palette and style sheet have."""

    changed = Signal()

    def __init__(self, app: QApplication, family: str = "", scale: float | None = None) -> None:
        """`family` and `scale` of text in place of the system's own for its windows."""
        super().__init__(app)
        self._app = app
        self._theme = Theme.SYSTEM
        self.palette: Palette = LIGHT
        system = _system_font()
        self.font_name = family or system.family()
        self.text_scale = text_scale(system.pointSizeF(), sys.platform) if scale is None else scale
        self.mono_name = QFontDatabase.systemFont(QFontDatabase.SystemFont.FixedFont).family()
        app.setStyle("Fusion")
        app.setProperty("look", self)
        QGuiApplication.styleHints().colorSchemeChanged.connect(self._apply)
        self._apply()

    @property
    def theme(self) -> Theme:
        return self._theme

    def set_theme(self, theme: Theme) -> None:
        self._theme = theme
        self._apply()

    def colour(self, name: str) -> QColor:
        """A colour of the palette by the name of its field."""
        return QColor(getattr(self.palette, name))

    def px(self, px: float) -> int:
        """A size of text, or of what holds text, as large as the system wants it."""
        return round(px * self.text_scale)

    def font(self, px: float = BODY_PX, *, strong: bool = False, mono: bool = False) -> QFont:
        """Figures of one width in either family, so that numbers that change stand still."""
        font = QFont(self.mono_name if mono else self.font_name)
        font.setPixelSize(self.px(px))
        font.setWeight(QFont.Weight.DemiBold if strong else QFont.Weight.Normal)
        font.setFeature(QFont.Tag("tnum"), 1)
        return font

    def pixmap(self, name: str, colour: str = "text_soft", size: int = ICON) -> QPixmap:
        """The icon `name`, drawn in a colour of the palette, sharp on the densest screen there is."""
        ratio = self._app.devicePixelRatio()
        return _drawn(name, getattr(self.palette, colour, colour), size, ratio)

    def icon(self, name: str, colour: str = "text_soft", size: int = ICON) -> QIcon:
        icon = QIcon(self.pixmap(name, colour, size))
        icon.addPixmap(self.pixmap(name, "border_strong", size), QIcon.Mode.Disabled)
        return icon

    @property
    def motion_ms(self) -> int:
        """How long something moves; nothing moves where the system asks for less."""
        return MOTION_MS if self._app.isEffectEnabled(Qt.UIEffect.UI_AnimateMenu) else 0

    def _apply(self) -> None:
        scheme = QGuiApplication.styleHints().colorScheme()
        is_dark = self._theme is Theme.DARK or (self._theme is Theme.SYSTEM and scheme is Qt.ColorScheme.Dark)
        self.palette = DARK if is_dark else LIGHT
        sheet = style_sheet(self.palette, self.font_name, self.mono_name, self.px)
        if sheet == self._app.styleSheet():
            return
        self._app.setFont(self.font())
        self._app.setPalette(_qt_palette(self.palette))
        # In place of another, Qt applies it to each widget as often as that has parents; after none, once.
        self._app.setStyleSheet("")
        self._app.setStyleSheet(sheet)
        self.changed.emit()


def current_look() -> Look:
    """The application's look. There has to be one."""
    app = QApplication.instance()
    return cast(Look, app.property("look")) if app is not None else _missing()


def _missing() -> Look:
    raise RuntimeError("a Look has to be made before the first widget")


def _system_font() -> QFont:
    return QFontDatabase.systemFont(QFontDatabase.SystemFont.GeneralFont)


@cache
def _icons() -> Traversable:
    return resources.files("resources") / "icons"


@lru_cache(maxsize=512)
def _drawn(name: str, colour: str, size: int, ratio: float) -> QPixmap:
    source = (_icons() / f"{name}.svg").read_text("utf-8")
    renderer = QSvgRenderer(QByteArray(source.replace("currentColor", colour).encode()))
    pixmap = QPixmap(QSize(round(size * ratio), round(size * ratio)))
    pixmap.fill(Qt.GlobalColor.transparent)
    painter = QPainter(pixmap)
    renderer.render(painter, QRectF(0, 0, pixmap.width(), pixmap.height()))
    painter.end()
    pixmap.setDevicePixelRatio(ratio)
    return pixmap


def _qt_palette(palette: Palette) -> QPalette:
    """For what no style sheet reaches: selections, links, and the system's own dialogs."""
    roles = QPalette.ColorRole
    made = QPalette()
    for role, colour in (
        (roles.Window, palette.ground),
        (roles.WindowText, palette.text),
        (roles.Base, palette.surface),
        (roles.AlternateBase, palette.sunken),
        (roles.Text, palette.text),
        (roles.Button, palette.surface),
        (roles.ButtonText, palette.text),
        (roles.PlaceholderText, palette.text_faint),
        (roles.Highlight, palette.selection),
        (roles.HighlightedText, palette.text),
        (roles.Link, palette.local),
        (roles.ToolTipBase, palette.text),
        (roles.ToolTipText, palette.ground),
        (roles.Mid, palette.border),
        (roles.Accent, palette.local),
    ):
        made.setColor(role, QColor(colour))
    made.setColor(QPalette.ColorGroup.Disabled, roles.Text, QColor(palette.text_faint))
    made.setColor(QPalette.ColorGroup.Disabled, roles.ButtonText, QColor(palette.text_faint))
    return made
