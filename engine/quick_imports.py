"""What makes the imports of an engine sooner: they are most of the time from a crash to the next answer.

Of 3.7 s of processor on a slow computer, about 1.0 go into what torch registers for tensors that have a shape and no
values, which only its compilers ask for, and 0.4 into Python's search for garbage among what is being imported.
"""

from __future__ import annotations

import contextlib
import gc
import importlib.metadata
import sys
from collections.abc import Iterator
from types import ModuleType

_PACKAGE = "torch"
_FOR_SHAPES_ALONE = "_meta_registrations"

# Versions of torch that were seen to import and to compute without it. Others import everything.
_SEEN = ("2.13.",)


@contextlib.contextmanager
def quick_imports() -> Iterator[None]:
    """Import an engine's modules inside. What was left out is imported by whoever asks for it afterwards."""
    with _no_search_for_garbage(), _left_out() if _may_leave_out() else contextlib.nullcontext():
        yield


@contextlib.contextmanager
def _no_search_for_garbage() -> Iterator[None]:
    """What was imported by the end stays to the end of the process, and is not looked through any more either."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if was_on:
            gc.enable()


def _may_leave_out() -> bool:
    if _PACKAGE in sys.modules:
        return False
    try:
        return importlib.metadata.version(_PACKAGE).startswith(_SEEN)
    except importlib.metadata.PackageNotFoundError:
        return False


@contextlib.contextmanager
def _left_out() -> Iterator[None]:
    name = f"{_PACKAGE}.{_FOR_SHAPES_ALONE}"
    sys.modules[name] = ModuleType(name, "left out by Baton")
    try:
        yield
    finally:
        del sys.modules[name]
        if (package := sys.modules.get(_PACKAGE)) is not None:
            vars(package).pop(_FOR_SHAPES_ALONE, None)
