"""What a node says of itself, and what strangers may say: names that are shown, and everything that is refused."""

from __future__ import annotations

import unicodedata
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.errors import ProtocolError
from engine.node.finding.announcement import (
    MAX_HOSTS,
    MAX_NAME_LETTERS,
    Announcement,
    clean_name,
    new_instance,
)

GOOD = Announcement(
    node_id="0123456789abcdef" * 2,
    instance=new_instance(),
    name="Küche – Mac",
    version="0.1.0",
    port=7119,
    pairing_port=7120,
)


@pytest.mark.parametrize("pairing_port", [None, 7120])
def test_what_is_announced_is_read_again(pairing_port: int | None) -> None:
    said = Announcement(
        node_id=GOOD.node_id,
        instance=GOOD.instance,
        name=GOOD.name,
        version="1.2.3+local",
        port=65535,
        pairing_port=pairing_port,
        hosts=("10.0.0.1", "10.0.0.2"),
    )
    assert Announcement.parse(said.properties(), 65535) == said


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (b"v", b"2"),
        (b"v", None),
        (b"id", b""),
        (b"id", b"0123456789ABCDEF" * 2),
        (b"id", b"0" * 33),
        (b"id", b"\xff" * 32),
        (b"id", None),
        (b"start", b"short"),
        (b"baton", b"1.0 <script>"),
        (b"baton", b"1" * 41),
        (b"pair", b"0"),
        (b"pair", b"65536"),
        (b"pair", b"-1"),
        (b"pair", "٧".encode()),
        (b"pair", b""),
        (b"at", b",".join([b"10.0.0.1"] * 7)),
    ],
)
def test_what_no_baton_says_is_refused(key: bytes, value: bytes | None) -> None:
    properties: dict[bytes, bytes | None] = {**GOOD.properties(), key: value}
    with pytest.raises(ProtocolError):
        Announcement.parse(properties, 7119)


@pytest.mark.parametrize("port", [None, 0, -1, 65536])
def test_a_port_that_is_none_is_refused(port: int | None) -> None:
    with pytest.raises(ProtocolError, match="port"):
        Announcement.parse(GOOD.properties(), port)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("Mac\nStudio\r\n", "Mac Studio"),
        ("\x1b[31mred\x07", "[31mred"),
        ("abc\u202edcba", "abc dcba"),
        ("two\u2028lines", "two lines"),
        ("\ufeff\u200b", "a computer without a name"),
        ("", "a computer without a name"),
        ("x" * 1000, "x" * MAX_NAME_LETTERS),
    ],
)
def test_a_name_is_shown_in_one_line(text: str, shown: str) -> None:
    assert clean_name(text) == shown


@given(st.text(max_size=2000))
def test_every_name_can_be_shown_and_announced(text: str) -> None:
    name = clean_name(text)
    assert 0 < len(name) <= MAX_NAME_LETTERS
    assert name == clean_name(name)
    assert not [letter for letter in name if unicodedata.category(letter)[0] == "C"]
    assert len(b"name=" + name.encode()) <= 255


@given(
    st.dictionaries(
        st.sampled_from([b"id", b"start", b"name", b"baton", b"pair", b"v"]), st.binary(max_size=300)
    )
)
def test_any_properties_are_read_or_refused(properties: dict[bytes, bytes | None]) -> None:
    try:
        said = Announcement.parse({**GOOD.properties(), **properties}, 7119)
    except ProtocolError:
        return
    assert said.name == clean_name(said.name)


def test_the_longest_addresses_fit() -> None:
    said = replace(GOOD, hosts=tuple(f"fe80::{number}:1234:5678:9abc:def0" for number in range(1000, 1009)))
    assert all(len(key + b"=" + value) <= 255 for key, value in said.properties().items())
    assert Announcement.parse(said.properties(), 7119).hosts == said.hosts[:MAX_HOSTS]
