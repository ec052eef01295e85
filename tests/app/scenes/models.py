"""The page Models: the library of both computers, what is on its way, a look into a model, and what can be got."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any
from unittest.mock import patch

from PySide6.QtCore import QPoint
from PySide6.QtWidgets import QDialog

from app.node.faults import AppError
from app.pages.models.bring import BringDialog
from app.pages.models.library import _OrderButton
from app.pages.models.page import ModelsPage, View
from tests.app.screenshots import Stage
from tests.app.staged_node import MODEL, library, look_into
from tests.app.two_computers import engine
from tests.app.windows import texts, wait

GB = 1_000_000_000


def play(stage: Stage) -> None:
    told = library()
    told["here"]["notes"] = [
        "Ollama's manifest of llava:7b cannot be read (it is damaged); it is left out: pull it there again"
    ]
    answers = stage.app.staged.answers
    answers["GET", "/models"] = {
        **told,
        "here": {**told["here"], "models": told["here"]["models"][:1]},
        "peers": [],
    }
    page = stage.app.page("models")
    assert isinstance(page, ModelsPage)
    wait(lambda: page.library.rows)
    stage.shot("models-one")
    answers["GET", "/models"] = told
    page._look()
    wait(lambda: len(page.library.rows) > 1)
    page.library.choose((MODEL, True))
    wait(lambda: "SHA-256" in texts(page.library.panel))
    stage.shot("models-inspect")
    page.library.choose(None)
    page._look_soon.timeout.disconnect()
    _play_library(stage, page, told)
    _play_get(stage, page)
    _play_dialogs(stage, page)


def _play_library(stage: Stage, page: ModelsPage, told: dict[str, Any]) -> None:
    running = [engine(), loading("Qwen3-14B-Q4_K_M", "starting", 0.43)]
    _tell(stage, page, told, engines=running)
    stage.shot("models-library")
    menu = page.library.findChild(_OrderButton).menu_of_orders()
    menu.popup(stage.app.window.mapToGlobal(QPoint(400, 150)))
    stage.shot("models-menu-order", over=[menu])
    menu.hide()
    with patch("app.pages.models.transit_list.time") as clock:
        clock.monotonic.return_value = 0.0
        _tell(stage, page, told, engines=running, downloads=DOWNLOADS, copies=COPIES)
        clock.monotonic.return_value = 0.5
        moved = [
            {**each, "done_bytes": each["done_bytes"] + 30_000_000} for each in (*DOWNLOADS[:1], *COPIES)
        ]
        _tell(stage, page, told, engines=running, downloads=[moved[0], DOWNLOADS[1]], copies=moved[1:])
        stage.shot("models-moving")
    page._faults["Qwen3-32B-Q4_K_M"] = (
        "it needs 24.1 GB and 3.9 GB are free: unload another model, or choose one with a smaller quantisation"
    )
    _tell(stage, page, told, downloads=FAILURES)
    stage.shot("models-failures")
    page._faults.clear()
    page.library.filter.setText("mistral")
    _tell(stage, page, told)
    stage.shot("models-filtered")
    page.library.filter.clear()
    nothing = {**told, "here": {**told["here"], "models": [], "notes": []}, "peers": []}
    _tell(stage, page, nothing)
    stage.shot("models-empty")
    _tell(stage, page, told)
    page._drop.show()
    stage.shot("models-drop")
    page._drop.hide()
    unknown = "the architecture 'mamba2' is not known to Baton (known: gemma3, llama, qwen2, qwen3)"
    told_of = {
        **look_into("mamba2-2.7b-Q8_0"),
        "problem": unknown,
        "architecture": "mamba2",
        "measures": None,
    }
    stage.app.staged.answers["GET", "/models/mamba2-2.7b-Q8_0"] = told_of
    page.library.choose(("mamba2-2.7b-Q8_0", True))
    wait(lambda: "Baton cannot run it" in texts(page.library.panel))
    stage.shot("models-inspect-problem")
    page.library.choose(None)


def _play_get(stage: Stage, page: ModelsPage) -> None:
    page.show_view(View.GET)
    page.get.show_catalogue()
    stage.shot("models-get")
    page.get.field.setText("qwen3 0.6b")
    page.get._on_found({"named": "", "file": "", "results": RESULTS})
    stage.shot("models-results")
    page.get._show_repository(REPOSITORY)
    stage.shot("models-files")
    page.get._show_repository({**REPOSITORY, "repository": "meta-llama/Llama-9-GGUF", **CLOSED})
    stage.shot("models-closed")
    page.get._on_found({"named": "", "file": "", "results": []})
    stage.shot("models-nothing-found")
    page.get._on_error(
        AppError(
            "The Hugging Face hub cannot be reached: check this computer's connection to the internet, and try again "
            "(All connection attempts failed)"
        )
    )
    stage.shot("models-no-network")
    page.get.field.clear()
    page.show_view(View.LIBRARY)


def _play_dialogs(stage: Stage, page: ModelsPage) -> None:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "Qwen3-8B-Q4_K_M.gguf"
        with file.open("wb") as opened:
            opened.truncate(5_030_000_000)
        dialog = BringDialog(page, [str(file)], prefers_copy=False)
        dialog.show()
        stage.shot("models-import", dialog)
        dialog.reject()
    page.remove(next(model for model in page._models if model.here and not model.program))
    (question,) = [each for each in page.findChildren(QDialog) if each.isVisible()]
    stage.shot("models-remove", question)
    question.reject()


def _tell(stage: Stage, page: ModelsPage, told: dict[str, Any], **parts: Any) -> None:
    """As if the node had said so."""
    stage.app.tell(**{"engines": [], **parts})
    page._look_soon.stop()
    page._on_told((told, page._catalogue))


def loading(name: str, state: str, progress: float = 1.0) -> dict[str, Any]:
    return {"model": name, "state": state, "progress": progress, "last_exits": [], "active": 0, "worker": {}}


def download(key: str, name: str, state: str, done: float, total: float, problem: str = "") -> dict[str, Any]:
    return {
        "id": key,
        "model": name,
        "model_id": "",
        "done_bytes": int(done * GB),
        "total_bytes": int(total * GB),
        "state": state,
        "problem": problem,
        "note": "",
        "since": 0,
    }


DOWNLOADS = [
    download("a", "Qwen/Qwen3-8B-GGUF/Qwen3-8B-Q4_K_M.gguf", "running", 1.9, 5.0),
    download("b", "bartowski/gemma-3-12b-it-GGUF/gemma-3-12b-it-Q4_K_M.gguf", "cancelled", 3.1, 7.3),
]
COPIES = [
    {
        "id": "c",
        "model": "Qwen3-14B-Q4_K_M",
        "source": "Qwen3-14B-Q4_K_M",
        "peer": "spark",
        "peer_id": "b" * 32,
        "begun_here": True,
        "direction": "out",
        "total_bytes": 9 * GB,
        "done_bytes": 5 * GB,
        "state": "running",
        "problem": "",
        "since": 0,
    }
]
FAILURES = [
    download(
        "d",
        "meta-llama/Llama-9-8B-GGUF/Llama-9-8B-Q4_K_M.gguf",
        "failed",
        0,
        0,
        "meta-llama/Llama-9-8B-GGUF is given only to who has agreed to its terms: open "
        "https://huggingface.co/meta-llama/Llama-9-8B-GGUF, agree there, sign in once with `hf auth login` on this "
        "computer, and try again",
    ),
    download(
        "e",
        "Qwen/Qwen3-32B-GGUF/Qwen3-32B-Q8_0.gguf",
        "failed",
        11.2,
        34.8,
        "the disk that holds /Users/you/Library/Caches/baton/models is full: 23600 MB are needed; make room, or "
        "choose a folder on another disk (in Settings, or by `baton config set models`), and try again: what was "
        "fetched is kept",
    ),
]


def result(name: str, downloads: int, likes: int, *, gated: bool = False) -> dict[str, Any]:
    updated = "2026-09-18T08:00:00.000Z"
    return {"repository": name, "downloads": downloads, "likes": likes, "updated": updated, "gated": gated}


RESULTS = [
    result("Qwen/Qwen3-0.6B-GGUF", 1_240_000, 412),
    result("unsloth/Qwen3-0.6B-GGUF", 86_400, 97),
    result("bartowski/Qwen_Qwen3-0.6B-GGUF", 21_300, 34),
    result("someone/Qwen3-0.6B-Instruct-GGUF", 930, 2, gated=True),
]


def file(name: str, quantization: str, size_gb: float) -> dict[str, Any]:
    return {
        "name": f"Qwen/Qwen3-8B-GGUF/{name}",
        "file": name,
        "title": name.removesuffix(".gguf"),
        "quantization": quantization,
        "size_bytes": int(size_gb * GB),
        "n_files": 1,
    }


REPOSITORY = {
    **result("Qwen/Qwen3-8B-GGUF", 412_000, 98),
    "architecture": "qwen3",
    "n_ctx_train": 40960,
    "n_params": 8_190_000_000,
    "problem": "",
    "files": [
        file("Qwen3-8B-Q4_K_M.gguf", "Q4_K_M", 5.0),
        file("Qwen3-8B-Q8_0.gguf", "Q8_0", 8.7),
        file("Qwen3-8B-F16.gguf", "F16", 16.4),
        file("Qwen3-8B-F32.gguf", "F32", 72.8),
    ],
}
CLOSED = {
    "gated": True,
    "problem": "Baton cannot run 'llama9' models yet: it runs gemma3, llama, qwen2 and qwen3",
}
