"""The page Cluster."""

from __future__ import annotations

from app.context import Context
from app.pages.page import Page
from app.widgets.basics import column
from app.widgets.feedback import EmptyState


class ClusterPage(Page):
    title = "Cluster"

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self.setLayout(column(EmptyState("cluster", "Cluster", "This page is being made."), margin=0))
