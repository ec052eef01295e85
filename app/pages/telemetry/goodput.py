"""What comes over the cable, over the last minute, against what it can carry."""

from __future__ import annotations

import pyqtgraph as pg
from PySide6.QtCore import Qt
from PySide6.QtGui import QColor, QPen

from app.look.look import current_look
from app.look.measures import CAPTION_PX
from app.telemetry.ledger import SERIES_S
from app.words import translate

_BITS = 8 / 1e9

# Where nothing is known of the cable the axis goes to a gigabit.
_LEAST_GBPS = 1.0


class GoodputPlot(pg.PlotWidget):
    """A minute that moves left; a dashed line is the cable's ceiling. Nothing on it can be dragged or clicked."""

    def __init__(self) -> None:
        super().__init__(enableMenu=False)
        self.setAccessibleName(translate("GoodputPlot", "Rate of the cable over the last minute"))
        self.setFocusPolicy(Qt.FocusPolicy.NoFocus)
        self.setMouseEnabled(x=False, y=False)
        self.hideButtons()
        self.setMenuEnabled(False)
        self.setFixedHeight(124)
        self.setXRange(-SERIES_S, 0, padding=0)
        self._curve = self.plot([], [])
        self._ceiling = pg.InfiniteLine(angle=0, movable=False)
        self.addItem(self._ceiling)
        self._ceiling.hide()
        for name in ("left", "bottom"):
            axis = self.getAxis(name)
            axis.setStyle(tickLength=0, tickTextOffset=6)
        self.getAxis("left").setWidth(36)
        seconds = translate("Figures", "{} s")
        self.getAxis("bottom").setTicks([[(-at, seconds.format(at)) for at in range(10, SERIES_S, 10)]])
        self._top = 0.0
        self._hue = "peer"
        current_look().changed.connect(self._dress)
        self._dress()

    def show_series(
        self, series: list[tuple[float, float]], ceiling: float | None, hue: str = "peer"
    ) -> None:
        """Seconds before now and bytes a second; the ceiling in bytes a second. `hue` is that of who sends."""
        if hue != self._hue:
            self._hue = hue
            self._dress()
        xs = [at for at, _ in series]
        ys = [rate * _BITS for _, rate in series]
        self._curve.setData(xs, ys)
        limit = ceiling * _BITS if ceiling else 0.0
        self._ceiling.setVisible(bool(limit))
        self._ceiling.setValue(limit)
        top = max([*ys, limit, _LEAST_GBPS if not limit else 0.0]) * 1.12
        if top != self._top:
            self._top = top
            self.setYRange(0, top, padding=0)
            step = next(step for step in (0.2, 0.5, 1, 2, 5, 10, 20, 50, 1e9) if top / step <= 4)
            marks = [(n * step, f"{n * step:g}") for n in range(int(top / step) + 1)]
            self.getAxis("left").setTicks([marks])

    def _dress(self) -> None:
        look = current_look()
        self.setBackground(look.colour("surface"))
        pen = QPen(look.colour(self._hue), 1.5)
        pen.setCosmetic(True)
        fill = QColor(look.colour(self._hue))
        fill.setAlphaF(0.22)
        self._curve.setPen(pen)
        self._curve.setBrush(fill)
        self._curve.setFillLevel(0)
        dashes = QPen(look.colour("text_faint"), 1, Qt.PenStyle.DashLine)
        dashes.setCosmetic(True)
        self._ceiling.setPen(dashes)
        for name in ("left", "bottom"):
            axis = self.getAxis(name)
            axis.setPen(QPen(look.colour("border"), 1))
            axis.setTextPen(look.colour("text_faint"))
            axis.setTickFont(look.font(CAPTION_PX - 1))
