"""Every setting of Baton, declared once: name, type, default, unit, range and help text.

The command line's flags are made from these by `add_flags`; a settings window can be made from the same list. What a
setting does is the business of whoever reads it.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from engine.errors import UserError


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One setting: `parse` makes its value from text, or raises UserError with a sentence that names it.

    `kind` is int, float, str or bool; a bool's flag takes no value. `default` None means that Baton chooses.
    `minimum` and `maximum` are inclusive; `choices` lists every allowed word. `check` refuses a text by raising
    UserError.
    """

    name: str
    kind: type
    default: Any
    help: str
    unit: str = ""
    minimum: float | None = None
    maximum: float | None = None
    choices: tuple[str, ...] = ()
    check: Callable[[str], None] | None = None
    metavar: str = ""

    @property
    def flag(self) -> str:
        return "--" + self.name.replace("_", "-")

    def parse(self, text: str) -> Any:
        if self.choices and text not in self.choices:
            raise UserError(f"{self.flag} {text}: choose one of {', '.join(self.choices)}")
        try:
            value = self.kind(text)
        except ValueError:
            wanted = "a whole number" if self.kind is int else "a number"
            raise UserError(f"{self.flag} {text}: {wanted} is needed here") from None
        if self.minimum is not None and not value >= self.minimum:
            raise UserError(f"{self.flag} {text}: at least {self.minimum:g} is needed here")
        if self.maximum is not None and not value <= self.maximum:
            raise UserError(f"{self.flag} {text}: at most {self.maximum:g} is allowed here")
        if self.check is not None:
            self.check(text)
        return value

    def describe(self) -> str:
        """The help text with range, unit and default."""
        notes = []
        if self.minimum is not None and self.maximum is not None:
            notes.append(f"{self.minimum:g} to {self.maximum:g}{' ' + self.unit if self.unit else ''}")
        elif self.unit:
            notes.append(f"in {self.unit}")
        if self.default is not None and self.kind is not bool:
            notes.append(f"default {self.default}")
        return f"{self.help} ({'; '.join(notes)})" if notes else self.help


def _check_address(text: str) -> None:
    split_address(text)


def _check_peer(text: str) -> None:
    if text != FROM_STDIN:
        split_address(text)


def _check_fingerprint(text: str) -> None:
    if not re.fullmatch(r"[0-9a-f]{64}", re.sub(r"[\s:.-]", "", text).lower()):
        raise UserError(
            f"--trust {text}: a fingerprint has 64 hexadecimal digits; the other computer prints its own at the start"
        )


def split_address(text: str) -> tuple[str, int]:
    """HOST:PORT as a pair; an IPv6 host stands in brackets. Raises UserError."""
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isdecimal() or not 0 <= int(port) <= 65535:
        raise UserError(f"{text}: an address is written HOST:PORT, for example 192.168.1.20:7118")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise UserError(f"{text}: write an IPv6 address in brackets, for example [fe80::1%en0]:7118")
    return host, int(port)


# In place of an address: it is not known yet, and will come as a line on standard input.
FROM_STDIN = "-"

# The port of the OpenAI endpoint, and the one that couriers listen on.
ENDPOINT_PORT = 7117
COURIER_PORT = 7118

MODEL = Setting(
    name="model",
    kind=str,
    default="smollm2-135m",
    metavar="NAME|FILE",
    help="a name from `baton models list`, downloaded when missing, or a GGUF file",
)
HOST = Setting(
    name="host",
    kind=str,
    default="127.0.0.1",
    help="the address the OpenAI endpoint listens on; others than loopback open it to the network",
)
PORT = Setting(
    name="port",
    kind=int,
    default=ENDPOINT_PORT,
    minimum=0,
    maximum=65535,
    help="the port of the OpenAI endpoint; 0 takes a free one",
)
SLOTS = Setting(
    name="slots",
    kind=int,
    default=4,
    minimum=1,
    maximum=64,
    help="answers that can be written at the same time",
)
CTX = Setting(
    name="ctx",
    kind=int,
    default=4096,
    unit="tokens",
    minimum=16,
    maximum=1 << 22,
    help="room for prompt and answer in each slot; the model's own limit where that is lower",
)
CHUNK = Setting(
    name="chunk",
    kind=int,
    default=512,
    unit="tokens",
    minimum=1,
    maximum=65536,
    help="tokens of a prompt computed in one step, the same on both computers",
)
WEIGHTS = Setting(
    name="weights",
    kind=str,
    default="auto",
    choices=("auto", "bf16", "packed", "float32"),
    help="how weights are kept in memory; float32 is the exact, slow reference",
)
DEVICE = Setting(
    name="device",
    kind=str,
    default="auto",
    choices=("auto", "cpu", "cuda", "mps"),
    help="what computes; auto takes the fastest there is",
)
THREADS = Setting(
    name="threads",
    kind=int,
    default=None,
    minimum=1,
    maximum=1024,
    help="processor threads (default: chosen by Baton)",
)
PEER = Setting(
    name="peer",
    kind=str,
    default=None,
    metavar="HOST:PORT",
    check=_check_peer,
    help='the worker that prefills prompts for this computer; "-" reads it from standard input',
)
LISTEN = Setting(
    name="listen",
    kind=str,
    default=None,
    metavar="HOST:PORT",
    check=_check_address,
    help="wait here for the other computer to connect; port 0 takes a free one",
)
DIAL = Setting(
    name="dial",
    kind=str,
    default=None,
    metavar="HOST:PORT",
    check=_check_address,
    help="connect to the other computer, which listens there",
)
TRUST = Setting(
    name="trust",
    kind=str,
    default=None,
    metavar="FINGERPRINT",
    check=_check_fingerprint,
    help="the fingerprint that the other computer prints; nobody else is talked to",
)
IDENTITY = Setting(
    name="identity",
    kind=str,
    default=None,
    metavar="FOLDER",
    help="where this computer's key and certificate are kept (default: the settings folder)",
)


def add_flags(parser: argparse._ActionsContainer, settings: Iterable[Setting]) -> None:
    """Give `parser` one flag a setting; parsed values have the setting's type."""
    for setting in settings:
        if setting.kind is bool:
            parser.add_argument(setting.flag, action="store_true", help=setting.describe())
            continue
        parser.add_argument(
            setting.flag,
            type=setting.parse,
            default=setting.default,
            metavar=setting.metavar or ("|".join(setting.choices) or setting.name.upper()),
            help=setting.describe().replace("%", "%%"),
        )
