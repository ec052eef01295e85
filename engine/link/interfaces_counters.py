"""Error counters of every interface, where the tools that list interfaces have none."""

from __future__ import annotations

from collections.abc import Mapping

from engine.link.interfaces import Counters


def read_counters() -> Mapping[str, Counters]:
    import psutil

    return {
        name: Counters(
            receive_errors=found.errin,
            send_errors=found.errout,
            receive_dropped=found.dropin,
            send_dropped=found.dropout,
        )
        for name, found in psutil.net_io_counters(pernic=True).items()
    }
