"""The panel beside the list: what a chosen model's file holds, and what memory it takes as it would be loaded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from urllib.parse import quote

from PySide6.QtCore import Qt, Signal
from PySide6.QtWidgets import QApplication, QFrame, QGridLayout, QVBoxLayout, QWidget

from app.amounts import memory_text, size_text
from app.bridge import Job
from app.context import Context
from app.look.measures import LARGE, MEDIUM, SMALL, TINY
from app.node.faults import AppError
from app.pages.models.rows import ModelRow, count_text, tokens_text
from app.widgets.basics import Button, Line, Scrolled, Text, clear, column, row
from app.widgets.elided import ElidedText
from app.widgets.feedback import Dot, Meter
from app.words import translate

# Of the types of a mix: those with less are told together.
_SHOWN_TYPES = 4
_MIX_TONES = ("local", "text_soft", "text_faint", "border_strong")


class InspectPanel(QFrame):
    """`closed` is sent by its button."""

    closed = Signal()

    def __init__(self, context: Context, reveal: Callable[[ModelRow], object]) -> None:
        super().__init__()
        self._context, self._reveal = context, reveal
        self._job: Job | None = None
        self._model: ModelRow | None = None
        self.setProperty("kind", "card")
        self.setAccessibleName(self.tr("About the model"))
        self._title = Text(size="title", wrap=True, selectable=True)
        self._close = Button(kind="icon", icon="close", name=self.tr("Close"))
        self._close.clicked.connect(self.closed)
        self._name = ElidedText(size="caption", tone="soft", mono=True)
        self._body = column(spacing=LARGE)
        head = row(self._title, self._close, spacing=SMALL)
        head.setStretch(0, 1)
        head.setAlignment(self._close, Qt.AlignmentFlag.AlignTop)
        top = column(head, self._name, spacing=TINY)
        top.setContentsMargins(LARGE, MEDIUM, MEDIUM, MEDIUM)
        scrolled = Scrolled(self._body, margin=LARGE, spacing=LARGE)
        scrolled.column.addStretch(1)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(0, 0, 0, 0)
        layout.setSpacing(0)
        layout.addLayout(top)
        layout.addWidget(Line())
        layout.addWidget(scrolled, 1)

    @property
    def model(self) -> ModelRow | None:
        return self._model

    def show_model(self, model: ModelRow) -> None:
        """What the list knows at once; what the file holds when it has been read."""
        is_same = self._model is not None and (self._model.model_id, self._model.here) == (
            model.model_id,
            model.here,
        )
        self._model = model
        if is_same:
            return
        self._title.setText(model.title or model.model_id)
        self._name.say(model.model_id)
        clear(self._body)
        if self._job is not None:
            self._job.cancel()
        if model.here:
            self._body.addWidget(Text(self.tr("Reading its header…"), tone="soft"))
            self._job = self._context.bridge.run(
                self._context.client.get(f"/models/{quote(model.model_id)}"), self._show_told, self._on_error
            )
        else:
            self._show_theirs(model)

    def forget(self) -> None:
        self._model = None

    def _on_error(self, error: AppError) -> None:
        clear(self._body)
        self._body.addWidget(Text(str(error), tone="danger", wrap=True))

    def _show_theirs(self, model: ModelRow) -> None:
        peer = self._context.peer
        name = peer["name"] if peer else self.tr("the other computer")
        facts = [(self.tr("Architecture"), model.architecture), (self.tr("Quantisation"), model.quantization)]
        if model.n_params:
            facts.append((self.tr("Parameters"), count_text(model.n_params)))
        facts.append((self.tr("Size"), size_text(model.size_bytes)))
        if model.n_ctx_train:
            facts.append((self.tr("Context"), self.tr("{:,} tokens").format(model.n_ctx_train)))
        self._add_facts(facts)
        self._body.addWidget(
            Text(
                self.tr(
                    "It is on {0}. Copy here brings it over the cable; with it on both, {0} can prefill for {1}."
                ).format(name, self._context.computer),
                tone="soft",
                wrap=True,
            )
        )

    def _show_told(self, told: dict[str, Any]) -> None:
        clear(self._body)
        if told["problem"]:
            self._body.addWidget(
                Text(self.tr("Baton cannot run it: {}").format(told["problem"]), tone="danger", wrap=True)
            )
        measures = told["measures"]
        if measures is not None:
            self._add_memory(measures)
        self._add_facts(self._facts(told, measures))
        self._add_mix(told["type_bytes"], told["size_bytes"])
        self._add_file(told)

    def _facts(self, told: dict[str, Any], measures: dict[str, Any] | None) -> list[tuple[str, str]]:
        facts = [(self.tr("Architecture"), told["architecture"])]
        if told["n_params"]:
            facts.append((self.tr("Parameters"), count_text(told["n_params"])))
        facts += [
            (self.tr("Quantisation"), told["quantization"]),
            (self.tr("Size"), size_text(told["size_bytes"])),
        ]
        if measures is not None:
            facts += [
                (self.tr("Layers"), f"{measures['n_layers']}"),
                (
                    self.tr("Heads"),
                    self.tr("{0} over {1} of K and V").format(measures["n_heads"], measures["n_kv_heads"]),
                ),
                (self.tr("Context"), self.tr("{:,} tokens").format(measures["n_ctx_train"])),
                (self.tr("KV per token"), _bytes_text(measures["kv_bytes_per_token"])),
            ]
        template = self.tr("yes") if told["chat_template"] else self.tr("none: chats are plain text")
        facts.append((self.tr("Chat template"), template))
        return facts

    def _add_memory(self, measures: dict[str, Any]) -> None:
        """What an engine takes with the slots and context that are set."""
        needed, weights, cache = (measures[f"{name}_bytes"] for name in ("needed", "weight", "cache"))
        meter = Meter(8)
        rest = needed - weights - cache
        parts = ((weights, "local"), (cache, "text_faint"), (rest, "border_strong"))
        meter.show_shares(*((n_bytes / needed, tone) for n_bytes, tone in parts))
        slots = self.tr("{0} slots of {1} tokens").format(measures["n_slots"], tokens_text(measures["n_ctx"]))
        if measures["n_slots"] == 1:
            slots = self.tr("1 slot of {} tokens").format(tokens_text(measures["n_ctx"]))
        self._body.addLayout(
            column(
                row(Text(self.tr("Memory"), strong=True), None, Text(memory_text(needed), strong=True)),
                meter,
                self._legend("local", self.tr("weights"), size_text(weights)),
                self._legend("text_faint", self.tr("cache, {}").format(slots), size_text(cache)),
                self._legend("border_strong", self.tr("engine"), size_text(rest)),
                spacing=TINY,
            )
        )

    def _add_mix(self, type_bytes: dict[str, int], total: int) -> None:
        whole = sum(type_bytes.values())
        if not whole:
            return
        types = list(type_bytes.items())
        shown = types if len(types) <= _SHOWN_TYPES else types[: _SHOWN_TYPES - 1]
        if rest := whole - sum(n_bytes for _, n_bytes in shown):
            shown = [*shown, (self.tr("others"), rest)]
        meter = Meter(8)
        meter.show_shares(
            *((n_bytes / whole, tone) for (_, n_bytes), tone in zip(shown, _MIX_TONES, strict=False))
        )
        lines = [
            self._legend(tone, name, _share_text(n_bytes / whole))
            for (name, n_bytes), tone in zip(shown, _MIX_TONES, strict=False)
        ]
        self._body.addLayout(
            column(Text(self.tr("Quantisation mix"), strong=True), meter, *lines, spacing=TINY)
        )

    def _legend(self, tone: str, name: str, amount: str) -> Any:
        words = ElidedText(name, size="caption", tone="soft")
        line = row(Dot(tone), words, None, Text(amount, size="caption", tone="soft"), spacing=SMALL)
        return line

    def _add_facts(self, facts: list[tuple[str, str]]) -> None:
        grid = QGridLayout()
        grid.setContentsMargins(0, 0, 0, 0)
        grid.setHorizontalSpacing(LARGE)
        grid.setVerticalSpacing(6)
        grid.setColumnStretch(1, 1)
        for index, (name, value) in enumerate(fact for fact in facts if fact[1]):
            grid.addWidget(Text(name, tone="soft"), index, 0, Qt.AlignmentFlag.AlignTop)
            grid.addWidget(Text(value, wrap=True, selectable=True), index, 1)
        self._body.addLayout(grid)

    def _add_file(self, told: dict[str, Any]) -> None:
        model = self._model
        parts: list[QWidget] = [Text(self.tr("File"), strong=True)]
        path = (
            told["path"]
            if told["files"] == 1
            else self.tr("{0}, {1} files").format(told["path"], told["files"])
        )
        # a path breaks where a folder ends
        where = Text(path.replace("/", "/\u200b"), size="caption", tone="soft", wrap=True)
        where.setAccessibleName(path)
        parts.append(where)
        if told["program"]:
            parts.append(
                Text(
                    self.tr("Kept by {}. Baton reads it where it is, and never changes it.").format(
                        told["program"]
                    ),
                    size="caption",
                    tone="soft",
                    wrap=True,
                )
            )
        buttons = row(spacing=SMALL)
        if model is not None:
            buttons.addWidget(Button(self.tr("Show in folder"), lambda: self._reveal(model), kind="link"))
        buttons.addStretch(1)
        self._body.addLayout(column(*parts, buttons, spacing=TINY))
        digest = told["digest"]
        shown = f"{digest[:16]}…" if digest else self.tr("being computed")
        copy = Button(kind="icon", icon="copy", name=self.tr("Copy the digest"))
        copy.clicked.connect(lambda: QApplication.clipboard().setText(digest))
        copy.setVisible(bool(digest))
        line = row(Text(shown, size="caption", tone="soft", mono=True), None, copy, spacing=SMALL)
        self._body.addLayout(column(Text(self.tr("SHA-256"), strong=True), line, spacing=TINY))


def _share_text(share: float) -> str:
    return f"{100 * share:.0f} %" if share >= 0.01 else "< 1 %"


def _bytes_text(n_bytes: int) -> str:
    if n_bytes >= 1024:
        return translate("Files", "{} KiB").format(f"{n_bytes / 1024:,.0f}")
    return translate("Files", "{} bytes").format(n_bytes)
