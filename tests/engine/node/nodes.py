"""Nodes as their users run them: a process each, with folders of its own and the command line beside it."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx

from tests.inside import inside

# Far more than any step takes on a busy computer.
TIMEOUT_S = 60.0

# How often something is looked at that tells nobody when it changes.
LOOK_EVERY_S = 0.05


class NodeProcess:
    """One `baton node`, in the network namespace `network` where that is given.

    With `by_flags` off it is started as a service is: by a plain `baton node`, which follows its settings.
    """

    def __init__(
        self,
        folder: Path,
        name: str,
        *flags: str,
        models: Path | None = None,
        network: str | None = None,
        by_flags: bool = True,
    ) -> None:
        self.name = name
        self._by_flags = by_flags
        self.folder = folder / name
        self._network = network
        self._flags = flags
        kinds = ("config", "cache", "data", "state")
        self.environment = {
            **{key: value for key, value in os.environ.items() if not key.startswith(("BATON_", "XDG_"))},
            **{f"XDG_{kind.upper()}_HOME": str(self.folder / kind) for kind in kinds},
            "HOME": str(self.folder),
            "BATON_MODELS": str(models or self.folder / "models"),
            "PYTHON_KEYRING_BACKEND": "keyring.backends.fail.Keyring",
        }
        self.ready: dict[str, Any] = {}
        self.process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()
        if error is not None:
            for log in sorted(self.folder.rglob("*.log")):
                print(f"--- {self.name}: {log.name}\n{log.read_text(errors='replace')[-4000:]}")

    def start(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        words = [*self._baton, "node", "--json", "--exit-with-stdin", *self._flags]
        if self._by_flags:
            # What is measured while a test runs would change roles in the middle of it, and few look at who waits.
            words += ["--name", self.name, "--measure", "never", "--standby", "never"]
        with (self.folder / "node-stderr.log").open("ab") as log:
            self.process = subprocess.Popen(
                words,
                env=self.environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
            )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, (self.folder / "node-stderr.log").read_text()
        self.ready = json.loads(line)

    def end(self) -> None:
        if self.process is None:
            return
        process, self.process = self.process, None
        assert process.stdin is not None and process.stdout is not None
        process.stdin.close()
        try:
            process.wait(TIMEOUT_S)
        finally:
            process.kill()
            process.wait()
            process.stdout.close()

    def kill(self) -> None:
        """As the system does when memory runs out."""
        assert self.process is not None
        self.process.kill()
        self.end()

    @property
    def endpoint(self) -> str:
        url: str = self.ready["endpoint"]
        return url

    def baton(self, *words: str, expect: int = 0, timeout_s: float = TIMEOUT_S) -> str:
        """Run a command of Baton's as this node's user; what it prints."""
        done = subprocess.run(
            [*self._baton, *words], env=self.environment, capture_output=True, text=True, timeout=timeout_s
        )
        assert done.returncode == expect, f"{words}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout if expect == 0 else done.stderr

    def popen(self, *words: str) -> subprocess.Popen[str]:
        """A command that goes on; its output can be read."""
        return subprocess.Popen(
            [*self._baton, *words], env=self.environment, stdout=subprocess.PIPE, text=True
        )

    def control(self, path: str) -> Any:
        note = json.loads((self.folder / "cache" / "baton" / "node" / "node.json").read_text())
        return self.get(f"http://127.0.0.1:{note['port']}{path}", key=note["token"])

    def ask_control(self, method: str, path: str, body: Any = None) -> httpx.Response:
        note = json.loads((self.folder / "cache" / "baton" / "node" / "node.json").read_text())
        return httpx.request(
            method,
            f"http://127.0.0.1:{note['port']}{path}",
            headers={"Authorization": f"Bearer {note['token']}"},
            json=body,
            timeout=TIMEOUT_S,
        )

    def keep_settings(self, **values: Any) -> Path:
        """Write its file of settings before it is started."""
        file = self.folder / "config" / "baton" / "settings.json"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(values))
        return file

    def get(self, url: str, *, key: str = "") -> Any:
        return json.loads(self._curl(url, key=key))

    def state(self) -> dict[str, Any]:
        found: dict[str, Any] = self.control("/state")
        return found

    def until(self, is_so: Callable[[dict[str, Any]], Any], *, timeout_s: float = TIMEOUT_S) -> Any:
        """Look at the state until `is_so` finds something in it; returns that."""
        give_up_at = time.monotonic() + timeout_s
        while True:
            state = self.state()
            if found := is_so(state):
                return found
            assert time.monotonic() < give_up_at, json.dumps(state, indent=1)
            time.sleep(LOOK_EVERY_S)

    def ask(self, model: str, prompt: str, **fields: Any) -> dict[str, Any]:
        """As a patient client does, which comes back while the model is loaded."""
        body = {"model": model, "prompt": prompt, "max_tokens": 8, "temperature": 0, "return_tokens": True}
        give_up_at = time.monotonic() + TIMEOUT_S
        while True:
            found: dict[str, Any] = json.loads(
                self._curl(f"{self.endpoint}/v1/completions", body=json.dumps(body | fields))
            )
            if found.get("error", {}).get("code") != "model_loading" or time.monotonic() > give_up_at:
                assert "error" not in found, found
                return found
            time.sleep(LOOK_EVERY_S)

    def _curl(self, url: str, *, key: str = "", body: str | None = None) -> bytes:
        """Asked from where the node is, as the computer's own programs do."""
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        method = "GET" if body is None else "POST"
        with inside(self._network) if self._network else contextlib.nullcontext():
            return httpx.request(method, url, headers=headers, content=body, timeout=TIMEOUT_S).content

    @property
    def _baton(self) -> list[str]:
        enter = ["ip", "netns", "exec", self._network] if self._network else []
        return [*enter, sys.executable, "-m", "engine"]


def events(response: httpx.Response) -> Iterator[dict[str, Any]]:
    """The data of each event of a stream, but for its end."""
    for line in response.iter_lines():
        if line.startswith("data: {"):
            yield json.loads(line.removeprefix("data: "))
