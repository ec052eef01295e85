"""What devices say of their memory, with torch's answers played."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from engine.device import DeviceMemory, device_of


def test_a_processor_has_the_computer_s_memory() -> None:
    assert device_of("cpu").memory() is None
    assert device_of("cpu").available_bytes() > 0


@pytest.mark.parametrize("is_host", [False, True])
def test_cuda_s(monkeypatch: pytest.MonkeyPatch, is_host: bool) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (3, 8))
    monkeypatch.setattr(
        torch.cuda, "get_device_properties", lambda device: SimpleNamespace(is_integrated=int(is_host))
    )
    assert device_of("cuda").memory() == DeviceMemory(total_bytes=8, free_bytes=3, is_host=is_host)
    assert device_of("cuda").available_bytes() == 3


@pytest.mark.parametrize(("allocated", "free"), [(5, 7), (13, 0)])
def test_metal_s(monkeypatch: pytest.MonkeyPatch, allocated: int, free: int) -> None:
    monkeypatch.setattr(torch.mps, "recommended_max_memory", lambda: 12)
    monkeypatch.setattr(torch.mps, "driver_allocated_memory", lambda: allocated)
    assert device_of("mps").memory() == DeviceMemory(total_bytes=12, free_bytes=free, is_host=True)
