"""`baton link probe`: by the node where one runs, of this computer alone where none does."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from engine.cli.link_probe import describe
from engine.cli.main import main
from engine.link.findings import findings
from engine.link.report import Report
from engine.node.client import NodeClient
from engine.node.presence import NoNode
from tests.engine.link.reports import report

SOUND = report()
BROKEN = report(to_peer={"path_mtu": 8000}, limits_here={"receive_granted": 2 << 20})


def with_findings(found: Report) -> Report:
    return msgspec.structs.replace(found, findings=findings(found))


class FakeNode:
    def __init__(self, found: Report) -> None:
        self._found = with_findings(found)

    def watch(self, path: str) -> Iterator[dict[str, Any]]:
        assert path == "/link/probe"
        yield {"part": "path MTU"}
        yield {"report": msgspec.to_builtins(self._found)}


def let_run(monkeypatch: pytest.MonkeyPatch, found: Report | None) -> None:
    def find() -> FakeNode:
        if found is None:
            raise NoNode("no node runs")
        return FakeNode(found)

    monkeypatch.setattr(NodeClient, "find", find)


def test_without_a_node_this_computer_is_looked_at(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    let_run(monkeypatch, None)
    main(["link", "probe", "--json"])
    said = json.loads(capsys.readouterr().out)
    assert "baton node" in said["missing"] and said["peer"] is None
    assert any(each["name"].startswith("lo") for each in said["here"]["network"]["interfaces"])


def test_a_sound_link(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    let_run(monkeypatch, SOUND)
    assert main(["link", "probe"]) == 0
    said = capsys.readouterr()
    assert "path MTU ..." in said.err
    assert "nothing slows this link down" in said.out
    assert "9.80 Gbit/s on one connection, 9.90 on two; packets of 9000 bytes" in said.out
    assert "eth1" in said.out and "10.71.17.1/24" in said.out


def test_what_is_broken_is_said_first_and_by_the_exit_status(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    let_run(monkeypatch, BROKEN)
    assert main(["link", "probe"]) == 1
    said = capsys.readouterr().out
    assert 0 < said.index("BROKEN: to studio") < said.index("slow: connections of this computer")
    assert "  fix  " in said and "baton link tune --dry-run" in said
    assert main(["link", "probe", "--json"]) == 1
    told = capsys.readouterr()
    assert json.loads(told.out)["findings"][0]["code"] == "mtu_black_hole" and told.err == ""


def test_what_could_not_be_measured_is_said() -> None:
    half = msgspec.structs.replace(report(path=None), missing="a firewall keeps the ports shut")
    said = describe(with_findings(half))
    assert said.endswith("a firewall keeps the ports shut") and "nothing slows" not in said
