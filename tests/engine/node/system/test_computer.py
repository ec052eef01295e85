"""What a computer is made of, by samples of what its system says."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest

from engine.errors import HostError
from engine.node.system import computer
from engine.node.system.computer import Computer, read_computer

GIB = 1 << 30


def mac(monkeypatch: pytest.MonkeyPatch, *, memory_gib: int, **said: str) -> Computer:
    """A Mac whose sysctl says that, and knows no other name."""

    def run(words: Sequence[str]) -> str:
        if words[2] not in said:
            raise HostError("unknown oid")
        return f"{said[words[2]]}\n"

    memory = SimpleNamespace(total=memory_gib * GIB)
    monkeypatch.setattr(computer.psutil, "virtual_memory", lambda: memory)
    return read_computer(run, system="darwin")


def apple(limit: str) -> dict[str, str]:
    return {"machdep.cpu.brand_string": "Apple M2 Ultra", "iogpu.wired_limit_mb": limit}


def test_a_mac_says_what_its_gpu_may_have(monkeypatch: pytest.MonkeyPatch) -> None:
    found = mac(monkeypatch, memory_gib=192, **apple("0"))
    assert (found.processor, found.gpu, found.shares_memory) == ("Apple M2 Ultra", "Apple M2 Ultra", True)
    assert found.gpu_limit_bytes == 144 * GIB
    assert found.raise_gpu_limit == f"sudo sysctl iogpu.wired_limit_mb={168 * 1024}"


def test_a_limit_that_is_raised_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    found = mac(monkeypatch, memory_gib=192, **apple(str(180 * 1024)))
    assert found.gpu_limit_bytes == 180 * GIB and found.raise_gpu_limit == ""


def test_a_small_mac_keeps_what_it_needs_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    found = mac(monkeypatch, memory_gib=16, **apple("0"))
    assert found.gpu_limit_bytes is not None and found.gpu_limit_bytes < 11 * GIB
    assert found.raise_gpu_limit == ""


def test_a_mac_without_a_gpu_of_apples(monkeypatch: pytest.MonkeyPatch) -> None:
    found = mac(monkeypatch, memory_gib=32, **{"machdep.cpu.brand_string": "Intel(R) Core(TM) i7"})
    assert (found.gpu, found.gpu_limit_bytes, found.raise_gpu_limit) == ("", None, "")


def test_linux_names_its_processor_and_nvidias_gpu(tmp_path: Path) -> None:
    (tmp_path / "cpuinfo").write_text("processor\t: 0\nmodel name\t: AMD EPYC\nflags\t\t: fpu\n")
    alone = read_computer(system="linux", proc=tmp_path)
    assert (alone.processor, alone.gpu, alone.shares_memory) == ("AMD EPYC", "", False)
    gpu = tmp_path / "driver/nvidia/gpus/0000:01:00.0"
    gpu.mkdir(parents=True)
    (gpu / "information").write_text("Model: \t\t NVIDIA GB10\nIRQ:   \t\t 24\n")
    assert read_computer(system="linux", proc=tmp_path).gpu == "NVIDIA GB10"


def test_what_the_system_does_not_say_is_the_machines_kind(tmp_path: Path) -> None:
    found = read_computer(system="linux", proc=tmp_path)
    assert found.processor and found.gpu == "" and found.memory_bytes > 0 and found.n_cores > 0
