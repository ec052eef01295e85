"""Fixtures that every test may use: the catalogue's model files, where this computer has them.

They are looked for in the folder `$BATON_MODELS`, then in the user's cache. Nothing is downloaded here: `make test`
fetches the starter model first, and `baton models get NAME` fetches the others.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.paths import cache_dir
from engine.waiting import limit_spinning
from tests.warm import WarmProcesses, WarmStarts

# Before torch is imported, as every command does.
limit_spinning()

# What is imported and collected stays to the end: it is no garbage, and looking through it takes seconds.
gc.disable()

# No test may write into the user's keyring, nor wait for it to be unlocked; children inherit this.
os.environ["PYTHON_KEYRING_BACKEND"] = "keyring.backends.fail.Keyring"

# Names as in resources/models.toml; read from there they would hide a broken catalogue behind skipped tests.
SMOLLM2_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
QWEN_FILE = "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf"
GEMMA_FILE = "gemma-3-270m-q4_k_m.gguf"

_LONG = Path(__file__).parent / "faults"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest files come first: where they come last, one of two processes waits for the other."""
    items.sort(key=lambda item: not item.path.is_relative_to(_LONG))


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


@pytest.fixture(scope="session", autouse=True)
def warm_starts() -> Iterator[WarmStarts | None]:
    """Where processes of Baton come from while tests run."""
    if sys.platform != "linux":
        yield None
        return
    warm = WarmProcesses()
    starts = WarmStarts(warm.line_to)
    starts.install()
    yield starts
    starts.remove()
    warm.close()


@pytest.fixture
def cold_starts(warm_starts: WarmStarts | None) -> Iterator[None]:
    """Processes of Baton's import all they need themselves, for a test of how they begin."""
    if warm_starts is None:
        yield
        return
    warm_starts.remove()
    yield
    warm_starts.install()


def find_model(file_name: str) -> Path | None:
    """The file of that name in `$BATON_MODELS` or the user's cache, or None."""
    folders = [cache_dir() / "models"]
    if given := os.environ.get("BATON_MODELS"):
        folders.insert(0, Path(given))
    return next((folder / file_name for folder in folders if (folder / file_name).is_file()), None)


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    """SmolLM2-135M-Instruct, Q4_1: the one file that must be there."""
    path = find_model(SMOLLM2_FILE)
    if path is None:
        pytest.fail(f"{SMOLLM2_FILE} is missing: run `baton models get smollm2-135m`")
    return path


@pytest.fixture(scope="session")
def qwen_path() -> Path:
    """Qwen2.5-Coder-0.5B-Instruct, Q4_K_M; skips where it is missing."""
    return _found_or_skip(QWEN_FILE, "qwen2.5-coder-0.5b")


@pytest.fixture(scope="session")
def gemma_path() -> Path:
    """Gemma 3 270M (not instruction-tuned), Q4_K_M; skips where it is missing."""
    return _found_or_skip(GEMMA_FILE, "gemma3-270m")


def _found_or_skip(file_name: str, name: str) -> Path:
    path = find_model(file_name)
    if path is None:
        pytest.skip(f"{file_name} is missing: run `baton models get {name}`")
    return path
