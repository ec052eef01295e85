"""What this computer is made of, as its system says without a framework loaded: processor, GPU, memory, and how much of
that memory macOS lets its GPU have."""

from __future__ import annotations

import contextlib
import os
import platform
import sys
from pathlib import Path

import msgspec
import psutil

from engine.errors import HostError
from engine.link.commands import Runner, run_command

_GIB = 1 << 30

# What macOS's GPU may take while nothing is set: a share of the memory, which grows with it. Apple says neither; Metal
# recommends two thirds of 36 GB and less, and three quarters of more.
_SMALL_MAC_BYTES = 36 * _GIB

# Of a raised limit, what is left to the system and its user: an eighth, and never less than this.
_LEFT_TO_SYSTEM_BYTES = 8 * _GIB


class Computer(msgspec.Struct, frozen=True, kw_only=True):
    """`gpu` is "" where there is none that Baton could use; `shares_memory`: it computes in the computer's own memory.

    `gpu_limit_bytes` is what macOS lets the GPU have, None elsewhere; `raise_gpu_limit` a command that makes it more,
    until the next start, "" where that would be no gain.
    """

    system: str
    processor: str
    n_cores: int
    memory_bytes: int
    gpu: str = ""
    shares_memory: bool = False
    gpu_limit_bytes: int | None = None
    raise_gpu_limit: str = ""


def read_computer(
    run: Runner = run_command, *, system: str = sys.platform, proc: Path = Path("/proc")
) -> Computer:
    """Blocks for some milliseconds."""
    memory_bytes = psutil.virtual_memory().total
    n_cores = os.cpu_count() or 1
    if system == "darwin":
        return _mac(run, n_cores, memory_bytes)
    processor = _linux_processor(proc) if system == "linux" else platform.processor()
    gpu = _nvidia_gpu(proc)
    return Computer(
        system=system,
        processor=processor or platform.machine(),
        n_cores=n_cores,
        memory_bytes=memory_bytes,
        gpu=gpu,
        # an integrated one, such as that of a DGX Spark, has no memory of its own
        shares_memory=bool(gpu) and platform.machine() == "aarch64",
    )


def _mac(run: Runner, n_cores: int, memory_bytes: int) -> Computer:
    processor = _sysctl(run, "machdep.cpu.brand_string") or platform.machine()
    if not processor.startswith("Apple"):
        return Computer(system="darwin", processor=processor, n_cores=n_cores, memory_bytes=memory_bytes)
    set_mib = _sysctl(run, "iogpu.wired_limit_mb")
    share = 2 / 3 if memory_bytes <= _SMALL_MAC_BYTES else 3 / 4
    limit = int(set_mib) << 20 if set_mib.isdecimal() and int(set_mib) else int(memory_bytes * share)
    wanted = memory_bytes - max(_LEFT_TO_SYSTEM_BYTES, memory_bytes // 8)
    command = f"sudo sysctl iogpu.wired_limit_mb={wanted >> 20}" if wanted > limit else ""
    return Computer(
        system="darwin",
        processor=processor,
        n_cores=n_cores,
        memory_bytes=memory_bytes,
        gpu=processor,
        shares_memory=True,
        gpu_limit_bytes=limit,
        raise_gpu_limit=command,
    )


def _sysctl(run: Runner, name: str) -> str:
    try:
        return run(("sysctl", "-n", name)).strip()
    except HostError:
        return ""


def _linux_processor(proc: Path) -> str:
    return _field(proc / "cpuinfo", "model name")


def _nvidia_gpu(proc: Path) -> str:
    """The first GPU that NVIDIA's driver knows."""
    files = sorted(proc.glob("driver/nvidia/gpus/*/information"))
    return _field(files[0], "Model") if files else ""


def _field(file: Path, name: str) -> str:
    with contextlib.suppress(OSError):
        for line in file.read_text("utf-8", "replace").splitlines():
            key, _, value = line.partition(":")
            if key.strip() == name:
                return value.strip()
    return ""
