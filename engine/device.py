"""Where a model runs: one small object says what each kind of device can do. The rest of the engine asks it.

Knows torch, and nothing of models. `cpu` is the reference; `cuda` and `mps` differ only in what stands here and in
`layers/linear.py`.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from typing import Any

import torch

from engine.errors import InvalidRequest

DEVICE_NAMES = ("auto", "cpu", "cuda", "mps")


@dataclass(frozen=True, kw_only=True)
class DeviceMemory:
    """What programs may have of a device's memory, and what is free of it. `is_host`: it is the computer's own, too."""

    total_bytes: int
    free_bytes: int
    is_host: bool


@dataclass(frozen=True, kw_only=True)
class Device:
    """One torch device and the number types that suit it.

    `gemm_dtype` is for many rows at once (prefill); `vector_dtype` for the few rows of a decode step.
    """

    torch_device: torch.device
    gemm_dtype: torch.dtype
    vector_dtype: torch.dtype

    @property
    def kind(self) -> str:
        return self.torch_device.type

    @property
    def shares_host_memory(self) -> bool:
        """Whether tensors can lie in memory that other processes map, so that a cache needs no mirror."""
        return self.kind == "cpu"

    def memory(self) -> DeviceMemory | None:
        """Of the device; None for a processor, which has the computer's."""
        if self.kind == "cuda":
            free, total = torch.cuda.mem_get_info(self.torch_device)
            is_host = bool(torch.cuda.get_device_properties(self.torch_device).is_integrated)
            return DeviceMemory(total_bytes=int(total), free_bytes=int(free), is_host=is_host)
        if self.kind == "mps":
            total = int(torch.mps.recommended_max_memory())
            free = max(0, total - int(torch.mps.driver_allocated_memory()))
            return DeviceMemory(total_bytes=total, free_bytes=free, is_host=True)
        return None

    def available_bytes(self) -> int:
        """Memory that could still be used, in bytes; an estimate."""
        memory = self.memory()
        return memory.free_bytes if memory is not None else host_available_bytes()

    def synchronize(self) -> None:
        """Wait until everything queued on the device has been done."""
        if self.kind == "cuda":
            torch.cuda.synchronize(self.torch_device)
        elif self.kind == "mps":
            torch.mps.synchronize()


def choose_device(name: str = "auto") -> Device:
    """The device called `name`; `auto` takes a GPU where there is one. Raises InvalidRequest for one that is absent."""
    if name not in DEVICE_NAMES:
        raise InvalidRequest(
            f"no device is called {name!r}: choose one of {', '.join(DEVICE_NAMES)}", param="device"
        )
    has_cuda, has_mps = torch.cuda.is_available(), torch.backends.mps.is_available()
    if name == "auto":
        name = "cuda" if has_cuda else "mps" if has_mps else "cpu"
    if name == "cuda" and not has_cuda:
        raise InvalidRequest(
            "this computer has no CUDA device that torch can use: have it compute on the processor (--device cpu)",
            param="device",
        )
    if name == "mps" and not has_mps:
        raise InvalidRequest(
            "this computer has no Metal device that torch can use: have it compute on the processor (--device cpu)",
            param="device",
        )
    return device_of(name)


def device_of(kind: str) -> Device:
    """The description of a kind of device, present or not (a fake one serves to check a model's operations)."""
    if kind == "cpu":
        # oneDNN multiplies bfloat16 with AVX-512 and its successors; elsewhere float32 is several times faster.
        gemm_dtype = torch.bfloat16 if torch.ops.mkldnn._is_mkldnn_bf16_supported() else torch.float32
        return Device(torch_device=torch.device("cpu"), gemm_dtype=gemm_dtype, vector_dtype=torch.float32)
    return Device(torch_device=torch.device(kind), gemm_dtype=torch.bfloat16, vector_dtype=torch.bfloat16)


def describe_devices() -> dict[str, Any]:
    """What torch can compute with on this computer, as plain data."""
    found: dict[str, Any] = {
        "torch": torch.__version__,
        "auto": choose_device().kind,
        "cpu": {"capability": torch.backends.cpu.get_cpu_capability(), "threads": torch.get_num_threads()},
        "mps": torch.backends.mps.is_available(),
        "cuda": [],
    }
    if torch.cuda.is_available():
        found["cuda_version"] = torch.version.cuda
        for index in range(torch.cuda.device_count()):
            properties = torch.cuda.get_device_properties(index)
            free, total = torch.cuda.mem_get_info(index)
            found["cuda"].append(
                {
                    "name": properties.name,
                    "capability": f"{properties.major}.{properties.minor}",
                    "free_bytes": free,
                    "total_bytes": total,
                }
            )
    return found


def host_available_bytes() -> int:
    """Free memory of this computer, in bytes; what can be reclaimed counts as free."""
    if sys.platform == "linux":
        with open("/proc/meminfo", encoding="ascii") as lines:
            for line in lines:
                if line.startswith("MemAvailable:"):
                    return int(line.split()[1]) * 1024
    if hasattr(os, "sysconf"):
        # macOS keeps most of its memory in caches that it gives back; half of all is a safe guess.
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
    return 8 << 30
