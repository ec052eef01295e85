"""Two computers, as two network namespaces with a cable and nothing else between them: from strangers to one answer.

Each step is what a person does; between them every process is killed in turn.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from engine.bench.netns import cable, check_possible
from engine.errors import HostError
from tests.engine.node.nodes import LOOK_EVERY_S, TIMEOUT_S, NodeProcess

pytestmark = pytest.mark.root

MODEL = "smollm2-135m"
PROMPT = "The runner who hands over the baton is already tired, and the one who takes it is fresh. " * 4


@dataclass(kw_only=True)
class Home:
    """`studio` has the model and decodes; `spark` has nothing."""

    studio: NodeProcess
    spark: NodeProcess
    started_at: float

    @property
    def both(self) -> tuple[NodeProcess, NodeProcess]:
        return self.studio, self.spark


@pytest.fixture(scope="module")
def home(smollm2_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Home]:
    try:
        check_possible()
    except HostError as error:
        pytest.skip(str(error))
    folder = tmp_path_factory.mktemp("home")
    (folder / "studio" / "models").mkdir(parents=True)
    shutil.copy(smollm2_path, folder / "studio" / "models")
    flags = ["--ctx", "1024", "--slots", "2"]
    with ExitStack() as stack:
        ends = stack.enter_context(cable("10gbit"))
        nodes = [
            NodeProcess(folder, name, *flags, network=end.namespace)
            for name, end in zip(("studio", "spark"), ends, strict=True)
        ]
        stack.enter_context(nodes[0])
        started_at = time.monotonic()
        stack.enter_context(nodes[1])
        yield Home(studio=nodes[0], spark=nodes[1], started_at=started_at)


def test_1_they_find_each_other(home: Home) -> None:
    def found(state: dict[str, Any], name: str) -> Any:
        return [one for one in state["discovery"]["found"] if one["name"] == name]

    home.studio.until(lambda state: found(state, "spark"))
    home.spark.until(lambda state: found(state, "studio"))


def test_2_a_code_that_is_shown_is_seen_to_come_and_go(home: Home) -> None:
    def shows_code(state: dict[str, Any]) -> bool:
        return any(one["pairing_addresses"] for one in state["discovery"]["found"])

    for _ in range(3):
        offer = home.spark.popen("pair", "--json")
        home.studio.until(shows_code)
        offer.send_signal(signal.SIGINT)
        offer.communicate(timeout=TIMEOUT_S)
        home.studio.until(lambda state: not shows_code(state))


def test_2_they_are_paired_by_a_code(home: Home) -> None:
    offer = home.spark.popen("pair", "--role", "prefill", "--json")
    assert offer.stdout is not None
    code = json.loads(offer.stdout.readline())["code"]
    home.studio.baton("pair", code)
    assert offer.wait(TIMEOUT_S) == 0
    offer.stdout.close()
    for node, other in (home.both, home.both[::-1]):
        peer = node.until(lambda state: [one for one in state["peers"] if one["connected"]])[0]
        assert peer["name"] == other.name
        assert peer["fingerprint"] == other.ready["fingerprint"]


def test_3_the_cable_is_measured(home: Home) -> None:
    report = json.loads(home.studio.baton("link", "probe", "--json"))
    assert report["peer"]["path"]["to_peer"]["goodput_gbps"] > 0
    for node in home.both:
        node.until(lambda state: any(state["link"]["ceilings"].values()))


def test_4_the_model_is_copied(home: Home, smollm2_path: Path) -> None:
    home.studio.baton("models", "send", MODEL)
    copied = home.spark.folder / "models" / smollm2_path.name
    assert copied.read_bytes() == smollm2_path.read_bytes()


def test_5_they_agree_who_does_what(home: Home) -> None:
    """As `--role prefill` had it in the pairing."""
    for node in home.both:
        node.until(lambda state: roles_of(home, state) == (home.spark, home.studio))
        assert "spark prefills and studio decodes, as was chosen" in node.baton("roles")


def test_6_a_chat_is_answered_with_a_remote_prefill_at_either_endpoint(home: Home) -> None:
    alone = home.studio.ask(MODEL, PROMPT, prefill="local", cache_prompt=False)
    assert alone["timings"]["handoff"]["prefill"] == "local"
    until_joined(home)
    for node in home.both:
        answer = node.ask(MODEL, PROMPT, prefill="remote", cache_prompt=False)
        assert answer["timings"]["handoff"]["prefill"] == "remote", answer["timings"]["handoff"]
        assert answer["tokens"] == alone["tokens"]
    status = home.spark.baton("status")
    assert "prefills smollm2-135m for studio: ready" in status
    assert "decodes smollm2-135m: ready" in status


@pytest.mark.parametrize("victim", ["engine", "worker", "decode courier", "prefill courier"])
def test_7_any_process_may_be_killed(home: Home, victim: str) -> None:
    until_joined(home)
    expected = home.studio.ask(MODEL, PROMPT, prefill="local", cache_prompt=False)["tokens"]
    os.kill(pid_of(home, victim), signal.SIGKILL)
    assert home.studio.ask(MODEL, PROMPT, cache_prompt=False)["tokens"] == expected
    until_joined(home)
    answer = home.studio.ask(MODEL, PROMPT, prefill="remote", cache_prompt=False)
    assert (answer["timings"]["handoff"]["prefill"], answer["tokens"]) == ("remote", expected)


@pytest.mark.parametrize("name", ["spark", "studio"])
def test_8_either_node_may_be_killed(home: Home, name: str) -> None:
    until_joined(home)
    expected = home.studio.ask(MODEL, PROMPT, prefill="local", cache_prompt=False)["tokens"]
    node, other = home.both if name == "studio" else home.both[::-1]
    node.kill()
    assert other.ask(MODEL, PROMPT, cache_prompt=False)["tokens"] == expected
    node.start()
    assert home.studio.ask(MODEL, PROMPT, cache_prompt=False)["tokens"] == expected
    until_joined(home)
    answer = home.studio.ask(MODEL, PROMPT, prefill="remote", cache_prompt=False)
    assert (answer["timings"]["handoff"]["prefill"], answer["tokens"]) == ("remote", expected)


def test_9_they_change_their_roles(home: Home) -> None:
    """The link stays as it is, so that who calls whom for the cache is the other way round."""
    expected = home.studio.ask(MODEL, PROMPT, prefill="local", cache_prompt=False)["tokens"]
    home.spark.baton("roles", "--prefill", "studio")
    for node in home.both:
        node.until(lambda state: roles_of(home, state) == (home.studio, home.spark))
    assert home.studio.ask(MODEL, PROMPT, cache_prompt=False)["tokens"] == expected
    until_joined(home, decoder=home.spark)
    assert not home.spark.state()["workers"]
    for node in home.both:
        answer = node.ask(MODEL, PROMPT, prefill="remote", cache_prompt=False)
        assert (answer["timings"]["handoff"]["prefill"], answer["tokens"]) == ("remote", expected)
    home.studio.baton("roles", "--prefill", "auto")
    home.studio.baton("roles", "--prefill", "spark")
    home.studio.until(lambda state: roles_of(home, state) == (home.spark, home.studio))


def test_10_they_part(home: Home) -> None:
    until_joined(home)
    home.spark.baton("pair", "remove", "studio")
    for node in home.both:
        node.until(lambda state: not state["peers"])
    home.spark.until(lambda state: not state["workers"])
    answer = home.studio.ask(MODEL, PROMPT, cache_prompt=False)
    assert answer["timings"]["handoff"]["prefill"] == "local"
    assert answer["timings"]["handoff"]["reason"] == "no_worker"


def roles_of(home: Home, state: dict[str, Any]) -> tuple[NodeProcess | None, NodeProcess | None]:
    """Who prefills and who decodes, as one of the two sees it."""
    names = {node.ready["node_id"]: node for node in home.both}
    for agreed in state["roles"]["agreed"]:
        return names.get(agreed["prefill"]), names.get(agreed["decode"])
    return None, None


def until_joined(home: Home, *, decoder: NodeProcess | None = None) -> None:
    """Until the engine has its worker."""
    (decoder or home.studio).until(
        lambda state: [
            one for one in state["engines"] if one["state"] == "ready" and one["worker"].get("connected")
        ]
    )


def pid_of(home: Home, victim: str) -> int:
    engine = home.studio.state()["engines"][0]["pid"]
    worker = home.spark.state()["workers"][0]["pid"]
    match victim:
        case "engine":
            return int(engine)
        case "worker":
            return int(worker)
        case "decode courier":
            return courier_of(engine)
        case _:
            return courier_of(worker)


def courier_of(pid: int) -> int:
    give_up_at = time.monotonic() + TIMEOUT_S
    while time.monotonic() < give_up_at:
        for child in psutil.Process(pid).children():
            if child.cmdline()[-1:] == ["courier"]:
                return child.pid
        time.sleep(LOOK_EVERY_S)
    raise AssertionError("no courier")
