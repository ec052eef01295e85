"""What this computer's processor is and can do, and what a build of llama.cpp that makes use of it would report."""

from __future__ import annotations

import os
import platform
import subprocess

# Linux's name of a processor feature -> llama.cpp's name for having been built for it.
_FEATURES = {
    "avx": "AVX",
    "avx2": "AVX2",
    "f16c": "F16C",
    "fma": "FMA",
    "bmi2": "BMI2",
    "avx_vnni": "AVX_VNNI",
    "avx512f": "AVX512",
    "avx512vbmi": "AVX512_VBMI",
    "avx512_vnni": "AVX512_VNNI",
    "avx512_bf16": "AVX512_BF16",
    "amx_int8": "AMX_INT8",
    "asimddp": "DOTPROD",
    "i8mm": "MATMUL_INT8",
    "sve": "SVE",
}

# macOS's name of an ARM feature -> Linux's.
_MACOS_FEATURES = {"hw.optional.arm.FEAT_DotProd": "asimddp", "hw.optional.arm.FEAT_I8MM": "i8mm"}


def n_cores() -> int:
    """Processors that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def load_average() -> float | None:
    """How many programs wanted a processor in the last minute, on average; None where the system does not say."""
    try:
        return os.getloadavg()[0]
    except (AttributeError, OSError):
        return None


def processor_name() -> str:
    if platform.system() == "Linux":
        name = _cpuinfo("model name")
        if name:
            return name
    if platform.system() == "Darwin":
        return _sysctl("machdep.cpu.brand_string") or platform.machine()
    return platform.processor() or platform.machine()


def expected_features() -> frozenset[str]:
    """What a build of llama.cpp for this processor has, in its own words; empty where that cannot be known."""
    return frozenset(_FEATURES[flag] for flag in _flags() if flag in _FEATURES)


def _flags() -> frozenset[str]:
    if platform.system() == "Linux":
        return frozenset((_cpuinfo("flags") or _cpuinfo("Features")).split())
    if platform.system() == "Darwin" and platform.machine() == "arm64":
        return frozenset(flag for name, flag in _MACOS_FEATURES.items() if _sysctl(name) == "1")
    return frozenset()


def _cpuinfo(field: str) -> str:
    """The first processor's `field`, or nothing."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as lines:
            for line in lines:
                name, _, value = line.partition(":")
                if name.strip() == field:
                    return value.strip()
    except OSError:
        pass
    return ""


def _sysctl(name: str) -> str:
    try:
        return subprocess.run(
            ["sysctl", "-n", name], capture_output=True, text=True, timeout=5, check=True
        ).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""
