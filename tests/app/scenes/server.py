"""The page Server: as it is at first, with requests, with other computers let in, its log, and without a node."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

from PySide6.QtWidgets import QDialog

from app.pages.server.page import ServerPage
from app.widgets.feedback import Question
from tests.app.screenshots import NOW_S, Stage
from tests.app.staged_node import ENDPOINT, MODEL, SMALL, settings
from tests.app.windows import button, click, texts, wait


def play(stage: Stage) -> None:
    app = stage.app
    page = app.page("server")
    assert isinstance(page, ServerPage)
    stage.shot("server-first")

    app.staged.streams["/requests"] = [("all", {"requests": REQUESTS})]
    app.staged.streams["/logs"] = [("all", {"lines": lines(400)})]
    page.requests._listen()
    wait(lambda: len(page.requests.cells()) == len(REQUESTS))
    stage.shot("server-busy")

    page.show_activity("log")
    wait(lambda: page.log.text)
    stage.shot("server-log")
    page.log._search.setText("nothing has this")
    stage.shot("server-log-nothing")
    page.log._search.clear()
    page.show_activity("requests")

    page.others._switch.setChecked(True)
    with patch.object(Question, "exec", lambda question: question.open() or False):
        page.others._ask()
    (question,) = [each for each in app.window.findChildren(QDialog) if each.isVisible()]
    stage.shot("server-let-in", question)
    question.reject()

    key = {"api_key": {"is_set": True}}
    app.staged.answers["PATCH", "/settings"] = {}
    with patch("app.pages.server.endpoint.new_key", lambda: "x7Hq2mVw9LrTbYc4ZnKpJd8sGfAe1uQoW3iRkMvUtNy"):
        click(button(page.endpoint, "Make a key"))
        wait(lambda: "shown this once" in texts(page.endpoint))
    app.tell(settings=settings(app.folder, **key))
    stage.shot("server-new-key")
    click(button(page.endpoint, "I have it"))
    wanted = settings(app.folder, host={"value": "0.0.0.0"}, **key)
    app.tell(settings=wanted)
    stage.shot("server-restart")
    app.tell(
        settings=wanted, node={**app.parts["node"], "endpoint": ENDPOINT.replace("127.0.0.1", "0.0.0.0")}
    )
    stage.shot("server-open")
    app.tell()
    app.lose_node()
    stage.shot("server-gone")


def request(number: int, stage: str, status: int | None, **more: Any) -> dict[str, Any]:
    return {
        "number": number,
        "at": NOW_S - 400 + number * 9,
        "path": "/v1/chat/completions",
        "model": MODEL,
        "stage": stage,
        "status": status,
        **more,
    }


REQUESTS = [
    request(1, "failed", 503, duration_s=3.0, reason="the model is being loaded"),
    request(
        2,
        "done",
        200,
        n_prompt=12_310,
        n_cached=0,
        n_decoded=412,
        duration_s=18.4,
        prefill="remote",
    ),
    request(
        3,
        "done",
        200,
        n_prompt=12_824,
        n_cached=12_722,
        n_decoded=96,
        duration_s=4.2,
        prefill="local",
    ),
    request(
        4,
        "done",
        200,
        n_prompt=61,
        n_cached=60,
        n_decoded=24,
        duration_s=0.94,
        prefill="local",
    ),
    request(5, "failed", 400, duration_s=0.004),
    request(6, "done", 200, path="/v1/models", model="", duration_s=0.002),
    request(
        7,
        "left",
        200,
        model=SMALL,
        n_prompt=212,
        n_cached=0,
        n_decoded=31,
        duration_s=0.61,
        prefill="local",
    ),
    request(
        8,
        "done",
        200,
        path="/v1/completions",
        n_prompt=28_800,
        n_cached=11_904,
        n_decoded=300,
        duration_s=22.7,
        prefill="remote",
    ),
    request(9, "running", None, n_prompt=4_090, n_cached=0, n_decoded=57, prefill="remote"),
]


def lines(n: int) -> list[dict[str, Any]]:
    said = (
        ("info", "node", "engine.node.front: spark decodes and is away, so that this computer answers"),
        ("info", f"serve-{MODEL}", "engine.batching.loop: prefilled 512 tokens in 210 ms"),
        ("warning", f"serve-{MODEL}", "engine.handoff.link: the worker answered late, by 1.2 s"),
        ("error", "node", f"engine.node.supervisor: {MODEL} ended: it ran out of memory"),
    )
    return [
        {"at": NOW_S - n + number, "level": level, "source": source, "text": text}
        for number in range(n)
        for level, source, text in [said[(number * 7) % 11 % 4]]
    ]
