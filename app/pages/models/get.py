"""Getting models: the catalogue's first, then what is found on the Hugging Face hub, and the files of a repository."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from PySide6.QtCore import Signal
from PySide6.QtWidgets import QVBoxLayout, QWidget

from app.amounts import size_text
from app.bridge import Job
from app.context import Context
from app.look.look import current_look
from app.look.measures import HUGE, MEDIUM, SMALL, TINY
from app.node.faults import AppError
from app.pages.models.hub import Offer, Repository, catalogue_offers, file_offers, number_text
from app.pages.models.rows import Memory, ModelRow
from app.pages.models.transits import Transit
from app.pages.models.words import fit_words
from app.widgets.basics import Button, Card, Icon, Line, Scrolled, Text, clear, column, row
from app.widgets.controls import ChoosableRow, SearchField
from app.widgets.elided import ElidedText
from app.widgets.feedback import Dot, Tag
from app.words import translate

# With the room around.
WIDTH = 880


class GetView(QWidget):
    """`asked` has the source of a model that is to be fetched."""

    asked = Signal(str)

    def __init__(self, context: Context) -> None:
        super().__init__()
        self._context = context
        self._job: Job | None = None
        self._models: Sequence[ModelRow] = ()
        self._transits: Sequence[Transit] = ()
        self._catalogue: Sequence[dict[str, Any]] = ()
        self._here = Memory(name="")
        self._there: Memory | None = None
        self._repository: dict[str, Any] | None = None
        self._wanted_file = ""
        self._offers: dict[str, _OfferRow] = {}
        self._make_parts()
        self._lay_out()

    def _make_parts(self) -> None:
        self.field = SearchField(
            self.tr("Search Hugging Face, or paste a repository or its address"),
            name=self.tr("Search Hugging Face"),
        )
        self.field.returnPressed.connect(self.search)
        self.field.textChanged.connect(self._on_text)
        self._search = Button(self.tr("Search"), self.search)
        self._back = Button("", self._on_back, kind="icon", icon="left", name=self.tr("Back"))
        self._title = Text(strong=True)
        self._about = Text(tone="soft", wrap=True)
        self._fault = _Notice("danger")
        self._warning = _Notice("warning")
        self._card = Card(padding=TINY, spacing=0)
        self._results: Sequence[Repository] = ()

    def _lay_out(self) -> None:
        field = row(self.field, self._search, spacing=SMALL)
        field.setStretch(0, 1)
        head = row(self._back, self._title, None, spacing=SMALL)
        self.scrolled = Scrolled(
            field,
            column(head, self._about, spacing=TINY),
            self._fault,
            self._warning,
            self._card,
            width=current_look().px(WIDTH),
            margin=HUGE,
            spacing=MEDIUM,
        )
        self.scrolled.column.setContentsMargins(HUGE, MEDIUM, HUGE, HUGE)
        self.scrolled.column.addStretch(1)
        self.setLayout(column(self.scrolled))
        self.show_catalogue()

    def show_known(
        self,
        models: Sequence[ModelRow],
        transits: Sequence[Transit],
        catalogue: Sequence[dict[str, Any]],
        here: Memory,
        there: Memory | None,
    ) -> None:
        """What is here and on its way has changed, or memory."""
        self._models, self._transits, self._catalogue = models, transits, catalogue
        self._here, self._there = here, there
        if self._repository is not None:
            self._show_offers(file_offers(self._repository["files"], models, transits))
        elif self._is_catalogue:
            self._show_offers(catalogue_offers(catalogue, models, transits))

    def show_catalogue(self) -> None:
        self._stop()
        self._begin(
            self.tr("To begin with"),
            self.tr(
                "Small models that Baton knows by name. Any other GGUF file of Hugging Face can be got by its name: "
                "Baton runs llama, qwen2, qwen3 and gemma3 models so far."
            ),
        )
        self._is_catalogue = True
        self._show_offers(catalogue_offers(self._catalogue, self._models, self._transits))

    def _on_text(self, text: str) -> None:
        if not text.strip():
            self.show_catalogue()

    def search(self) -> None:
        words = self.field.text().strip()
        if not words:
            self.show_catalogue()
            return
        self._stop()
        self._begin(self.tr("Searching Hugging Face…"), "")
        self._job = self._context.bridge.run(
            self._context.client.get("/hub/search", q=words), self._on_found, self._on_error
        )

    def _on_found(self, found: dict[str, Any]) -> None:
        if found["named"]:
            self.open(found["named"], found["file"])
            return
        self._results = [Repository.told(each) for each in found["results"]]
        self._show_results()

    def _show_results(self) -> None:
        n = len(self._results)
        if not n:
            self._begin(
                self.tr("Nothing found"),
                self.tr(
                    "No repository with GGUF files has “{}” in its name. Try fewer words, or another."
                ).format(self.field.text().strip()),
            )
            return
        self._begin(
            self.tr("{} repositories").format(n) if n > 1 else self.tr("1 repository"),
            self.tr("Those that most people fetch come first."),
        )
        for index, repository in enumerate(self._results):
            if index:
                self._card.column.addWidget(_inset_line())
            made = _RepositoryRow(repository)
            made.chosen.connect(lambda name=repository.name: self.open(name))
            self._card.column.addWidget(made)
        self._card.show()

    def open(self, repository: str, file: str = "") -> None:
        """Show the files of a repository; `file` is the one that was asked for."""
        self._stop()
        self._wanted_file = file
        self._begin(repository, self.tr("Asking what it has…"), can_go_back=True)
        self._job = self._context.bridge.run(
            self._context.client.get("/hub/files", repository=repository),
            self._show_repository,
            self._on_error,
        )

    def _show_repository(self, told: dict[str, Any]) -> None:
        repository = Repository.told(told)
        about = _repository_words(repository)
        self._begin(repository.name, about, can_go_back=True)
        self._repository = told
        warnings = [f"{told['problem']}." if told["problem"] else ""]
        if repository.is_gated:
            warnings.append(
                self.tr(
                    "It is given only to who has agreed to its terms: do so on huggingface.co/{}, and sign in here "
                    "once with `hf auth login`."
                ).format(repository.name)
            )
        if not told["files"]:
            warnings.append(
                self.tr("It has no GGUF file whose digest the hub publishes, so nothing here can be checked.")
            )
        self._warning.say("\n\n".join(filter(None, warnings)))
        self._show_offers(file_offers(told["files"], self._models, self._transits))

    def _show_offers(self, offers: Sequence[Offer]) -> None:
        if [offer.source for offer in offers] != list(self._offers):
            clear(self._card.column)
            self._offers = {}
            for index, offer in enumerate(offers):
                if index:
                    self._card.column.addWidget(_inset_line())
                made = _OfferRow(partial(self.asked.emit, offer.source))
                self._offers[offer.source] = made
                self._card.column.addWidget(made)
        can_run = self._repository is None or not self._repository["problem"]
        for offer in offers:
            wanted = bool(self._wanted_file) and offer.about == self._wanted_file
            self._offers[offer.source].show_offer(
                offer, self._here, self._there, can_run=can_run, is_wanted=wanted
            )
        self._card.setVisible(bool(offers))

    def _begin(self, title: str, about: str, *, can_go_back: bool = False) -> None:
        """An empty list under that title."""
        self._repository = None
        self._is_catalogue = False
        self._offers = {}
        clear(self._card.column)
        self._card.hide()
        self._title.setText(title)
        self._about.setText(about)
        self._about.setVisible(bool(about))
        self._back.setVisible(can_go_back)
        self._fault.say("")
        self._warning.say("")

    def _on_back(self) -> None:
        self._stop()
        if self._results and self.field.text().strip():
            self._show_results()
        else:
            self.show_catalogue()

    def _on_error(self, error: AppError) -> None:
        self._begin(self.tr("That did not work"), "", can_go_back=True)
        self._fault.say(str(error))

    def _stop(self) -> None:
        if self._job is not None:
            self._job.cancel()


class _Notice(Card):
    """A sentence on a tinted ground; hidden without one."""

    def __init__(self, tone: str) -> None:
        super().__init__(tone=tone, padding=MEDIUM)
        self._words = Text(wrap=True, selectable=True)
        line = row(Icon("warning", tone), self._words, spacing=MEDIUM)
        line.setStretch(1, 1)
        self.column.addLayout(line)

    def say(self, words: str) -> None:
        self._words.setText(words)
        self.setVisible(bool(words))


class _RepositoryRow(ChoosableRow):
    def __init__(self, repository: Repository) -> None:
        super().__init__()
        self.left.connect(self._leave)
        owner, _, name = repository.name.partition("/")
        words = _repository_words(repository)
        first = row(ElidedText(name, strong=True), spacing=SMALL)
        if repository.is_gated:
            first.addWidget(Tag(self.tr("asks to agree first"), "warning"))
        first.addStretch(1)
        body = row(
            column(first, ElidedText(f"{owner} · {words}", size="caption", tone="soft"), spacing=2),
            Icon("right", "text_faint", 16),
            spacing=MEDIUM,
        )
        body.setStretch(0, 1)
        body.setContentsMargins(MEDIUM, SMALL, MEDIUM, SMALL)
        self.setLayout(body)
        self.setAccessibleName(f"{repository.name}. {words}")

    def _leave(self, step: int) -> None:
        if step > 0:
            self.focusNextChild()
        else:
            self.focusPreviousChild()


class _OfferRow(QWidget):
    """A model that can be had, and how much of it has come."""

    def __init__(self, on_get: Callable[[], object]) -> None:
        super().__init__()
        self._name = ElidedText(strong=True)
        self._kind = Tag("")
        self._wanted = Tag(self.tr("from your link"), "local")
        self._about = ElidedText(size="caption", tone="soft")
        self._dot = Dot()
        self._fit = Text(size="caption", tone="soft", wrap=True)
        self._size = Text()
        self._get = Button(self.tr("Get"), on_get, icon="download")
        self._get.setMinimumWidth(104)
        first = row(self._name, self._kind, self._wanted, None, spacing=SMALL)
        fit = row(column(3, self._dot, None, spacing=0), self._fit, spacing=SMALL)
        fit.setStretch(1, 1)
        words = QVBoxLayout()
        words.setSpacing(2)
        words.addLayout(first)
        words.addWidget(self._about)
        words.addLayout(fit)
        body = row(words, self._size, SMALL, self._get, spacing=MEDIUM)
        body.setStretch(0, 1)
        body.setContentsMargins(MEDIUM, 10, MEDIUM, 10)
        self.setLayout(body)

    def show_offer(
        self, offer: Offer, here: Memory, there: Memory | None, *, can_run: bool, is_wanted: bool
    ) -> None:
        self._name.say(offer.name)
        self._kind.say(offer.quantization)
        self._kind.setVisible(bool(offer.quantization))
        self._wanted.setVisible(is_wanted)
        self._about.say(offer.about)
        self._about.setVisible(offer.about != f"{offer.name}.gguf")
        self._size.setText(size_text(offer.size_bytes))
        words, tone = fit_words(offer.needed_bytes, here, there)
        self._dot.show_tone(tone or "text_faint")
        self._fit.setText(words)
        self._dot.setVisible(bool(words))
        self._fit.setVisible(bool(words))
        self._show_button(offer, can_run=can_run)

    def _show_button(self, offer: Offer, *, can_run: bool) -> None:
        if offer.is_running:
            word, icon = self.tr("{:.0f} %").format(100 * (offer.share or 0)), "download"
        elif offer.is_here:
            word, icon = self.tr("Here"), "check"
        elif offer.share is not None:
            word, icon = self.tr("Resume"), "play"
        else:
            word, icon = self.tr("Get"), "download"
        self._get.setText(word)
        self._get.show_icon(icon, "local" if offer.is_here else "text_soft")
        self._get.setEnabled(can_run and not offer.is_here and not offer.is_running)
        self._get.setAccessibleName(f"{word} {offer.name}")


def _repository_words(repository: Repository) -> str:
    words = [
        translate("Models", "{} downloads").format(number_text(repository.downloads)),
        translate("Models", "{} likes").format(number_text(repository.likes)),
    ]
    if repository.updated:
        words.append(translate("Models", "updated {}").format(repository.updated))
    return " · ".join(words)


def _inset_line() -> QWidget:
    line = QWidget()
    line.setLayout(row(Line()))
    line.layout().setContentsMargins(MEDIUM, 0, MEDIUM, 0)  # type: ignore[union-attr]
    return line
