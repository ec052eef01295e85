"""What an empty chat says."""

from __future__ import annotations

from app.chats.models import Coming, Share
from app.pages.chat.welcome import Welcome
from tests.app.windows import texts


def test_a_model_that_is_on_its_way_is_not_asked_for_again(look: object) -> None:
    welcome = Welcome()

    def said(coming: Coming | None) -> str:
        welcome.say(is_there=True, has_models=False, coming=coming, peer="", share=Share.NOTHING)
        return texts(welcome)

    assert "No model is on this computer yet" in said(None)
    half = said(Coming(name="tiny", done_bytes=50_000_000, total_bytes=98_000_000))
    assert "50 MB of 98 MB of tiny have come" in half and "No model" not in half
    assert "tiny begins to come" in said(Coming(name="tiny", done_bytes=0, total_bytes=0))
    welcome.deleteLater()
