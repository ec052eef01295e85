"""Looking for models on the hub, against a small one on this computer."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import httpx
import pytest

from engine.errors import DownloadFailed, DownloadRefused, ModelNotFound
from engine.node.models.hub_models import get_from_hub
from engine.node.models.hub_search import HubSearch, named_by, quantization_in
from engine.node.models.library import Library
from engine.node.models.model_folder import Folder
from engine.node.models.unfinished import find_unfinished
from tests.engine.node.models.hub_at_hand import HubAtHand, Repository, hub_at_hand
from tests.engine.node.models.silent import Silent

Found = TypeVar("Found")


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[HubAtHand]:
    repositories = {
        "some/Tiny-GGUF": Repository(
            files={
                "Tiny-Q8_0.gguf": bytes(900),
                "Tiny-Q4_K_M.gguf": bytes(500),
                "big/Tiny-F16-00001-of-00002.gguf": bytes(1000),
                "big/Tiny-F16-00002-of-00002.gguf": bytes(800),
                "half-00001-of-00002.gguf": bytes(10),
                "mmproj-Tiny-F16.gguf": bytes(50),
                "unknown.gguf": bytes(60),
                "README.md": b"read me",
            },
            unpublished={"unknown.gguf"},
        ),
        "other/Tiny-Chat-GGUF": Repository(files={}, downloads=5000, architecture="rwkv7"),
        "meta/Closed-GGUF": Repository(files={"closed.gguf": bytes(100)}, gated=True),
    }
    with hub_at_hand(repositories) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        yield hub


def asked(work: Awaitable[Found]) -> Found:
    async def inside() -> Found:
        return await work

    return asyncio.run(inside())


def test_repositories_are_found_by_words_the_most_fetched_first(hub: HubAtHand) -> None:
    found = asked(HubSearch().search("tiny gguf"))
    assert [each["repository"] for each in found] == ["other/Tiny-Chat-GGUF", "some/Tiny-GGUF"]
    assert found[1] == {
        "repository": "some/Tiny-GGUF",
        "downloads": 1000,
        "likes": 10,
        "updated": "2026-10-02T08:00:00.000Z",
        "gated": False,
    }


def test_a_repositorys_models_are_whole_and_can_be_verified(hub: HubAtHand) -> None:
    found = asked(HubSearch().files("some/Tiny-GGUF"))
    files = [
        (each["file"], each["quantization"], each["size_bytes"], each["n_files"]) for each in found["files"]
    ]
    assert files == [
        ("Tiny-Q4_K_M.gguf", "Q4_K_M", 500, 1),
        ("Tiny-Q8_0.gguf", "Q8_0", 900, 1),
        ("big/Tiny-F16-00001-of-00002.gguf", "F16", 1800, 2),
    ]
    assert found["files"][0]["name"] == "some/Tiny-GGUF/Tiny-Q4_K_M.gguf"
    assert (found["n_ctx_train"], found["problem"]) == (8192, "")


def test_what_baton_cannot_run_is_said_before_it_is_fetched(hub: HubAtHand) -> None:
    assert "'rwkv7'" in asked(HubSearch().files("other/Tiny-Chat-GGUF"))["problem"]


def test_a_hub_that_says_no_is_explained(hub: HubAtHand, tmp_path: Path) -> None:
    with pytest.raises(DownloadRefused, match="private, or not on the hub"):
        asked(HubSearch().files("nobody/nothing"))
    with pytest.raises(ModelNotFound, match="OWNER/REPO"):
        asked(HubSearch().files("../models"))
    library = Library(tmp_path)
    with pytest.raises(DownloadRefused, match="agreed to its terms") as refused:
        get_from_hub(
            library, Folder(tmp_path, tmp_path / "digests"), "meta/Closed-GGUF/closed.gguf", Silent()
        )
    assert "Check the network" not in str(refused.value)


@pytest.mark.parametrize(
    ("status", "words"),
    [(403, "agree there"), (404, "not on the hub"), (429, "wait a minute"), (503, "status 503")],
)
def test_each_status_has_its_sentence(status: int, words: str) -> None:
    transport = httpx.MockTransport(lambda _: httpx.Response(status))
    with pytest.raises(DownloadFailed, match=words):
        asked(HubSearch(transport).search("anything"))


def test_no_network_and_nonsense_are_said() -> None:
    def fails(_: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("no route to host")

    answers: list[tuple[Any, str]] = [
        (fails, "cannot be reached.*no route"),
        (lambda _: httpx.Response(200, text="<html>"), "something else"),
    ]
    for answer, words in answers:
        with pytest.raises(DownloadFailed, match=words):
            asked(HubSearch(httpx.MockTransport(answer)).search("anything"))


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("Qwen/Qwen3-0.6B-GGUF", ("Qwen/Qwen3-0.6B-GGUF", "")),
        ("https://huggingface.co/Qwen/Qwen3-0.6B-GGUF/", ("Qwen/Qwen3-0.6B-GGUF", "")),
        (
            "https://huggingface.co/a/b/blob/main/sub/x%20y-Q8_0.gguf?download=true",
            ("a/b", "sub/x y-Q8_0.gguf"),
        ),
        ("hf.co/a/b:Q4_K_M", ("a/b", "")),
        ("a/b/c.gguf", ("a/b", "c.gguf")),
        ("https://huggingface.co/a/b/tree/main", ("a/b", "")),
        ("https://example.com/a/b", None),
        ("qwen3 0.6b", None),
        ("https://huggingface.co/models", None),
    ],
)
def test_what_is_pasted_names_a_repository(text: str, named: tuple[str, str] | None) -> None:
    assert named_by(text) == named


def test_quantisation_is_read_off_a_name() -> None:
    names = {
        "Qwen3-0.6B-Q8_0": "Q8_0",
        "SmolLM2-135M-Instruct.Q4_1": "Q4_1",
        "model-BF16-iq4_xs": "IQ4_XS",
        "Qwen3.6-27B-UD-Q4_K_XL": "UD-Q4_K_XL",
        "Llama-3-8B": "",
        "Fast-Q": "",
    }
    assert {name: quantization_in(name) for name in names} == names


def test_an_unfinished_file_knows_where_it_is_from(
    hub: HubAtHand, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def breaks(*_: object) -> None:
        raise DownloadFailed("the connection ended")

    folder = Folder(tmp_path, tmp_path / "digests")
    with monkeypatch.context() as patch:
        patch.setattr("engine.node.models.hub.HubFile._fetch_rest", breaks)
        with pytest.raises(DownloadFailed):
            get_from_hub(Library(tmp_path), folder, "some/Tiny-GGUF/Tiny-Q8_0.gguf", Silent())
    assert find_unfinished(tmp_path) == ()  # not a byte has come
    next(tmp_path.glob("*.origin")).with_suffix("").write_bytes(bytes(4))
    (left,) = find_unfinished(tmp_path)
    assert (left.model_id, left.source, left.size_bytes) == ("Tiny-Q8_0", "some/Tiny-GGUF/Tiny-Q8_0.gguf", 4)
    get_from_hub(Library(tmp_path), folder, left.source, Silent())
    assert find_unfinished(tmp_path) == () and not list(tmp_path.glob("*.origin"))
