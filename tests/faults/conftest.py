"""One pair of engines for all tests of this folder; each test finds it joined, whatever the one before did to it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.engines import Engines


@pytest.fixture(scope="session")
def _started(smollm2_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engines]:
    if sys.platform != "linux":
        pytest.skip("looks for couriers in /proc")
    engines = Engines(smollm2_path, tmp_path_factory.mktemp("faults"))
    try:
        yield engines
    finally:
        engines.close()


@pytest.fixture
def engines(_started: Engines) -> Engines:
    _started.goes_on()
    return _started
