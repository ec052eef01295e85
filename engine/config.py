"""Every setting of Baton, declared once: name, type, default, unit, range and help text.

The command line's flags are made from these by `add_flags`; the settings that a node keeps, its control API and a
settings window from `NODE_SETTINGS`. What a setting does is the business of whoever reads it.
"""

from __future__ import annotations

import argparse
import enum
import ipaddress
import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from engine.errors import InvalidRequest, UserError
from engine.files import user_path
from engine.numbers import number_text
from engine.wire.limits import MAX_CHUNK_TOKENS, MAX_DATA_STREAMS, MIN_CHUNK_TOKENS


class Needs(enum.StrEnum):
    """What a node has to do before a change of a setting is felt."""

    NOTHING = "nothing"
    RELOAD = "reload"  # of the models that are loaded
    RESTART = "restart"  # of the node


class Group(enum.StrEnum):
    """Where a settings window shows a setting."""

    COMPUTER = "This computer"
    ENDPOINT = "Endpoint"
    HANDOFF = "Handoff"
    MODELS = "Models and memory"


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One setting: `parse` makes its value from text, or raises UserError with a sentence that names it.

    `kind` is int, float, str or bool; a bool's flag takes no value. `default` None means that Baton chooses.
    `minimum` and `maximum` are inclusive; `choices` lists every allowed word. `check` says what is wrong with a text,
    or nothing where it is right. `example` is a value that may be shown to someone who gave a wrong one.

    `environment` is the variable that gives it, too. A secret has no flag, and is never shown. `group` and `needs` are
    those of a setting that a node keeps.
    """

    name: str
    kind: type
    default: Any
    help: str
    unit: str = ""
    minimum: float | None = None
    maximum: float | None = None
    choices: tuple[str, ...] = ()
    check: Callable[[str], str] | None = None
    metavar: str = ""
    example: str = ""
    environment: str = ""
    has_flag: bool = True
    is_secret: bool = False
    group: Group = Group.COMPUTER
    needs: Needs = Needs.RELOAD

    @property
    def flag(self) -> str:
        return "--" + self.name.replace("_", "-")

    @property
    def value_name(self) -> str:
        """How help and errors call the value."""
        return self.metavar or "|".join(self.choices) or self.name.upper()

    def parse(self, text: str, *, called: str = "") -> Any:
        """`called` is how a complaint names it, its flag by default."""
        called = called or self.flag
        if not text.strip():
            raise UserError(f"{called} is empty: it takes {self.value_name}{self._for_example(called)}")
        try:
            return self._parsed(text)
        except ValueError as error:
            shown = "" if self.is_secret else f" {text[:_MAX_SHOWN_CHARS]}"
            raise UserError(f"{called}{shown}: {error}{self._for_example(called)}") from None

    def from_plain(self, value: Any) -> Any:
        """As `parse`, of what a file or a request holds. Raises InvalidRequest, which names the setting."""
        is_right = isinstance(value, bool) if self.kind is bool else _is_plain(value, self.kind)
        if not is_right:
            wanted = {
                bool: "true or false is",
                int: "a whole number is",
                float: "a number is",
                str: "a text is",
            }
            raise InvalidRequest(f"{self.name}: {wanted[self.kind]} needed here", param=self.name)
        if self.kind is bool:
            return value
        try:
            return self.parse(str(value), called=self.name)
        except UserError as error:
            raise InvalidRequest(str(error), param=self.name) from None

    def _parsed(self, text: str) -> Any:
        """Raises ValueError with what is wrong."""
        if self.choices and text not in self.choices:
            raise ValueError(f"choose one of {', '.join(self.choices)}")
        try:
            value = self.kind(text)
        except ValueError:
            wanted = "a whole number" if self.kind is int else "a number"
            raise ValueError(f"{wanted} is needed here") from None
        if self.kind is float and not math.isfinite(value):
            raise ValueError("a number is needed here")
        if self.minimum is not None and value < self.minimum:
            raise ValueError(f"at least {number_text(self.minimum)} is needed here")
        if self.maximum is not None and value > self.maximum:
            raise ValueError(f"at most {number_text(self.maximum)} is allowed here")
        if self.check is not None and (fault := self.check(text)):
            raise ValueError(fault)
        return value

    def describe(self) -> str:
        """The help text with range, unit and default."""
        notes = []
        if self.minimum is not None and self.maximum is not None:
            span = f"{number_text(self.minimum)} to {number_text(self.maximum)}"
            notes.append(f"{span} {self.unit}" if self.unit else span)
        elif self.unit:
            notes.append(f"in {self.unit}")
        if self.default is not None and self.kind is not bool:
            notes.append(f"default {self.default}")
        return f"{self.help} ({'; '.join(notes)})" if notes else self.help

    def _for_example(self, called: str) -> str:
        return f", for example {called} {self.example}" if self.example else ""


def _is_plain(value: Any, kind: type) -> bool:
    """Whether a value of JSON is of that kind, and one that can be written as text."""
    if isinstance(value, bool) or not isinstance(value, (int, float) if kind is float else kind):
        return False
    return not isinstance(value, int) or abs(value) < _MAX_PLAIN


def is_loopback(host: str) -> bool:
    """Whether an address can be reached from this computer only."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def split_address(text: str) -> tuple[str, int]:
    """HOST:PORT as a pair; an IPv6 host stands in brackets. Raises UserError."""
    if fault := _address_fault(text):
        raise UserError(f"{text}: {fault}, for example 192.168.1.20:7118")
    host, _, port = text.rpartition(":")
    return host.removeprefix("[").removesuffix("]"), int(port)


def join_address(host: str, port: int) -> str:
    """What `split_address` takes apart."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _address_fault(text: str) -> str:
    """What is wrong with a HOST:PORT."""
    if "://" in text:
        return f"an address is written HOST:PORT, without {text.partition('://')[0]}://"
    host, colon, port = text.rpartition(":")
    if not colon or not port or text.endswith("]"):
        return "an address is written HOST:PORT, and the port is missing"
    if not host:
        return "an address is written HOST:PORT, and the host is missing"
    if ":" in host and not (host.startswith("[") and host.endswith("]")):
        return "an IPv6 address is written in brackets, [ADDRESS]:PORT"
    if not (port.isascii() and port.isdigit()) or len(port) > 5 or int(port) > 65535:
        return "an address is written HOST:PORT, and a port is a whole number, 65535 at most"
    return _name_fault(host.removeprefix("[").removesuffix("]"))


def _called_address_fault(text: str) -> str:
    """As `_address_fault`, of an address that is called and not listened on."""
    if fault := _address_fault(text):
        return fault
    if split_address(text)[1] == 0:
        return "port 0 stands for a free one when listening; name the port that the other computer listens on"
    return ""


def _peer_fault(text: str) -> str:
    return "" if text == FROM_STDIN else _called_address_fault(text)


def _host_fault(text: str) -> str:
    """What is wrong with a HOST that has its port elsewhere."""
    if text.startswith("[") and text.endswith("]"):
        return "an IPv6 address is written without brackets here"
    if "://" in text or (":" in text and _name_fault(text)):
        return "only the host stands here, and its port in --port"
    return _name_fault(text)


def _name_fault(host: str) -> str:
    """What is wrong with the name or address of a computer."""
    if ":" in host:
        try:
            ipaddress.IPv6Address(host)
        except ValueError:
            return "this is no IPv6 address"
        return ""
    try:
        ascii_name = host.encode("idna").decode()
    except UnicodeError:
        ascii_name = ""
    return "" if _COMPUTER_NAME.fullmatch(ascii_name) else "no computer can have such a name or address"


def _fingerprint_fault(text: str) -> str:
    if re.fullmatch(r"[0-9a-f]{64}", re.sub(r"[\s:.-]", "", text).lower()):
        return ""
    return "a fingerprint has 64 hexadecimal digits; the other computer prints its own at the start"


def _node_name_fault(text: str) -> str:
    if 0 < len(text.strip()) <= MAX_NODE_NAME_CHARS and text.isprintable():
        return ""
    return f"a name has 1 to {MAX_NODE_NAME_CHARS} letters, digits or other characters that can be seen"


def _folder_fault(text: str) -> str:
    """What is wrong with the path of a folder, which need not be there yet."""
    try:
        path = user_path(text)
    except UserError as error:
        return str(error)
    if not path.is_absolute():
        return "a whole path is needed, from the root or from ~"
    return "this is a file, and a folder is needed" if path.is_file() else ""


def _key_fault(text: str) -> str:
    if (
        MIN_API_KEY_CHARS <= len(text) <= MAX_API_KEY_CHARS
        and text.isascii()
        and text.isprintable()
        and " " not in text
    ):
        return ""
    return f"a key has {MIN_API_KEY_CHARS} to {MAX_API_KEY_CHARS} letters, digits and signs, without spaces"


# A key is sent in a header with each request; a short one could be guessed.
MIN_API_KEY_CHARS = 8
MAX_API_KEY_CHARS = 512

# Of a wrong value; and no setting counts further.
_MAX_SHOWN_CHARS = 100
_MAX_PLAIN = 1 << 63

# Names are shown in one line of a window, and travel by multicast, where a label has 63 bytes.
MAX_NODE_NAME_CHARS = 40

_COMPUTER_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*")

# In place of an address: standard input says which worker there is, whenever that changes, as a line of JSON
# (engine/handoff/target.py).
FROM_STDIN = "-"

# The ports of the OpenAI endpoint, of couriers, of the node for paired nodes, and of the node while it shows a code.
ENDPOINT_PORT = 7117
COURIER_PORT = 7118
NODE_PORT = 7119
PAIRING_PORT = 7120

MODEL = Setting(
    name="model",
    kind=str,
    default="smollm2-135m",
    metavar="NAME|FILE",
    example="smollm2-135m",
    help="a name from `baton models list`, downloaded when missing, or a GGUF file",
)
HOST = Setting(
    name="host",
    kind=str,
    default="127.0.0.1",
    check=_host_fault,
    example="127.0.0.1",
    help="the address the OpenAI endpoint listens on; others than loopback open it to the network",
    group=Group.ENDPOINT,
    needs=Needs.RESTART,
)
PORT = Setting(
    name="port",
    kind=int,
    default=ENDPOINT_PORT,
    minimum=0,
    maximum=65535,
    example=str(ENDPOINT_PORT),
    help="the port of the OpenAI endpoint; 0 takes a free one",
    group=Group.ENDPOINT,
    needs=Needs.RESTART,
)
MAX_TOKENS = Setting(
    name="max_tokens",
    kind=int,
    default=None,
    metavar="N",
    minimum=1,
    example="200",
    help="end the answer after this many tokens",
)
TEMPERATURE = Setting(
    name="temperature",
    kind=float,
    default=None,
    metavar="T",
    minimum=0,
    maximum=100,
    example="0.8",
    help="0 always takes the likeliest token",
)
SLOTS = Setting(
    name="slots",
    kind=int,
    default=4,
    minimum=1,
    maximum=64,
    help="answers that can be written at the same time; on a worker, prompts that its cache has room for",
    group=Group.MODELS,
)
PREFILLS = Setting(
    name="prefills",
    kind=int,
    default=None,
    metavar="N",
    minimum=1,
    maximum=SLOTS.maximum,
    example="2",
    help="prompts prefilled at once, at most --slots; one more is told that the worker is busy (default: as many)",
    group=Group.HANDOFF,
)
PASS_TOKENS = Setting(
    name="pass_tokens",
    kind=int,
    default=1024,
    unit="tokens",
    minimum=16,
    maximum=65536,
    help="what the chunks of all prompts in one forward pass may add up to; a larger chunk goes alone",
    group=Group.HANDOFF,
)
PREFIX_CACHE = Setting(
    name="prefix_cache",
    kind=int,
    default=2048,
    unit="MiB",
    minimum=0,
    maximum=1 << 24,
    help="memory for chats whose slot went to another one, which then need not be computed again; 0 keeps none",
    group=Group.MODELS,
)
CTX = Setting(
    name="ctx",
    kind=int,
    default=4096,
    unit="tokens",
    minimum=16,
    maximum=1 << 22,
    help="room for prompt and answer in each slot; the model's own limit where that is lower",
    group=Group.MODELS,
)
CHUNK = Setting(
    name="chunk",
    kind=int,
    default=512,
    unit="tokens",
    minimum=MIN_CHUNK_TOKENS,
    maximum=MAX_CHUNK_TOKENS,
    help="tokens of a prompt computed in one step, the same on both computers",
    group=Group.HANDOFF,
)
ROUTE = Setting(
    name="route",
    kind=str,
    default="auto",
    choices=("auto", "always", "never"),
    help="where prompts are prefilled: where it is sooner, at the worker whenever it can, or here",
    group=Group.HANDOFF,
)
CODEC = Setting(
    name="codec",
    kind=str,
    default="auto",
    choices=("auto", "raw", "lossless", "int8"),
    help="how K and V travel from the worker: raw, packed without loss, or auto, whichever of the two is sooner; "
    "int8 halves them, and changes answers a little",
    group=Group.HANDOFF,
)
MEASURE = Setting(
    name="measure",
    kind=str,
    default="auto",
    choices=("auto", "never"),
    help="whether models that both computers have are measured when there is time, to agree who prefills",
    group=Group.HANDOFF,
    needs=Needs.NOTHING,
)
KV_TYPE = Setting(
    name="kv_type",
    kind=str,
    default="auto",
    choices=("auto", "bf16", "f16", "f32"),
    help="how K and V are kept in memory and sent, alike on both computers; auto is bf16, and f32 with float32 weights",
    group=Group.MODELS,
)
WEIGHTS = Setting(
    name="weights",
    kind=str,
    default="auto",
    choices=("auto", "bf16", "packed", "float32"),
    help="how weights are kept in memory; float32 is the exact, slow reference",
    group=Group.MODELS,
)
DEVICE = Setting(
    name="device",
    kind=str,
    default="auto",
    choices=("auto", "cpu", "cuda", "mps"),
    help="what computes; auto takes the fastest there is",
    group=Group.MODELS,
)
THREADS = Setting(
    name="threads",
    kind=int,
    default=None,
    minimum=1,
    maximum=1024,
    help="processor threads (default: chosen by Baton)",
    group=Group.MODELS,
)
DATA_STREAMS = Setting(
    name="data_streams",
    kind=int,
    default=None,
    metavar="N",
    minimum=1,
    maximum=MAX_DATA_STREAMS,
    example="2",
    help="connections that share a handoff's data (default: one, and more where one cannot keep up with the link)",
    group=Group.HANDOFF,
)
PEER = Setting(
    name="peer",
    kind=str,
    default=None,
    metavar="HOST:PORT",
    check=_peer_fault,
    example=f"192.168.1.20:{COURIER_PORT}",
    help='the worker that prefills prompts for this computer; "-" has standard input say so, as often as it changes',
)
WORKER = Setting(
    name="worker",
    kind=str,
    default=None,
    metavar="HOST:PORT",
    check=_called_address_fault,
    example=f"192.168.1.20:{COURIER_PORT}",
    help="the worker on the other computer (default: one is started on this one)",
)
LISTEN = Setting(
    name="listen",
    kind=str,
    default=None,
    metavar="HOST:PORT",
    check=_address_fault,
    example=f"0.0.0.0:{COURIER_PORT}",
    help="wait here for the other computer to connect; port 0 takes a free one",
)
DIAL = Setting(
    name="dial",
    kind=str,
    default=None,
    metavar="HOST:PORT",
    check=_called_address_fault,
    example=f"192.168.1.20:{COURIER_PORT}",
    help="connect to the other computer, which listens there",
)
INTERFACE = Setting(
    name="interface",
    kind=str,
    default=None,
    metavar="NAME",
    example="enp7s0",
    help="the network interface that the cable is in (default: found by itself)",
)
MTU = Setting(
    name="mtu",
    kind=int,
    default=None,
    metavar="BYTES",
    minimum=1280,
    maximum=9216,
    example="9000",
    help="the largest packet on the cable (default: the largest that both ends and the cable take)",
)
TRUST = Setting(
    name="trust",
    kind=str,
    default=None,
    metavar="FINGERPRINT",
    check=_fingerprint_fault,
    help="the fingerprint that the other computer prints; nobody else is talked to",
)
IDENTITY = Setting(
    name="identity",
    kind=str,
    default=None,
    metavar="FOLDER",
    help="where this computer's key and certificate are kept (default: the settings folder)",
)

KEYRING = Setting(
    name="keyring",
    kind=str,
    default="auto",
    choices=("auto", "never"),
    help="whether the system keyring guards this computer's key; never where nobody logs in to unlock it",
    needs=Needs.RESTART,
)


NODE_NAME = Setting(
    name="name",
    kind=str,
    default=None,
    metavar="NAME",
    check=_node_name_fault,
    example="studio",
    help="what this computer is called where others see it (default: its host name)",
    needs=Needs.NOTHING,
)
NODE_LISTEN_PORT = Setting(
    name="node_port",
    kind=int,
    default=NODE_PORT,
    minimum=0,
    maximum=65535,
    example=str(NODE_PORT),
    help="the port for paired computers; a free one is taken where it is in use",
    needs=Needs.RESTART,
)
PRELOAD = Setting(
    name="preload",
    kind=str,
    default=None,
    metavar="NAME",
    example="smollm2-135m",
    help="a model to load when the node starts (default: each when it is asked for)",
    group=Group.MODELS,
    needs=Needs.NOTHING,
)


KEEP_AWAKE = Setting(
    name="keep_awake",
    kind=str,
    default="auto",
    choices=("auto", "never"),
    help="whether this computer is kept from going to sleep while a model is loaded that can be asked",
    needs=Needs.NOTHING,
)
STANDBY = Setting(
    name="standby",
    kind=str,
    default="auto",
    choices=("auto", "never"),
    help="whether a process waits while a model is loaded, so that the next one, or this one after a crash, is there "
    "seconds sooner; it takes 0.25 GB of memory",
    group=Group.MODELS,
    needs=Needs.NOTHING,
)
MODELS_FOLDER = Setting(
    name="models",
    kind=str,
    default=None,
    metavar="FOLDER",
    check=_folder_fault,
    help="where models are kept and looked for (default: in the cache folder)",
    environment="BATON_MODELS",
    has_flag=False,
    group=Group.MODELS,
    needs=Needs.RESTART,
)
API_KEY = Setting(
    name="api_key",
    kind=str,
    default=None,
    metavar="KEY",
    check=_key_fault,
    help="the key that programs have to send to the endpoint; without one, only those of this computer can use it",
    environment="BATON_API_KEY",
    has_flag=False,
    is_secret=True,
    group=Group.ENDPOINT,
    needs=Needs.NOTHING,
)

# What a node keeps, in the order in which it is shown.
NODE_SETTINGS = (
    *(NODE_NAME, KEEP_AWAKE, NODE_LISTEN_PORT, KEYRING),
    *(PORT, HOST, API_KEY),
    *(ROUTE, CODEC, CHUNK, PREFILLS, PASS_TOKENS, DATA_STREAMS, MEASURE),
    *(MODELS_FOLDER, PRELOAD, SLOTS, CTX, KV_TYPE, WEIGHTS, DEVICE, THREADS, PREFIX_CACHE, STANDBY),
)


def words_of(values: Mapping[Setting, Any]) -> tuple[str, ...]:
    """The flags that give another command these values; one that is None is left to its default."""
    given = [(setting.flag, value) for setting, value in values.items() if value is not None]
    return tuple(word for flag, value in given for word in (flag, str(value)))


def add_flags(
    parser: argparse._ActionsContainer, settings: Iterable[Setting], *, with_defaults: bool = True
) -> None:
    """Give `parser` one flag a setting that has one; parsed values have the setting's type.

    What is not given is the setting's default, or None with `with_defaults` off.
    """
    for setting in settings:
        if not setting.has_flag:
            continue
        if setting.kind is bool:
            parser.add_argument(setting.flag, action="store_true", help=setting.describe())
            continue
        parser.add_argument(
            setting.flag,
            type=setting.parse,
            default=setting.default if with_defaults else None,
            metavar=setting.value_name,
            help=setting.describe().replace("%", "%%"),
        )
