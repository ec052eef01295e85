"""Golden forms of a speed report, and the arithmetic behind them."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace

import pytest

from engine.bench.report import (
    FORMS,
    Engine,
    LoadTimes,
    Row,
    Samples,
    SpeedReport,
    Test,
    calls_per_layer,
    render,
    summary,
)

REPORT = SpeedReport(
    model_filename="model.gguf",
    model_type="qwen2 1B Q4_K - Medium",
    model_size=485452288,
    model_n_params=630167424,
    cpu_info="A Processor",
    gpu_info="",
    n_cores=2,
    n_batch=512,
    test_time="2026-01-02T03:04:05Z",
    own=Engine(name="Baton", version="0.1.0", backend="CPU", kv_type="bf16"),
    peer=Engine(name="llama.cpp", version="0.3", backend="CPU", kv_type="f16", features=("AVX", "AVX512")),
    rows=(
        Row(
            test=Test(n_prompt=512),
            own=Samples(n_tokens=512, seconds=(0.5, 0.64, 0.512)),
            n_threads=2,
            peer=Samples(n_tokens=512, seconds=(2.0, 1.0, 1.6)),
            peer_n_threads=1,
        ),
        Row(
            test=Test(n_gen=128, n_depth=4096),
            own=Samples(n_tokens=128, seconds=(2.0,)),
            n_threads=2,
            peer=Samples(n_tokens=128, seconds=(1.0,)),
            peer_n_threads=2,
        ),
    ),
    load=LoadTimes(own=(0.5, 0.25, 9.0), peer=(1.0, 2.0), parts=(("weights", 0.4), ("tokenizer", 0.1))),
    calls=120,
    n_layers=24,
)
ALONE = replace(
    REPORT,
    peer=None,
    rows=tuple(replace(row, peer=None, peer_n_threads=0) for row in REPORT.rows),
    load=LoadTimes(own=(0.5,)),
)

MARKDOWN = """\
| model                  |     size |   params | backend | threads |          test |             t/s | peer threads |   llama.cpp t/s | ratio |
| ---------------------- | -------: | -------: | ------: | ------: | ------------: | --------------: | -----------: | --------------: | ----: |
| qwen2 1B Q4_K - Medium | 0.45 GiB | 630.17 M |     CPU |       2 |         pp512 | 941.33 ± 122.99 |            1 | 362.67 ± 133.23 | 3.12x |
| qwen2 1B Q4_K - Medium | 0.45 GiB | 630.17 M |     CPU |       2 | tg128 @ d4096 |    64.00 ± 0.00 |            2 |   128.00 ± 0.00 | 0.50x |

load: 0.50 s (llama.cpp 1.50 s, ratio 3.00x); of it weights 0.40 s, tokenizer 0.10 s
decode step: 120 torch calls, 5.0 a layer
processor: A Processor, 2 cores
llama.cpp 0.3: AVX AVX512
ratio: medians, Baton over the peer; above 1 Baton is faster"""  # noqa: E501

JSON_RECORD = {
    "engine": "Baton",
    "build_commit": "0.1.0",
    "cpu_info": "A Processor",
    "gpu_info": "",
    "backends": "CPU",
    "model_filename": "model.gguf",
    "model_type": "qwen2 1B Q4_K - Medium",
    "model_size": 485452288,
    "model_n_params": 630167424,
    "n_batch": 512,
    "n_ubatch": 512,
    "n_threads": 2,
    "type_k": "bf16",
    "type_v": "bf16",
    "flash_attn": 1,
    "n_prompt": 512,
    "n_gen": 0,
    "n_depth": 0,
    "test_time": "2026-01-02T03:04:05Z",
    "avg_ns": 550666667,
    "stddev_ns": 77597251,
    "avg_ts": 941.333333,
    "stddev_ts": 122.985094,
    "samples_ns": [500000000, 640000000, 512000000],
    "samples_ts": [1024.0, 800.0, 1000.0],
}


def test_names_are_llama_benchs() -> None:
    assert Test(n_prompt=512).name == "pp512"
    assert Test(n_gen=128).name == "tg128"
    assert Test(n_prompt=512, n_depth=4096).name == "pp512 @ d4096"


def test_ratios_are_of_medians() -> None:
    prefill, decode = REPORT.rows
    assert prefill.ratio == pytest.approx(1000 / 320)
    assert decode.ratio == pytest.approx(0.5)
    assert REPORT.load is not None
    assert REPORT.load.ratio == pytest.approx(3.0)
    assert ALONE.rows[0].ratio is None
    assert calls_per_layer(REPORT) == 5.0


def test_markdown() -> None:
    assert render(REPORT, "md") == MARKDOWN


def test_markdown_alone() -> None:
    text = render(ALONE, "md")
    assert "llama.cpp" not in text
    assert "ratio" not in text
    assert "load: 0.50 s\n" in text


def test_an_unfair_peer_is_marked() -> None:
    text = render(replace(REPORT, missing_features=("AVX512",)), "md")
    assert "not a fair comparison: llama.cpp was built without AVX512" in text


def test_a_busy_computer_is_marked() -> None:
    assert "not reliable" in render(replace(REPORT, load_average=1.5), "md")
    assert "not reliable" not in render(replace(REPORT, load_average=0.3), "md")
    assert summary(replace(REPORT, load_average=1.5))["machine"]["was_busy"]


def test_json_records() -> None:
    records = json.loads(render(REPORT, "json"))
    assert records[0] == JSON_RECORD
    assert [(record["engine"], record["n_gen"], record["n_threads"]) for record in records] == [
        ("Baton", 0, 2),
        ("llama.cpp", 0, 1),
        ("Baton", 128, 2),
        ("llama.cpp", 128, 2),
    ]
    assert records[1]["type_k"] == "f16"


def test_jsonl_holds_the_same_records() -> None:
    lines = render(REPORT, "jsonl").split("\n")
    assert [json.loads(line) for line in lines] == json.loads(render(REPORT, "json"))


def test_csv_holds_the_same_but_for_samples() -> None:
    records = list(csv.DictReader(io.StringIO(render(REPORT, "csv"))))
    wanted = {name: str(value) for name, value in JSON_RECORD.items() if not name.startswith("samples")}
    assert records[0] == wanted
    assert len(records) == 4


def test_summary() -> None:
    found = summary(REPORT)
    assert found["rows"] == [
        {"test": "pp512", "tps": 1000.0, "peer_tps": 320.0, "ratio": 3.125},
        {"test": "tg128 @ d4096", "tps": 64.0, "peer_tps": 128.0, "ratio": 0.5},
        {
            "test": "load",
            "tps": None,
            "peer_tps": None,
            "ratio": 3.0,
            "seconds": 0.5,
            "peer_seconds": 1.5,
            "parts": {"weights": 0.4, "tokenizer": 0.1},
        },
    ]
    assert found["peer"]["features"] == ["AVX", "AVX512"]
    assert found["peer"]["threads"] == {"pp512": 1, "tg128 @ d4096": 2}
    assert found["machine"] == {
        "cpu": "A Processor",
        "gpu": "",
        "cores": 2,
        "load_average_before": None,
        "was_busy": False,
    }
    assert summary(ALONE)["peer"] is None
    assert summary(ALONE)["rows"][0]["ratio"] is None


@pytest.mark.parametrize("form", FORMS)
def test_every_form_is_made_without_a_peer(form: str) -> None:
    assert "llama.cpp" not in render(ALONE, form)
