"""How programs ask the endpoint, as text to paste. Knows nothing of Qt.

A key is never in it: programs read it from where their user keeps it.
"""

from __future__ import annotations

import json
import shlex
from enum import Enum

from app.node.client import own_url

KEY_VARIABLE = "BATON_API_KEY"

_NO_MODEL = "MODEL"


class Language(Enum):
    CURL = "curl"
    PYTHON = "python"


def base_url(endpoint: str, host: str = "") -> str:
    """What programs are told to use: with /v1, at this computer's loopback or at `host`; "" where nothing is known."""
    url = own_url(endpoint)
    if not url:
        return ""
    if host:
        url = f"http://{f'[{host}]' if ':' in host else host}:{url.rpartition(':')[2]}"
    return f"{url}/v1"


def snippet(language: Language, url: str, model: str, *, needs_key: bool) -> str:
    """`url` is the base, with /v1; `model` "" where none is loaded."""
    if language is Language.CURL:
        return _curl(url, model or _NO_MODEL, needs_key=needs_key)
    return _python(url, model or _NO_MODEL, needs_key=needs_key)


def _curl(url: str, model: str, *, needs_key: bool) -> str:
    body = json.dumps(
        {"model": model, "messages": [{"role": "user", "content": "Hello"}]}, ensure_ascii=False
    )
    lines = [f"curl {url}/chat/completions", '-H "Content-Type: application/json"']
    if needs_key:
        lines.append(f'-H "Authorization: Bearer ${KEY_VARIABLE}"')
    lines.append(f"-d {shlex.quote(body)}")
    return " \\\n  ".join(lines)


def _python(url: str, model: str, *, needs_key: bool) -> str:
    key = f'os.environ["{KEY_VARIABLE}"]' if needs_key else '"none"'
    lines = ["import os", ""] if needs_key else []
    lines += [
        "from openai import OpenAI",
        "",
        "client = OpenAI(",
        f"    base_url={json.dumps(url)},",
        f"    api_key={key},",
        ")",
        "answer = client.chat.completions.create(",
        f"    model={json.dumps(model, ensure_ascii=False)},",
        '    messages=[{"role": "user", "content": "Hello"}],',
        ")",
        "print(answer.choices[0].message.content)",
    ]
    return "\n".join(lines)
