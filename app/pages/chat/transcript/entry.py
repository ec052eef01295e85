"""A message's place in the transcript: what stands where in it, and how high it is. No widget; it has one when seen."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from math import ceil

from PySide6.QtCore import QRectF
from PySide6.QtGui import QFontMetricsF

from app.look.look import current_look
from app.look.measures import BODY_PX, CAPTION_PX, LARGE, MEDIUM, SMALL
from app.pages.chat.transcript.blocks import Span
from app.pages.chat.transcript.boxes import Style, Unit
from app.pages.chat.transcript.flow import Flow
from app.pages.chat.transcript.highlight import Run
from app.pages.chat.transcript.model import STOPPED, Prefill, Shown, Stats
from app.pages.chat.transcript.parts import ACTIONS_HEIGHT, EDITOR_HEIGHT, PREFILL_HEIGHT
from app.pages.chat.transcript.words import DOT, NO_BREAK, note_line, stats_line, stats_parts

THOUGHT_HEIGHT = 32
REASONING_INDENT = 16
WAITING_HEIGHT = 24
FILE_HEIGHT = 28
BUBBLE_PAD = (16, 10)
# The share of the column that a user's message may take.
_BUBBLE_SHARE = 0.85
_GAP = 4
# A message that is longer takes all the width it may have.
_MEASURED = 4000

_BODY = Style()
_REASONING = Style(px=BODY_PX - 1, colour="text_soft")

# Where the window's upper edge is in a message: which flow (-1: none), which slot of it, and how far below its top.
Anchor = tuple[int, int, float]


@dataclass(kw_only=True)
class Plan:
    """Where the parts of a message are, from its top; None for what it has not."""

    thought: float | None = None
    reasoning: float | None = None
    files: float | None = None
    bubble: QRectF | None = None
    text: tuple[float, float] | None = None
    waiting: float | None = None
    prefill: float | None = None
    editor: float | None = None
    note: float | None = None
    stats: float | None = None
    actions: float = 0.0
    height: float = 0.0


class Entry:
    """`width` is the column's. Flows are made when the message first comes near the view."""

    def __init__(self, shown: Shown, want_language: Callable[[str], None]) -> None:
        self.shown = shown
        self.prefill: Prefill | None = None
        self.is_editing = False
        self._want_language = want_language
        self._is_open: bool | None = None
        self._width = 0.0
        self._flows: list[Flow] | None = None
        self._plan: Plan | None = None
        self._pending = ["", ""]
        self.note: Unit | None = None
        self.stats: Unit | None = None

    # What it holds.

    def show(self, shown: Shown) -> None:
        """The message as it is now; text that only grew is not laid out anew."""
        before, self.shown = self.shown, shown
        self._pending = ["", ""]
        self._drop_lines()
        if self._flows is None:
            return
        for index, (flow, text) in enumerate(zip(self._flows, (shown.reasoning, shown.text), strict=True)):
            if text.startswith(flow.text) and shown.role == before.role:
                if len(text) > len(flow.text):
                    flow.feed(text[len(flow.text) :])
            else:
                self._flows[index] = self._flow(index)
        if not shown.is_live:
            for flow in self._flows:
                flow.finish()

    def hold(self, text: str, reasoning: str) -> None:
        """Keep streamed text until `take_in`."""
        self._pending[0] += reasoning
        self._pending[1] += text

    def take_in(self) -> float | None:
        """Lay held text in; returns from where on the message has changed, None if nothing was held."""
        reasoning, text = self._pending
        if not (reasoning or text):
            return None
        was_plan = self.plan
        has_begun = bool(text) and not self.shown.text
        self.shown = replace(
            self.shown, text=self.shown.text + text, reasoning=self.shown.reasoning + reasoning
        )
        self._pending = ["", ""]
        self._plan = None
        if self._flows is None:
            return 0.0
        changed = []
        for index, piece in enumerate((reasoning, text)):
            if piece:
                flow = self._flows[index]
                first = flow.feed(piece)
                top = flow.tops[min(first, len(flow.tops) - 1)]
                start = was_plan.text[1] if index and was_plan.text else was_plan.reasoning or 0.0
                changed.append(start + top)
        return 0.0 if has_begun or not self.plan.text else min(changed)

    @property
    def is_open(self) -> bool:
        """Whether the reasoning is unfolded: while it goes on, else as the user left it."""
        if self._is_open is not None:
            return self._is_open
        return self.shown.is_live and not self.shown.text

    def toggle(self) -> None:
        self._is_open = not self.is_open
        self._plan = None

    def set_prefill(self, prefill: Prefill | None) -> None:
        self.prefill = prefill
        self._plan = None

    def set_editing(self, editing: bool) -> None:
        self.is_editing = editing
        self._plan = None

    # Where it stands.

    def set_width(self, width: float) -> None:
        if width != self._width:
            self._width = width
            self._drop_lines()

    def restyle(self) -> None:
        """Colours have changed."""
        self._drop_lines()
        for flow in self._flows or ():
            flow.forget_all()

    def _drop_lines(self) -> None:
        self._plan = None
        self.note = self.stats = None

    @property
    def height(self) -> float:
        return self.plan.height

    @property
    def plan(self) -> Plan:
        if self._plan is None:
            self._plan = self._planned()
        return self._plan

    def flows(self) -> Iterator[tuple[int, Flow, float, float]]:
        """Those that are shown: number, flow, left and top."""
        plan, flows = self.plan, self._flows
        if flows is None:
            return
        if plan.reasoning is not None:
            yield 0, flows[0], REASONING_INDENT, plan.reasoning
        if plan.text is not None:
            yield 1, flows[1], plan.text[0], plan.text[1]

    def flow(self, index: int) -> Flow:
        self._make_flows()
        assert self._flows is not None
        return self._flows[index]

    def lay_out(self, top: float, bottom: float) -> bool:
        """Lay out what is between; whether the message's height has changed."""
        before, has_changed = self.height, False
        self._make_flows()
        for _, flow, _, y in list(self.flows()):
            has_changed = flow.lay_out(top - y, bottom - y) or has_changed
        if has_changed:
            self._plan = None
        return self.height != before or has_changed

    def forget(self, top: float, bottom: float) -> None:
        for _, flow, _, y in self.flows():
            flow.forget(top - y, bottom - y)

    def forget_all(self) -> None:
        for flow in self._flows or ():
            flow.forget_all()

    def anchor_at(self, y: float) -> Anchor:
        for index, flow, _, top in self.flows():
            if top <= y < top + flow.height:
                slot = min(len(flow.slots), bisect_right(flow.tops, y - top)) - 1
                return index, slot, y - top - flow.tops[slot]
        return -1, 0, y

    def y_of(self, anchor: Anchor) -> float:
        for index, flow, _, top in self.flows():
            if index == anchor[0] and anchor[1] < len(flow.slots):
                return top + flow.tops[anchor[1]] + anchor[2]
        return min(anchor[2], self.height) if anchor[0] < 0 else 0.0

    def _make_flows(self) -> None:
        if self._flows is None:
            self._flows = [self._flow(0), self._flow(1)]
            self._plan = None

    def _flow(self, index: int) -> Flow:
        shown = self.shown
        return Flow(
            shown.text if index else shown.reasoning,
            _BODY if index else _REASONING,
            is_plain=shown.role != "assistant",
            is_live=shown.is_live,
            want_language=self._want_language,
        )

    def _planned(self) -> Plan:
        plan = Plan()
        if self._width <= 0:
            return plan
        y = self._plan_answer(plan) if self.shown.role == "assistant" else self._plan_message(plan)
        y = self._plan_lines(plan, y)
        plan.actions = y + 2
        plan.height = ceil(plan.actions + current_look().px(ACTIONS_HEIGHT) + _GAP)
        return plan

    def _plan_answer(self, plan: Plan) -> float:
        shown, look, y = self.shown, current_look(), 4.0
        if shown.reasoning:
            plan.thought = y
            y += look.px(THOUGHT_HEIGHT)
            if self.is_open:
                plan.reasoning = y + 4
                y += 4 + self._flow_height(0, self._width - REASONING_INDENT) + SMALL
            y += SMALL
        if shown.text:
            plan.text = 0.0, y
            y += self._flow_height(1, self._width)
        elif self.prefill is not None:
            plan.prefill = y
            y += look.px(PREFILL_HEIGHT)
        elif shown.is_live:
            plan.waiting = y
            y += look.px(WAITING_HEIGHT)
        return y

    def _plan_message(self, plan: Plan) -> float:
        shown, look, y = self.shown, current_look(), 4.0
        if shown.attachments:
            plan.files = y
            y += len(shown.attachments) * (look.px(FILE_HEIGHT) + 4) + 4
        if self.is_editing:
            plan.editor = y
            return y + look.px(EDITOR_HEIGHT)
        if not shown.text:
            return y
        pad_x, pad_y = BUBBLE_PAD
        is_own = shown.role == "user"
        width = (
            self._natural_width(self._width * _BUBBLE_SHARE - 2 * pad_x)
            if is_own
            else self._width - 2 * pad_x
        )
        head = 0 if is_own else look.px(24)
        height = self._flow_height(1, width) + 2 * pad_y + head
        left = self._width - width - 2 * pad_x if is_own else 0.0
        plan.bubble = QRectF(left, y, width + 2 * pad_x, height)
        plan.text = left + pad_x, y + pad_y + head
        return y + height

    def _plan_lines(self, plan: Plan, y: float) -> float:
        """The note and the figures under a message."""
        shown, look = self.shown, current_look()
        if self._flows is None:
            return y + look.px((34 if shown.note else 0) + (30 if shown.stats is not None else 0))
        if shown.note:
            if self.note is None:
                colour = look.colour("text_faint" if shown.note == STOPPED else "warning")
                self.note = Unit(
                    [Span(text=note_line(shown.note))],
                    look.font(),
                    self._width,
                    colour=colour,
                    line_height=look.px(22),
                )
            plan.note = y + MEDIUM
            y = plan.note + self.note.height
        if shown.stats is not None and (line := stats_line(shown.stats)):
            if self.stats is None:
                # a figure stays whole where the line has no room for all
                whole = DOT.join(figure.replace(" ", NO_BREAK) for figure in line.split(DOT))
                self.stats = Unit(
                    [Span(text=whole)],
                    look.font(CAPTION_PX),
                    self._width,
                    colour=look.colour("text_faint"),
                    line_height=look.px(18),
                    runs=_remote_runs(shown.stats),
                )
            plan.stats = y + MEDIUM
            y = plan.stats + self.stats.height
        return y

    def _flow_height(self, index: int, width: float) -> float:
        if self._flows is None:
            text = self.shown.text if index else self.shown.reasoning
            px = current_look().px(BODY_PX if index else BODY_PX - 1)
            n_lines = text.count("\n") * 0.7 + len(text) * px * 0.5 / max(60.0, width) + 1
            return n_lines * px * 1.55
        flow = self._flows[index]
        flow.set_width(width)
        return flow.height

    def _natural_width(self, most: float) -> float:
        text = self.shown.text
        if len(text) > _MEASURED or self._flows is None:
            return most
        metrics = QFontMetricsF(current_look().font())
        widest = max(metrics.horizontalAdvance(line.replace("\t", "    ")) for line in text.split("\n"))
        return min(most, max(24.0, ceil(widest) + LARGE / 4))


def _remote_runs(stats: Stats) -> list[Run]:
    """Where in the line of figures the other computer is spoken of."""
    runs: list[Run] = []
    at = 0
    for part in stats_parts(stats):
        if part.is_remote:
            runs.append((at, at + len(part.text), "peer"))
        at += len(part.text) + len(DOT)
    return runs
