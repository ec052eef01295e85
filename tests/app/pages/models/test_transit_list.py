"""What rows of the list of what is on its way say."""

from __future__ import annotations

from typing import Any
from unittest.mock import Mock

from app.pages.models.transit_list import TransitList
from app.pages.models.transits import Kind, Transit
from app.widgets.elided import ElidedText
from tests.app.windows import button


def test_what_failed_is_no_longer_being_done(look: object) -> None:
    shown = TransitList(Mock())

    def title(**more: Any) -> str:
        told: dict[str, Any] = {"key": "k", "kind": Kind.IMPORT, "name": "a.gguf", **more}
        shown.show_transits([Transit(**told)])
        return shown.findChildren(ElidedText)[0].full_text

    assert title(state="running") == "Importing a.gguf"
    assert title(state="failed", problem="it is no GGUF file") == "a.gguf"
    # of a fetch whose file was thrown away nothing is left to go on with
    title(
        kind=Kind.DOWNLOAD, source="x/y/a.gguf", state="failed", total_bytes=9, problem="the digest is wrong"
    )
    assert button(shown, "Try again a.gguf")
    shown.deleteLater()
