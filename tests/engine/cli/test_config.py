"""`baton config` and the control API: settings of a node that runs, and of one that does not."""

from __future__ import annotations

import json
import stat
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.engine.node.nodes import TIMEOUT_S, NodeProcess, events

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="engines share no memory there")

MODEL = "smollm2-135m"
KEY = "a-key-of-some-length"


@pytest.fixture(scope="module")
def node(smollm2_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    """Started as by a service, with settings in its file: one is wrong, and one names a model that is not there."""
    folder = tmp_path_factory.mktemp("settings")
    models = folder / "models"
    models.mkdir()
    (models / smollm2_path.name).symlink_to(smollm2_path)
    process = NodeProcess(folder, "studio", models=models, by_flags=False)
    process.keep_settings(
        **{"port": 0, "node_port": 0, "ctx": 512, "slots": 1, "preload": "nowhere", "route": "sometimes"}
    )
    with process:
        yield process


def setting(node: NodeProcess, name: str) -> dict[str, Any]:
    found = node.control("/settings")
    assert found == node.state()["settings"]
    return next(one for one in found["settings"] if one["name"] == name)


def only_engine(state: dict[str, Any]) -> dict[str, Any] | None:
    return next((one for one in state["engines"] if one["state"] == "ready"), None)


def n_ctx(node: NodeProcess) -> int:
    return int(node.get(f"{node.endpoint}/slots")[0]["n_ctx"])


def test_a_node_goes_on_without_what_it_cannot_follow(node: NodeProcess) -> None:
    notes = " ".join(node.until(lambda state: state["node"]["notes"]))
    assert "route sometimes: choose one of auto, always, never" in notes
    assert "nowhere was to be loaded at the start, and was not" in " ".join(
        node.until(lambda s: s["node"]["notes"] if "nowhere" in str(s["node"]["notes"]) else None)
    )
    log = (node.folder / "node-stderr.log").read_text()
    assert "route sometimes" in log and "nowhere was to be loaded" in log


def test_values_are_shown_with_where_they_are_from(node: NodeProcess) -> None:
    assert (setting(node, "ctx")["value"], setting(node, "ctx")["source"]) == (512, "file")
    assert (setting(node, "models")["source"], setting(node, "models")["environment"]) == (
        "environment",
        "BATON_MODELS",
    )
    assert node.baton("config", "get", "ctx").strip() == "512"
    assert "Nothing waits for it" in node.baton("config", "reload")
    listed = node.baton("config", "list")
    assert "Handoff" in listed and "512  (tokens; set here)" in listed
    assert json.loads(node.baton("config", "list", "--json")) == node.control("/settings")


def test_a_wrong_value_changes_nothing(node: NodeProcess) -> None:
    before = node.control("/settings")
    answer = node.ask_control("PATCH", "/settings", {"slots": 2, "ctx": 1})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "ctx"
    assert "ctx 1: at least 16 is needed here" in answer.json()["error"]["message"]
    assert node.ask_control("PATCH", "/settings", [1]).status_code == 400
    assert node.control("/settings") == before
    assert "ctx 1: at least 16" in node.baton("config", "set", "ctx", "1", expect=2)
    assert "opens the endpoint to the network" in node.baton("config", "set", "host", "0.0.0.0", expect=2)


def test_what_needs_nothing_is_felt_at_once_and_heard(node: NodeProcess) -> None:
    note = json.loads((node.folder / "cache" / "baton" / "node" / "node.json").read_text())
    url, key = f"http://127.0.0.1:{note['port']}/events", {"Authorization": f"Bearer {note['token']}"}
    with httpx.stream("GET", url, headers=key, timeout=TIMEOUT_S) as response:
        told = events(response)
        next(told)
        assert json.loads(node.baton("config", "set", "name", "attic", "--json"))["value"] == "attic"
        names = (news["node"]["name"] for news in told if "node" in news)
        assert next(name for name in names if name == "attic")
    state = node.state()
    assert state["node"]["name"] == state["discovery"]["name"] == "attic"
    assert setting(node, "name")["waits_for"] == "nothing"
    file = node.folder / "config" / "baton" / "settings.json"
    assert json.loads(file.read_text())["name"] == "attic"
    assert json.loads(file.read_text())["route"] == "sometimes"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_a_loaded_model_waits_for_a_reload_and_then_has_the_new_value(node: NodeProcess) -> None:
    node.ask(MODEL, "A relay race is")
    assert n_ctx(node) == 512
    found = node.ask_control("PATCH", "/settings", {"ctx": 256, "kv_type": "f16", "chunk": 64}).json()
    waits = {one["name"]: one["waits_for"] for one in found["settings"]}
    assert (waits["ctx"], waits["chunk"], waits["slots"]) == ("reload", "reload", "nothing")
    assert n_ctx(node) == 512
    before = only_engine(node.state())
    assert before is not None
    body = {"model": MODEL, "prompt": "One", "max_tokens": 60, "stream": True, "ignore_eos": True}
    with httpx.stream("POST", f"{node.endpoint}/v1/completions", json=body, timeout=TIMEOUT_S) as response:
        told = events(response)
        next(told)
        assert node.ask_control("POST", "/settings/reload").json()["is_reloading"]
        n_tokens = 1 + sum(1 for event in told if event["choices"] and event["choices"][0]["text"])
    assert n_tokens > 30, "a running answer was cut"
    assert len(node.ask(MODEL, "A relay race is")["tokens"]) == 8
    after = node.until(only_engine)
    assert after["pid"] != before["pid"]
    assert n_ctx(node) == 256
    assert setting(node, "ctx")["waits_for"] == "nothing"
    node.until(lambda state: not state["settings"]["is_reloading"])
    assert node.control("/settings")["reload_fault"] == ""


def test_what_is_taken_back_is_the_default_again(node: NodeProcess) -> None:
    node.baton("config", "set", "threads", "1")
    assert setting(node, "threads")["value"] == 1
    assert node.baton("config", "unset", "threads") == ""
    assert (setting(node, "threads")["value"], setting(node, "threads")["source"]) == (None, "default")


def test_a_port_waits_for_the_next_start(node: NodeProcess) -> None:
    node.ask_control("PATCH", "/settings", {"keyring": "never"})
    assert setting(node, "keyring")["waits_for"] == "restart"
    node.ask_control("PATCH", "/settings", {"keyring": None})
    assert setting(node, "keyring")["waits_for"] == "nothing"


def test_a_key_is_wanted_from_the_moment_it_is_made_and_shown_once(node: NodeProcess) -> None:
    url = f"{node.endpoint}/v1/models"
    assert httpx.get(url).status_code == 200
    key = node.baton("config", "set", "api_key", "--new").strip()
    try:
        assert httpx.get(url).status_code == 401
        assert httpx.get(url, headers={"Authorization": f"Bearer {key}"}).status_code == 200
        assert setting(node, "api_key")["is_set"] and setting(node, "api_key")["value"] is None
        assert node.baton("config", "get", "api_key").strip() == "set"
        port = node.endpoint.rpartition(":")[2]
        assert "API key" not in node.baton("status", "--port", port), "this user's own commands need no key"
        assert key not in json.dumps(node.state())
        for file in node.folder.rglob("*"):
            if file.is_file() and file.name != "secrets.json":
                assert key.encode() not in file.read_bytes(), file
        assert node.ask_control("PATCH", "/settings", {"host": "0.0.0.0"}).status_code == 200
        assert setting(node, "host")["waits_for"] == "restart"
        assert "opens the endpoint" in node.baton("config", "unset", "api_key", expect=2)
    finally:
        node.ask_control("PATCH", "/settings", {"host": None, "api_key": None})
    assert httpx.get(url).status_code == 200


def test_without_a_node_the_file_is_changed_and_the_next_one_follows_it(tmp_path: Path) -> None:
    node = NodeProcess(tmp_path, "studio", "--port", "0", "--node-port", "0", by_flags=False)
    node.folder.mkdir()
    assert "no node runs" in node.baton("config", "reload", expect=2)
    node.baton("config", "set", "name", "attic")
    key = node.baton("config", "set", "api_key", "--new").strip()
    assert "ctx 1: at least 16" in node.baton("config", "set", "ctx", "1", expect=2)
    assert node.baton("config", "get", "name").strip() == "attic"
    with node:
        assert node.ready["name"] == "attic"
        assert httpx.get(f"{node.endpoint}/v1/models").status_code == 401
        assert httpx.get(f"{node.endpoint}/v1/models", headers={"x-api-key": key}).status_code == 200
        node.ask_control("PATCH", "/settings", {"name": None})
        assert node.ask_control("POST", "/restart").status_code == 200
        assert node.process is not None and node.process.stdout is not None
        again = json.loads(node.process.stdout.readline())
        assert again["ready"] and again["name"] != "attic"


def test_a_damaged_file_is_said_and_kept_beside(tmp_path: Path) -> None:
    node = NodeProcess(tmp_path, "studio", "--port", "0", "--node-port", "0", by_flags=False)
    file = node.keep_settings()
    file.write_text("{broken")
    with node:
        assert any("the file is damaged" in note for note in node.ready["notes"])
        assert file.read_text() == "{broken"
        node.baton("config", "set", "name", "attic")
        assert file.with_name("settings.json.damaged").read_text() == "{broken"
        node.until(lambda state: not any("the file is damaged" in note for note in state["node"]["notes"]))


def test_a_new_name_reaches_paired_computers(tmp_path: Path) -> None:
    flags = ("--port", "0", "--node-port", "0")
    one = NodeProcess(tmp_path, "one", *flags, by_flags=False)
    two = NodeProcess(tmp_path, "two", *flags, by_flags=False)
    one.keep_settings(name="one")
    two.keep_settings(name="two")

    def name_at(node: NodeProcess, wanted: str) -> None:
        node.until(lambda s: [(p["name"], p["connected"]) for p in s["peers"]] == [(wanted, True)])

    with one, two:
        offer = one.ask_control("POST", "/pairing/offer", {}).json()
        join = {"code": offer["code"], "to": f"127.0.0.1:{offer['port']}"}
        assert two.ask_control("POST", "/pairing/join", join).status_code == 200
        name_at(two, "one")
        one.ask_control("PATCH", "/settings", {"name": "attic"})
        name_at(two, "attic")
        assert two.control("/peers")[0]["name"] == "attic"
        two.end()
        two.keep_settings(name="cellar")
        two.start()  # and in the hello
        name_at(one, "cellar")
