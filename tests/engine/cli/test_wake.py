"""`baton wake`, as it asks a node and tells what came of it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from engine.cli.main import main
from engine.node.client import NodeClient
from engine.node.presence import NoNode


@pytest.mark.parametrize("is_awake", [True, False])
def test_what_came_of_it(monkeypatch: pytest.MonkeyPatch, capsys, is_awake: bool) -> None:
    asked = []

    class Client:
        def post(self, path: str) -> dict[str, Any]:
            asked.append(path)
            return {"awake": is_awake, "note": "studio is what it is"}

    monkeypatch.setattr(NodeClient, "find", Client)
    assert main(["wake", "the studio/1"]) == (0 if is_awake else 1)
    assert capsys.readouterr().out == "studio is what it is\n"
    assert main(["wake", "the studio/1", "--json"]) == (0 if is_awake else 1)
    assert json.loads(capsys.readouterr().out)["awake"] is is_awake
    assert asked == ["/peers/the%20studio%2F1/wake"] * 2


def test_without_a_node(monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    def find() -> NodeClient:
        raise NoNode("no node runs on this computer: start one with `baton node`")

    monkeypatch.setattr(NodeClient, "find", find)
    assert main(["wake", "studio"]) == 2
    assert capsys.readouterr().err == "baton: no node runs on this computer: start one with `baton node`\n"
