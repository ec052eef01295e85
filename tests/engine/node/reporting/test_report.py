"""A report holds what helps, nothing that is not for others, and is there when most of Baton is broken."""

from __future__ import annotations

import errno
import json
import os
import platform
import re
import stat
import subprocess
import sys
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine.cli.main import main
from engine.errors import DiskFull, HostError, UserError
from engine.node.presence import NoNode
from engine.node.reporting import report
from engine.node.reporting.report import MAX_LOG_TAIL_BYTES, Item, Sources, make_report, write_report
from engine.node.trust.identity import Identity
from engine.node.trust.peers import Peer, PeerBook
from engine.paths import own_command

TOKEN = "the-token-of-the-control-api"


def no_node() -> Any:
    raise NoNode("no node runs on this computer: start one with `baton node`")


@pytest.fixture
def sources(tmp_path: Path) -> Sources:
    home = tmp_path / "home" / "adalovelace"
    for name in ("config", "logs", "models", "node", "config/identity"):
        (home / name).mkdir(parents=True)
    return Sources(
        home=home,
        config=home / "config",
        identity=home / "config" / "identity",
        peers=home / "config" / "peers.json",
        node=home / "node",
        logs=home / "logs",
        models=home / "models",
        environ={},
        state=no_node,
        devices=lambda: {"auto": "cpu"},
    )


def text_of(items: list[Item]) -> str:
    return "".join(item.name + item.text for item in items)


def file_of(items: list[Item], name: str) -> Any:
    (item,) = [item for item in items if item.name == name]
    return json.loads(item.text) if name.endswith(".json") else item.text


def state_of(**parts: Any) -> Callable[[], Any]:
    return lambda: parts


def test_it_says_what_is_in_it_and_that_nothing_was_sent(sources: Sources) -> None:
    (sources.logs / "node.log").write_text("the node is up\n")
    (sources.logs / "serve-x.log.1").write_text("an older one\n")
    items = make_report(sources)
    assert items[0].name == "README.txt" and "Nothing was sent" in items[0].text
    for item in items[1:]:
        assert f"  {item.name} " in items[0].text and item.about in items[0].text
    assert file_of(items, "logs/node.log") == "the node is up\n"
    assert file_of(items, "logs/serve-x.log.1") == "an older one\n"
    assert file_of(items, "devices.json") == {"auto": "cpu"}
    assert file_of(items, "node.json") == {
        "missing": "no node runs on this computer: start one with `baton node`"
    }
    system = file_of(items, "system.json")
    assert system["python"] and system["packages"]["msgspec"] and system["memory_bytes"]["total"] > 0
    assert file_of(items, "models.json")["catalogue"][0]["name"] == "smollm2-135m"
    assert file_of(items, "network.json")["interfaces"]


def test_names_of_people_and_computers_have_others_in_their_place(sources: Sources, tmp_path: Path) -> None:
    other = Identity.load_or_create(tmp_path / "other")
    PeerBook(sources.peers).add(
        Peer(
            node_id=other.node_id,
            name="Adas Studio",
            certificate_der=other.certificate_der,
            addresses=("192.168.1.9:7119", "8.8.4.4:7119"),
        )
    )
    (sources.logs / "node.log").write_text(
        f"{sources.home}/models/x.gguf: no such file\n"
        f"Adas Studio is away ({platform.node()} had 8.8.4.4), says adalovelace@laptop-of-bob\n"
    )
    state = state_of(
        node={"name": "adas-desk", "fingerprint": other.fingerprint},
        engines=[{"name": "smollm2-135m", "state": "ready"}],
        discovery={
            "name": "adas-desk",
            "interfaces": [{"name": "eth0", "family": "IPv4"}],
            "found": [{"node_id": "2" * 32, "name": "laptop-of-bob", "addresses": ["10.0.0.2"]}],
        },
    )
    items = make_report(replace(sources, state=state))
    everything = text_of(items)
    for name in ("adalovelace", "Adas Studio", "adas-desk", "laptop-of-bob", platform.node(), "8.8.4.4"):
        assert not re.search(rf"\b{re.escape(name)}\b", everything)
    assert other.fingerprint not in everything and f"{other.fingerprint[:8]}..." in everything
    (peer,) = file_of(items, "pairing.json")
    assert set(peer) == {"name", "node_id", "fingerprint", "addresses", "paired_at"}
    found = file_of(items, "node.json")
    assert found["discovery"]["interfaces"] == [{"name": "eth0", "family": "IPv4"}]
    assert found["engines"] == [{"name": "smollm2-135m", "state": "ready"}]
    lines = file_of(items, "logs/node.log").splitlines()
    assert lines[0] == "~/models/x.gguf: no such file"
    # the same everywhere
    assert lines[1].startswith(f"{peer['name']} is away")
    assert (
        peer["addresses"] == ["192.168.1.9:7119", "PUBLIC-ADDRESS-1:7119"] and "PUBLIC-ADDRESS-1" in lines[1]
    )
    assert lines[1].endswith(f"USER@{found['discovery']['found'][0]['name']}")


def test_a_code_that_is_shown_just_now_stays_here(sources: Sources) -> None:
    (sources.logs / "node.log").write_text("482913 was typed")
    state = state_of(pairing={"offer": {"code": "482 913", "port": 7120}, "note": ""})
    everything = text_of(make_report(replace(sources, state=state)))
    assert "7120" in everything and "482" not in everything


SECRETS = st.lists(
    st.text(st.characters(exclude_categories=["Cs", "Cc"], exclude_characters="█"), min_size=4).filter(
        str.strip
    ),
    min_size=3,
    max_size=3,
)


@given(secrets=SECRETS, noise=st.text(st.characters(exclude_categories=["Cs"])))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=25, deadline=None)
def test_no_known_secret_is_in_any_file_of_the_zip(
    sources: Sources, tmp_path: Path, secrets: list[str], noise: str
) -> None:
    in_file, in_note, in_environment = secrets
    (sources.identity / "secrets.json").write_text(json.dumps({"x": in_file}), encoding="utf-8")
    (sources.node / "node.json").write_text(json.dumps({"token": in_note, "port": 1}), encoding="utf-8")
    leak = f"{noise}{in_file}{noise}{in_note} {in_environment!r} {json.dumps(secrets)}"
    (sources.logs / "node.log").write_text(leak, encoding="utf-8", errors="backslashreplace")
    state = state_of(engines=[{"last_exits": [{"log": [leak], "reason": leak}]}], odd={leak: leak, "x": 1.5})
    items = make_report(
        replace(
            sources,
            environ={"BATON_API_KEY": in_environment, "BATON_MODELS": leak},
            state=state,
            devices=lambda: secrets,
        )
    )
    # names of files and words about them are ours
    told = {item.text: item for item in items[1:]}
    for secret in secrets:
        for written in (secret, json.dumps(secret)[1:-1]):
            ours = [text for text in told if written in text and not told[text].name.startswith("logs/")]
            assert all(_is_ours(written, json.loads(text)) for text in ours), written
            assert written not in file_of(items, "logs/node.log")


def _is_ours(secret: str, data: Any) -> bool:
    """Whether a text that is found in JSON is only in its punctuation and white space, and in no value."""
    if isinstance(data, str):
        return secret not in data
    if isinstance(data, dict):
        return all(_is_ours(secret, str(key)) and _is_ours(secret, value) for key, value in data.items())
    return not isinstance(data, list) or all(_is_ours(secret, item) for item in data)


def test_what_is_broken_is_said_and_the_rest_is_there(sources: Sources, tmp_path: Path) -> None:
    sources.peers.write_bytes(b"\xff{")
    (sources.identity / "secrets.json").write_text("[")
    (sources.node / "node.json").write_text("5")
    (sources.logs / "gone.log").symlink_to(tmp_path / "nowhere")
    (sources.logs / "odd.log").mkdir()

    def crash() -> Any:
        raise RuntimeError("the library crashed")

    items = make_report(replace(sources, devices=crash, models=tmp_path / "none", state=crash))
    assert file_of(items, "pairing.json") == {"missing": "the list is damaged (DecodeError)"}
    assert file_of(items, "devices.json") == {"missing": "RuntimeError: the library crashed"}
    assert file_of(items, "models.json")["files"] == []
    assert file_of(items, "system.json")["python"]
    assert not [item for item in items if item.name.startswith("logs/")]


def test_a_config_folder_that_is_a_file(sources: Sources, tmp_path: Path) -> None:
    odd = tmp_path / "file"
    odd.write_text("")
    items = make_report(
        replace(
            sources, config=odd, identity=odd / "identity", peers=odd / "peers.json", logs=odd, models=odd
        )
    )
    assert "missing" in file_of(items, "pairing.json")
    assert file_of(items, "settings.json")["files"] == []


def test_only_the_end_of_a_long_log(sources: Sources) -> None:
    (sources.logs / "node.log").write_bytes(
        b"x" * 50 + b"\n" + b"".join(b"%9d\n" % n for n in range(100_000))
    )
    text = file_of(make_report(sources), "logs/node.log")
    assert len(text) <= MAX_LOG_TAIL_BYTES and text.splitlines()[-1].strip() == "99999"


def test_two_logs_that_differ_in_a_name_are_both_there(sources: Sources) -> None:
    for name in ("a0:36:9f:00:00:01", "A0-36-9F-00-00-01"):
        (sources.logs / f"{name}.log").write_text(name)
    names = [item.name for item in make_report(sources) if item.name.startswith("logs/")]
    assert len(set(names)) == 2 and all(name.startswith("logs/MAC-") for name in names)


def test_the_zip_is_its_owners_alone_and_replaces_nothing(tmp_path: Path) -> None:
    items = [
        Item(name="README.txt", about="", text="größer \udcff"),
        Item(name="logs/x.log", about="", text=""),
    ]
    path = tmp_path / "r.zip"
    write_report(items, path)
    if os.name == "posix":
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with zipfile.ZipFile(path) as archive:
        assert archive.namelist() == ["README.txt", "logs/x.log"]
        assert archive.read("README.txt").decode() == "größer ?"
    with pytest.raises(UserError, match="is there already"):
        write_report(items, path)
    with pytest.raises(UserError, match="there is no folder"):
        write_report(items, tmp_path / "none" / "r.zip")


@pytest.mark.parametrize(
    ("number", "kind", "says"),
    [(errno.ENOSPC, DiskFull, "disk of .* is full"), (errno.EROFS, HostError, "Read-only file system")],
)
def test_a_zip_that_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, kind: type[Exception], says: str
) -> None:
    def fail(path: Path, data: bytes) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(report, "write_whole", fail)
    with pytest.raises(kind, match=says):
        write_report([Item(name="x", about="", text="")], tmp_path / "r.zip")


@pytest.fixture
def own_home(tmp_path: Path) -> dict[str, str]:
    """The environment of a user who has nothing yet."""
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("XDG_", "BATON_"))
    }
    return {**environment, "HOME": str(tmp_path / "graceh")}


def test_the_command_writes_what_it_says(tmp_path: Path, own_home: dict[str, str]) -> None:
    (tmp_path / "graceh").mkdir()
    environment = {**own_home, "BATON_API_KEY": "hunter2-hunter2"}
    done = subprocess.run(
        [*own_command(), "report", "--json", "--output", str(tmp_path)],
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["sent"] is False
    with zipfile.ZipFile(told["file"]) as archive:
        assert archive.namelist() == [file["name"] for file in told["files"]]
        everything = "".join(archive.read(name).decode() for name in archive.namelist())
        assert json.loads(archive.read("devices.json"))["torch"]
    assert "graceh" not in everything and "hunter2" not in everything
    assert list((tmp_path / "graceh").iterdir()) == []


@pytest.mark.root
@pytest.mark.skipif(
    sys.platform != "linux" or os.geteuid() != 0, reason="needs root on Linux to make a small disk"
)
def test_a_disk_that_is_really_full(tmp_path: Path, own_home: dict[str, str]) -> None:
    script = (
        'mount -t tmpfs -o size=4k tmpfs "$0" && head -c 4096 /dev/zero > "$0/full" && "$@" --output "$0"'
    )
    disk = tmp_path / "disk"
    disk.mkdir()
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", script, str(disk), *own_command(), "report"],
        env=own_home,
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(f"baton: the disk of {disk} is full: ") and done.stderr.count("\n") == 1


def test_help_has_no_hidden_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    out = capsys.readouterr().out
    assert "report" in out and "devices" not in out
