"""Which version of Baton this is."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version


def baton_version() -> str:
    try:
        return version("baton")
    except PackageNotFoundError:
        return "(not installed)"
