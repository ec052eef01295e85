"""What is taken out of a report before anybody sees it: pure text in, text out, the same name for the same thing.

Secrets go wherever they stand, also inside words and as JSON, URLs or Python would write them. What names a person or a
computer goes as a word of its own, and gets a name that stays the same throughout one report. Addresses go where they
could be reached from the internet; those of a home or a cable stay, for they are what a report is about.
"""

from __future__ import annotations

import ipaddress
import json
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any
from urllib.parse import quote

# In place of a secret: a sign that no secret has in it.
GONE = "\N{FULL BLOCK}" * 3

# A shorter secret would be found everywhere; it goes as a word of its own.
_MIN_SECRET_CHARACTERS = 4

_SHOWN_OF_FINGERPRINT = 8

_PRIVATE_KEY = re.compile(
    r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL
)

# What follows such a word is secret, whatever it is; and what has the form of a token.
_LABEL_TEXT = r"[\w-]*(?:bearer|api[_-]?key|token|secret|password|passphrase)"
_LABEL = re.compile(_LABEL_TEXT, re.IGNORECASE)
_LABELLED = re.compile(
    rf"(?i)((?<![\w-]){_LABEL_TEXT}\b[\"']?\s*(?:[:=]\s*|\s+(?=\S{{16}}))[\"']?)"
    r"([^\s\"',;&})\]]+)"
)
_TOKENS = re.compile(
    r"(?<![\w-])(?:[\w-]{43}|(?:hf|sk|ghp|github_pat)[_-][A-Za-z0-9_-]{16,})(?![\w-])", re.ASCII
)

_FINGERPRINT = re.compile(
    r"(?<![0-9A-Fa-f])(?:[0-9A-Fa-f]{64}|[0-9A-Fa-f]{2}(?::[0-9A-Fa-f]{2}){31})(?![0-9A-Fa-f])"
)
_MAC = re.compile(
    r"(?<![0-9A-Fa-f:-])[0-9A-Fa-f]{2}(?:([:-])[0-9A-Fa-f]{2})(?:\1[0-9A-Fa-f]{2}){4}(?![0-9A-Fa-f:-])"
)
_IPV4 = re.compile(r"(?<![\w.])\d{1,3}(?:\.\d{1,3}){3}(?!\w|\.\d)", re.ASCII)
_IPV6 = re.compile(
    r"(?<![\w:.])(?=[0-9A-Fa-f:]*:[0-9A-Fa-f:]*:)[0-9A-Fa-f:]+(?:(?:\d{1,3}\.){3}\d{1,3})?(?!\w|:|\.\d)",
    re.ASCII,
)


class Redactor:
    """`secrets` vanish; each of `names` becomes what it is mapped to, a path of a folder also where it begins one."""

    def __init__(self, *, secrets: Iterable[str], names: Mapping[str, str]) -> None:
        given = {secret for secret in secrets if secret.strip()}
        self._secrets = _any_of(
            {form for secret in given if len(secret) >= _MIN_SECRET_CHARACTERS for form in _forms(secret)},
            {form for secret in given if len(secret) < _MIN_SECRET_CHARACTERS for form in _forms(secret)},
        )
        self._names = {
            form.casefold(): put for name, put in names.items() if name.strip() for form in _forms(name)
        }
        self._name = _any_of((), self._names)
        self._known: dict[str, str] = {}
        self._counts: dict[str, int] = {}

    def text(self, text: str) -> str:
        """`text` without what is not for others."""
        text = without_secrets(self._without_secrets(text))
        text = _FINGERPRINT.sub(lambda found: f"{found[0].replace(':', '')[:_SHOWN_OF_FINGERPRINT]}...", text)
        text = _MAC.sub(self._hardware_address, text)
        text = _IPV6.sub(self._address, text)
        text = _IPV4.sub(self._address, text)
        if self._name is not None:
            text = self._name.sub(lambda found: self._names.get(found[0].casefold(), "NAME"), text)
        # What was put in their places may be somebody's secret, too.
        return self._without_secrets(text)

    def data(self, data: Any) -> Any:
        """The same of plain data: every text in it, and every key."""
        if isinstance(data, str):
            return self.text(data)
        if isinstance(data, Mapping):
            return {self.text(str(key)): self._member(str(key), value) for key, value in data.items()}
        if isinstance(data, list | tuple):
            return [self.data(item) for item in data]
        return data

    def _member(self, key: str, value: Any) -> Any:
        return GONE if isinstance(value, str) and value and _LABEL.fullmatch(key) else self.data(value)

    def _without_secrets(self, text: str) -> str:
        return text if self._secrets is None else self._secrets.sub(GONE, text)

    def _hardware_address(self, found: re.Match[str]) -> str:
        mac = found[0].lower().replace("-", ":")
        return self._numbered("MAC", mac) if mac.strip("0:") else mac

    def _address(self, found: re.Match[str]) -> str:
        try:
            address = ipaddress.ip_address(found[0])
        except ValueError:
            return found[0]
        inner = getattr(address, "ipv4_mapped", None) or address
        if not inner.is_global or inner.is_multicast:
            return found[0]
        return self._numbered("PUBLIC-ADDRESS", str(inner))

    def _numbered(self, kind: str, value: str) -> str:
        if value not in self._known:
            self._counts[kind] = self._counts.get(kind, 0) + 1
            self._known[value] = f"{kind}-{self._counts[kind]}"
        return self._known[value]


def without_secrets(text: str) -> str:
    """`text` without what has the form of a secret, or is called one."""
    text = _PRIVATE_KEY.sub(GONE, text)
    text = _LABELLED.sub(lambda found: found[1] + GONE, text)
    return _TOKENS.sub(GONE, text)


def _forms(text: str) -> set[str]:
    """A text as it may stand in a log or a file."""
    in_json = {json.dumps(text)[1:-1], json.dumps(text, ensure_ascii=False)[1:-1]}
    python = text.encode("unicode_escape").decode("ascii")
    return {text, quote(text, errors="replace"), quote(text, safe="", errors="replace"), python, *in_json}


def _any_of(anywhere: Iterable[str], as_words: Iterable[str]) -> re.Pattern[str] | None:
    """Finds any of them, the longest first; a word ends where no letter or digit follows."""
    found: list[tuple[str, Callable[[str], str]]] = [(text, re.escape) for text in anywhere]
    found += [(text, lambda text: rf"(?<![^\W_]){re.escape(text)}(?![^\W_])") for text in as_words]
    if not found:
        return None
    found.sort(key=lambda one: (-len(one[0]), one[0]))
    return re.compile("|".join(pattern(text) for text, pattern in found), re.IGNORECASE)
