"""A node's discovery alone, as a process that tests start in a network namespace.

Writes its snapshot as a line of JSON after each change; takes `name TEXT`, `pair PORT` and `manual ADDRESS` on standard
input, and ends with it.
"""

from __future__ import annotations

import asyncio
import json
import sys

from engine.node.finding.discovery import Discovery


async def main(node_id: str, name: str) -> None:
    discovery = Discovery(
        node_id=node_id,
        name=name,
        version="0.1.0",
        on_change=lambda: print(json.dumps(discovery.snapshot()), flush=True),
    )
    await discovery.start()
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), sys.stdin
    )
    while line := (await reader.readline()).decode().strip():
        word, _, text = line.partition(" ")
        if word == "name":
            await discovery.set_name(text)
        elif word == "pair":
            await discovery.set_pairing_port(int(text))
        elif word == "manual":
            discovery.add_manual(text)
    await discovery.close()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2]))
