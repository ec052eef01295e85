"""What the kernel tests share: they are about this computer's compiled kernels, where it can have them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from engine.kernels import jit


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """Small operands gain nothing from threads; tests that are about threads set their number themselves."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def needs_jit() -> None:
    if not jit.available():
        pytest.skip("kernels cannot be compiled here")
