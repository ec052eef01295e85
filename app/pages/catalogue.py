"""The pages by name, in the order of the navigation: the word there, its icon, and what makes the page."""

from __future__ import annotations

from app.pages.chat.page import ChatPage
from app.pages.cluster.page import ClusterPage
from app.pages.models.page import ModelsPage
from app.pages.server.page import ServerPage
from app.pages.settings.page import SettingsPage
from app.pages.telemetry.page import TelemetryPage
from app.window import PageMaker
from app.wizard.page import WizardPage

PAGES: dict[str, tuple[str, str, PageMaker]] = {
    "chat": ("Chat", "chat", ChatPage),
    "cluster": ("Cluster", "cluster", ClusterPage),
    "telemetry": ("Telemetry", "telemetry", TelemetryPage),
    "models": ("Models", "models", ModelsPage),
    "server": ("Server", "server", ServerPage),
    "settings": ("Settings", "settings", SettingsPage),
    "setup": ("", "", WizardPage),
}
