"""The page Server: as it is at first, with requests, with other computers let in, its log, and without a node."""

from __future__ import annotations

from typing import Any

from app.pages.server.page import ServerPage
from app.state import NodePresence
from tests.app.screenshots import Stage
from tests.app.windows import button, click, wait

MODEL = "smollm2-135m"


def play(stage: Stage) -> None:
    app = stage.app
    page = app.page("server")
    assert isinstance(page, ServerPage)
    stage.shot("server-first")

    ask(stage, "What is a handoff?", max_tokens=24)
    ask(stage, "And what is a cache?", max_tokens=24)
    ask(stage, "Say more.", max_tokens="many")
    wait(
        lambda: (
            len(page.requests.cells()) >= 3 and all("answered" not in row[7] for row in page.requests.cells())
        )
    )
    stage.shot("server-busy")

    page.show_activity("log")
    wait(lambda: page.log.text)
    page.log.book.add(lines(400))
    page.log._fill()
    stage.shot("server-log")
    page.log._search.setText("nothing has this")
    stage.shot("server-log-nothing")
    page.log._search.clear()

    click(button(page.endpoint, "Make a key"))
    wait(lambda: page.endpoint.exposure.has_key)
    stage.shot("server-new-key")
    click(button(page.endpoint, "I have it"))
    page.show_activity("requests")
    app.bridge.run(app.client.patch("/settings", {"host": "0.0.0.0"}))
    wait(lambda: page.endpoint.exposure.waits)
    stage.shot("server-restart")
    click(button(page.others, "Restart Baton's node"))
    wait(lambda: page.endpoint.exposure.is_open and app.state.presence is NodePresence.THERE)
    stage.shot("server-open")
    app.bridge.run(app.client.patch("/settings", {"host": None, "api_key": None}))
    wait(lambda: page.endpoint.exposure.waits)
    click(button(page.others, "Restart Baton's node"))
    wait(lambda: not page.endpoint.exposure.is_open and app.state.presence is NodePresence.THERE)

    app.node.end()
    wait(lambda: app.state.presence is NodePresence.GONE)
    stage.shot("server-gone")
    app.node.start()
    wait(lambda: app.state.presence is NodePresence.THERE)


def ask(stage: Stage, text: str, **more: Any) -> None:
    """As a program does, which waits while the model is loaded."""
    over: list[object] = []
    body = {"model": MODEL, "messages": [{"role": "user", "content": text}], **more}
    while not over or getattr(over[-1], "status", 200) == 503:
        over.clear()
        stage.app.bridge.run(
            stage.app.client.endpoint_post("/v1/chat/completions", body), over.append, over.append
        )
        wait(lambda: over)


def lines(n: int) -> list[dict[str, Any]]:
    texts = (
        ("info", "node", "engine.node.front: spark decodes and is away, so that this computer answers"),
        ("info", "serve-smollm2-135m", "engine.batching.loop: prefilled 512 tokens in 210 ms"),
        ("warning", "serve-smollm2-135m", "engine.handoff.link: the worker answered late, by 1.2 s"),
        ("error", "node", "engine.node.supervisor: smollm2-135m ended: it ran out of memory"),
    )
    return [
        {"at": 1.7e9 + number, "level": level, "source": source, "text": text}
        for number in range(n)
        for level, source, text in [texts[(number * 7) % 11 % 4]]
    ]
