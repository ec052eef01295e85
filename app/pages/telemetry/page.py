"""The page Telemetry: every request with its handoff, the slots, and the cable, as they happen."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from PySide6.QtCore import QTimer
from PySide6.QtGui import QHideEvent
from PySide6.QtWidgets import (
    QBoxLayout,
    QFileDialog,
    QFrame,
    QMenu,
    QSizePolicy,
    QStackedWidget,
    QWidget,
)

from app.context import Context
from app.look.look import current_look
from app.look.measures import LARGE, MEDIUM, SMALL, TINY
from app.pages.page import Page
from app.pages.telemetry.facts import FactsGrid
from app.pages.telemetry.requests import RequestsList, entry_of
from app.pages.telemetry.slots import SlotsTable
from app.pages.telemetry.waterfall import WaterfallView
from app.telemetry import figures
from app.telemetry.decision import decision, facts
from app.telemetry.export import as_csv, as_json
from app.telemetry.ledger import Record
from app.telemetry.sides import UNKNOWN, ceiling_of
from app.widgets.basics import Button, Card, Scrolled, Text, column, row
from app.widgets.controls import Menu
from app.widgets.feedback import Action, EmptyState, Tag

# The plot moves a little each quarter of a second, and so does the time of a request that runs; both rest when there is
# nothing on the one, and the other is over.
_MOVE_EVERY_MS = 250

# What is painted anew for each event: several that come together are painted once.
_PAINT_AFTER_MS = 50

# After 0 it would be on this turn still, before anything is painted.
_NEXT_TURN_MS = 1

_NARROW = 900
_TIGHT = 760
_FACTS_A_ROW = 4
_FACTS_A_NARROW_ROW = 3
_FACTS_A_TIGHT_ROW = 2


class TelemetryPage(Page):
    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self.setAccessibleName(self.tr("Telemetry"))
        self._feeds = context.feeds
        self._chosen: tuple[str, str] | None = None
        self._follows_newest = True
        self._asked_for: set[str] = set()
        self._export = Button(self.tr("Export"), kind="quiet", icon="download")
        self._export.setMenu(self._export_menu())
        self._requests = RequestsList()
        self._slots = SlotsTable()
        # Plots bring numpy along, which no window needs before this page is opened.
        from app.pages.telemetry.goodput import GoodputPlot

        self._plot = GoodputPlot()
        self._waterfall = WaterfallView()
        self._lay_out()
        self._paint = QTimer(self, singleShot=True, interval=_PAINT_AFTER_MS)
        self._paint.timeout.connect(self._show)
        self._moving = QTimer(self, interval=_MOVE_EVERY_MS)
        self._moving.timeout.connect(self._move)
        self._requests.chosen.connect(self._on_chosen)
        self._feeds.changed.connect(self._on_news)
        self._feeds.models_changed.connect(self._paint.start)
        context.state.changed.connect(self._on_part)
        self._show()

    def header(self) -> QWidget | None:
        return self._export

    def shown(self) -> None:
        self._show()

    def hideEvent(self, event: QHideEvent) -> None:
        super().hideEvent(event)
        self._moving.stop()

    # how it is laid out

    def _lay_out(self) -> None:
        self._empty = EmptyState("telemetry", "", "", Action(text=self.tr("Open Chat"), run=self._go_to_chat))
        self._stack = QStackedWidget()
        self._stack.addWidget(self._empty)
        self._stack.addWidget(self._made_body())
        self.setLayout(column(self._stack, margin=0, spacing=0))

    def _made_body(self) -> QWidget:
        side = QFrame()
        side.setProperty("kind", "sidebar")
        side.setFixedWidth(current_look().px(232))
        head = Text(self.tr("Requests"), size="caption", tone="faint", strong=True)
        head.setContentsMargins(20, MEDIUM, 0, TINY)
        side.setLayout(column(head, self._requests, spacing=0))
        self._side = side
        scrolled = Scrolled(self._made_request(), self._made_live(), None, margin=LARGE, spacing=LARGE)
        body = QWidget()
        body.setLayout(row(side, scrolled, spacing=0))
        body.layout().setStretch(1, 1)  # type: ignore[union-attr]
        return body

    def _made_live(self) -> QWidget:
        self._model = Text(size="caption", tone="faint")
        slots = Card(
            row(Text(self.tr("Slots"), strong=True), None, self._model),
            self._slots,
            None,
            spacing=MEDIUM,
        )
        self._rate = Text(size="caption", tone="soft")
        cable = Card(
            row(Text(self.tr("The cable"), strong=True), None, self._rate),
            self._plot,
            None,
            spacing=SMALL,
        )
        for card, share in ((slots, 4), (cable, 3)):
            policy = QSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Preferred)
            policy.setHorizontalStretch(share)
            card.setSizePolicy(policy)
        live = QWidget()
        self._live = row(slots, cable, spacing=LARGE)
        live.setLayout(self._live)
        live.setSizePolicy(QSizePolicy.Policy.Preferred, QSizePolicy.Policy.Maximum)
        return live

    def _made_request(self) -> QWidget:
        self._name = Text(strong=True)
        self._tag = Tag("")
        self._tag.setSizePolicy(QSizePolicy.Policy.Maximum, QSizePolicy.Policy.Maximum)
        self._decision = Text(tone="soft", wrap=True, selectable=True)
        self._views = (
            Button(self.tr("All"), self._waterfall.see_all, kind="chip", name=self.tr("See all of it")),
            Button(
                self.tr("Prefill"), self._waterfall.see_prefill, kind="chip", name=self.tr("See the prefill")
            ),
            Button(self.tr("Tail"), self._waterfall.see_tail, kind="chip", name=self.tr("See the tail")),
        )
        self._hint = Text(size="caption", tone="faint", wrap=True)
        self._hint.setMinimumHeight(20)
        self._waterfall.said.connect(self._say_hint)
        self._facts = FactsGrid()
        self._head = row(row(self._name, SMALL, self._tag, None, spacing=TINY), spacing=SMALL)
        self._head.addLayout(row(*self._views, None, spacing=TINY))
        self._head.setStretch(0, 1)
        card = Card(
            self._head,
            self._decision,
            self._waterfall,
            self._hint,
            self._facts,
            spacing=SMALL,
        )
        self._say_hint("")
        return card

    def _say_hint(self, words: str) -> None:
        picture = self._waterfall.picture
        whose = (
            self.tr("a strip for its layer")
            if picture and picture.is_remote
            else self.tr("a chunk for its time")
        )
        hint = self.tr("Point at {}. Arrow keys step through the chunks, the wheel zooms.").format(whose)
        self._hint.setText(words or hint)

    def _export_menu(self) -> QMenu:
        menu = Menu(self)
        menu.addAction(self.tr("All of it, as JSON…"), lambda: self._save("json", as_json))
        menu.addAction(self.tr("A line for each request, as CSV…"), lambda: self._save("csv", as_csv))
        return menu

    # what is heard

    def _on_news(self, model: str, key: str) -> None:
        if self.isVisible() and not self._paint.isActive():
            self._paint.start()

    def _on_part(self, part: str) -> None:
        if self.isVisible() and part in ("link", "peers", "joins", "engines", "workers"):
            self._paint.start()

    def _on_chosen(self, model: str, key: str) -> None:
        self._follows_newest = self._requests.requests.row_of(key) == 0
        self._choose(model, key)

    # what is shown

    def _show(self) -> None:
        records = self._feeds.records()
        self._export.setEnabled(bool(records))
        if not records:
            self._say_nothing_yet()
            return
        if self._stack.currentIndex() == 0:
            self._stack.setCurrentIndex(1)
        entries = [entry_of(model, key, record) for model, key, record in records]
        is_known = self._chosen is not None and any(self._chosen == (model, key) for model, key, _ in records)
        if self._follows_newest or not is_known:
            model, key, _ = records[0]
            self._requests.show_entries(entries, key)
            self._choose(model, key)
        else:
            assert self._chosen is not None
            self._requests.show_entries(entries, self._chosen[1])
            self._show_record(anew=False)
        self._show_slots()

    def _say_nothing_yet(self) -> None:
        self._stack.setCurrentIndex(0)
        if self._feeds.models:
            self._empty.say(
                self.tr("Nothing was asked yet"),
                self.tr(
                    "Ask something, and you see here where its prompt is prefilled and how the cache comes over."
                ),
            )
        else:
            self._empty.say(
                self.tr("No model is loaded"),
                self.tr(
                    "Each request is drawn here as it runs: who prefills, what crosses the cable, how long it takes."
                ),
            )

    def _go_to_chat(self) -> None:
        self.context.shell.go("chat")

    def _choose(self, model: str, key: str) -> None:
        anew = self._chosen != (model, key)
        self._chosen = model, key
        self._show_record(anew=anew)

    @property
    def _record(self) -> Record | None:
        if self._chosen is None:
            return None
        model, key = self._chosen
        return self._feeds.ledgers[model].records.get(key)

    def _show_record(self, *, anew: bool) -> None:
        record = self._record
        if record is None or self._chosen is None:
            return
        sides, ceiling = record.sides, ceiling_of(self.context)
        self._waterfall.show_record(record, ceiling, now_s=self._feeds.now_s, anew=anew)
        picture = self._waterfall.picture
        if anew:
            self._say_hint("")
        self._name.setText(self.tr("{} tokens").format(figures.count(record.told["n_prompt_tokens"])))
        self._show_tag(record)
        self._decision.setText(decision(record, sides.worker, sides.decoder))
        self._views[1].setEnabled(record.told["prefilled_ms"] is not None)
        self._views[2].setVisible(picture is not None and picture.is_remote)
        self._views[2].setEnabled(self._waterfall.has_tail)
        if record.lacks_layers and record.is_over:
            self._ask_for_layers(record)
        # Each on a turn of its own: together they would hold the window for longer than an eye forgives.
        QTimer.singleShot(_NEXT_TURN_MS, self, self._show_facts)

    def _show_facts(self) -> None:
        if (record := self._record) is not None:
            sides, picture = record.sides, self._waterfall.picture
            limit_ms = picture.limit_ms if picture is not None else None
            self._facts.show_facts(facts(record, sides.worker, sides.decoder, limit_ms))
        QTimer.singleShot(_NEXT_TURN_MS, self, self._show_cable)

    def _show_tag(self, record: Record) -> None:
        told, sides = record.told, record.sides
        is_done = told["prefilled_ms"] is not None or record.is_over
        prefilled = self.tr("prefilled on {}") if is_done else self.tr("prefilling on {}")
        if told["outcome"] == "failed":
            self._tag.say(self.tr("failed"), "danger")
        elif told["outcome"] == "cancelled":
            self._tag.say(self.tr("cancelled"))
        elif told["fallback"]:
            self._tag.say(self.tr("given up by {}").format(sides.worker), "warning")
        elif record.is_remote:
            self._tag.say(prefilled.format(sides.worker), sides.worker_hue)
        elif told["route"] is not None:
            self._tag.say(prefilled.format(sides.decoder), sides.decoder_hue)
        else:
            self._tag.say(self.tr("waits"))

    def _ask_for_layers(self, record: Record) -> None:
        """The engine knows the layers of its last requests; of those that ran before the window looked as well."""
        assert self._chosen is not None
        model, key = self._chosen
        if key in self._asked_for:
            return
        self._asked_for.add(key)

        def show(timeline: dict[str, Any]) -> None:
            self._feeds.ledgers[model].add_detail(key, timeline)
            if self._chosen == (model, key):
                self._show_record(anew=False)

        asking = self.context.client.endpoint_get(f"/requests/{record.request_id}", model=model)
        # What it has forgotten is drawn without its layers.
        self.context.bridge.run(asking, show, lambda error: None)

    def _show_slots(self) -> None:
        model = self._chosen[0] if self._chosen else ""
        if model not in self._feeds.models:
            model = next(iter(self._feeds.models), "")
        ledger = self._feeds.ledgers.get(model)
        sides = ledger.sides if ledger else UNKNOWN
        self._model.setText(model or self.tr("no model is loaded"))
        self._slots.show_slots(ledger.slots if ledger else [], sides)

    def _show_cable(self) -> None:
        if not self.isVisible():
            return
        now_s, ceiling = self._feeds.now_s, ceiling_of(self.context)
        ledger = self._feeds.ledgers.get(self._chosen[0]) if self._chosen else None
        series = ledger.goodput.series(now_s) if ledger else []
        self._plot.show_series(series, ceiling, ledger.sides.worker_hue if ledger else UNKNOWN.worker_hue)
        now = self.tr("now {}").format(figures.rate(self._feeds.goodput_now()))
        self._rate.setText(now + (self.tr(" of {}").format(figures.rate(ceiling)) if ceiling else ""))
        if self._feeds.is_still() and not self._runs:
            self._moving.stop()
        elif not self._moving.isActive():
            self._moving.start()

    @property
    def _runs(self) -> bool:
        """Whether the request that is looked at has not come to its end."""
        record = self._record
        return record is not None and not record.is_over

    def _move(self) -> None:
        self._show_cable()
        if self._runs and self.isVisible():
            self._show_record(anew=False)

    # export

    def _save(self, ending: str, written: Callable[[list[tuple[str, Record]]], str]) -> None:
        name, _ = QFileDialog.getSaveFileName(
            self, self.tr("Export requests"), str(Path.home() / f"baton-requests.{ending}"), f"*.{ending}"
        )
        if name:
            self.export_to(Path(name), written)

    def export_to(self, file: Path, written: Callable[[list[tuple[str, Record]]], str]) -> None:
        """Write all requests there, and say so."""
        records = [(model, record) for model, _, record in self._feeds.records()]
        try:
            file.write_text(written(records), "utf-8", newline="")
        except OSError as error:
            self.context.shell.toast(
                self.tr("{} cannot be written: {}. Choose another folder.").format(
                    file.name, error.strerror or error
                )
            )
            return
        said = self.tr("1 request is in {1}.") if len(records) == 1 else self.tr("{0} requests are in {1}.")
        self.context.shell.toast(said.format(figures.count(len(records)), file.name))

    def resizeEvent(self, event: Any) -> None:
        super().resizeEvent(event)
        look = current_look()
        is_narrow, is_tight = self.width() < look.px(_NARROW), self.width() < look.px(_TIGHT)
        self._side.setFixedWidth(look.px(224 if is_narrow else 248))
        way = QBoxLayout.Direction.TopToBottom if is_narrow else QBoxLayout.Direction.LeftToRight
        if self._live.direction() is not way:
            self._live.setDirection(way)
        way = QBoxLayout.Direction.TopToBottom if is_tight else QBoxLayout.Direction.LeftToRight
        if self._head.direction() is not way:
            self._head.setDirection(way)
        self._facts.set_a_row(
            _FACTS_A_TIGHT_ROW if is_tight else _FACTS_A_NARROW_ROW if is_narrow else _FACTS_A_ROW
        )
