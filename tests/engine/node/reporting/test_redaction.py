"""No secret survives, a person's and a computer's names do not either, and what a report is about stays readable."""

from __future__ import annotations

import json
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.node.reporting.redaction import GONE, Redactor

TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="█"))
SECRET = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="█"), min_size=4).filter(
    str.strip
)
WRITTEN = st.sampled_from(
    [
        lambda secret: secret,
        lambda secret: json.dumps(secret),
        lambda secret: json.dumps(secret, ensure_ascii=False),
        lambda secret: quote(secret),
        lambda secret: quote(secret, safe=""),
        lambda secret: secret.encode("unicode_escape").decode(),
    ]
)


@given(secrets=st.lists(SECRET, min_size=1, max_size=4), text=st.data())
def test_no_secret_survives_anywhere(secrets: list[str], text: st.DataObject) -> None:
    parts = st.one_of(TEXT, st.sampled_from(secrets))
    mixed = "".join(text.draw(st.lists(parts, max_size=8)))
    found = Redactor(secrets=secrets, names={"ada": "USER", "/home/ada": "~"}).text(mixed)
    assert [secret for secret in secrets if secret in found] == []


@given(secret=SECRET, written=WRITTEN, before=TEXT, after=TEXT)
def test_however_it_is_written(secret: str, written, before: str, after: str) -> None:
    text = before + written(secret) + after
    found = Redactor(secrets=[secret], names={}).text(text)
    assert GONE in found
    assert written(secret) not in found and secret not in found


@given(
    data=st.recursive(
        st.one_of(st.none(), st.integers(), st.floats(), TEXT, st.just('S3cret!\n"x"')),
        lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(TEXT, inner, max_size=3)),
        max_leaves=10,
    )
)
def test_no_secret_survives_in_data(data: object) -> None:
    redactor = Redactor(secrets=['S3cret!\n"x"'], names={"ada": "USER"})
    found = redactor.text(json.dumps(redactor.data(data), ensure_ascii=False))
    assert "S3cret!" not in found
    json.loads(json.dumps(redactor.data(data)))


@given(name=st.from_regex(r"[A-Za-z][a-z]{2,8}(-[a-z]{1,4})?", fullmatch=True), before=TEXT, after=TEXT)
def test_no_name_survives_as_a_word(name: str, before: str, after: str) -> None:
    for text in (f"{before} {name.upper()} {after}", f"{before}/{name}/{after}", f"{before}_{name}.{after}"):
        found = Redactor(secrets=[], names={name: "\N{GREEK SMALL LETTER OMEGA}"}).text(text)
        words = "".join(c if c.isalnum() or c == "-" else " " for c in found.lower()).split()
        assert name.lower() not in words


def test_a_name_is_not_cut_out_of_other_words() -> None:
    redactor = Redactor(secrets=["ab"], names={"al": "USER", "/home/al": "~"})
    assert redactor.text("al: /home/al/models local /home/alan al_x ab cab") == (
        f"USER: ~/models local /home/alan USER_x {GONE} cab"
    )


def test_the_longest_name_goes_first_and_folders_do() -> None:
    redactor = Redactor(secrets=[], names={"ada": "USER", "adas-mac": "COMPUTER-1", "C:\\Users\\ada": "~"})
    assert redactor.text("Adas-Mac, ADA") == "COMPUTER-1, USER"
    assert redactor.text('{"path": "C:\\\\Users\\\\ada\\\\x"} C:\\Users\\ada\\x') == '{"path": "~\\\\x"} ~\\x'


@pytest.mark.parametrize(
    "text",
    [
        "Authorization: Bearer abcdefghijklmnop",
        "authorization: bearer AbC-123_xyz.foo/bar",
        'BATON_API_KEY=hunter2"',
        "{'api_key': 'hunter2'}",
        '{"token": "hunter2", "a": 1}',
        "HF_TOKEN: hf_abcdefghijklmnopqrstuvwx",
        "using sk-abcdefghijklmnopqrstuv for it",
        "the token is kept: Zm9vYmFyYmF6cXV4Zm9vYmFyYmF6cXV4Zm9vYmFyYmF",
        "-----BEGIN PRIVATE KEY-----\nMC4CAQAwBQYDK2VwBCIEIA\n-----END PRIVATE KEY-----",
        "-----BEGIN ENCRYPTED PRIVATE KEY-----\nMC4CAQAwBQYDK2VwBCIEIA",
        "password=hunter2&user=x",
    ],
)
def test_what_looks_like_a_secret_goes_unasked(text: str) -> None:
    found = Redactor(secrets=[], names={}).text(text)
    assert GONE in found
    for secret in ("abcdefghijklmnop", "AbC", "foo/bar", "hunter2", "Zm9v", "MC4CA"):
        assert secret not in found


def test_data_with_a_label() -> None:
    found = Redactor(secrets=[], names={}).data({"x": [{"Api-Key": " (odd)", "n_tokens": "12", "token": ""}]})
    assert found == {"x": [{"Api-Key": GONE, "n_tokens": "12", "token": ""}]}


@pytest.mark.parametrize(
    "text",
    [
        "472 tokens at 165.1 tok/s; first token 229 ms after the question",
        "the worker at 192.168.1.20:7118 and [fe80::1%eth0]:7118 and fd00::2 and 100.64.0.3 and 224.0.0.251",
        "2026-11-30 12:34:56,789 INFO engine.node: 127.0.0.1 ::1 0.0.0.0",
        "torch 2.13.0, SmolLM2-135M-Instruct.Q4_1.gguf, Qwen3-Coder-30B-A3B-Instruct-Q4_K_M.gguf",
        "File engine/node/daemon.py, line 12, in token_of",
    ],
)
def test_what_a_report_is_about_stays(text: str) -> None:
    assert Redactor(secrets=["hunter2"], names={"ada": "USER"}).text(text) == text


def test_addresses_of_the_internet_are_replaced_alike() -> None:
    redactor = Redactor(secrets=[], names={})
    first = redactor.text("8.8.8.8:53, 2a00:1450:4001:81b::200e and ::ffff:8.8.8.8, then 9.9.9.9.")
    assert first == "PUBLIC-ADDRESS-2:53, PUBLIC-ADDRESS-1 and PUBLIC-ADDRESS-2, then PUBLIC-ADDRESS-3."
    assert (
        redactor.text("2A00:1450:4001:81B:0::200E%en0 9.9.9.9/24")
        == "PUBLIC-ADDRESS-1%en0 PUBLIC-ADDRESS-3/24"
    )


def test_fingerprints_are_shortened_and_hardware_addresses_replaced() -> None:
    redactor = Redactor(secrets=[], names={})
    print_ = "0123456789abcdef" * 4
    colons = ":".join(print_[n : n + 2] for n in range(0, 64, 2)).upper()
    assert redactor.text(f"{print_} {colons}") == "01234567... 01234567..."
    assert redactor.text("a0:36:9f:00:00:01 A0-36-9F-00-00-01 a0:36:9f:00:00:02") == "MAC-1 MAC-1 MAC-2"


def test_what_is_put_in_their_place_is_no_secret_either() -> None:
    assert "USER" not in Redactor(secrets=["USER"], names={"ada": "USER"}).text("ada")


def test_a_long_word_in_a_log_keeps_nobody_waiting() -> None:
    """A paired computer may have said it; looked at from each of its parts on it would take minutes."""
    word = "a-" * 200_000
    assert Redactor(secrets=[], names={}).text(f"{word} token: hunter2") == f"{word} token: {GONE}"
