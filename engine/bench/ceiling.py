"""What a link carries at most: iperf3's word for it."""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
from collections.abc import Iterator, Sequence

from engine.errors import HostError, ProcessFailed

# One stream for so long, after a start that is not counted.
MEASURE_S = 3
_OMIT_S = 1

_PORT = 5201
_TIMEOUT_S = 20.0


def has_iperf3() -> bool:
    return shutil.which("iperf3") is not None


def iperf3_gbps(
    host: str, *, receive_in: Sequence[str] = (), send_in: Sequence[str] = (), seconds: int = MEASURE_S
) -> float:
    """Gbit/s of payload that one TCP stream carries to `host`, its ends started by the words given.

    Raises HostError when iperf3 cannot say.
    """
    with _server([*receive_in, "iperf3", "--server", "--one-off", "--bind", host, "--forceflush"]):
        client = [*send_in, "iperf3", "--client", host, "--json"]
        flags = ["--port", str(_PORT), "--time", str(seconds), "--omit", str(_OMIT_S)]
        try:
            said = subprocess.run(
                [*client, *flags], capture_output=True, text=True, timeout=seconds + _OMIT_S + _TIMEOUT_S
            ).stdout
        except (OSError, subprocess.TimeoutExpired) as error:
            raise ProcessFailed(f"iperf3 could not be run: {error}") from error
    return received_gbps(said)


def received_gbps(report: str) -> float:
    """What iperf3's JSON report says was received; raises HostError where it tells of an error instead."""
    try:
        told = json.loads(report)
        if "error" in told:
            raise HostError(f"iperf3 could not measure the link: {told['error']}")
        return float(told["end"]["sum_received"]["bits_per_second"]) / 1e9
    except (ValueError, KeyError, TypeError) as error:
        raise HostError("iperf3 gave no report that can be read") from error


@contextlib.contextmanager
def _server(command: list[str]) -> Iterator[None]:
    """An iperf3 that listens by now; ended at the end, if it has not ended by itself."""
    try:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
    except OSError as error:
        raise ProcessFailed(f"iperf3 could not be run: {error}") from error
    with process:
        try:
            said = ""
            while process.stdout is not None and "listening" not in said:
                said = process.stdout.readline()
                if not said:
                    raise ProcessFailed("iperf3 could not listen: is another one running?")
            yield
        finally:
            process.kill()
