"""`baton bench copy`: a model's copy from computer to computer, beside what iperf3 carries over the same link.

The two processes of a copy as a node starts them, with TLS, the digest and the disk; in turns with iperf3, since both
are slower where other programs want the processor too.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import statistics
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO

import msgspec

from engine.bench.ceiling import iperf3_gbps
from engine.bench.couriers import LINKS, LOOPBACK, Link, opened
from engine.bench.cpu_time import cpu_seconds
from engine.config import Setting, add_flags
from engine.errors import ProcessFailed
from engine.handoff.courier_process import tls_environment
from engine.handoff.transport import Address
from engine.node.models.transfer import FileEntry, TransferJob
from engine.node.scratch import private_folder
from engine.node.trust.identity import Identity
from engine.paths import own_command

EXAMPLE = """\
  sudo baton bench copy --link netns:10gbit
  baton bench copy --gigabytes 1 --json
"""

_GIGABYTES = Setting(
    name="gigabytes", kind=int, default=2, minimum=1, maximum=100, metavar="N", help="size of the model"
)
_ROUNDS = Setting(
    name="rounds",
    kind=int,
    default=5,
    minimum=1,
    maximum=100,
    metavar="N",
    help="copies, each after an iperf3",
)

_BLOCK_BYTES = 16 << 20


@dataclass(frozen=True, kw_only=True)
class CopyReport:
    """Medians over all rounds; rates in Gbit/s of the model's bytes, from the first until its digest is right.

    `of_iperf3` is that of each round's two. `cpu_s_per_gb` is both processes' together, without their start: from the
    first bytes that came until both have ended.
    """

    bytes: int
    rounds: int
    goodput_gbps: float
    iperf3_gbps: float
    of_iperf3: float
    best_of_iperf3: float
    cpu_s_per_gb: float


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_flags(parser, (_GIGABYTES, _ROUNDS))
    parser.add_argument(
        "--link",
        choices=LINKS,
        default=LOOPBACK,
        metavar="|".join(LINKS),
        help="what joins the two (default: %(default)s); netns is a virtual cable of that speed, for root on Linux",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")


def run(args: argparse.Namespace) -> int:
    with opened(args.link) as link, private_folder("bench-copy") as folder:
        report = measure(link, folder, n_bytes=args.gigabytes * 10**9, rounds=args.rounds)
    if args.json:
        print(json.dumps(asdict(report)))
        return 0
    print(f"copied     {report.bytes / 1e9:.0f} GB over {args.link}, {report.rounds} times")
    print(f"goodput    {report.goodput_gbps:.2f} Gbit/s, iperf3 {report.iperf3_gbps:.2f} (medians)")
    print(f"of iperf3  {report.of_iperf3:.3f}, {report.best_of_iperf3:.3f} at best")
    print(f"processor  {report.cpu_s_per_gb:.2f} s a GB, both processes")
    return 0


def measure(link: Link, folder: Path, *, n_bytes: int, rounds: int) -> CopyReport:
    """Copy a file of `n_bytes` so often; `folder` needs room for it twice. Raises HostError."""
    source = folder / "model.gguf"
    entry = _write(source, n_bytes)
    sender, receiver = (Identity.load_or_create(folder / name) for name in ("sender", "receiver"))
    ceilings, copies, cpu_s = [], [], []
    for _ in range(rounds):
        ceilings.append(
            iperf3_gbps(link.decoder_host, receive_in=link.enter_decoder, send_in=link.enter_worker)
        )
        took_s, used_s = _copy(link, folder, source, entry, sender, receiver)
        copies.append(8e-9 * n_bytes / took_s)
        cpu_s.append(used_s)
    shares = [copy / ceiling for copy, ceiling in zip(copies, ceilings, strict=True)]
    return CopyReport(
        bytes=n_bytes,
        rounds=rounds,
        goodput_gbps=statistics.median(copies),
        iperf3_gbps=statistics.median(ceilings),
        of_iperf3=statistics.median(shares),
        best_of_iperf3=max(shares),
        cpu_s_per_gb=statistics.median(cpu_s) / (n_bytes / 1e9),
    )


def _write(path: Path, n_bytes: int) -> FileEntry:
    block, digest = os.urandom(_BLOCK_BYTES), hashlib.sha256()
    with path.open("wb") as file:
        for at in range(0, n_bytes, _BLOCK_BYTES):
            part = block[: n_bytes - at]
            file.write(part)
            digest.update(part)
    return FileEntry(name=path.name, size_bytes=n_bytes, sha256=digest.hexdigest())


def _copy(
    link: Link, folder: Path, source: Path, entry: FileEntry, sender: Identity, receiver: Identity
) -> tuple[float, float]:
    """Seconds of one copy, and of processor time of both ends for it."""
    landing = folder / "landing"
    receive = TransferJob(
        identity_dir=str(receiver.key_path.parent),
        peer_der=sender.certificate_der,
        files=(entry,),
        folder=str(landing),
        digests_dir=str(folder / "digests"),
        listen=str(Address(host=link.decoder_host, port=0)),
    )
    with _end(link.enter_decoder, receive) as receiving:
        port = _said(receiving, "port")
        send = TransferJob(
            identity_dir=str(sender.key_path.parent),
            peer_der=receiver.certificate_der,
            files=(entry,),
            paths=(str(source),),
            dial=str(Address(host=link.decoder_host, port=int(port))),
        )
        with _end(link.enter_worker, send) as sending:
            _said(receiving, "done_bytes")
            started_s = cpu_seconds(receiving.pid) + cpu_seconds(sending.pid)
            took_s = _said(receiving, "took_s")
            cpu_s = _cpu_s(receiving) + _cpu_s(sending) - started_s
    (landing / entry.name).unlink()
    return took_s, cpu_s


@contextlib.contextmanager
def _end(enter: Sequence[str], job: TransferJob) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(
        [*enter, *own_command(), "transfer"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=tls_environment(),
    )
    try:
        _pipe(process.stdin).write(msgspec.json.encode(job) + b"\n")
        _pipe(process.stdin).flush()
        yield process
    finally:
        process.kill()
        process.wait()
        _pipe(process.stdin).close()
        _pipe(process.stdout).close()


def _said(process: subprocess.Popen[bytes], key: str) -> float:
    """What it says of `key`, some time. Raises ProcessFailed."""
    for line in _pipe(process.stdout):
        news = json.loads(line)
        if "error" in news:
            raise ProcessFailed(f"the copy failed: {news['error']}")
        if key in news:
            return float(news[key])
    raise ProcessFailed("the process of the copy ended early")


def _cpu_s(process: subprocess.Popen[bytes]) -> float:
    """What it has used when it has ended, which it does by itself."""
    for _ in _pipe(process.stdout):
        pass
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    return used.ru_utime + used.ru_stime


def _pipe(pipe: IO[bytes] | None) -> IO[bytes]:
    if pipe is None:
        raise ValueError("a process without its pipes")
    return pipe
