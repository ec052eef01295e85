"""The models of both computers as rows."""

from __future__ import annotations

from typing import Any

import pytest

from app.pages.models.rows import (
    Fit,
    Memory,
    Order,
    State,
    chosen,
    count_text,
    memory_here,
    memory_there,
    rows_of,
    tokens_text,
)

GB = 1_000_000_000


def model(name: str, digest: str | None = None, **more: Any) -> dict[str, Any]:
    return {
        "id": name,
        "path": f"/models/{name}.gguf",
        "size_bytes": GB,
        "is_link": False,
        "problem": "",
        "title": name.title(),
        "architecture": "llama",
        "n_params": 135_000_000,
        "n_ctx_train": 8192,
        "digest": digest,
        **more,
    }


def library(here: list[dict[str, Any]], there: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "here": {"models": here, "memory": {"total_bytes": 64 * GB, "free_bytes": 40 * GB}},
        "peers": [
            {
                "node_id": "p",
                "name": "spark",
                "models": there,
                "problem": "",
                "memory": {"total_bytes": 128 * GB, "free_bytes": 100 * GB},
            }
        ],
    }


def places(here: list[dict[str, Any]], there: list[dict[str, Any]]) -> dict[str, tuple[bool, bool]]:
    return {row.model_id: (row.here, row.there) for row in rows_of(library(here, there), (), "p")}


def test_the_same_content_is_one_row_whatever_it_is_called() -> None:
    assert places([model("a", "1")], [model("b", "1")]) == {"a": (True, True)}


def test_a_content_that_is_here_twice_is_on_both_computers_twice() -> None:
    assert places([model("a", "1"), model("b", "1")], [model("a", "1")]) == {
        "a": (True, True),
        "b": (True, True),
    }


def test_the_same_name_of_other_content_is_another() -> None:
    rows = rows_of(library([model("a", "1")], [model("a", "2")]), (), "p")
    assert [(row.model_id, row.here, row.there) for row in rows] == [("a", True, False), ("a", False, True)]


def test_before_digests_are_known_names_tell() -> None:
    assert places([model("a")], [model("a", "2"), model("b")]) == {"a": (True, True), "b": (False, True)}


def test_models_of_a_third_computer_are_left_out() -> None:
    assert rows_of(library([], [model("a")]), (), "another") == []


def test_what_an_earlier_version_does_not_tell_is_unknown() -> None:
    (row,) = rows_of(library([model("a")], []), (), "p")
    assert (row.quantization, row.needed_bytes, row.facts) == ("", 0, ("llama", "135M"))


@pytest.mark.parametrize(
    ("told", "state"),
    [
        ("ready", State.LOADED),
        ("starting", State.LOADING),
        ("waiting", State.LOADING),
        ("failed", State.FAILED),
    ],
)
def test_how_far_it_is_loaded_comes_from_its_engine(told: str, state: State) -> None:
    engine = {"model": "a", "state": told, "progress": 0.5, "last_exits": [{"reason": "no memory"}]}
    (row,) = rows_of(library([model("a")], []), [engine], "p")
    assert (row.state, row.progress) == (state, 0.5)
    assert row.fault == ("" if state is State.LOADED else "no memory")


def test_where_the_other_computer_answers_it_is_known() -> None:
    both = library([model("a"), model("b")], [])
    found = {row.model_id: row.answers_on for row in rows_of(both, (), "p", answering={"a": "spark"})}
    assert found == {"a": "spark", "b": ""}


def test_how_far_a_file_is_read_through_is_told_of_that_model_alone() -> None:
    rows = rows_of(library([model("a"), model("b")], []), (), "p", checks={"b": 0.4, "gone": 0.1})
    assert {row.model_id: row.checked for row in rows} == {"a": 0.0, "b": 0.4}


def test_whom_a_model_fits() -> None:
    memory = Memory(name="studio", total_bytes=100 * GB, free_bytes=40 * GB)
    assert memory.fit(30 * GB) is Fit.YES
    assert memory.fit(38 * GB) is Fit.CROWDED  # the system keeps some of what is free
    assert memory.fit(96 * GB) is Fit.NO
    assert memory.fit(0) is Fit.UNKNOWN
    assert Memory(name="?").fit(GB) is Fit.UNKNOWN


def test_memory_is_what_a_mac_s_gpu_may_take() -> None:
    told = library([], [])
    assert memory_here(told, {}, "studio").total_bytes == 64 * GB
    limited = memory_here(told, {"gpu_limit_bytes": 32 * GB}, "studio")
    assert (limited.total_bytes, limited.free_bytes) == (32 * GB, 32 * GB)


def test_a_computer_that_is_away_has_no_memory() -> None:
    told = library([], [])
    found = memory_there(told, "p")
    assert found is not None and found.total_bytes == 128 * GB
    told["peers"][0]["problem"] = "it does not answer"
    assert memory_there(told, "p") is None
    assert memory_there(told, "other") is None


def test_filter_and_order() -> None:
    rows = rows_of(
        library(
            [
                model("Beta", size_bytes=3 * GB, n_params=1),
                model("alpha", n_params=5, program="Ollama"),
                model("Aaa", problem="no", size_bytes=9 * GB),
            ],
            [],
        ),
        (),
    )
    assert [row.model_id for row in chosen(rows, "", Order.NAME)] == ["alpha", "Beta", "Aaa"]
    assert [row.model_id for row in chosen(rows, "", Order.SIZE)] == ["Beta", "alpha", "Aaa"]
    assert [row.model_id for row in chosen(rows, "", Order.PARAMETERS)] == ["alpha", "Beta", "Aaa"]
    assert [row.model_id for row in chosen(rows, "OLLAMA alp", Order.NAME)] == ["alpha"]
    assert chosen(rows, "nothing", Order.NAME) == []


def test_counts_as_people_say_them() -> None:
    assert [count_text(n) for n in (1024, 135e6, 1.5e9, 27.3e9, 70e9)] == [
        "1K",
        "135M",
        "1.5B",
        "27.3B",
        "70B",
    ]
    assert [tokens_text(n) for n in (512, 8192, 32000, 131072, 1 << 20)] == ["512", "8K", "32K", "128K", "1M"]
