"""`baton worker`'s flags: what cannot be is one message, before a model is even looked for."""

from __future__ import annotations

import pytest

from engine.cli.main import main

WORDS = ["worker", "--model", "/no/such/model.gguf", "--dial", "127.0.0.1:7118", "--trust", "0" * 64]


def test_each_prompt_that_is_prefilled_needs_room_in_the_cache(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*WORDS, "--prefills", "5"]) == 2
    assert capsys.readouterr().err == (
        "baton: --prefills 5: each prompt needs room in the cache, and --slots 4 makes room for 4\n"
    )


@pytest.mark.parametrize(
    "words, sentence",
    [
        (["--prefills", "0"], "--prefills 0: at least 1 is needed here"),
        (["--prefills", "65"], "--prefills 65: at most 64 is allowed here"),
        (["--pass-tokens", "8"], "--pass-tokens 8: at least 16 is needed here"),
    ],
)
def test_settings_of_the_pool_have_ranges(
    words: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*WORDS, *words]) == 2
    assert sentence in capsys.readouterr().err
