"""`bench cluster` against small endpoints whose figures are known, and as a user runs it."""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from engine.bench import cluster
from engine.bench.cluster import ClusterConfig, Engines, measure
from engine.bench.cluster_report import ClusterReport, Handed, Row, Sample, Way, crossover, render, summary
from engine.cli.children import Child
from engine.cli.main import main
from engine.errors import HostError
from engine.node.endpoint import Endpoint
from engine.node.trust.identity import Identity
from tests.engine.models.tiny import Quant, config_of, write_tiny

CONFIG = ClusterConfig(prompts=(40, 120), n_decode=5, repetitions=20)
TIMEOUT_S = 60.0


class FakeEndpoint(ThreadingHTTPServer):
    """Takes 2 ms a prompt token here, 1 ms at the worker, and 10 ms a decoded one; says no more than it was asked."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.asked: list[dict[str, Any]] = []
        self.held: list[int] = []
        self.prefill: str | None = None
        self.late_figures = 0
        self.model = "smollm2-135m"
        self._timeline: dict[str, Any] = {}
        self._ids = itertools.count()

    def get(self, path: str) -> dict[str, Any]:
        if path == "/v1/models":
            return {"data": [{"id": self.model}]}
        assert path == f"/requests/{self._timeline['id']}"
        if self.late_figures:
            self.late_figures -= 1
            return self._timeline | {"handoff": {"tail_ms": None}}
        return self._timeline

    def answer(self, body: dict[str, Any]) -> list[dict[str, Any]]:
        self.asked.append(body)
        prompt, n_decode = body["prompt"], body["max_tokens"]
        n_cached = 0
        if body["cache_prompt"]:
            pairs = zip(prompt, self.held, strict=False)
            n_cached = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))
        where = self.prefill or body["prefill"]
        tokens = list(range(100, 100 + n_decode))
        self.held = [*prompt, *tokens[:-1]]
        n_moved = (len(prompt) - 1 - n_cached) if where == "remote" else 0
        answer_id = f"cmpl-{next(self._ids)}"
        self._timeline = {
            "id": f"{answer_id}-0",
            "handoff": {
                "bytes": 1000 * n_moved,
                "reused_tokens": n_cached,
                "overlap": 0.9,
                "tail_ms": 1.5,
                "compute_ms": 0.9 * n_moved,
                "goodput_bytes_per_second": 1e9,
            },
        }
        timings = {
            "cache_n": n_cached,
            "prompt_ms": (1.0 if where == "remote" else 2.0) * (len(prompt) - n_cached),
            "predicted_n": n_decode,
            "predicted_ms": 10.0 * (n_decode - 1),
            "handoff": {"prefill": where, "detail": "the worker is busy"},
        }
        return [
            *({"id": answer_id, "tokens": [token]} for token in tokens),
            {"id": answer_id, "timings": timings},
        ]


class _Handler(BaseHTTPRequestHandler):
    server: FakeEndpoint

    def do_GET(self) -> None:
        self._send(json.dumps(self.server.get(self.path)).encode())

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if self.path == "/tokenize":
            self._send(json.dumps({"tokens": [*range(5, 90), 5, 6]}).encode())
            return
        assert self.path == "/v1/completions" and body["stream"] and body["ignore_eos"]
        parts = [f"data: {json.dumps(part)}\n\n" for part in self.server.answer(body)]
        self._send("".join([*parts, "data: [DONE]\n\n"]).encode())

    def _send(self, content: bytes) -> None:
        self.send_response(200)
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *args: object) -> None:
        pass


@contextmanager
def fake() -> Iterator[FakeEndpoint]:
    server = FakeEndpoint()
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def engines(cluster: FakeEndpoint, other: FakeEndpoint | None) -> Engines:
    return Engines(
        cluster=Endpoint("127.0.0.1", cluster.server_port),
        other=Endpoint("127.0.0.1", other.server_port) if other else None,
        joined="two fakes",
    )


def told(engines: Engines, *turns: tuple[Row, ...]) -> ClusterReport:
    rows, second = turns
    return ClusterReport(
        model="m.gguf",
        joined=engines.joined,
        n_decode=CONFIG.n_decode,
        rows=rows,
        turns=second,
        notes=(),
        processor="a processor",
        was_busy=False,
    )


def test_each_way_is_asked_in_turns_and_nothing_is_found_cached() -> None:
    with fake() as both, fake() as other:
        rows, turns = measure(engines(both, other), CONFIG, pause=lambda: None)
    assert [(row.n_prompt, row.way) for row in rows] == [(n, way) for n in (40, 120) for way in Way]
    assert {row.samples[0].n_cached for row in rows} == {0}
    assert {len(row.samples) for row in (*rows, *turns)} == {CONFIG.repetitions}
    firsts = [body for body in both.asked if not body["cache_prompt"]]
    beginnings = [
        tuple(body["prompt"][:2]) for body in (*both.asked, *other.asked) if len(body["prompt"]) <= 120
    ]
    assert len(set(beginnings)) == len(beginnings)
    # the first two warm up; then who goes first changes
    wishes = [body["prefill"] for body in firsts[2:8]]
    assert wishes == ["local", "remote", "remote", "local", "local", "remote"]
    assert {body["prefill"] for body in other.asked} == {"local"}
    times = {(row.n_prompt, row.way): row.samples[0].prompt_ms for row in rows}
    assert times[120, Way.HERE] == times[120, Way.OTHER] == 240 and times[120, Way.BOTH] == 120
    assert all(sample.decode_tps == pytest.approx(100) for row in rows for sample in row.samples)
    assert [row.samples[0].handed is not None for row in rows[:3]] == [False, False, True]


def test_the_second_turn_goes_on_from_the_first_answer() -> None:
    pauses: list[int] = []
    with fake() as both, fake() as other:
        _, turns = measure(engines(both, other), CONFIG, pause=lambda: pauses.append(len(both.asked)))
    assert len(pauses) == len(Way) * CONFIG.repetitions
    n_held = 120 + CONFIG.n_decode - 1
    assert [(row.n_prompt, row.samples[0].n_cached) for row in turns] == [(120 + 5 + 256, n_held)] * 3
    handed = turns[-1].samples[0].handed
    assert handed is not None and handed.n_bytes == 1000 * (120 + 5 + 256 - 1 - n_held)


def test_what_nobody_can_say_of_the_other_computer_is_told_as_not_measured() -> None:
    with fake() as both:
        pair = engines(both, None)
        rows, turns = measure(pair, CONFIG, pause=lambda: None)
    (sample, *_) = next(row.samples for row in rows if row.way is Way.OTHER)
    assert (sample.prompt_ms, sample.decode_tps, sample.total_ms) == (pytest.approx(0.9 * 39), None, None)
    report = told(pair, rows, turns)
    (line,) = (line for line in render(report).splitlines() if "40 tok" in line and "other alone" in line)
    assert line.count("not measured") == 2 and "0.04 s" in line
    found = [row for row in summary(report)["rows"] if row["way"] == "other"]
    assert all(row["decode_tps"] is None and row["total_ms"] is None for row in found)


def test_a_prompt_that_stayed_here_is_no_figure_of_both_together() -> None:
    with fake() as both:
        both.prefill = "local"
        with pytest.raises(
            HostError, match="did not prefill a prompt that it was asked for: the worker is busy"
        ):
            measure(engines(both, None), CONFIG, pause=lambda: None)


def test_figures_that_come_late_are_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "_FIGURES_EVERY_S", 0.0)
    with fake() as both:
        both.late_figures = 3
        measure(engines(both, None), CONFIG, pause=lambda: None)
        monkeypatch.setattr(cluster, "_FIGURES_TIMEOUT_S", 0.0)
        both.late_figures = 10
        with pytest.raises(HostError, match="has not told a handoff's figures"):
            measure(engines(both, None), CONFIG, pause=lambda: None)


def rows_of(times: dict[int, tuple[float, float]]) -> list[Row]:
    return [
        Row(way=way, samples=(Sample(n_prompt=n_prompt, n_cached=0, prompt_ms=prompt_ms),))
        for n_prompt, pair in times.items()
        for way, prompt_ms in zip((Way.HERE, Way.BOTH), pair, strict=True)
    ]


@pytest.mark.parametrize(
    ("times", "tokens", "words"),
    [
        ({100: (10, 30), 300: (50, 30)}, 200, "from about 200 tokens on"),
        ({300: (50, 30), 100: (10, 30)}, 200, "from about 200 tokens on"),
        ({100: (30, 20), 200: (30, 40), 400: (60, 40)}, 267, "from about 267 tokens on"),
        ({100: (30, 20), 300: (60, 40)}, 100, "from 100 tokens on, the shortest measured"),
        (
            {100: (10, 20), 300: (40, 40)},
            None,
            "this computer alone has the first token sooner, up to 300 tokens",
        ),
        (
            {100: (30, 20), 300: (30, 40)},
            None,
            "this computer alone has the first token sooner, up to 300 tokens",
        ),
    ],
)
def test_the_crossover_lies_where_the_gain_begins_for_good(
    times: dict[int, tuple[float, float]], tokens: int | None, words: str
) -> None:
    found, sentence = crossover(rows_of(times))
    assert found == tokens and words in sentence


def test_the_table_has_medians_with_their_range() -> None:
    handed = Handed(
        n_bytes=2_500_000, n_reused=0, overlap=0.984, tail_ms=1.26, compute_ms=900, goodput=1.25e8
    )
    samples = [
        Sample(n_prompt=512, n_cached=0, prompt_ms=ms, decode_tps=26.8, total_ms=ms + 4000, handed=handed)
        for ms in (4400.0, 4300.0, 4700.0)
    ]
    here = [Sample(n_prompt=512, n_cached=0, prompt_ms=8300, decode_tps=24.2, total_ms=20700)]
    rows = (Row(way=Way.HERE, samples=tuple(here)), Row(way=Way.BOTH, samples=tuple(samples)))
    with fake() as both:
        report = told(engines(both, None), rows, rows)
    lines = render(report).splitlines()
    columns = [cell.strip() for cell in lines[2].strip("|").split("|")]
    cells = [cell.strip() for cell in lines[5].strip("|").split("|")]
    assert dict(zip(columns, cells, strict=True)) == {
        "prompt": "512 tok",
        "mode": "both together",
        "prompt processing": "4.40 s (4.30-4.70)",
        "decode": "26.8 tok/s",
        "total (5 tok)": "8.40 s (8.30-8.70)",
        "tail": "1.3 ms",
        "overlap": "98.4 %",
        "goodput": "1.00 Gbit/s",
    }
    assert any("2.50 MB" in line for line in lines)
    both_row = summary(report)["rows"][1]
    assert both_row["prompt_ms"] == {"median": 4400.0, "lowest": 4300.0, "highest": 4700.0}


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--worker", "127.0.0.1:7118"], "--trust is missing"),
        (["--trust", "0" * 64], "need --worker HOST:PORT"),
        (["--other", "127.0.0.1:7200"], "need --worker HOST:PORT"),
        (["--prompts", "512,1"], "--prompts: 2 at least"),
        (
            ["--prompts", "9000"],
            "--prompts 9000: with two answers and a second question the chat has 9512 tokens",
        ),
        (["--n-decode", "1"], "--n-decode 1: at least 2 is needed here"),
        (["--worker", "127.0.0.1:0"], "port 0 stands for a free one"),
    ],
)
def test_what_cannot_be_measured_is_refused(
    words: list[str], sentence: str, smollm2_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "cluster", "--model", str(smollm2_path), *words]) == 2
    assert sentence in capsys.readouterr().err


TINY = config_of("llama")
# K and V in bf16
BYTES_OF_TOKEN = 2 * 2 * TINY.n_layers * TINY.n_kv_heads * TINY.head_dim
SMALL = ["--prompts", "48,96", "--n-decode", "4", "--repetitions", "1", "--threads", "1", "--json"]


@pytest.fixture(scope="module")
def tiny_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny("llama", tmp_path_factory.mktemp("cluster") / "tiny.gguf", quant=Quant.Q8_0)


@pytest.fixture
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "_READING_S", 0.0)


def test_engines_of_its_own_give_every_row(
    tiny_path: Path, no_pause: None, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "cluster", "--model", str(tiny_path), *SMALL]) == 0
    said = capsys.readouterr()
    report = json.loads(said.out)
    assert [(row["prompt_tokens"], row["way"]) for row in report["rows"]] == [
        (n, way) for n in (48, 96) for way in ("here", "other", "both")
    ]
    assert all(row["decode_tps"]["median"] > 0 and row["total_ms"]["median"] > 0 for row in report["rows"])
    # all tokens but the last
    moved = [47 * BYTES_OF_TOKEN, 95 * BYTES_OF_TOKEN]
    assert [row["bytes"]["median"] for row in report["rows"] if row["bytes"]] == moved
    assert [row["cached_tokens"]["median"] for row in report["second_turns"]] == [99] * 3
    assert report["second_turns"][2]["bytes"]["median"] == (96 + 4 + 256 - 1 - 99) * BYTES_OF_TOKEN
    assert "on this computer" in report["joined"] and "joined over TLS" in said.err


@dataclass(frozen=True, kw_only=True)
class Running:
    """A worker that runs already, and the words that lead to it."""

    address: str
    joining: tuple[str, ...]


@pytest.fixture(scope="module")
def worker(tiny_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("worker")
    here, there = (Identity.load_or_create(folder / name) for name in ("here", "there"))
    words = ["worker", "--model", str(tiny_path), "--listen", "127.0.0.1:0", "--threads", "1"]
    words += ["--identity", str(folder / "there"), "--trust", here.fingerprint]
    with Child("worker", words, folder / "worker.log") as child:
        address = f"127.0.0.1:{child.wait_for('ready', timeout_s=TIMEOUT_S)['port']}"
        joining = ("--worker", address, "--trust", there.fingerprint, "--identity", str(folder / "here"))
        yield Running(address=address, joining=joining)


def test_a_worker_that_runs_already_is_used(
    worker: Running, tiny_path: Path, no_pause: None, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "cluster", "--model", str(tiny_path), *SMALL, *worker.joining]) == 0
    report = json.loads(capsys.readouterr().out)
    assert worker.address in report["joined"]
    other = [row for row in report["rows"] if row["way"] == "other"]
    assert all(row["prompt_ms"]["median"] > 0 and row["decode_tps"] is None for row in other)
    assert "--other names its endpoint" in report["notes"][0]


def test_the_endpoint_of_the_other_computer_is_measured_where_it_has_the_same_model(
    worker: Running, tiny_path: Path, no_pause: None, capsys: pytest.CaptureFixture[str]
) -> None:
    with fake() as endpoint:
        joining = [*worker.joining, "--other", f"127.0.0.1:{endpoint.server_port}"]
        words = ["bench", "cluster", "--model", str(tiny_path), *SMALL, *joining]
        endpoint.model = "tiny"
        assert main(words) == 0
        report = json.loads(capsys.readouterr().out)
        endpoint.model = "another"
        assert main(words) == 2
        assert "it answers with another, and here it is tiny" in capsys.readouterr().err
    assert worker.address in report["joined"]
    other = [row for row in report["rows"] if row["way"] == "other"]
    assert [row["prompt_ms"]["median"] for row in other] == [96, 192] and not report["notes"]


def test_a_worker_that_is_not_there_is_named(
    tiny_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cluster, "CONNECT_TIMEOUT_S", 0.5)
    joining = ["--worker", "127.0.0.1:1", "--trust", "0" * 64, "--identity", str(tmp_path)]
    assert main(["bench", "cluster", "--model", str(tiny_path), *SMALL, *joining]) == 1
    assert "--worker 127.0.0.1:1: the worker is not connected: " in capsys.readouterr().err
