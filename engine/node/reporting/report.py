"""The report for a bug: what is known of Baton on this computer, in one zip, with what is not for others taken out.

Each part is had on its own: one that cannot be says why, and the others are there. Nothing is sent anywhere.
"""

from __future__ import annotations

import contextlib
import errno
import getpass
import io
import json
import os
import platform
import re
import subprocess
import sys
import textwrap
import time
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from engine import paths
from engine.errors import BatonError, DiskFull, HostError, UserError
from engine.files import write_whole
from engine.node.reporting.logs import read_tail
from engine.node.reporting.redaction import Redactor
from engine.version import baton_version

# Of each log the end, of the newest logs, so that a report can be sent by mail.
MAX_LOGS = 40
MAX_LOG_TAIL_BYTES = 256 << 10

# A node that hangs is one more thing to report.
_NODE_TIMEOUT_S = 5.0

# The first import of torch after a start takes a slow disk a while.
_DEVICES_TIMEOUT_S = 120.0

_MAX_FILE_BYTES = 1 << 20

_SECRET_NAME = re.compile(r"(?i)key|token|secret|password")

# Parts of a node's state in which what has a name is a computer.
_NAMING_PARTS = {"node", "peers", "discovery", "pairing"}

# Computers are called so by nobody in particular.
_NO_NAMES = {"localhost", "localhost.localdomain", "unknown", ""}

_LEFT_OUT = (
    "Left out are prompts and answers, which no log has, keys, tokens and passwords. Your home folder, your name and "
    "the names of computers have others in their place, the same in every file, and so have hardware addresses and "
    "addresses of the internet; fingerprints are shortened."
)


@dataclass(frozen=True, kw_only=True)
class Sources:
    """Where a report is from: folders, environment, and the two that are asked. `state` and `devices` may raise."""

    home: Path
    config: Path
    identity: Path
    peers: Path
    node: Path
    logs: Path
    models: Path
    environ: Mapping[str, str]
    state: Callable[[], Any]
    devices: Callable[[], Any]

    @classmethod
    def own(cls) -> Sources:
        return cls(
            home=Path.home(),
            config=paths.config_dir(),
            identity=paths.identity_dir(),
            peers=paths.peers_file(),
            node=paths.node_dir(),
            logs=paths.log_dir(),
            models=paths.models_dir(),
            environ=os.environ,
            state=_ask_node,
            devices=_ask_devices,
        )


@dataclass(frozen=True, kw_only=True)
class Item:
    """One file of a report; `about` says in a few words what it holds."""

    name: str
    about: str
    text: str


def make_report(sources: Sources) -> list[Item]:
    """Every file of the report, fit to be seen by others; the first one says what is in the rest."""
    state = _had(sources.state)
    peers = _had(lambda: _peers(sources.peers))
    redactor = Redactor(secrets=_secrets(sources, state), names=_names(sources, [state, peers]))
    parts: list[tuple[str, str, Any]] = [
        ("system", "this computer, its system, and versions", _had(_system)),
        ("devices", "what can compute here", _had(sources.devices)),
        ("node", "the running node: engines and their last ends, peers, link", state),
        ("pairing", "which computers are trusted", peers),
        ("network", "interfaces and routes", _had(_network)),
        ("service", "whether the system starts the node", _had(_service)),
        ("settings", "settings and the files that keep them", _had(lambda: _settings(sources))),
        ("models", "the catalogue, and which model files are here", _had(lambda: _models(sources.models))),
    ]
    items = [
        Item(
            name=f"{name}.json",
            about=about,
            text=json.dumps(redactor.data(data), indent=2, ensure_ascii=False, default=str) + "\n",
        )
        for name, about, data in parts
    ]
    names: set[str] = set()
    for name, text in _log_tails(sources.logs):
        name = f"logs/{redactor.text(name)}"
        while name in names:  # two may have differed in what was taken out
            name += "'"
        names.add(name)
        items.append(Item(name=name, about="the end of this log", text=redactor.text(text)))
    return [Item(name="README.txt", about="what is in this report", text=_readme(items)), *items]


def write_report(items: Sequence[Item], path: Path) -> None:
    """Write the zip whole or not at all, for its owner alone. Raises UserError or HostError."""
    content = io.BytesIO()
    now = time.localtime()[:6]
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
        for item in items:
            archive.writestr(
                zipfile.ZipInfo(item.name, now), item.text.encode("utf-8", "replace"), zipfile.ZIP_DEFLATED
            )
    try:
        if path.exists():
            raise UserError(f"{path} is there already: name another file with --output")
        if not path.parent.is_dir():
            raise UserError(
                f"there is no folder {path.parent}: name a file in one that is there with --output"
            )
        write_whole(path, content.getvalue())
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise DiskFull(
                f"the disk of {path.parent} is full: make room, or name a file on another one with --output"
            ) from error
        raise HostError(
            f"{path} cannot be written ({error.strerror or error}): name another file with --output"
        ) from error


def _had(get: Callable[[], Any]) -> Any:
    """What `get` returns, or why it could not be had: a report is wanted most where something is broken."""
    try:
        return get()
    except BatonError as error:
        return {"missing": str(error)}
    except Exception as error:
        return {"missing": f"{type(error).__name__}: {error}"}


def _ask_node() -> Any:
    from engine.node.client import NodeClient

    return NodeClient.find().get("/state", timeout_s=_NODE_TIMEOUT_S)


def _ask_devices() -> Any:
    """In a process of its own: what can compute here is asked of libraries that may crash."""
    done = subprocess.run(
        [*paths.own_command(), "devices"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=_DEVICES_TIMEOUT_S,
    )
    try:
        return json.loads(done.stdout)
    except ValueError:
        lines = done.stderr.decode("utf-8", "replace").splitlines()
        return {"missing": f"it ended with status {done.returncode}", "last_lines": lines[-20:]}


def _system() -> dict[str, Any]:
    import psutil

    memory, swap = psutil.virtual_memory(), psutil.swap_memory()
    return {
        "baton": baton_version(),
        "bundled": paths.is_bundled(),
        "python": sys.version,
        "executable": sys.executable,
        "system": platform.platform(),
        "machine": platform.machine(),
        "processor": _processor(),
        "cores": {"physical": psutil.cpu_count(logical=False), "logical": psutil.cpu_count()},
        "memory_bytes": {"total": memory.total, "available": memory.available, "swap_used": swap.used},
        "running_since": psutil.boot_time(),
        "now": time.time(),
        "packages": _packages(),
    }


def _processor() -> str:
    with contextlib.suppress(OSError):
        found = re.search(r"^model name\s*:\s*(.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
        if found:
            return found[1]
    return platform.processor()


def _packages() -> dict[str, str]:
    """The versions of what Baton needs, where its own package says what that is."""
    wanted = [line for line in metadata.requires("baton") or () if "extra ==" not in line]
    names = sorted(re.split(r"[^\w.-]", line, maxsplit=1)[0] for line in wanted)
    found = {}
    for name in names:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found


def _network() -> Any:
    import msgspec

    from engine.link.interfaces import read_network

    return msgspec.to_builtins(read_network())


def _service() -> Any:
    from engine.node.system.service import own_service

    return own_service().status().as_json()


def _peers(path: Path) -> Any:
    """Who is in the list of paired computers; read here, since whoever owns it would mend what is broken."""
    import msgspec

    from engine.node.trust.peers import Peer

    try:
        peers = msgspec.json.decode(_read(path), type=dict[str, list[Peer]])["peers"]
    except FileNotFoundError:
        return []
    except (msgspec.MsgspecError, UnicodeDecodeError, KeyError) as error:
        return {"missing": f"the list is damaged ({type(error).__name__})"}
    return [
        {
            "name": peer.name,
            "node_id": peer.node_id,
            "fingerprint": peer.fingerprint,
            "addresses": peer.addresses,
            "paired_at": peer.paired_at,
        }
        for peer in peers
    ]


def _settings(sources: Sources) -> dict[str, Any]:
    own = {name: value for name, value in sources.environ.items() if name.startswith(("BATON_", "XDG_"))}
    return {
        "environment": {
            name: "is set" if _SECRET_NAME.search(name) else value for name, value in own.items()
        },
        "files": _files_in(sources.config),
    }


def _models(folder: Path) -> dict[str, Any]:
    from engine.node.models.catalogue import load_catalogue

    return {
        "folder": str(folder),
        "catalogue": [
            {
                "name": model.name,
                "bytes": model.size_bytes,
                "sources": [source.sha256 for source in model.sources],
            }
            for model in load_catalogue().values()
        ],
        "files": _files_in(folder),
    }


def _files_in(folder: Path) -> list[dict[str, Any]]:
    """Names, sizes and modes, and nothing of what is in them."""
    found = []
    for path in sorted(folder.rglob("*"))[:500]:
        with contextlib.suppress(OSError):
            status = path.lstat()
            found.append(
                {"name": str(path.relative_to(folder)), "bytes": status.st_size, "mode": oct(status.st_mode)}
            )
    return found


def _log_tails(folder: Path) -> Iterator[tuple[str, str]]:
    """The newest logs by name, and their ends."""
    dated = []
    for path in folder.rglob("*.log*"):
        with contextlib.suppress(OSError):
            if path.is_file():
                dated.append((path.stat().st_mtime, path))
    for _, path in sorted(dated, reverse=True)[:MAX_LOGS]:
        with contextlib.suppress(OSError):
            yield path.relative_to(folder).as_posix(), read_tail(path, MAX_LOG_TAIL_BYTES)


def _secrets(sources: Sources, state: Any) -> set[str]:
    """Every secret that is known to be one."""
    found = {value for name, value in sources.environ.items() if _SECRET_NAME.search(name)}
    with contextlib.suppress(OSError, ValueError, AttributeError):
        found |= {str(value) for value in json.loads(_read(sources.identity / "secrets.json")).values()}
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        found.add(str(json.loads(_read(sources.node / "node.json"))["token"]))
    with contextlib.suppress(KeyError, TypeError):  # one is shown only now and then
        code = str(state["pairing"]["offer"]["code"])
        found |= {code, re.sub(r"\W", "", code)}
    return found


def _names(sources: Sources, parts: Iterable[Any]) -> dict[str, str]:
    """What names the user and the computers, and what is put in its place."""
    names = {}
    host = platform.node()
    computers = dict.fromkeys([host, host.partition(".")[0], *_computer_names(list(parts))])
    for number, name in enumerate((name for name in computers if name.casefold() not in _NO_NAMES), start=1):
        names[name] = f"COMPUTER-{number}"
    for user in _user_names(sources):
        names[user] = "USER"
    names[str(sources.home)] = "~"
    return names


def _computer_names(data: Any, *, is_part: bool = False) -> Iterator[str]:
    """Names of computers in what a node and its list of peers say: interfaces and engines have names, too."""
    if isinstance(data, Mapping):
        for key, value in data.items():
            if isinstance(value, str):
                if key == "name" and (is_part or "node_id" in data):
                    yield value
            elif key != "interfaces":
                yield from _computer_names(value, is_part=is_part or key in _NAMING_PARTS)
    elif isinstance(data, list):
        for item in data:
            yield from _computer_names(item, is_part=is_part)


def _user_names(sources: Sources) -> Iterator[str]:
    yield sources.home.name
    # A user without an entry in the system's list has no name either.
    with contextlib.suppress(OSError, KeyError, ImportError):
        yield getpass.getuser()
    if sys.platform != "win32":
        import pwd

        with contextlib.suppress(KeyError):
            yield pwd.getpwuid(os.getuid()).pw_gecos.partition(",")[0]


def _read(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(_MAX_FILE_BYTES)


def _readme(items: Sequence[Item]) -> str:
    width = max(len(item.name) for item in items)
    lines = [f"  {item.name:<{width}}  {item.about}" for item in items]
    return "\n".join(
        [
            f"A report on Baton {baton_version()}, made on {time.strftime('%Y-%m-%d at %H:%M:%S %z')}.",
            "Nothing was sent: whoever made it decides whom to give it to.",
            "",
            *lines,
            "",
            *textwrap.wrap(_LEFT_OUT, 100),
            "",
        ]
    )
