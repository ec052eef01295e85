"""The program `baton`: a sub-command goes to the engine, without one the window opens.

The sub-command is looked at before anything of a window is imported: every process of Baton is started through here in
a bundle, and most of them have no window.
"""

from __future__ import annotations

import sys


def main() -> int:
    try:
        from engine.__main__ import main as engine_main
    except KeyboardInterrupt:
        return 130  # 128 + SIGINT; the engine's own way in takes care of it from here on

    if len(sys.argv) > 1:
        return engine_main()
    print("Baton's window is not built yet; the command line is all there is today.\n")
    return engine_main(["--help"])


if __name__ == "__main__":
    sys.exit(main())
