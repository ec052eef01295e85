"""The page Models."""

from __future__ import annotations

from app.context import Context
from app.pages.page import Page
from app.widgets.basics import column
from app.widgets.feedback import EmptyState


class ModelsPage(Page):
    title = "Models"

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self.setLayout(column(EmptyState("models", "Models", "This page is being made."), margin=0))
