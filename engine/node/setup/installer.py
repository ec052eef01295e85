"""Installs Baton for one user, without root, out of the archive that this file is the main program of.

The archive holds our own wheel and the exact versions of what it needs; all else comes from the package index. It runs
alone, under the Python that is there (3.8 or newer), and imports nothing of Baton. Everything goes into one folder of
the user's data, nothing else is changed, and to run it again does only what is missing.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import platform
import shlex
import shutil
import subprocess
import sys
import time
import zipfile
from collections.abc import Sequence
from typing import Any

CONSTRAINTS = "constraints.txt"

# The status of a refusal: nothing was changed, or the last step alone is not done.
EXIT_REFUSED = 2

OLDEST_PYTHON = (3, 11)

# Those that PyTorch was longest built for come first.
_PYTHONS = ("python3.12", "python3.13", "python3.11", "python3.14", "python3")

# What a shell that ssh opens often lacks.
_MORE_FOLDERS = ("/opt/homebrew/bin", "/usr/local/bin", "~/.local/bin", "~/.pyenv/shims")

# PyTorch and the rest without CUDA, unpacked and while it is being unpacked.
_NEEDED_BYTES = 3 << 30

_QUICK_S = 60
_INSTALL_TIMEOUT_S = 3600

# A node that is going to refuse has done so by then.
_START_TIMEOUT_S = 60
_STOP_TIMEOUT_S = 15
_POLL_EVERY_S = 0.05

_MARKER = "installed.json"


class Refused(Exception):
    """A sentence for the user: what is the matter, and what to do."""


class Plan:
    """Where everything goes on this computer, and the words of every command that is run."""

    def __init__(self, folder: str, wheel: str, index: str | None = None, venv: str | None = None) -> None:
        self.folder = folder
        self.wheel = os.path.join(folder, wheel)
        self.constraints = os.path.join(folder, CONSTRAINTS)
        self.venv = venv or os.path.join(folder, "venv")
        # It says what is in this very environment: another one of this user's may hold an older Baton.
        self.marker = os.path.join(self.venv, _MARKER)
        self._index = ("--extra-index-url", index) if index else ()

    @property
    def python(self) -> str:
        if os.name == "nt":
            return os.path.join(self.venv, "Scripts", "python.exe")
        return os.path.join(self.venv, "bin", "python")

    def make_venv(self, python: str) -> tuple[str, ...]:
        return (python, "-m", "venv", self.venv)

    def install(self) -> tuple[str, ...]:
        """The wheel, with what it needs and is not there yet."""
        return (*self._pip, "--constraint", self.constraints, *self._index, self.wheel)

    def replace(self) -> tuple[str, ...]:
        """The wheel alone, also where one of the same version is there already."""
        return (*self._pip, "--force-reinstall", "--no-deps", self.wheel)

    def baton(self, *words: str) -> tuple[str, ...]:
        return (self.python, "-m", "engine", *words)

    @property
    def _pip(self) -> tuple[str, ...]:
        return (
            *(self.python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"),
            "--no-input",
        )

    def describe(self, python: str, *, service: bool) -> list[tuple[str, tuple[str, ...]]]:
        """Each step as a sentence, and the command that does it, if one does."""
        start = ("baton service install", self.baton("service", "install"))
        if not service:
            start = ("start the node", self.baton("node", "--json"))
        return [
            (f"put the wheel and the list of versions into {self.folder}", ()),
            ("make a Python environment there", self.make_venv(python)),
            ("install what Baton needs from the package index", self.install()),
            ("install Baton itself", self.replace()),
            start,
            ("show a code for pairing", self.baton("pair", "--json")),
        ]


def app_folder(environment: dict[str, str], system: str) -> str:
    """The one folder that is written to, in the user's data."""
    home = environment.get("HOME") or os.path.expanduser("~")
    if system == "Darwin":
        return os.path.join(home, "Library", "Application Support", "baton", "app")
    if system == "Windows":
        return os.path.join(environment.get("LOCALAPPDATA") or home, "baton", "app")
    return os.path.join(
        environment.get("XDG_DATA_HOME") or os.path.join(home, ".local", "share"), "baton", "app"
    )


def system_fault(system: str, machine: str, libc: str) -> str:
    """Why Baton does not run on such a computer; nothing where it does."""
    machine = machine.lower()
    if system == "Darwin":
        return (
            ""
            if machine == "arm64"
            else "this Mac has an Intel processor, for which there is no current PyTorch"
        )
    if system == "Linux":
        if machine not in ("x86_64", "aarch64"):
            return (
                f"its processor ({machine}) is none that PyTorch is built for: x86-64 or 64-bit ARM is needed"
            )
        return "" if libc == "glibc" else "its C library is not glibc, which the packages of PyTorch need"
    if system == "Windows":
        return (
            ""
            if machine in ("amd64", "x86_64")
            else f"its processor ({machine}) is none that PyTorch is built for"
        )
    return f"{system} is none of the systems that Baton runs on: macOS, Linux and Windows"


def find_python() -> str:
    """A Python that is new enough. Raises Refused."""
    if sys.version_info >= OLDEST_PYTHON:
        return sys.executable
    folders = [os.path.expanduser(folder) for folder in _MORE_FOLDERS]
    path = os.pathsep.join([os.environ.get("PATH", ""), *folders])
    for name in _PYTHONS:
        found = shutil.which(name, path=path)
        if found and _version_of(found) >= OLDEST_PYTHON:
            return found
    raise Refused(
        f"Python {OLDEST_PYTHON[0]}.{OLDEST_PYTHON[1]} or newer is needed, and {platform.python_version()} is there: "
        "install one (on macOS: from python.org or `brew install python@3.12`; on Linux: the package python3.12 or "
        "newer), then run the same again"
    )


def _version_of(python: str) -> tuple[int, ...]:
    words = [python, "-c", "import sys; print(*sys.version_info[:2])"]
    try:
        said = subprocess.run(
            words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=_QUICK_S, check=True
        )
        return tuple(int(number) for number in said.stdout.split())
    except (OSError, ValueError, subprocess.SubprocessError):
        return ()


class Installer:
    """One run. `archive` is the file that this program lies in; what is done is said line by line."""

    def __init__(self, archive: str, args: argparse.Namespace) -> None:
        self._archive = archive
        self._args = args
        with zipfile.ZipFile(archive) as content:
            wheel = next(name for name in content.namelist() if name.endswith(".whl"))
        folder = app_folder(dict(os.environ), platform.system())
        self.plan = Plan(folder, wheel, index=args.index, venv=args.into)

    def run(self) -> int:
        if self._args.remove:
            return self._remove()
        fault = system_fault(platform.system(), platform.machine(), platform.libc_ver()[0])
        if fault:
            raise Refused(f"Baton does not run on this computer: {fault}")
        if "SSH_CONNECTION" in os.environ:  # the address that this computer was called at
            self._say(ssh_host=os.environ["SSH_CONNECTION"].split(" ")[2])
        if self._args.dry_run:
            return self._describe()
        changed = self._install()
        if self._args.into is None:
            self._start(again=changed)
            return self._offer()
        return 0

    def _install(self) -> bool:
        """Whether anything had to be done."""
        plan = self.plan
        wanted = self._digest()
        if self._installed() == wanted and self._quietly(plan.baton("--version")):
            self._say("Baton is installed here already, and the same")
            return False
        os.makedirs(plan.folder, exist_ok=True)
        free = shutil.disk_usage(plan.folder).free
        if free < _NEEDED_BYTES and not os.path.exists(plan.python):
            raise Refused(
                f"the disk has {free / 1e9:.1f} GB left, and {_NEEDED_BYTES / 1e9:.0f} are needed: make room, then run "
                "the same again"
            )
        self._forget()
        with zipfile.ZipFile(self._archive) as content:
            content.extract(os.path.basename(plan.wheel), plan.folder)
            content.extract(CONSTRAINTS, plan.folder)
        if not self._quietly((plan.python, "-m", "pip", "--version")):
            if self._args.into is not None:  # it is somebody's, with all that is in it
                raise Refused(
                    f"the Python environment in {plan.venv} has no pip that answers, which the update needs: put it "
                    f"there (`{plan.python} -m ensurepip`), then run the same again"
                )
            self._say(f"Making a Python environment in {plan.venv}")
            self._make_venv()
        self._say("Installing what Baton needs; this takes minutes the first time")
        self._command(plan.install(), "the packages that Baton needs could not be installed", _WITHOUT_INDEX)
        self._command(plan.replace(), "Baton itself could not be installed", "")
        with open(plan.marker, "w", encoding="utf-8") as file:
            json.dump({"sha256": wanted, "wheel": os.path.basename(plan.wheel)}, file)
        self._say("Baton is installed")
        return True

    def _make_venv(self) -> None:
        python = find_python()
        if os.path.exists(self.plan.venv):
            shutil.rmtree(self.plan.venv)  # of a run that was broken off
        self._command(
            self.plan.make_venv(python),
            "no Python environment could be made",
            "on Debian and Ubuntu the package python3-venv is needed for it",
        )

    def _start(self, *, again: bool) -> None:
        plan = self.plan
        if self._args.service:
            self._command(plan.baton("service", "install"), "the service could not be installed", "")
            return
        stopped = again and self._quietly(plan.baton("node", "--stop"))
        self._say("Starting the node")
        give_up_at_s = time.monotonic() + _STOP_TIMEOUT_S
        # The old one needs a moment to end; else one that runs is as good.
        while not self._starts() and stopped and time.monotonic() < give_up_at_s:
            time.sleep(_POLL_EVERY_S)

    def _starts(self) -> bool:
        """Whether a node runs now that did not before. Raises Refused where none does."""
        plan = self.plan
        flags: dict[str, Any] = {"start_new_session": True}
        if os.name == "nt":
            flags = {"creationflags": 0x00000008 | 0x00000200}  # detached, and a group of its own
        said, log = (os.path.join(plan.folder, name) for name in ("node.out", "node.log"))
        with open(said, "wb") as stdout, open(log, "wb") as stderr:
            node = subprocess.Popen(
                plan.baton("node", "--json"),
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
                cwd=plan.folder,
                **flags,
            )
        give_up_at_s = time.monotonic() + _START_TIMEOUT_S
        # Its first line says that it is ready; one that finds another running ends by itself.
        while not os.path.getsize(said) and node.poll() is None and time.monotonic() < give_up_at_s:
            time.sleep(_POLL_EVERY_S)
        if os.path.getsize(said):
            return True
        if node.poll() == EXIT_REFUSED:
            return False
        with open(log, encoding="utf-8", errors="replace") as file:
            last = _last_line(file.read())
        if node.poll() is None:
            raise Refused(
                f"the node has not become ready within {_START_TIMEOUT_S} s ({last}), and goes on trying: look into "
                f"{log}, then run the same again"
            )
        raise Refused(f"the node does not start: {last}")

    def _offer(self) -> int:
        """Show a code, and wait until it is used; what is said goes straight out."""
        words = self.plan.baton("pair", *(["--json"] if self._args.json else []))
        sys.stdout.flush()
        done = subprocess.run(words, stdin=subprocess.DEVNULL, cwd=self.plan.folder, check=False)
        return done.returncode

    def _remove(self) -> int:
        plan = self.plan
        if os.path.exists(plan.python):
            self._quietly(plan.baton("service", "uninstall"))
            self._quietly(plan.baton("node", "--stop"))
        if os.path.exists(plan.folder):
            shutil.rmtree(plan.folder)
            self._say(f"Removed {plan.folder}. Models, pairings and keys are still there")
        else:
            self._say("Nothing of this installer's is here")
        return 0

    def _describe(self) -> int:
        for sentence, words in self.plan.describe(find_python(), service=self._args.service):
            self._say(f"{sentence}: {' '.join(map(shlex.quote, words))}" if words else sentence)
        return 0

    def _digest(self) -> str:
        with zipfile.ZipFile(self._archive) as content:
            wheel = content.read(os.path.basename(self.plan.wheel))
            return hashlib.sha256(wheel + content.read(CONSTRAINTS)).hexdigest()

    def _installed(self) -> str | None:
        try:
            with open(self.plan.marker, encoding="utf-8") as file:
                found = json.load(file)
        except (OSError, ValueError):
            return None
        return found.get("sha256") if isinstance(found, dict) else None

    def _forget(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.plan.marker)

    def _quietly(self, words: Sequence[str]) -> bool:
        """Whether a command that may fail did not."""
        try:
            return self._run(words, timeout_s=_QUICK_S).returncode == 0
        except (OSError, subprocess.SubprocessError):
            return False

    def _command(self, words: Sequence[str], failure: str, hint: str) -> None:
        try:
            done = self._run(words, timeout_s=_INSTALL_TIMEOUT_S)
            said, status = done.stdout.decode("utf-8", "replace"), done.returncode
        except subprocess.TimeoutExpired:
            said, status = "it took longer than an hour", 1
        except OSError as error:
            said, status = str(error), 1
        if status != 0:
            raise Refused(
                f"{failure} ({_last_line(said)}){'; ' + hint if hint else ''}; then run the same again"
            )

    def _run(self, words: Sequence[str], *, timeout_s: float) -> subprocess.CompletedProcess[bytes]:
        """To its end, with all that it says together."""
        return subprocess.run(
            words,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=timeout_s,
            cwd=self.plan.folder,
            check=False,
        )

    def _say(self, sentence: str = "", **data: Any) -> None:
        if self._args.json:
            print(json.dumps({"doing": sentence, **data} if sentence else data), flush=True)
        elif sentence:
            print(sentence, flush=True)


_WITHOUT_INDEX = (
    "this computer has to reach the Python package index, pypi.org or the one that its pip is set to"
)


def _last_line(text: str) -> str:
    """The line that tells most: pip's last error, or the last there is."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if line.lower().startswith("error")]
    return (errors or lines or ["it says nothing"])[-1][:500]


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="baton-setup",
        description="Install Baton for this user, start its node and show a code for pairing.",
    )
    parser.add_argument("--dry-run", action="store_true", help="only say what would be done")
    parser.add_argument("--remove", action="store_true", help="undo it; models, pairings and keys stay")
    parser.add_argument("--service", action="store_true", help="have the system start the node from now on")
    parser.add_argument(
        "--index", metavar="URL", help="one more package index, such as one with other PyTorch builds"
    )
    parser.add_argument(
        "--into", metavar="FOLDER", help="install into this Python environment, and start nothing"
    )
    parser.add_argument("--json", action="store_true", help="say it in lines of JSON")
    args = parser.parse_args(argv)
    try:
        return Installer(sys.argv[0], args).run()
    except Refused as refusal:
        sentence = str(refusal)
    except OSError as error:
        sentence = f"{error.filename or 'a file'} cannot be written: {error.strerror or error}"
    if args.json:
        print(json.dumps({"refused": sentence}), flush=True)
    else:
        print(f"baton-setup: {sentence}", file=sys.stderr)
    return EXIT_REFUSED


if __name__ == "__main__":
    sys.exit(main())
