"""Where the endpoint is, its key, and whether other computers may use it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from PySide6.QtWidgets import QFrame

from app.context import Context
from app.look.measures import LARGE, MEDIUM, SMALL, TINY
from app.node.faults import AppError
from app.pages.server.exposure import Exposure, change_for, exposure_of, new_key, outside_hosts
from app.pages.server.snippets import base_url
from app.state import NodePresence
from app.widgets.basics import Button, Card, Icon, Text, column, row
from app.widgets.controls import Switch
from app.widgets.copying import CopyLine
from app.widgets.feedback import Dot, Question

_MASK = "•" * 24


class _ChangingCard(Card):
    """Follows the node's parts `node`, `settings` and `discovery`, and changes its settings."""

    def __init__(self, context: Context, *, padding: int, spacing: int) -> None:
        super().__init__(padding=padding, spacing=spacing)
        self._context = context
        self._is_busy = False
        self._fault = Text(tone="danger", wrap=True)
        self._fault.hide()
        context.state.changed.connect(self._on_changed)
        context.state.presence_changed.connect(self._show)

    @property
    def exposure(self) -> Exposure:
        return exposure_of(self._context.state.part("settings", {}), self._endpoint)

    @property
    def _endpoint(self) -> str:
        return str(self._context.state.part("node", {}).get("endpoint", ""))

    @property
    def _can_change(self) -> bool:
        return self._context.state.presence is NodePresence.THERE and not self._is_busy

    def _show(self) -> None:
        raise NotImplementedError

    def _on_changed(self, part: str) -> None:
        if part in ("node", "settings", "discovery"):
            self._show()

    def _change(self, changes: dict[str, Any], on_done: Callable[[], object] = lambda: None) -> None:
        self._is_busy = True
        self._say_fault("")
        self._show()

        def done(_: object) -> None:
            self._is_busy = False
            on_done()
            self._show()

        def failed(error: AppError) -> None:
            self._is_busy = False
            self._say_fault(str(error))
            self._show()

        self._context.bridge.run(self._context.client.patch("/settings", changes), done, failed)

    def _say_fault(self, text: str) -> None:
        self._fault.setText(text)
        self._fault.setVisible(bool(text))


class EndpointCard(_ChangingCard):
    """The address on this computer, and the key."""

    def __init__(self, context: Context) -> None:
        super().__init__(context, padding=LARGE, spacing=MEDIUM)
        self._key = ""
        self._dot = Dot()
        self._state = Text(tone="soft")
        self._url = CopyLine(self.tr("Copy the address"))
        self._key_line = CopyLine(self.tr("Copy the key"))
        self._key_line.button.hide()
        self._key_words = Text(tone="soft", wrap=True)
        self._new = Button(self.tr("New key"), self._ask_new_key)
        self._remove = Button(self.tr("Remove"), self._remove_key, kind="quiet")
        self._shown_key = _NewKey(lambda: self.show_new_key(""))
        self.column.addLayout(row(Text(self.tr("Endpoint"), size="title"), None, self._dot, self._state))
        address = Text(self.tr("Address"), size="caption", tone="faint")
        self.column.addLayout(column(address, self._url, spacing=TINY))
        key = Text(self.tr("Key"), size="caption", tone="faint")
        self.column.addLayout(column(key, self._key_line, self._shown_key, self._key_words, spacing=TINY))
        self.column.addLayout(row(self._new, self._remove, None))
        self.column.addWidget(self._fault)
        self.column.addStretch(1)
        self._show()

    def show_new_key(self, key: str) -> None:
        """For the one time that it can be; "" puts it away. The focus goes there, and not on to what lets others in."""
        self._key = key
        self._show()
        if key:
            self._shown_key.take_focus()
        else:
            self._new.setFocus()

    def _show(self) -> None:
        tone, words = {
            NodePresence.THERE: ("local", self.tr("Listening")),
            NodePresence.STARTING: ("warning", self.tr("Starting")),
            NodePresence.GONE: ("danger", self.tr("Not running")),
        }[self._context.state.presence]
        self._dot.show_tone(tone)
        self._state.setText(words)
        self._url.show_text(base_url(self._endpoint))
        exposure = self.exposure
        self._shown_key.show_key(self._key)
        self._key_line.setVisible(exposure.has_key and not self._key)
        self._key_line.show_text(_MASK if exposure.has_key else "")
        self._key_words.setVisible(not self._key)
        self._key_words.setText(self._about_key(exposure))
        can_change = self._can_change and not exposure.key_fixed_by
        self._new.setVisible(not self._key)
        self._new.setEnabled(can_change)
        self._new.setText(self.tr("New key") if exposure.has_key else self.tr("Make a key"))
        # with other computers let in there has to be one
        self._remove.setVisible(exposure.has_key and not exposure.is_wanted and not self._key)
        self._remove.setEnabled(can_change)

    def _about_key(self, exposure: Exposure) -> str:
        if exposure.key_fixed_by:
            return self.tr("Set by {} when Baton's node was started.").format(exposure.key_fixed_by)
        if exposure.has_key:
            return self.tr("Programs have to send it. Nothing shows it again: make a new one if it is lost.")
        return self.tr("None is set. Programs on this computer need none.")

    def _ask_new_key(self) -> None:
        if self.exposure.has_key:
            question = Question(
                self.window(),
                self.tr("Make a new key?"),
                self.tr("Programs that send the old one are refused from then on."),
                yes=self.tr("New key"),
                no=self.tr("Cancel"),
            )
            if not question.exec():
                return
        key = new_key()
        self._change({"api_key": key}, lambda: self.show_new_key(key))

    def _remove_key(self) -> None:
        self._change({"api_key": None})


class OthersCard(_ChangingCard):
    """Whether other computers may use the endpoint. `on_key` is given the key that is made for that."""

    def __init__(self, context: Context, on_key: Callable[[str], object]) -> None:
        super().__init__(context, padding=LARGE, spacing=MEDIUM)
        self._on_key = on_key
        self._switch = Switch(self.tr("Other computers may use it"))
        self._switch.clicked.connect(self._ask)
        self._words = Text(tone="soft", wrap=True)
        self._url = CopyLine(self.tr("Copy the address for other computers"))
        self._warning = Card(padding=MEDIUM, tone="warning")
        self._warning_words = Text(wrap=True)
        self._restart = Button(self.tr("Restart Baton's node"), self._restart_now)
        warning = row(Icon("warning", "warning"), self._warning_words, self._restart, spacing=MEDIUM)
        warning.setStretch(1, 1)
        self._warning.column.addLayout(warning)
        head = row(
            column(Text(self.tr("Other computers may use it"), strong=True), self._words, spacing=TINY),
            self._switch,
            spacing=MEDIUM,
        )
        head.setStretch(0, 1)
        self.column.addLayout(head)
        for part in (self._url, self._warning, self._fault):
            self.column.addWidget(part)
        self._show()

    def _show(self) -> None:
        exposure = self.exposure
        self._switch.setChecked(exposure.is_wanted)
        self._switch.setEnabled(self._can_change and not exposure.fixed_by)
        self._words.setText(self._about(exposure))
        hosts = outside_hosts(self._context.state.part("discovery", {}).get("addresses", []))
        self._url.setVisible(exposure.is_open and bool(hosts))
        self._url.show_text(base_url(self._endpoint, hosts[0]) if hosts else "")
        self._warning.setVisible(exposure.is_open or exposure.waits)
        self._restart.setVisible(exposure.waits)
        self._restart.setEnabled(self._can_change)
        if exposure.waits and exposure.is_open:
            warning = self.tr(
                "Other computers reach it until Baton's node has started again. Wait for the answers that are being "
                "written, or end them by starting it now."
            )
        elif exposure.waits:
            warning = self.tr(
                "This is felt once Baton's node has started again. Answers that are being written end."
            )
        else:
            warning = self.tr(
                "Every computer on your networks that has the key can use your models. What it sends and gets is not "
                "encrypted: leave this off on networks you do not trust."
            )
        self._warning_words.setText(warning)

    def _about(self, exposure: Exposure) -> str:
        if exposure.fixed_by:
            return self.tr("{} decides it, which was given when Baton's node was started.").format(
                exposure.fixed_by
            )
        if self._context.state.presence is not NodePresence.THERE:
            return self.tr("This can be changed once Baton's node runs again.")
        if exposure.is_open:
            return self.tr("Programs elsewhere reach your models at this address, with the key:")
        return self.tr(
            "Off, only programs on this computer reach your models. On, every program needs a key."
        )

    def _ask(self) -> None:
        exposure, is_open = self.exposure, self._switch.isChecked()
        self._switch.setChecked(exposure.is_wanted)
        changes, key = change_for(exposure, is_open=is_open)
        needs_restart = exposure.is_open != is_open
        if is_open and not self._is_meant(needs_key=bool(key), needs_restart=needs_restart):
            return

        def done() -> None:
            if key:
                self._on_key(key)
            if needs_restart and (is_open or not self._is_answering):
                self._restart_now()

        self._change(changes, done)

    @property
    def _is_answering(self) -> bool:
        """Whether a restart would end an answer that is being written."""
        return any(engine.get("active") for engine in self._context.state.part("engines", []))

    def _is_meant(self, *, needs_key: bool, needs_restart: bool) -> bool:
        parts = [
            self.tr("Every computer on your networks that has the key can then use your models, unencrypted.")
        ]
        if needs_key:
            parts.append(self.tr("A key is made for it, and shown to you once."))
        if needs_restart:
            parts.append(
                self.tr(
                    "Baton's node starts again for that, and loads models anew: answers being written end."
                )
            )
        question = Question(
            self.window(),
            self.tr("Let other computers use the endpoint?"),
            " ".join(parts),
            yes=self.tr("Let them"),
            no=self.tr("Cancel"),
        )
        return bool(question.exec())

    def _restart_now(self) -> None:
        self._context.state.restart(lambda error: self._say_fault(str(error)))


class _NewKey(QFrame):
    """A key that was just made, for the one time that it is shown."""

    def __init__(self, on_done: Callable[[], object]) -> None:
        super().__init__()
        self.setProperty("kind", "card")
        self.setProperty("tone", "local")
        self._line = CopyLine(self.tr("Copy the new key"))
        words = Text(self.tr("Your new key. Copy it now: it is shown this once."), wrap=True)
        self.setLayout(
            column(
                words,
                self._line,
                row(Button(self.tr("I have it"), on_done), None),
                margin=MEDIUM,
                spacing=SMALL,
            )
        )
        self.hide()

    def take_focus(self) -> None:
        self._line.button.setFocus()

    def show_key(self, key: str) -> None:
        self._line.show_text(key)
        self.setVisible(bool(key))
