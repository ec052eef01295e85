"""A contestant of a benchmark in a process of its own, told what to do by JSON lines and answering in kind.

The other contestant idles meanwhile, and neither shares threads or memory with the other. The program's first line
says that it is ready (its imports are done); each later one answers one command:

    info                                -> version, system_info, gpu
    load path n_ctx n_threads n_gpu_layers -> seconds, model_type, model_size, model_n_params, n_vocab
    threads decode prefill              -> nothing; how many threads each kind of work takes from now on
    prefill tokens depth                -> seconds for `tokens` at once after `depth`, which is not timed
    decode tokens depth                 -> seconds for `tokens` one by one after `depth`
    logits tokens path one_by_one       -> n_vocab; float32 rows, one a token, are in the file at `path`

An answer with `error` says why a command could not be done; in the first line's place, why the program cannot begin.
The program ends when its standard input does.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import tempfile
from types import TracebackType
from typing import IO, Any

from engine.errors import ProcessFailed

# A program that has been told to end is given this long, then it is ended.
_CLOSE_TIMEOUT_S = 5.0

# Of what a failed program wrote to stderr, the end says why.
_LAST_WORDS_CHARS = 600
_TRACEBACK = "Traceback (most recent call last):"


class Subject:
    """A running program; `name` is how messages call it. Closes with its context."""

    def __init__(
        self,
        name: str,
        command: list[str],
        *,
        pass_fds: tuple[int, ...] = (),
        env: dict[str, str] | None = None,
    ) -> None:
        """Start `command`, which inherits `pass_fds`, and wait until it is ready. Raises ProcessFailed.

        `env` is its environment, or None for ours.
        """
        self.name = name
        self._stderr: IO[str] = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115 (closed in `close`)
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._stderr,
                text=True,
                encoding="utf-8",
                # Ctrl-C reaches it through us. No session of its own: Linux gives each its share of the processor.
                process_group=0,
                pass_fds=pass_fds,
                env=env,
            )
        except OSError as error:
            self._stderr.close()
            raise ProcessFailed(f"{name} did not start: {error}") from error
        try:
            self._answer(blame="did not start")
        except BaseException:
            self.kill()
            raise

    def __enter__(self) -> Subject:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        # Who goes because of an error, or of Ctrl-C, does not wait for a measurement to end.
        self.close() if error is None else self.kill()

    def ask(self, command: str, **fields: object) -> dict[str, Any]:
        """The answer to one command. Raises ProcessFailed when there is none, or it tells of an error."""
        # Where it has ended, reading says so, and why.
        with contextlib.suppress(OSError):
            self._in.write(json.dumps({"command": command, **fields}) + "\n")
            self._in.flush()
        return self._answer()

    def close(self) -> None:
        """End the program once it has done what it is at; safe to call again."""
        if self._stderr.closed:
            return
        with contextlib.suppress(OSError):
            self._in.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_CLOSE_TIMEOUT_S)
        self.kill()

    def kill(self) -> None:
        """End the program at once; it keeps nothing that would be lost. Safe to call again."""
        if self._stderr.closed:
            return
        self._process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_CLOSE_TIMEOUT_S)
        with contextlib.suppress(OSError):
            self._in.close()
        self._out.close()
        self._stderr.close()

    @property
    def _in(self) -> IO[str]:
        pipe = self._process.stdin
        if pipe is None:
            raise ProcessFailed(f"{self.name} has no input")
        return pipe

    @property
    def _out(self) -> IO[str]:
        pipe = self._process.stdout
        if pipe is None:
            raise ProcessFailed(f"{self.name} has no output")
        return pipe

    def _answer(self, *, blame: str = "failed") -> dict[str, Any]:
        line = self._out.readline()
        if not line:
            raise ProcessFailed(f"{self.name} ended without an answer: {self._last_words()}")
        try:
            answer = json.loads(line)
        except ValueError:
            answer = None
        if not isinstance(answer, dict):
            raise ProcessFailed(f"{self.name} answered {line.strip()[:80]!a}, which is not JSON")
        if "error" in answer:
            raise ProcessFailed(f"{self.name} {blame}: {answer['error']}")
        return answer

    def _last_words(self) -> str:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_CLOSE_TIMEOUT_S)
        self._stderr.seek(0)
        words = self._stderr.read().strip()
        if _TRACEBACK in words:
            # what went wrong is in its last line; the rest is for whoever wrote the program
            words = words.splitlines()[-1]
        return words[-_LAST_WORDS_CHARS:] or f"exit status {self._process.poll()}"
