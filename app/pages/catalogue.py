"""The pages by name, in the order of the navigation: the word there, its icon, and what makes the page."""

from __future__ import annotations

import importlib
from functools import partial

from app.context import Context
from app.pages.page import Page
from app.window import PageMaker
from app.words import QT_TRANSLATE_NOOP


def _made(module: str, name: str, context: Context) -> Page:
    """What a page needs is imported when it is first shown: a plot library alone would keep the window waiting."""
    page: Page = getattr(importlib.import_module(module), name)(context)
    return page


def _page(module: str, name: str) -> PageMaker:
    return partial(_made, module, name)


PAGES: dict[str, tuple[str, str, PageMaker]] = {
    "chat": (QT_TRANSLATE_NOOP("Pages", "Chat"), "chat", _page("app.pages.chat.page", "ChatPage")),
    "cluster": (
        QT_TRANSLATE_NOOP("Pages", "Cluster"),
        "cluster",
        _page("app.pages.cluster.page", "ClusterPage"),
    ),
    "telemetry": (
        QT_TRANSLATE_NOOP("Pages", "Telemetry"),
        "telemetry",
        _page("app.pages.telemetry.page", "TelemetryPage"),
    ),
    "models": (
        QT_TRANSLATE_NOOP("Pages", "Models"),
        "models",
        _page("app.pages.models.page", "ModelsPage"),
    ),
    "server": (
        QT_TRANSLATE_NOOP("Pages", "Server"),
        "server",
        _page("app.pages.server.page", "ServerPage"),
    ),
    "settings": (
        QT_TRANSLATE_NOOP("Pages", "Settings"),
        "settings",
        _page("app.pages.settings.page", "SettingsPage"),
    ),
    "setup": ("", "", _page("app.wizard.page", "WizardPage")),
}
