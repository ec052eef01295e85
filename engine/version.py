"""Which version of Baton this is."""

from __future__ import annotations


def baton_version() -> str:
    # a fifth of the time that a courier takes to start
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("baton")
    except PackageNotFoundError:
        return "(not installed)"
