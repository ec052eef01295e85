"""How a program asks the endpoint, for the model that is loaded: text to copy."""

from __future__ import annotations

from app.context import Context
from app.look.measures import MEDIUM
from app.pages.server.exposure import exposure_of
from app.pages.server.snippets import KEY_VARIABLE, Language, base_url, snippet
from app.widgets.basics import Card, Text, row
from app.widgets.controls import Segments
from app.widgets.copying import CodeBlock

# So that the card is as high for one as for the other.
_LINES = 11


class ExamplesCard(Card):
    """Follows the node's parts `node`, `settings`, `engines` and `models`."""

    def __init__(self, context: Context) -> None:
        super().__init__(spacing=MEDIUM)
        self._context = context
        self._languages = Segments(
            [(Language.PYTHON, "Python"), (Language.CURL, "curl")], name=self.tr("Language")
        )
        self._languages.show_value(Language.PYTHON)
        self._languages.chosen.connect(lambda _: self._show())
        self._code = CodeBlock(self.tr("Copy the example"))
        self._words = Text(tone="soft", wrap=True)
        self.column.addLayout(row(Text(self.tr("Use it"), size="title"), None, self._languages))
        self.column.addWidget(self._words)
        self.column.addWidget(self._code)
        self.column.addStretch(1)
        context.state.changed.connect(self._on_changed)
        self._show()

    def _on_changed(self, part: str) -> None:
        if part in ("node", "settings", "engines", "models"):
            self._show()

    def _show(self) -> None:
        state = self._context.state
        endpoint = str(state.part("node", {}).get("endpoint", ""))
        needs_key = exposure_of(state.part("settings", {}), endpoint).has_key
        model = self._model()
        url = base_url(endpoint) or "http://127.0.0.1:7117/v1"
        language = self._languages.value
        assert isinstance(language, Language)
        self._code.show_text(snippet(language, url, model, needs_key=needs_key), n_lines=_LINES)
        words = self.tr("Anything that speaks OpenAI's API works: give it the address and a model's name.")
        if needs_key:
            words += " " + self.tr("The example takes the key from {}.").format(KEY_VARIABLE)
        self._words.setText(words)

    def _model(self) -> str:
        """The model that was used last, else one that could be loaded."""
        engines = self._context.state.part("engines", [])
        if engines:
            return str(max(engines, key=lambda one: one.get("used_at", 0))["model"])
        models = (self._context.state.part("models") or {}).get("models", [])
        return next((str(one["id"]) for one in models if not one.get("problem")), "")
