"""The models of this computer as the endpoint lists them, each with how far it is loaded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from engine.node.engines import Engines
from engine.node.models.model_folder import LocalModel
from engine.node.models.shelf import Shelf
from engine.node.supervisor import State


class ModelList:
    """What is on the shelf, as it was last seen. Files are looked at when that changes, not for each request."""

    def __init__(self, shelf: Shelf, engines: Engines) -> None:
        self._shelf = shelf
        self._engines = engines
        self._seen: tuple[LocalModel, ...] = ()
        self._created: dict[str, int] = {}

    def entries(self) -> list[dict[str, Any]]:
        """Those that can be run."""
        created = self._created_at()
        return [
            {
                "id": model.model_id,
                "object": "model",
                "created": created[model.model_id],
                "owned_by": "baton",
                "status": self._status(model.model_id),
                "meta": {
                    "size": model.size_bytes,
                    "n_params": model.n_params,
                    "n_ctx_train": model.n_ctx_train,
                },
            }
            for model in self._seen
            if not model.problem
        ]

    def problem_of(self, name: str) -> str:
        """Why a model that is there is not listed."""
        return next((model.problem for model in self._shelf.models if model.model_id == name), "")

    def _created_at(self) -> dict[str, int]:
        if self._seen is not self._shelf.models:
            self._seen = self._shelf.models
            self._created = {model.model_id: _changed_at(model.path) for model in self._seen}
        return self._created

    def _status(self, model_id: str) -> dict[str, Any]:
        engine = self._engines.get(model_id)
        if engine is None:
            return {"value": "unloaded"}
        if engine.is_ready:
            return {"value": "loaded"}
        if engine.process.state is State.FAILED:
            return {"value": "failed", "failed": True, "message": str(engine.process.failure())}
        return {"value": "loading", "progress": engine.progress}


def _changed_at(path: Path) -> int:
    """Of a file that may be gone since it was looked at."""
    try:
        return int(path.stat().st_mtime)
    except OSError:
        return 0
