"""The waterfall of one request, painted: who computed what, what was on the cable, and what was in the cache when."""

from __future__ import annotations

from dataclasses import dataclass

from PySide6.QtCore import QEvent, QLineF, QPointF, QRectF, QSize, Qt, Signal
from PySide6.QtGui import (
    QBrush,
    QColor,
    QFocusEvent,
    QFontMetricsF,
    QKeyEvent,
    QMouseEvent,
    QPainter,
    QPaintEvent,
    QPen,
    QPixmap,
    QResizeEvent,
    QWheelEvent,
)
from PySide6.QtWidgets import QSizePolicy, QWidget

from app.look.look import current_look
from app.look.measures import CAPTION_PX, SMALL
from app.telemetry import figures
from app.telemetry.ledger import Chunk, Layer, Record
from app.telemetry.sides import Sides
from app.telemetry.waterfall import Hit, View, Waterfall, tick_text, ticks

_GUTTER = 128
_RIGHT = 12
_TOP = 28
_AXIS = 28
_GAP = 8

# A step of the wheel, and what the keys + and - do.
_ZOOM = 1.25


@dataclass(frozen=True, kw_only=True)
class _Lane:
    kind: str
    name: str
    hue: str
    top: float
    height: float

    @property
    def bottom(self) -> float:
        return self.top + self.height


class WaterfallView(QWidget):
    """`said` is a sentence about what is pointed at or was stepped to; "" for nothing. It follows the request as it
    grows, until somebody looks closer."""

    said = Signal(str)

    def __init__(self) -> None:
        super().__init__()
        self.setFocusPolicy(Qt.FocusPolicy.StrongFocus)
        self.setMouseTracking(True)
        self.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Fixed)
        self.setAccessibleName(self.tr("Waterfall of the handoff"))
        self._shown: Waterfall | None = None
        self._sides = Sides(worker="", decoder="")
        self._lanes: list[_Lane] = []
        self._view: View | None = None
        self._chosen: int | None = None
        self._hit: tuple[str, Hit] | None = None
        self._grabbed: tuple[float, View] | None = None
        self._drawn: QPixmap | None = None
        self._gutter = current_look().px(_GUTTER)
        current_look().changed.connect(self._draw_anew)

    def show_record(self, record: Record, ceiling: float | None, *, now_s: float, anew: bool) -> None:
        """`anew`: it is another request than before, and seen whole."""
        was_whole = self._is_whole
        self._shown = Waterfall(record, ceiling=ceiling, age_ms=record.age_ms(now_s))
        self._sides = record.sides
        self._lay_out()
        if anew:
            self._chosen = self._hit = None
            self.said.emit("")
        if anew or was_whole or self._view is None:
            self._view = self._whole
        self._draw_anew()

    @property
    def picture(self) -> Waterfall | None:
        """What is shown."""
        return self._shown

    @property
    def view(self) -> View | None:
        """What part of it is seen."""
        return self._view

    @property
    def has_tail(self) -> bool:
        return self._shown is not None and self._shown.tail is not None

    def see_all(self) -> None:
        self._see(self._whole)

    def see_prefill(self) -> None:
        """From the asking to the first token."""
        shown = self._shown
        if shown is None:
            return
        end_ms = shown.first_token_ms or shown.ready_ms or shown.end_ms
        self._see(View(begin_ms=0.0, end_ms=end_ms * 1.02, width_px=self._width))

    def see_tail(self) -> None:
        """The end of the last chunk, and the tail."""
        if self._shown is not None and (view := self._shown.around_tail(self._width)) is not None:
            self._see(view)

    def sizeHint(self) -> QSize:
        bottom = self._lanes[-1].bottom if self._lanes else _TOP
        return QSize(480, round(bottom + _GAP + _AXIS))

    # geometry

    @property
    def _width(self) -> float:
        return max(1.0, self.width() - self._gutter - _RIGHT)

    @property
    def _whole(self) -> View | None:
        return self._shown.whole(self._width) if self._shown is not None else None

    @property
    def _is_whole(self) -> bool:
        whole = self._whole
        if whole is None or self._view is None:
            return True
        return self._view.end_ms - self._view.begin_ms >= (whole.end_ms - whole.begin_ms) * 0.999

    def _lay_out(self) -> None:
        shown, sides = self._shown, self._sides
        if shown is None:
            return
        kinds: list[tuple[str, str, str, int]] = []
        if shown.is_remote:
            kinds += [
                ("worker", self.tr("{} computes").format(sides.worker), sides.worker_hue, 32),
                ("wire", self.tr("on the cable"), sides.worker_hue, 112),
                ("commits", self.tr("in the cache"), sides.decoder_hue, 16),
            ]
        if shown.local or not shown.is_remote:
            kinds.append(("local", self.tr("{} computes").format(sides.decoder), sides.decoder_hue, 32))
        kinds.append(("decode", self.tr("{} decodes").format(sides.decoder), sides.decoder_hue, 24))
        top, lanes = float(_TOP), []
        for kind, name, hue, height in kinds:
            lanes.append(_Lane(kind=kind, name=name, hue=hue, top=top, height=height))
            top += height + _GAP
        if lanes != self._lanes:
            self._lanes = lanes
            self.setFixedHeight(self.sizeHint().height())

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        if self._view is not None:
            whole = event.oldSize().width() < 0 or self._is_whole
            view = View(begin_ms=self._view.begin_ms, end_ms=self._view.end_ms, width_px=self._width)
            self._view = self._whole if whole else view
        self._drawn = None

    # looking

    def _see(self, view: View | None) -> None:
        if view is not None:
            self._view = view
            self._draw_anew()

    def _zoom(self, factor: float, at_ms: float | None = None) -> None:
        view, whole = self._view, self._whole
        if view is not None and whole is not None:
            self._see(
                view.zoomed(factor, at_ms if at_ms is not None else (view.begin_ms + view.end_ms) / 2, whole)
            )

    def wheelEvent(self, event: QWheelEvent) -> None:
        view, whole = self._view, self._whole
        if view is None or whole is None:
            return
        delta = event.angleDelta()
        if abs(delta.x()) > abs(delta.y()):
            self._see(view.moved(-delta.x() / view.px_per_ms, whole))
        else:
            self._zoom(_ZOOM ** (delta.y() / 120), view.ms(event.position().x() - self._gutter))
        event.accept()

    def mouseDoubleClickEvent(self, event: QMouseEvent) -> None:
        self.see_all()

    def mousePressEvent(self, event: QMouseEvent) -> None:
        self.setFocus()
        if self._view is not None and event.button() is Qt.MouseButton.LeftButton:
            self._grabbed = event.position().x(), self._view
            if self._hit is not None and self._hit[0] in ("worker", "wire"):
                self._choose(self._hit[1].chunk)

    def mouseReleaseEvent(self, event: QMouseEvent) -> None:
        self._grabbed = None
        self.unsetCursor()

    def mouseMoveEvent(self, event: QMouseEvent) -> None:
        if self._view is None:
            return
        if self._grabbed is not None:
            x, view = self._grabbed
            whole = self._whole
            if whole is not None and abs(event.position().x() - x) > 3:
                self.setCursor(Qt.CursorShape.ClosedHandCursor)
                self._see(view.moved((x - event.position().x()) / view.px_per_ms, whole))
            return
        self._point_at(event.position())

    def leaveEvent(self, event: QEvent) -> None:
        self._hit = None
        self._say()
        self.update()

    def _point_at(self, at: QPointF) -> None:
        hit = self._hit_at(at)
        if hit != self._hit:
            self._hit = hit
            self._say()
            self.update()

    def _hit_at(self, at: QPointF) -> tuple[str, Hit] | None:
        shown, view = self._shown, self._view
        lane = next((lane for lane in self._lanes if lane.top <= at.y() <= lane.bottom), None)
        if shown is None or view is None or lane is None or at.x() < self._gutter:
            return None
        x = at.x() - self._gutter
        if lane.kind == "wire":
            hit = shown.hit_wire(view, x, (at.y() - lane.top) / lane.height)
        elif lane.kind in ("worker", "local"):
            hit = shown.hit_computed(view, x, remote=lane.kind == "worker")
        else:
            return None
        return (lane.kind, hit) if hit is not None else None

    # stepping

    def keyPressEvent(self, event: QKeyEvent) -> None:
        steps = {Qt.Key.Key_Left: -1, Qt.Key.Key_Right: 1}
        zooms = {Qt.Key.Key_Plus: _ZOOM, Qt.Key.Key_Equal: _ZOOM, Qt.Key.Key_Minus: 1 / _ZOOM}
        if event.key() in steps and self._chunks:
            step = steps[Qt.Key(event.key())]
            now = self._chosen if self._chosen is not None else (-1 if step > 0 else len(self._chunks))
            self._choose(min(max(now + step, 0), len(self._chunks) - 1))
        elif event.key() == Qt.Key.Key_Home and self._chunks:
            self._choose(0)
        elif event.key() == Qt.Key.Key_End and self._chunks:
            self._choose(len(self._chunks) - 1)
        elif event.key() in zooms:
            self._zoom(zooms[Qt.Key(event.key())], self._chosen_ms)
        elif event.key() == Qt.Key.Key_0:
            self.see_all()
        else:
            super().keyPressEvent(event)

    @property
    def _chunks(self) -> list[Chunk]:
        """Those that are stepped through: the worker's, where there are any."""
        if self._shown is None:
            return []
        return self._shown.remote or self._shown.local

    @property
    def _chosen_ms(self) -> float | None:
        return self._chunks[self._chosen].at_ms if self._chosen is not None and self._chunks else None

    def _choose(self, index: int) -> None:
        self._chosen, self._hit = index, None
        chunk, view, whole = self._chunks[index], self._view, self._whole
        if view is not None and whole is not None:
            begin_ms = chunk.began_ms if chunk.began_ms is not None else chunk.at_ms
            self._see(view.showing(begin_ms, chunk.at_ms, whole))
        self._say()
        self.update()

    def focusInEvent(self, event: QFocusEvent) -> None:
        super().focusInEvent(event)
        self.update()

    def focusOutEvent(self, event: QFocusEvent) -> None:
        super().focusOutEvent(event)
        self.update()

    # words

    def _say(self) -> None:
        words = self._words()
        self.setAccessibleDescription(words)
        self.said.emit(words)

    def _words(self) -> str:
        shown = self._shown
        if shown is None:
            return ""
        if self._hit is not None:
            kind, hit = self._hit
            chunks = shown.local if kind == "local" else shown.remote
            if hit.layer is not None:
                return self._of_layer(hit.layer, hit.chunk)
            return self._of_chunk(chunks[hit.chunk], hit.chunk, len(chunks))
        if self._chosen is not None and self._chosen < len(self._chunks):
            return self._of_chunk(self._chunks[self._chosen], self._chosen, len(self._chunks))
        return ""

    def _of_layer(self, layer: Layer, chunk: int) -> str:
        words = [
            self.tr("Layer {} of chunk {}").format(layer.layer + 1, chunk + 1),
            figures.size(layer.n_bytes),
            self.tr("{} on the cable").format(figures.duration(layer.last_ms - layer.first_ms)),
        ]
        if layer.bytes_per_s is not None:
            words.append(figures.rate(layer.bytes_per_s))
        if layer.queued_ms is not None:
            words.append(
                self.tr("first byte {} after it was computed").format(
                    figures.duration(max(0.0, layer.first_ms - layer.queued_ms))
                )
            )
        return " · ".join(words)

    def _of_chunk(self, chunk: Chunk, index: int, n_chunks: int) -> str:
        words = [
            self.tr("Chunk {} of {}").format(index + 1, n_chunks),
            self.tr("tokens {} to {}").format(figures.count(chunk.first + 1), figures.count(chunk.stop)),
            self.tr("computed in {}").format(figures.duration(chunk.compute_ms)),
        ]
        if chunk.n_bytes:
            words.append(figures.size(chunk.n_bytes))
        if chunk.remote and chunk.computed_ms is not None:
            words.append(
                self.tr("in the cache {} after that").format(
                    figures.duration(max(0.0, chunk.at_ms - chunk.computed_ms))
                )
            )
        return " · ".join(words)

    # painting

    def _draw_anew(self) -> None:
        self._drawn = None
        self.update()

    def paintEvent(self, event: QPaintEvent) -> None:
        shown, view = self._shown, self._view
        if shown is None or view is None:
            return
        # The picture stays while the pointer moves over it.
        if self._drawn is None:
            self._drawn = self._draw(shown, view)
        painter = QPainter(self)
        painter.drawPixmap(0, 0, self._drawn)
        painter.save()
        painter.setClipRect(QRectF(self._gutter, 0, self._width, self.height()))
        painter.translate(self._gutter, 0)
        self._paint_chosen(painter, view)
        painter.restore()
        if self.hasFocus():
            painter.setRenderHint(QPainter.RenderHint.Antialiasing)
            painter.setPen(QPen(current_look().colour("local"), 2))
            painter.setBrush(Qt.BrushStyle.NoBrush)
            painter.drawRoundedRect(QRectF(self.rect()).adjusted(1, 1, -1, -1), 6, 6)

    def _draw(self, shown: Waterfall, view: View) -> QPixmap:
        ratio = self.devicePixelRatioF()
        pixmap = QPixmap(self.size() * ratio)
        pixmap.setDevicePixelRatio(ratio)
        pixmap.fill(Qt.GlobalColor.transparent)
        painter = QPainter(pixmap)
        painter.setFont(current_look().font(CAPTION_PX))
        self._paint_names(painter)
        self._paint_axis(painter, view)
        painter.setClipRect(QRectF(self._gutter, 0, self._width, self.height()))
        painter.translate(self._gutter, 0)
        self._paint_tail(painter, shown, view)
        for lane in self._lanes:
            paint = {
                "worker": self._paint_computed,
                "local": self._paint_computed,
                "wire": self._paint_wire,
                "commits": self._paint_commits,
                "decode": self._paint_decode,
            }[lane.kind]
            paint(painter, shown, view, lane)
        painter.setClipping(False)
        self._paint_marks(painter, shown, view)
        painter.end()
        return pixmap

    def _paint_names(self, painter: QPainter) -> None:
        look = current_look()
        metrics = QFontMetricsF(painter.font())
        painter.setPen(look.colour("text_soft"))
        for lane in self._lanes:
            name = metrics.elidedText(lane.name, Qt.TextElideMode.ElideRight, self._gutter - 2 * SMALL)
            place = QRectF(SMALL, lane.top, self._gutter - 2 * SMALL, lane.height)
            painter.drawText(place, Qt.AlignmentFlag.AlignLeft | Qt.AlignmentFlag.AlignVCenter, name)
            painter.fillRect(QRectF(self._gutter, lane.top, self._width, lane.height), look.colour("sunken"))

    def _paint_axis(self, painter: QPainter, view: View) -> None:
        look = current_look()
        bottom = self._lanes[-1].bottom + _GAP
        places = ticks(view)
        step_ms = places[1][0] - places[0][0] if len(places) > 1 else view.end_ms - view.begin_ms
        for ms, x in places:
            painter.setPen(look.colour("border"))
            painter.drawLine(QLineF(self._gutter + x, _TOP, self._gutter + x, bottom))
            painter.setPen(look.colour("text_faint"))
            text = tick_text(ms, step_ms)
            place = QRectF(self._gutter + x - 44, bottom + 2, 88, current_look().px(20))
            if place.right() > self.width():
                place.moveRight(self.width() - 2)
                painter.drawText(place, Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter, text)
            else:
                painter.drawText(place, Qt.AlignmentFlag.AlignCenter, text)

    def _paint_computed(self, painter: QPainter, shown: Waterfall, view: View, lane: _Lane) -> None:
        look = current_look()
        colour = look.colour(lane.hue)
        metrics = QFontMetricsF(painter.font())
        for bar in shown.computed(view, remote=lane.kind == "worker"):
            place = QRectF(bar.left, lane.top + 2, bar.right - bar.left, lane.height - 4)
            if place.width() > 4:
                place.adjust(0, 0, -1, 0)
            painter.fillRect(place, colour)
            number = str(bar.first + 1)
            if bar.stop - bar.first == 1 and place.width() > metrics.horizontalAdvance(number) + 8:
                seen = place.intersected(QRectF(0, place.top(), self._width, place.height()))
                painter.setPen(look.colour("ground"))
                painter.drawText(seen, Qt.AlignmentFlag.AlignCenter, number)

    def _paint_wire(self, painter: QPainter, shown: Waterfall, view: View, lane: _Lane) -> None:
        strips = shown.strips(view, lane.height)
        painter.setPen(Qt.PenStyle.NoPen)
        painter.setBrush(current_look().colour(lane.hue))
        painter.drawRects(
            [
                QRectF(
                    strip.left,
                    lane.top + strip.top * lane.height,
                    strip.right - strip.left,
                    max(1.0, (strip.bottom - strip.top) * lane.height),
                )
                for strip in strips
            ]
        )

    def _paint_commits(self, painter: QPainter, shown: Waterfall, view: View, lane: _Lane) -> None:
        painter.setPen(QPen(current_look().colour(lane.hue), 1.5))
        painter.drawLines([QLineF(x, lane.top + 1, x, lane.bottom - 1) for x in shown.commits(view)])

    def _paint_decode(self, painter: QPainter, shown: Waterfall, view: View, lane: _Lane) -> None:
        if shown.ready_ms is None:
            return
        look = current_look()
        ready_x = view.x(shown.ready_ms)
        first_x = view.x(shown.first_token_ms) if shown.first_token_ms is not None else ready_x
        last_x = view.x(shown.last_token_ms) if shown.last_token_ms is not None else first_x
        top, height = lane.top + 2, lane.height - 4
        painter.fillRect(
            QRectF(ready_x, top, max(1.0, first_x - ready_x), height), look.colour(f"{lane.hue}_soft")
        )
        painter.fillRect(QRectF(first_x, top, max(2.0, last_x - first_x), height), look.colour(lane.hue))
        words = self.tr("{} tokens").format(figures.count(shown.n_decoded))
        seen = QRectF(first_x, top, last_x - first_x, height).intersected(QRectF(0, top, self._width, height))
        if seen.width() > QFontMetricsF(painter.font()).horizontalAdvance(words) + 16:
            painter.setPen(look.colour("ground"))
            painter.drawText(seen, Qt.AlignmentFlag.AlignCenter, words)

    def _paint_tail(self, painter: QPainter, shown: Waterfall, view: View) -> None:
        """The gap between the end of the worker's computing and the decode, hatched over all lanes."""
        if shown.tail is None:
            return
        look = current_look()
        left, right = view.x(shown.tail[0]), view.x(shown.tail[1])
        bottom = self._lanes[-1].bottom
        place = QRectF(left, _TOP, max(2.0, right - left), bottom - _TOP)
        painter.fillRect(place, look.colour("warning_soft"))
        hatch = QColor(look.colour("warning"))
        hatch.setAlphaF(0.55)
        painter.fillRect(place, QBrush(hatch, Qt.BrushStyle.BDiagPattern))

    def _paint_marks(self, painter: QPainter, shown: Waterfall, view: View) -> None:
        """The line where prefill's computing ends, with the tail's figures, and where a fallback began."""
        look, bottom = current_look(), self._lanes[-1].bottom
        if shown.compute_end_ms is not None and shown.tail is not None:
            x = view.x(shown.compute_end_ms)
            painter.setPen(QPen(look.colour("warning"), 1))
            painter.drawLine(QLineF(x, 20, x, bottom))
            words = self.tr("tail {}").format(figures.duration(shown.tail_ms))
            if shown.limit_ms is not None:
                words += self.tr(" · limit {}").format(figures.duration(shown.limit_ms))
            self._label(painter, x, words, "warning")
        if shown.fallback_ms is not None:
            x = view.x(shown.fallback_ms)
            painter.setPen(QPen(look.colour("danger"), 1, Qt.PenStyle.DashLine))
            painter.drawLine(QLineF(x, 20, x, bottom))
            self._label(painter, x, self.tr("given up"), "danger")

    def _label(self, painter: QPainter, x: float, words: str, tone: str) -> None:
        """Above the lanes, at the right of x, or at its left where there is no room."""
        if not -1 <= x <= self._width + 1:
            return
        width = QFontMetricsF(painter.font()).horizontalAdvance(words) + 8
        left = x + 4 if x + 4 + width <= self._width + _RIGHT else x - 4 - width
        painter.setPen(current_look().colour(tone))
        painter.drawText(
            QRectF(left, 4, width, 20), Qt.AlignmentFlag.AlignLeft | Qt.AlignmentFlag.AlignVCenter, words
        )

    def _paint_chosen(self, painter: QPainter, view: View) -> None:
        """The chunk that was stepped to, or is pointed at, from its computing to its commit."""
        chunk = None
        if self._hit is not None and self._shown is not None:
            chunks = self._shown.local if self._hit[0] == "local" else self._shown.remote
            chunk = chunks[self._hit[1].chunk] if self._hit[1].chunk < len(chunks) else None
        elif self._chosen is not None and self._chosen < len(self._chunks):
            chunk = self._chunks[self._chosen]
        if chunk is None:
            return
        begin_ms = chunk.began_ms if chunk.began_ms is not None else chunk.at_ms
        left, right = view.x(begin_ms), view.x(chunk.at_ms)
        wanted = "commits" if chunk.remote else "local"
        bottom = next((lane.bottom for lane in self._lanes if lane.kind == wanted), self._lanes[-1].bottom)
        top = _TOP if chunk.remote else next(lane.top for lane in self._lanes if lane.kind == "local")
        painter.setPen(QPen(current_look().colour("text"), 1))
        painter.setBrush(Qt.BrushStyle.NoBrush)
        painter.drawRect(QRectF(left - 0.5, top - 1.5, max(3.0, right - left + 1), bottom - top + 3))
