"""The examples for programs: they run as they stand, and no key is in them."""

from __future__ import annotations

import ast
import json
import shlex

import pytest

from app.pages.server.snippets import KEY_VARIABLE, Language, base_url, snippet

URL = "http://127.0.0.1:7117/v1"


@pytest.mark.parametrize(
    ("endpoint", "host", "url"),
    [
        ("http://127.0.0.1:7117", "", URL),
        ("http://127.0.0.1:7117/v1", "", URL),
        ("http://0.0.0.0:7117", "", URL),
        ("http://0.0.0.0:7117", "192.168.1.2", "http://192.168.1.2:7117/v1"),
        ("http://[::]:7117", "", "http://[::1]:7117/v1"),
        ("http://[::]:7117", "fd00::2", "http://[fd00::2]:7117/v1"),
        ("", "", ""),
    ],
)
def test_where_programs_are_sent(endpoint: str, host: str, url: str) -> None:
    assert base_url(endpoint, host) == url


@pytest.mark.parametrize("needs_key", [False, True])
def test_curl_is_one_command_with_the_model(needs_key: bool) -> None:
    text = snippet(Language.CURL, URL, 'it\'s "mine"', needs_key=needs_key)
    words = shlex.split(text.replace("\\\n", " "))
    assert words[:2] == ["curl", f"{URL}/chat/completions"]
    assert json.loads(words[-1])["model"] == 'it\'s "mine"'
    assert (f"Authorization: Bearer ${KEY_VARIABLE}" in words) is needs_key


@pytest.mark.parametrize("needs_key", [False, True])
def test_python_is_a_program_with_the_model(needs_key: bool) -> None:
    text = snippet(Language.PYTHON, URL, 'a "model"', needs_key=needs_key)
    tree = ast.parse(text)
    constants = [node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)]
    assert URL in constants and 'a "model"' in constants
    assert (KEY_VARIABLE in constants) is needs_key is ("import os" in text)


def test_without_a_model_it_says_where_one_belongs() -> None:
    assert '"MODEL"' in snippet(Language.PYTHON, URL, "", needs_key=False)
