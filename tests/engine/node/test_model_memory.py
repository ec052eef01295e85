"""What models may have of a device's memory: measured, told by engines, and never more than there is."""

from __future__ import annotations

from engine.node.engines import Memory
from engine.node.model_memory import ModelMemory

GB = 1_000_000_000
HOST = Memory(total_bytes=64 * GB, available_bytes=20 * GB)


def test_without_a_device_it_is_the_computer_s_own() -> None:
    assert ModelMemory(lambda: HOST).memory(measured_bytes=0, held_bytes=5 * GB) == HOST


def test_what_was_measured_counts_until_an_engine_tells() -> None:
    device = ModelMemory(lambda: HOST)
    assert device.memory(measured_bytes=24 * GB, held_bytes=4 * GB) == Memory(
        total_bytes=24 * GB, available_bytes=20 * GB
    )
    device.hear({"total_bytes": 24 * GB, "free_bytes": 15 * GB, "is_host": False}, held_bytes=4 * GB)
    told = device.memory(measured_bytes=24 * GB, held_bytes=4 * GB)
    assert told == Memory(total_bytes=24 * GB, available_bytes=15 * GB)


def test_what_other_programs_hold_stays_held_when_an_engine_goes() -> None:
    device = ModelMemory(lambda: HOST)
    device.hear({"total_bytes": 24 * GB, "free_bytes": 11 * GB, "is_host": False}, held_bytes=8 * GB)
    assert device.memory(measured_bytes=0, held_bytes=0).available_bytes == 19 * GB
    assert device.memory(measured_bytes=0, held_bytes=30 * GB).available_bytes == 0


def test_an_engine_that_takes_less_than_was_thought_makes_no_memory() -> None:
    device = ModelMemory(lambda: HOST)
    device.hear({"total_bytes": 24 * GB, "free_bytes": 20 * GB, "is_host": False}, held_bytes=8 * GB)
    assert device.memory(measured_bytes=0, held_bytes=0).available_bytes == 24 * GB


def test_memory_that_is_the_computer_s_too_is_no_more_than_that_has_free() -> None:
    device = ModelMemory(lambda: HOST)
    device.hear({"total_bytes": 48 * GB, "free_bytes": 40 * GB, "is_host": True}, held_bytes=8 * GB)
    assert device.memory(measured_bytes=0, held_bytes=8 * GB) == Memory(
        total_bytes=48 * GB, available_bytes=20 * GB
    )
