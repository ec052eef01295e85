"""`python -m engine`: the command line of Baton without its window."""

from __future__ import annotations

import sys

from engine.cli.main import main

__all__ = ["main"]

if __name__ == "__main__":
    sys.exit(main())
