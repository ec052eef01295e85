"""Settings: what is accepted, what is refused in which words, and the flags made from them."""

from __future__ import annotations

import argparse

import pytest

from engine import config
from engine.config import Setting, add_flags, join_address, split_address
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
        (config.SLOTS, "nan", "--slots nan: a whole number is needed here"),
        (config.CTX, "99999999", "--ctx 99999999: at most 4194304 is allowed here"),
        (config.WEIGHTS, "int3", "--weights int3: choose one of auto, bf16, packed, float32"),
        (config.PORT, "70000", "--port 70000: at most 65535 is allowed here, for example --port 7117"),
        (config.PORT, "", "--port is empty: it takes PORT, for example --port 7117"),
        (config.MODEL, " ", "--model is empty: it takes NAME|FILE, for example --model smollm2-135m"),
        (config.WEIGHTS, "", "--weights is empty: it takes auto|bf16|packed|float32"),
        (config.TRUST, "", "--trust is empty: it takes FINGERPRINT"),
        (config.TRUST, "12:34", "--trust 12:34: a fingerprint has 64 hexadecimal digits"),
        (config.IDENTITY, "", "--identity is empty: it takes FOLDER"),
    ],
)
def test_what_is_not_allowed_is_refused_by_name(setting: Setting, text: str, sentence: str) -> None:
    with pytest.raises(UserError) as refused:
        setting.parse(text)
    assert sentence in str(refused.value)


@pytest.mark.parametrize("text", ["nan", "inf", "-inf", "1e999"])
def test_what_is_no_amount_is_no_number(text: str) -> None:
    with pytest.raises(UserError, match=f"--share {text}: a number is needed here"):
        Setting(name="share", kind=float, default=None, help="any").parse(text)


def test_help_writes_whole_numbers_whole() -> None:
    assert "16 to 4194304 tokens" in config.CTX.describe()


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("", "is empty"),
        ("10.0.0.2", "the port is missing"),
        ("10.0.0.2:", "the port is missing"),
        ("[fe80::1]", "the port is missing"),
        (":7118", "the host is missing"),
        ("10.0.0.2:99999", "a port is a whole number, 65535 at most"),
        ("10.0.0.2:" + "9" * 5000, "a port is a whole number, 65535 at most"),
        ("10.0.0.2:٧", "a port is a whole number, 65535 at most"),
        ("http://10.0.0.2:7118", "without http://"),
        ("fe80::1:7118", "in brackets"),
        ("[fe80::zz]:7118", "no IPv6 address"),
        ("a b:7118", "no computer can have such a name"),
        ("a..b:7118", "no computer can have such a name"),
        ("\udcff:7118", "no computer can have such a name"),
    ],
)
def test_what_is_no_address_is_named_with_an_example(text: str, fault: str) -> None:
    for setting in (config.PEER, config.DIAL, config.LISTEN):
        with pytest.raises(UserError) as refused:
            setting.parse(text)
        assert str(refused.value).startswith(setting.flag)
        assert fault in str(refused.value)
        assert f"for example {setting.flag} {setting.example}" in str(refused.value)


def test_port_0_is_listened_on_and_never_called() -> None:
    assert config.LISTEN.parse("0.0.0.0:0") == "0.0.0.0:0"
    for setting in (config.PEER, config.DIAL):
        with pytest.raises(UserError, match="port 0 stands for a free one when listening"):
            setting.parse("10.0.0.2:0")


@pytest.mark.parametrize("text", ["127.0.0.1", "localhost", "::1", "fe80::1%en0", "spark.local", "büro"])
def test_hosts_are_names_and_addresses(text: str) -> None:
    assert config.HOST.parse(text) == text


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("http://127.0.0.1", "only the host stands here"),
        ("127.0.0.1:8080", "only the host stands here"),
        ("[::1]", "an IPv6 address is written without brackets"),
        ("a b", "no computer can have such a name"),
        ("*", "no computer can have such a name"),
        ("x" * 64, "no computer can have such a name"),
    ],
)
def test_what_is_no_host_is_refused_with_an_example(text: str, fault: str) -> None:
    with pytest.raises(UserError) as refused:
        config.HOST.parse(text)
    assert f"--host {text}: {fault}" in str(refused.value)
    assert "for example --host 127.0.0.1" in str(refused.value)


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
    assert join_address(*pair) == text


@pytest.mark.parametrize("text", ["", ":7118", "host:", "host:port", "host:99999", "fe80::1:7118", "host:-1"])
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(UserError):
        split_address(text)


def test_a_fingerprint_may_be_written_with_colons_and_in_capitals() -> None:
    assert config.TRUST.parse(":".join(["AB"] * 32)) == ":".join(["AB"] * 32)


def test_which_addresses_are_loopback() -> None:
    assert all(config.is_loopback(host) for host in ("127.0.0.1", "127.0.0.2", "::1", "localhost"))
    assert not any(config.is_loopback(host) for host in ("0.0.0.0", "::", "192.168.1.2", "example.org"))
