"""`baton models`: what there is here and on paired computers, and how it comes and goes."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from engine.cli import main as cli
from engine.cli import models
from engine.errors import PeerRefused
from engine.gguf.digest import model_digest
from engine.node.models.library import partial_path
from engine.node.presence import NoNode
from tests.conftest import SMOLLM2_FILE
from tests.engine.node.models.models_at_hand import write_model


class FakeNode:
    """What a running node would answer."""

    def __init__(self, peers: list[dict[str, Any]], steps: list[Any]) -> None:
        self.peers = peers
        self.steps = steps
        self.asked: list[Any] = []

    def get(self, path: str) -> Any:
        assert path == "/models"
        return {"here": {}, "peers": self.peers}

    def watch(self, path: str, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
        self.asked.append((path, body))
        for step in self.steps:
            if isinstance(step, BaseException):
                raise step
            yield step

    def delete(self, path: str) -> dict[str, Any]:
        self.asked.append(path)
        return {}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty models folder, and no node."""
    monkeypatch.setenv("BATON_MODELS", str(tmp_path / "models"))
    for kind in ("CACHE", "CONFIG", "DATA"):
        monkeypatch.setenv(f"XDG_{kind}_HOME", str(tmp_path / kind.lower()))
    (tmp_path / "models").mkdir()
    have_node(monkeypatch, None)
    return tmp_path / "models"


def have_node(monkeypatch: pytest.MonkeyPatch, node: FakeNode | None) -> None:
    def find() -> FakeNode:
        if node is None:
            raise NoNode("no node runs on this computer")
        return node

    monkeypatch.setattr(models.NodeClient, "find", staticmethod(find))


def told(model_id: str, **fields: Any) -> dict[str, Any]:
    return {
        "id": model_id,
        "files": [f"{model_id}.gguf"],
        "path": f"/there/{model_id}.gguf",
        "size_bytes": 7_000_000,
        "is_link": False,
        "problem": "",
        "title": "Some Model",
        "architecture": "llama",
        "n_params": 1,
        "n_ctx_train": 1,
        "digest": None,
        **fields,
    }


def peer(*models_there: dict[str, Any]) -> dict[str, Any]:
    return {"node_id": "a" * 32, "name": "studio", "models": list(models_there), "problem": ""}


def listed(capsys: pytest.CaptureFixture[str]) -> dict[str, dict[str, Any]]:
    assert cli.main(["models", "list", "--json"]) == 0
    return {row["name"]: row for row in json.loads(capsys.readouterr().out)}


def test_the_list_has_the_catalogue_and_all_that_is_here(folder: Path, capsys) -> None:
    write_model(folder / "mine.gguf", name="My Model")
    write_model(folder / "odd.gguf", architecture="rwkv7")
    rows = listed(capsys)
    assert not rows["smollm2-135m"]["here"] and rows["mine"]["here"] and rows["mine"]["title"] == "My Model"
    assert "'rwkv7' is not known" in rows["odd"]["problem"]
    assert cli.main(["models", "list"]) == 0
    lines = {line.split()[0]: line for line in capsys.readouterr().out.splitlines()}
    assert lines["NAME"].split() == ["NAME", "SIZE", "HERE", "ABOUT"]
    assert " yes " in lines["mine"] and "My Model, llama" in lines["mine"] and " no " in lines["smollm2-135m"]
    assert "cannot be run: the architecture 'rwkv7'" in lines["odd"]


def test_both_computers_are_side_by_side(folder: Path, capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    write_model(folder / "mine.gguf")
    have_node(monkeypatch, FakeNode([peer(told("theirs"), told("smollm2-135m"), told("mine"))], []))
    rows = listed(capsys)
    assert rows["mine"]["on"] == ["studio"] == rows["smollm2-135m"]["on"] == rows["theirs"]["on"]
    assert rows["mine"]["here"] and not rows["theirs"]["here"]
    cli.main(["models", "list"])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["NAME", "SIZE", "HERE", "studio", "ABOUT"]
    (theirs,) = [line.split() for line in lines if line.startswith("theirs")]
    assert theirs[:5] == ["theirs", "7", "MB", "no", "yes"]


def test_models_are_the_same_by_content_and_not_by_name(
    folder: Path, capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_model(folder / "mine.gguf")
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    model_digest([path], cache_dir=models.cache_dir() / "digests")
    have_node(
        monkeypatch, FakeNode([peer(told("renamed", digest=digest), told("mine", digest="0" * 64))], [])
    )
    rows = listed(capsys)
    assert rows["mine"]["on"] == ["studio"] and "renamed" not in rows
    assert rows["mine (00000000)"]["on"] == ["studio"] and not rows["mine (00000000)"]["here"]


def test_a_file_is_imported_by_a_link_or_a_copy(folder: Path, tmp_path: Path, capsys) -> None:
    source = write_model(tmp_path / "mine.gguf")
    assert cli.main(["models", "import", str(source)]) == 0
    assert capsys.readouterr().out == f"mine: a link to {source}\n"
    assert cli.main(["models", "rm", "mine", "--yes"]) == 0
    assert cli.main(["models", "import", str(source), "--copy", "--json"]) == 0
    assert json.loads(capsys.readouterr().out.partition("\n")[2])["is_link"] is False
    assert (folder / "mine.gguf").read_bytes() == source.read_bytes()


def test_an_imported_model_is_found_by_its_name(folder: Path, tmp_path: Path, capsys) -> None:
    cli.main(["models", "import", str(write_model(tmp_path / "mine.gguf"))])
    assert cli.main(["models", "inspect", "mine"]) == 0
    assert "llama" in capsys.readouterr().out


def test_a_model_is_sent_and_the_node_is_asked_for_it(folder: Path, capsys, monkeypatch) -> None:
    steps = [
        {"done_bytes": 1, "total_bytes": 2, "peer": "studio", "state": "running"},
        {"done_bytes": 2, "total_bytes": 2, "peer": "studio", "state": "done"},
    ]
    node = FakeNode([], steps)
    have_node(monkeypatch, node)
    assert cli.main(["models", "send", "mine", "--to", "studio"]) == 0
    assert node.asked == [("/models/send", {"model": "mine", "to": "studio"})]
    out, err = capsys.readouterr()
    assert out == "mine is on studio\n" and "mine: 100%" in err


def test_a_model_of_the_other_computer_is_fetched(folder: Path, capsys, monkeypatch) -> None:
    node = FakeNode([], [{"id": "1", "model": "theirs", "done_bytes": 2, "total_bytes": 2, "state": "done"}])
    have_node(monkeypatch, node)
    assert cli.main(["models", "fetch", "theirs", "--from", "spark"]) == 0
    assert node.asked == [("/models/fetch", {"model": "theirs", "from": "spark"})]
    assert capsys.readouterr().out == "theirs is here\n"


def test_who_interrupts_the_command_ends_the_copy(folder: Path, capsys, monkeypatch) -> None:
    step = {"id": "1f", "done_bytes": 1, "total_bytes": 2, "peer": "studio", "state": "running"}
    node = FakeNode([], [step, KeyboardInterrupt()])
    have_node(monkeypatch, node)
    with contextlib.suppress(KeyboardInterrupt):
        cli.main(["models", "send", "mine"])
    assert node.asked[-1] == "/copies/1f"


def test_why_a_model_was_not_sent_is_said(folder: Path, capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    have_node(monkeypatch, FakeNode([], [PeerRefused("the disk there is full")]))
    assert cli.main(["models", "send", "mine"]) == 1
    assert capsys.readouterr().err == "baton: the disk there is full\n"
    have_node(monkeypatch, None)
    assert cli.main(["models", "send", "mine"]) == 2


@pytest.mark.parametrize("n_steps", [0, 1])
def test_a_copy_that_nobody_says_the_end_of_is_none(folder: Path, capsys, monkeypatch, n_steps: int) -> None:
    step = {"done_bytes": 1, "total_bytes": 2, "peer": "studio", "state": "running"}
    have_node(monkeypatch, FakeNode([], [step] * n_steps))
    assert cli.main(["models", "send", "mine"]) == 1
    assert "the node ended before mine was copied" in capsys.readouterr().err


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("answer", "is_there"), [("y\n", False), ("\n", True), ("no\n", True)])
def test_a_model_is_removed_when_that_is_wanted(
    folder: Path, capsys, monkeypatch: pytest.MonkeyPatch, answer: str, is_there: bool
) -> None:
    write_model(folder / "mine.gguf")
    monkeypatch.setattr(sys, "stdin", Terminal(answer))
    status = cli.main(["models", "rm", "mine"])
    assert (folder / "mine.gguf").exists() == is_there
    assert status == (2 if is_there else 0)
    assert "Delete mine (0 MB)? [y/N]" in capsys.readouterr().out


def test_nobody_to_ask_means_no(folder: Path, capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    write_model(folder / "mine.gguf")
    monkeypatch.setattr(sys, "stdin", io.StringIO("y\n"))
    assert cli.main(["models", "rm", "mine"]) == 2
    assert (folder / "mine.gguf").exists()
    assert "--yes" in capsys.readouterr().err


def test_where_a_node_runs_it_removes_the_model(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It knows what is loaded."""
    write_model(folder / "my model.gguf")
    node = FakeNode([], [])
    have_node(monkeypatch, node)
    assert cli.main(["models", "rm", "my model", "--yes"]) == 0
    assert node.asked == ["/models/my%20model"] and (folder / "my model.gguf").exists()


def test_a_model_of_a_running_engine_is_not_removed(
    folder: Path, capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_model(folder / SMOLLM2_FILE)
    monkeypatch.setattr(
        models, "list_running", lambda: [{"role": "serve", "model": "smollm2-135m", "pid": 12}, {}]
    )
    assert cli.main(["models", "rm", "smollm2-135m", "--yes"]) == 2
    assert "loaded by an engine: end that by ending process 12" in capsys.readouterr().err
    assert (folder / SMOLLM2_FILE).exists()


def test_what_is_left_of_a_model_is_listed_and_removed(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    left = [partial_path(folder / name, "ab" * 32) for name in ("other.gguf", SMOLLM2_FILE)]
    for number, path in enumerate(left, start=1):
        path.write_bytes(bytes(number * 1_000_000))
    assert cli.main(["models", "list", "--json"]) == 0
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
    assert (rows["other"]["unfinished_bytes"], rows["other"]["here"]) == (1_000_000, False)
    assert rows["smollm2-135m"]["unfinished_bytes"] == 2_000_000
    assert cli.main(["models", "list"]) == 0
    assert "1 MB are left of it, unfinished" in capsys.readouterr().out
    monkeypatch.setattr(sys, "stdin", Terminal("y\n"))
    assert cli.main(["models", "rm", "other"]) == 0
    assert "Delete what is left of other, which is not whole (1 MB)?" in capsys.readouterr().out
    assert [path.exists() for path in left] == [False, True]
    node = FakeNode([], [])
    have_node(monkeypatch, node)
    assert cli.main(["models", "rm", "smollm2-135m", "--yes"]) == 0
    assert node.asked == ["/models/smollm2-135m"] and left[1].exists()
