"""What can be set of sampling is what the engine takes."""

from __future__ import annotations

from dataclasses import fields

import pytest

from app.chats.model import Sampling
from app.chats.sampling import SETTINGS, Setting
from engine.batching.request import SamplingParams
from engine.server.schema import parse_chat


def test_each_field_has_a_setting() -> None:
    assert [setting.name for setting in SETTINGS] == [part.name for part in fields(Sampling)]


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: setting.name)
def test_the_engine_knows_it_by_that_name_with_that_default_and_takes_its_bounds(setting: Setting) -> None:
    assert getattr(SamplingParams(), setting.name) == setting.default
    for value in (setting.least, setting.most):
        chosen = value if setting.decimals else int(value)
        body = {
            "messages": [{"role": "user", "content": "Hi"}],
            **Sampling(**{setting.name: chosen}).wishes(),
        }  # type: ignore[arg-type]
        assert getattr(parse_chat(body).sampling, setting.name) == chosen
