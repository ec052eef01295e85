"""What the kernel tests share: they are about this computer's compiled kernels, where it can have them."""

from __future__ import annotations

import pytest

from engine.kernels import jit


@pytest.fixture
def needs_jit() -> None:
    if not jit.available():
        pytest.skip("kernels cannot be compiled here")
