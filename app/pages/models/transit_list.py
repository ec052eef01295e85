"""What is on its way, over the list: how much has come, how fast, how long yet, and a word for each that stopped."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Protocol

from PySide6.QtCore import Qt
from PySide6.QtWidgets import QWidget

from app.amounts import Pace, duration_text, size_text
from app.look.measures import MEDIUM, SMALL, TINY
from app.node.faults import sentence
from app.pages.models.transits import Kind, Transit
from app.widgets.basics import Button, Card, Icon, Line, Text, column, row
from app.widgets.elided import ElidedText
from app.widgets.feedback import Meter


class Mover(Protocol):
    """Does what is clicked beside one that is on its way."""

    def pause(self, transit: Transit) -> None: ...

    def resume(self, transit: Transit) -> None: ...

    def discard(self, transit: Transit) -> None: ...


class TransitList(Card):
    """Hidden while nothing is on its way."""

    def __init__(self, mover: Mover) -> None:
        super().__init__(padding=MEDIUM, spacing=SMALL)
        self._mover = mover
        self._rows: dict[str, _TransitRow] = {}
        self.shown: tuple[Transit, ...] = ()
        self.setAccessibleName(self.tr("On the way"))
        self.hide()

    def show_transits(self, transits: Sequence[Transit]) -> None:
        self.shown = tuple(transits)
        keys = [each.key for each in transits]
        if keys != list(self._rows):
            self._lay_out(keys)
        for each in transits:
            self._rows[each.key].show_transit(each)
        self.setVisible(bool(transits))

    def _lay_out(self, keys: Sequence[str]) -> None:
        """Those that stay keep what is known of their pace."""
        while (item := self.column.takeAt(0)) is not None:
            if (widget := item.widget()) is not None and not isinstance(widget, _TransitRow):
                widget.deleteLater()
        old, self._rows = self._rows, {}
        for index, key in enumerate(keys):
            if index:
                self.column.addWidget(Line())
            self._rows[key] = old.pop(key) if key in old else _TransitRow(self._mover)
            self.column.addWidget(self._rows[key])
        for gone in old.values():
            gone.hide()
            gone.deleteLater()


class _TransitRow(QWidget):
    def __init__(self, mover: Mover) -> None:
        super().__init__()
        self._pace = Pace()
        self._transit: Transit | None = None
        self._icon = Icon("download", "local", 20)
        self._name = ElidedText(strong=True)
        self._meter = Meter()
        self._words = Text(size="caption", tone="soft", wrap=True, selectable=True)
        self._toggle = Button(kind="icon", icon="pause", name=self.tr("Pause"))
        keeps = self._toggle.sizePolicy()
        keeps.setRetainSizeWhenHidden(True)
        self._toggle.setSizePolicy(keeps)
        self._toggle.clicked.connect(lambda: self._on_toggle(mover))
        self._discard = Button(kind="icon", icon="close", name=self.tr("Cancel"))
        self._discard.clicked.connect(lambda: self._on_discard(mover))
        body = row(
            self._icon,
            column(self._name, self._meter, self._words, spacing=TINY),
            self._toggle,
            self._discard,
            spacing=MEDIUM,
        )
        body.setStretch(1, 1)
        body.setAlignment(self._icon, Qt.AlignmentFlag.AlignTop)
        self.setLayout(body)

    def show_transit(self, transit: Transit) -> None:
        self._transit = transit
        tone = "peer" if transit.kind in (Kind.COPY_IN, Kind.COPY_OUT) else "local"
        icons = {Kind.COPY_OUT: "upload", Kind.IMPORT: "folder"}
        self._icon.show_icon(icons.get(transit.kind, "download"), tone)
        self._name.say(self._title(transit))
        words = self._progress_words(transit) if transit.is_running else self._stopped_words(transit)
        self._words.setText(words)
        self._words.set_tone("danger" if transit.state == "failed" else "soft")
        share = transit.done_bytes / transit.total_bytes if transit.total_bytes else 0.0
        self._meter.setVisible(bool(transit.total_bytes))
        self._meter.show_shares((share, tone if transit.is_running else "border_strong"))
        self._show_buttons(transit)
        self.setAccessibleName(f"{self._name.full_text}. {words}")

    def _title(self, transit: Transit) -> str:
        match transit.kind:
            case Kind.COPY_OUT:
                return self.tr("{0} to {1}").format(transit.name, transit.peer)
            case Kind.COPY_IN:
                return self.tr("{0} from {1}").format(transit.name, transit.peer)
            case Kind.IMPORT if transit.is_running:
                return self.tr("Importing {}").format(transit.name)
        return transit.name

    def _progress_words(self, transit: Transit) -> str:
        if not transit.total_bytes:
            asking = self.tr("Reading it…") if transit.kind is Kind.IMPORT else self.tr("Asking where it is…")
            return transit.note or asking
        if transit.kind in (Kind.COPY_IN, Kind.COPY_OUT) and not transit.done_bytes:
            return self.tr("{}. It is read through first, half a second a GB.").format(
                size_text(transit.total_bytes)
            )
        self._pace.hear(transit.done_bytes, time.monotonic())
        words = [self.tr("{0} of {1}").format(size_text(transit.done_bytes), size_text(transit.total_bytes))]
        if transit.done_bytes >= transit.total_bytes:
            words.append(self.tr("checking its digest"))
        elif self._pace.per_s > 0:
            words.append(f"{size_text(self._pace.per_s)}/s")
            if (left_s := self._pace.left_s(transit.total_bytes)) is not None:
                words.append(self.tr("{} left").format(duration_text(left_s)))
        return " · ".join(words)

    def _stopped_words(self, transit: Transit) -> str:
        if transit.state == "failed":
            return sentence(transit.problem)
        if transit.total_bytes:
            return self.tr("Paused at {0} of {1}. What has come is kept.").format(
                size_text(transit.done_bytes), size_text(transit.total_bytes)
            )
        if transit.kind is Kind.LEFT and transit.source:
            return self.tr("{} have come so far. Resume goes on with it.").format(
                size_text(transit.done_bytes)
            )
        if transit.kind is Kind.LEFT:
            return self.tr("{} have come of it. Get it again to go on, or throw it away.").format(
                size_text(transit.done_bytes)
            )
        return self.tr("Paused. What has come is kept.")

    def _show_buttons(self, transit: Transit) -> None:
        is_kept_here = transit.kind in (Kind.DOWNLOAD, Kind.LEFT, Kind.COPY_IN)
        if transit.is_running:
            self._named(self._toggle, "pause", self.tr("Pause"), transit)
            self._toggle.setVisible(transit.can_pause)
            self._named(self._discard, "close", self.tr("Cancel"), transit)
            self._discard.setVisible(transit.kind is not Kind.IMPORT)
        else:
            is_copy = transit.kind in (Kind.COPY_OUT, Kind.COPY_IN)
            begins_anew = transit.state == "failed" and (is_copy or not transit.done_bytes)
            word = self.tr("Try again") if begins_anew else self.tr("Resume")
            self._named(self._toggle, "play", word, transit)
            self._toggle.setVisible(bool(transit.source))
            self._discard.show()
            word = self.tr("Throw away") if is_kept_here else self.tr("Dismiss")
            self._named(self._discard, "trash" if is_kept_here else "close", word, transit)

    def _named(self, button: Button, icon: str, word: str, transit: Transit) -> None:
        button.show_icon(icon)
        button.setToolTip(word)
        button.setAccessibleName(f"{word} {transit.name}")

    def _on_discard(self, mover: Mover) -> None:
        if self._transit is not None:
            mover.discard(self._transit)

    def _on_toggle(self, mover: Mover) -> None:
        if self._transit is None:
            return
        if self._transit.is_running:
            mover.pause(self._transit)
        else:
            mover.resume(self._transit)
