"""A model that Ollama keeps answers at the endpoint of a real node, and stays as it is."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from engine.node.models.catalogue import find_model
from engine.paths import models_dir
from tests.engine.node.nodes import NodeProcess

STARTER = "smollm2-135m"


def test_a_model_of_ollama_is_listed_and_answers(tmp_path: Path) -> None:
    starter = models_dir() / find_model(STARTER).file
    if not starter.exists():
        pytest.skip(f"needs the starter model: baton models get {STARTER}")
    node = NodeProcess(tmp_path, "studio", "--port", "0", "--node-port", "0")
    ollama = node.folder / ".ollama" / "models"
    blob = ollama / "blobs" / f"sha256-{'0' * 64}"
    manifest = ollama / "manifests" / "registry.ollama.ai" / "library" / "smollm2" / "135m"
    for path in (blob, manifest):
        path.parent.mkdir(parents=True)
    blob.symlink_to(starter)
    layer = {"mediaType": "application/vnd.ollama.image.model", "digest": f"sha256:{'0' * 64}"}
    manifest.write_text(json.dumps({"layers": [layer]}))
    with node:
        assert "kept by Ollama" in node.baton("models", "list")
        assert (
            json.loads(node.baton("models", "inspect", "smollm2:135m", "--json"))["architecture"] == "llama"
        )
        assert node.ask("smollm2:135m", "The capital of France is")["usage"]["completion_tokens"] == 8
        assert "belongs to Ollama" in node.baton("models", "rm", "smollm2:135m", "--yes", expect=2)
    assert blob.exists() and not list((node.folder / "models").glob("*.gguf"))
