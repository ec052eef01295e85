"""The program `baton`: a sub-command goes to the engine, without one the window opens.

The sub-command is looked at before anything of a window is imported: every process of Baton is started through here in
a bundle, and most of them have no window. What the window needs to know of this computer it is given from here, so that
it imports nothing of the engine.
"""

from __future__ import annotations

import gc
import sys


def main() -> int:
    try:
        from engine.__main__ import main as engine_main
    except KeyboardInterrupt:
        return 130  # 128 + SIGINT; the engine's own way in takes care of it from here on

    if len(sys.argv) > 1:
        return engine_main()
    try:
        import PySide6  # noqa: F401
    except ImportError:
        print(
            "Baton's window is not installed here: `pip install 'baton[app]'` installs it. Without it there is the "
            "command line:\n"
        )
        return engine_main(["--help"])
    return _open_window()


def _open_window() -> int:
    # What a start makes is no garbage, and to look through it takes a tenth of the time; it is on again with the first
    # page (`window.py: go`).
    gc.disable()
    from app.main import Host, run
    from app.node.client import Address
    from engine.paths import config_dir, data_dir, own_command

    def find() -> Address | None:
        # First wanted off the window's thread, when the window is there.
        from engine.node.presence import NoNode, find_node

        try:
            note = find_node()
        except NoNode:
            return None
        return Address(pid=note.pid, port=note.port, token=note.token, endpoint=note.endpoint)

    return run(Host(find=find, command=tuple(own_command()), config=config_dir(), data=data_dir()))


if __name__ == "__main__":
    sys.exit(main())
