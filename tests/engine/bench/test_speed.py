"""The speed bench with fake contestants: who runs when, what is asked, and what is refused."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from engine.bench import peer as peers
from engine.bench import speed
from engine.bench.report import Test
from engine.bench.speed import SpeedConfig, measure
from engine.bench.subject import Subject
from engine.cache.spec import KVType
from engine.errors import InvalidRequest, ModelFileError, ProcessFailed, UserError
from tests.engine.bench.contestants import fake
from tests.engine.models.tiny import Quant, write_tiny


@pytest.fixture(autouse=True)
def processor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "expected_features", lambda: frozenset({"AVX"}))


@pytest.fixture
def config(tmp_path: Path) -> SpeedConfig:
    path = tmp_path / "model.gguf"
    path.write_bytes(b"GGUF")
    return SpeedConfig(
        model=path,
        tests=(Test(n_prompt=16), Test(n_gen=8, n_depth=32)),
        repetitions=3,
        device="cpu",
        weights="auto",
        kv_type=KVType.BF16,
        n_threads=2,
        with_peer=True,
        allow_generic_peer=False,
    )


def starts(name: str, **config: object) -> Callable[[], Subject]:
    return lambda: fake(name, **config)


def test_both_are_measured(config: SpeedConfig) -> None:
    report = measure(
        config,
        start_own=starts("Baton", seconds=0.01),
        start_peer=starts("llama.cpp", seconds=0.02, system_info="AVX = 1 | FMA = 1"),
    )
    assert [row.test.name for row in report.rows] == ["pp16", "tg8 @ d32"]
    for row in report.rows:
        assert len(row.own.seconds) == 3
        assert row.own.median_tps == pytest.approx(100)
        assert row.ratio == pytest.approx(2)
    assert report.load is not None
    assert len(report.load.own) == len(report.load.peer) == 3
    assert report.load.ratio == pytest.approx(2)
    assert report.peer is not None
    assert report.peer.features == ("AVX", "FMA")
    assert (report.calls, report.n_layers) == (30, 4)


def test_alone(config: SpeedConfig) -> None:
    report = measure(replace(config, with_peer=False), start_own=starts("Baton"))
    assert report.peer is None
    assert report.rows[0].peer is None
    assert report.load is not None
    assert report.load.peer == ()


def test_a_generic_peer_is_refused_before_anything_is_measured(config: SpeedConfig) -> None:
    peer = starts("llama.cpp", system_info="FMA = 1", end="load")
    with pytest.raises(InvalidRequest, match="lacks AVX"):
        measure(config, start_own=starts("Baton", end="load"), start_peer=peer)


def test_an_allowed_generic_peer_is_marked(config: SpeedConfig) -> None:
    report = measure(
        replace(config, allow_generic_peer=True), start_own=starts("Baton"), start_peer=starts("llama.cpp")
    )
    assert report.missing_features == ("AVX",)


def test_turns_alternate_and_depth_is_not_timed(config: SpeedConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, str, int, int]] = []
    ask = Subject.ask

    def listen(subject: Subject, command: str, **fields: object) -> dict[str, object]:
        if command in ("prefill", "decode"):
            asked.append((subject.name, command, len(fields["tokens"]), len(fields["depth"])))  # type: ignore[arg-type]
        return ask(subject, command, **fields)

    monkeypatch.setattr(Subject, "ask", listen)
    measure(config, start_own=starts("A"), start_peer=starts("B", system_info="AVX = 1"))
    timed = asked[asked.index(("A", "prefill", 16, 0)) :]
    names = "".join(name for name, *_ in timed)
    # A warm-up each, then three repetitions that change who goes first; for both tests.
    assert names == "AB" + "ABBAAB" + "AB" + "ABBAAB"
    assert timed[8:10] == [("A", "decode", 4, 32), ("B", "decode", 4, 32)]
    assert set(timed[10:]) == {("A", "decode", 8, 32), ("B", "decode", 8, 32)}


def args_for(*flags: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    speed.add_arguments(parser)
    return parser.parse_args(list(flags))


def test_what_cannot_be_measured_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="nothing to measure"):
        speed.run(args_for("-p", "0", "-n", "0"))
    with pytest.raises(UserError, match="--repetitions 0: at least 1 is needed here"):
        args_for("-r", "0")
    with pytest.raises(SystemExit):
        args_for("-d", "1,x")


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (("-p", "16,99999"), "-p 99999: the model's context holds"),
        (("-p", "0", "-n", "99999"), "-n 99999: the model's context holds"),
        (("-p", "16", "-d", "0,99999"), "-p 16 after -d 99999: the model's context holds"),
    ],
)
def test_what_the_context_cannot_hold_is_refused_before_anything_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flags: tuple[str, ...], sentence: str
) -> None:
    monkeypatch.setattr(speed, "measure", lambda *_, **__: pytest.fail("it was measured"))
    path = write_tiny("qwen2", tmp_path / "tiny.gguf")
    with pytest.raises(UserError, match=sentence):
        speed.run(args_for("--model", str(path), *flags))


def test_a_model_that_is_none_is_refused_before_anything_is_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(speed, "measure", lambda *_, **__: pytest.fail("it was measured"))
    (tmp_path / "model.gguf").write_bytes(b"GGUF")
    with pytest.raises(ModelFileError):
        speed.run(args_for("--model", str(tmp_path / "model.gguf")))


def test_our_own_failure_is_not_told_in_baton_s_name(config: SpeedConfig, monkeypatch) -> None:
    command = [sys.executable, "-S", "-c", "import no_such_module"]
    monkeypatch.setattr(speed, "own_command", lambda: command)
    with pytest.raises(ProcessFailed, match=r"^the engine ended without an answer: ModuleNotFoundError"):
        measure(replace(config, with_peer=False))


def test_the_engine_itself(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_tiny("gemma3", tmp_path / "tiny.gguf", quant=Quant.Q8_0)
    flags = ("-p", "24", "-n", "4", "-d", "0,40", "-r", "1", "--threads", "1", "--json")
    assert speed.run(args_for("--model", str(path), *flags)) == 0
    found = json.loads(capsys.readouterr().out)
    assert [row["test"] for row in found["rows"]] == ["pp24", "tg4", "pp24 @ d40", "tg4 @ d40", "load"]
    assert all(row["tps"] > 0 for row in found["rows"][:-1])
    assert found["rows"][-1]["seconds"] > 0
    assert found["calls_per_layer"] > 1
