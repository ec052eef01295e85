"""Settings: what is accepted, what is refused in which words, and the flags made from them."""

from __future__ import annotations

import argparse

import pytest

from engine import config
from engine.config import Setting, add_flags, split_address
from engine.errors import UserError

ALL = [value for value in vars(config).values() if isinstance(value, Setting)]


@pytest.mark.parametrize("setting", ALL, ids=lambda setting: setting.name)
def test_every_default_is_allowed_by_its_own_setting(setting: Setting) -> None:
    if setting.default is not None:
        assert setting.parse(str(setting.default)) == setting.default
    assert setting.help


def test_flags_have_the_settings_types_and_defaults() -> None:
    parser = argparse.ArgumentParser()
    add_flags(parser, ALL)
    args = parser.parse_args(["--slots", "7", "--peer", "10.0.0.2:7118"])
    assert (args.slots, args.peer, args.ctx, args.trust) == (7, "10.0.0.2:7118", config.CTX.default, None)


@pytest.mark.parametrize(
    ("setting", "text", "sentence"),
    [
        (config.SLOTS, "0", "--slots 0: at least 1 is needed here"),
        (config.SLOTS, "65", "--slots 65: at most 64 is allowed here"),
        (config.SLOTS, "many", "--slots many: a whole number is needed here"),
        (config.WEIGHTS, "int3", "--weights int3: choose one of auto, bf16, packed, float32"),
        (config.PORT, "70000", "--port 70000: at most 65535 is allowed here"),
        (config.TRUST, "12:34", "--trust 12:34: a fingerprint has 64 hexadecimal digits"),
        (config.PEER, "10.0.0.2", "10.0.0.2: an address is written HOST:PORT"),
    ],
)
def test_what_is_not_allowed_is_refused_by_name(setting: Setting, text: str, sentence: str) -> None:
    with pytest.raises(UserError) as refused:
        setting.parse(text)
    assert sentence in str(refused.value)


def test_only_a_peer_may_be_named_later() -> None:
    assert config.PEER.parse("-") == config.FROM_STDIN
    with pytest.raises(UserError):
        config.LISTEN.parse("-")


@pytest.mark.parametrize(
    ("text", "pair"),
    [
        ("10.0.0.2:7118", ("10.0.0.2", 7118)),
        ("spark.local:0", ("spark.local", 0)),
        ("[fe80::1%en0]:7118", ("fe80::1%en0", 7118)),
    ],
)
def test_addresses_are_split(text: str, pair: tuple[str, int]) -> None:
    assert split_address(text) == pair


@pytest.mark.parametrize("text", ["", ":7118", "host:", "host:port", "host:99999", "fe80::1:7118", "host:-1"])
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(UserError):
        split_address(text)


def test_a_fingerprint_may_be_written_with_colons_and_in_capitals() -> None:
    assert config.TRUST.parse(":".join(["AB"] * 32)) == ":".join(["AB"] * 32)
