"""An engine's imports leave out what nothing here asks for, and whoever asks for it later finds it."""

from __future__ import annotations

import gc
import importlib
import importlib.metadata
import subprocess
import sys
from pathlib import Path

import pytest

from engine import quick_imports

# As torch does, at the end of its own import.
PACKAGE = "from {name} import _meta_registrations"
LEFT_OUT = "IS_REAL = True"


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A package in the place of torch, of a version that was seen to do without."""
    name = "stand_in_for_torch"
    folder = tmp_path / name
    folder.mkdir()
    (folder / "__init__.py").write_text(PACKAGE.format(name=name))
    (folder / "_meta_registrations.py").write_text(LEFT_OUT)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(quick_imports, "_PACKAGE", name)
    monkeypatch.setattr(importlib.metadata, "version", lambda _: f"{quick_imports._SEEN[0]}9")
    for module in (name, f"{name}._meta_registrations"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    return name


def test_what_was_left_out_is_there_for_who_asks_later(package: str) -> None:
    with quick_imports.quick_imports():
        module = importlib.import_module(package)
        assert not hasattr(module._meta_registrations, "IS_REAL")
    assert not hasattr(module, "_meta_registrations")
    assert importlib.import_module(f"{package}._meta_registrations").IS_REAL


def test_of_other_versions_everything_is_imported(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.metadata, "version", lambda _: "1.0")
    with quick_imports.quick_imports():
        module = importlib.import_module(package)
    assert module._meta_registrations.IS_REAL


def test_a_package_that_is_imported_already_is_let_be(package: str) -> None:
    module = importlib.import_module(package)
    with quick_imports.quick_imports():
        assert importlib.import_module(f"{package}._meta_registrations").IS_REAL
    assert module._meta_registrations.IS_REAL


def test_garbage_is_searched_for_again_afterwards() -> None:
    with quick_imports.quick_imports():
        assert not gc.isenabled()
    assert gc.isenabled()
    gc.unfreeze()


def test_the_torch_that_is_here_computes_without_it() -> None:
    program = """
import sys
from engine.quick_imports import quick_imports
with quick_imports():
    import torch
assert "torch._meta_registrations" not in sys.modules
x = torch.ones(1, 2, 3, 4)
assert torch.equal(torch.nn.functional.scaled_dot_product_attention(x, x, x), x)
import torch._meta_registrations
assert (torch.empty(2, 3, device="meta") @ torch.empty(3, 5, device="meta")).shape == (2, 5)
"""
    assert subprocess.run([sys.executable, "-c", program], timeout=120).returncode == 0
