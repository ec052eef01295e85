"""Which models there are to talk to, and which computers serve them."""

from __future__ import annotations

from typing import Any

from app.chats.models import (
    Coming,
    Computers,
    Readiness,
    Share,
    choices,
    chosen,
    coming,
    computers_for,
    context_of,
    loaded_on_peer,
    loading_words,
    share_of,
)


def engine(model: str, state: str, **more: Any) -> dict[str, Any]:
    return {"model": model, "state": state, "progress": 0.4, "last_exits": [], **more}


MODELS = {"models": [{"id": name, "problem": ""} for name in ("c", "a", "b", "d")]}


def test_loaded_ones_come_first_and_each_says_how_it_is() -> None:
    there = choices(
        MODELS,
        [
            engine("c", "ready"),
            engine("b", "starting"),
            engine("d", "failed", last_exits=[{"reason": "out of memory"}]),
        ],
    )
    assert [one.id for one in there] == ["c", "a", "b", "d"]
    assert [one.readiness for one in there] == [
        Readiness.LOADED,
        Readiness.UNLOADED,
        Readiness.LOADING,
        Readiness.FAILED,
    ]
    assert (there[2].progress, there[3].reason) == (0.4, "out of memory")


def test_a_file_that_is_read_through_first_is_said_to_be_until_its_model_loads() -> None:
    def words(progress: float, checks: dict[str, float]) -> str:
        (one,) = choices(
            {"models": [{"id": "b", "problem": ""}]}, [engine("b", "starting", progress=progress)], {}, checks
        )
        return loading_words(one)

    assert words(0.0, {"b": 0.4}) == "checking the file, 40%"
    assert words(0.2, {"b": 0.4}) == "loading, 20%"
    assert words(0.0, {"another": 0.4}) == "loading"


def test_a_file_that_cannot_be_run_is_no_choice() -> None:
    assert choices({"models": [{"id": "odd", "problem": "not supported"}]}, []) == []
    assert choices({}, []) == []


def test_what_is_wanted_is_chosen_if_it_is_there() -> None:
    there = choices(MODELS, [engine("c", "ready")])
    assert chosen(there, "gone", "b") == "b"
    assert chosen(there, "", "") == "c"
    assert chosen([], "b") == ""


def test_the_computers_of_a_model() -> None:
    roles = {"agreed": [{"model": "m", "peer": "id2", "prefill": "id1", "decode": "id2"}]}
    here = Computers(decoder="studio", worker="spark")
    there = Computers(decoder="spark", worker="studio", decodes_here=False)
    assert computers_for("m", roles, here="studio", peer="spark", peer_id="id2") == there
    assert computers_for("other", roles, here="studio", peer="spark", peer_id="id2") == here
    assert computers_for("m", {}, here="studio", peer="spark", peer_id="id2") == here
    assert computers_for("m", roles, here="studio", peer="spark", peer_id="") == here
    assert here.prefilled(by_worker=True) == ("spark", True)
    assert here.prefilled(by_worker=False) == ("studio", False)
    assert there.prefilled(by_worker=True) == ("studio", False)
    assert there.prefilled(by_worker=False) == ("spark", True)


def test_a_model_that_the_other_computer_answers_with_is_loaded_there() -> None:
    spark = {"node_id": "id2", "name": "spark", "connected": True}
    agreed = [
        {"model": model, "peer": "id2", "prefill": "id1", "decode": decode}
        for model, decode in (("a", "id2"), ("b", "id2"), ("c", "id1"))
    ]
    hosts = {"id2": {"loaded": ["a", "c"]}}
    assert loaded_on_peer(spark, {"agreed": agreed}, hosts) == {"a": "spark"}
    assert loaded_on_peer({**spark, "connected": False}, {"agreed": agreed}, hosts) == {}
    assert loaded_on_peer(None, {"agreed": agreed}, hosts) == loaded_on_peer(spark, {}, {}) == {}
    first, *others = choices(MODELS, [], {"a": "spark"})
    assert (first.id, first.readiness, first.on) == ("a", Readiness.LOADED, "spark")
    assert {one.readiness for one in others} == {Readiness.UNLOADED}
    (here, *_) = choices(MODELS, [engine("a", "ready")], {"a": "spark"})
    assert (here.readiness, here.on) == (Readiness.LOADED, "")


def test_the_context_of_a_model_is_known_before_it_is_loaded() -> None:
    models = {"models": [{"id": "a", "n_ctx_train": 8192}, {"id": "odd", "n_ctx_train": 0}]}
    settings = {"settings": [{"name": "slots", "value": 4}, {"name": "ctx", "value": 32_768}]}
    assert context_of("a", models, settings) == 8192
    assert context_of("a", models, {"settings": [{"name": "ctx", "value": 4096}]}) == 4096
    assert context_of("odd", models, settings) is context_of("gone", models, settings) is None
    assert context_of("a", models, {}) is context_of("a", {}, settings) is None


def test_the_other_computer_has_a_share_only_in_models_with_agreed_roles() -> None:
    reads = {"agreed": [{"model": "m", "peer": "id2", "prefill": "id2", "decode": "id1"}]}
    writes = {"agreed": [{"model": "m", "peer": "id2", "prefill": "id1", "decode": "id2"}]}
    assert share_of("m", reads, peer_id="id2") is Share.READS
    assert share_of("m", writes, peer_id="id2") is Share.WRITES
    assert share_of("other", reads, peer_id="id2") is Share.NOTHING
    assert share_of("m", reads, peer_id="") is Share.NOTHING
    assert share_of("m", {"agreed": []}, peer_id="id2") is Share.NOTHING


def test_what_is_on_its_way_here_is_known() -> None:
    download = {"model": "some/Repo/Tiny.gguf", "state": "running", "done_bytes": 1, "total_bytes": 4}
    over = {**download, "state": "done"}
    copy = {**download, "model": "theirs", "direction": "in"}
    assert coming([over, download], [copy]) == Coming(name="Tiny", done_bytes=1, total_bytes=4)
    assert coming([over], [{**copy, "direction": "out"}]) is None
    assert coming([], [copy]) == Coming(name="theirs", done_bytes=1, total_bytes=4)
