"""What LM Studio, the hub's cache and Ollama keep on a computer, laid out as they do."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from engine.errors import UserError
from engine.node.models.elsewhere import Kept, Places, default_places, find_kept
from engine.node.models.model_folder import Folder, LocalModel, remove_model
from tests.conftest import SMOLLM2_FILE
from tests.engine.node.models.models_at_hand import write_model


def keep_in_lm_studio(home: Path, name: str, owner: str = "owner/repo") -> Path:
    folder = home / ".lmstudio" / "models" / owner
    folder.mkdir(parents=True, exist_ok=True)
    return write_model(folder / name)


def keep_in_hub_cache(home: Path, file: str, *, revision: str = "abc", main: str = "abc") -> Path:
    repository = home / ".cache" / "huggingface" / "hub" / "models--owner--repo"
    for folder in ("blobs", "refs", f"snapshots/{revision}"):
        (repository / folder).mkdir(parents=True, exist_ok=True)
    blob = write_model(repository / "blobs" / hashlib.sha256(f"{file}{revision}".encode()).hexdigest())
    link = repository / "snapshots" / revision / file
    link.symlink_to(blob)
    (repository / "refs" / "main").write_text(main)
    return link


def keep_in_ollama(home: Path, where: str, *, n_bytes: int = 4096) -> Path:
    models = home / ".ollama" / "models"
    (models / "blobs").mkdir(parents=True, exist_ok=True)
    blob = write_model(models / "new", n_bytes=n_bytes)
    digest = hashlib.sha256(blob.read_bytes()).hexdigest()
    blob = blob.rename(models / "blobs" / f"sha256-{digest}")
    manifest = models / "manifests" / where
    manifest.parent.mkdir(parents=True, exist_ok=True)
    layers = [
        {"mediaType": "application/vnd.ollama.image.model", "digest": f"sha256:{digest}", "size": 1},
        {"mediaType": "application/vnd.ollama.image.template", "digest": f"sha256:{'0' * 64}", "size": 1},
    ]
    manifest.write_text(json.dumps({"schemaVersion": 2, "layers": layers}))
    return blob


def found(home: Path) -> Kept:
    return find_kept(default_places({}, home, "darwin"))


def names(home: Path) -> list[tuple[str, str]]:
    return [(model.program, model.name) for model in found(home).models]


def test_each_programs_models_are_found_where_it_keeps_them(tmp_path: Path) -> None:
    keep_in_lm_studio(tmp_path, "Tiny-Q8_0.gguf")
    keep_in_lm_studio(tmp_path, "mmproj-Tiny.gguf")
    keep_in_hub_cache(tmp_path, "Hub-Q8_0.gguf")
    keep_in_ollama(tmp_path, "registry.ollama.ai/library/qwen3/0.6b")
    keep_in_ollama(tmp_path, "hf.co/someone/Model-GGUF/Q4_K_M")
    assert names(tmp_path) == [
        ("LM Studio", "Tiny-Q8_0"),
        ("Hugging Face", "Hub-Q8_0"),
        ("Ollama", "someone/Model-GGUF:Q4_K_M"),
        ("Ollama", "qwen3:0.6b"),
    ]
    assert found(tmp_path).notes == ()


def test_where_nothing_is_installed_nothing_is_found(tmp_path: Path) -> None:
    assert found(tmp_path) == Kept()


def test_variables_of_the_programs_are_heeded(tmp_path: Path) -> None:
    variables = {"OLLAMA_MODELS": "/o", "HF_HOME": "/h"}
    places = default_places(variables, tmp_path, "linux")
    assert places.ollama == (Path("/o"), Path("/usr/share/ollama/.ollama/models"))
    assert places.hugging_face == (Path("/h/hub"),)
    assert default_places({"HF_HUB_CACHE": "/c"}, tmp_path).hugging_face == (Path("/c"),)
    (tmp_path / ".lmstudio-home-pointer").write_text("/l\n")
    assert default_places({}, tmp_path).lm_studio[0] == Path("/l/models")


def test_a_repositorys_main_snapshot_counts(tmp_path: Path) -> None:
    keep_in_hub_cache(tmp_path, "Old.gguf", revision="old", main="old")
    keep_in_hub_cache(tmp_path, "New.gguf", revision="new", main="new")
    assert names(tmp_path) == [("Hugging Face", "New")]


def test_parts_of_one_model_are_one(tmp_path: Path) -> None:
    for number in (1, 2):
        keep_in_lm_studio(tmp_path, f"Big-0000{number}-of-00002.gguf")
    (model,) = found(tmp_path).models
    assert model.name == "Big"
    assert [path.name for path in model.paths] == ["Big-00001-of-00002.gguf", "Big-00002-of-00002.gguf"]


def test_two_names_of_one_file_are_one_model(tmp_path: Path) -> None:
    blob = keep_in_ollama(tmp_path, "registry.ollama.ai/library/llama3/8b")
    manifest = tmp_path / ".ollama/models/manifests/registry.ollama.ai/library/llama3"
    (manifest / "latest").write_text((manifest / "8b").read_text())
    (model,) = found(tmp_path).models
    assert model.paths == (blob,)


def test_a_damaged_manifest_is_left_out_with_a_note(tmp_path: Path) -> None:
    keep_in_ollama(tmp_path, "registry.ollama.ai/library/good/1b")
    keep_in_ollama(tmp_path, "registry.ollama.ai/library/gone/1b", n_bytes=2048).unlink()
    manifests = tmp_path / ".ollama/models/manifests/registry.ollama.ai/library"
    for name, content in {
        "cut": b'{"layers": [{"media',
        "evil": json.dumps(
            {
                "layers": [
                    {"mediaType": "application/vnd.ollama.image.model", "digest": "sha256:../../etc/passwd"}
                ]
            }
        ).encode(),
        "long": b" " * (2 << 20),
    }.items():
        (manifests / name).mkdir()
        (manifests / name / "1b").write_bytes(content)
    assert names(tmp_path) == [("Ollama", "good:1b")]
    notes = "\n".join(found(tmp_path).notes)
    assert all(f"{name}:1b" in notes for name in ("cut", "evil", "long", "gone"))


# among the models of this computer


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    (tmp_path / "own").mkdir()
    places: Places = default_places({}, tmp_path, "darwin")
    return Folder(tmp_path / "own", tmp_path / "digests", lambda: find_kept(places))


def by_id(folder: Folder) -> dict[str, LocalModel]:
    return {model.model_id: model for model in folder.models()}


def test_they_stand_beside_baton_s_own(folder: Folder, tmp_path: Path) -> None:
    write_model(folder.path / "Tiny.gguf")
    keep_in_lm_studio(tmp_path, "Tiny.gguf")
    keep_in_lm_studio(tmp_path, "Tiny.gguf", "other/repo")
    keep_in_lm_studio(tmp_path, SMOLLM2_FILE)
    blob = keep_in_ollama(tmp_path, "registry.ollama.ai/library/qwen3/0.6b")
    models = by_id(folder)
    programs = {model_id: model.program for model_id, model in models.items()}
    assert programs == {
        "Tiny": "",
        "Tiny@lm-studio": "LM Studio",
        "Tiny@lm-studio-2": "LM Studio",
        "smollm2-135m": "LM Studio",
        "qwen3:0.6b": "Ollama",
    }
    ollama = models["qwen3:0.6b"]
    assert (ollama.path, ollama.names, ollama.problem) == (blob, ("qwen3-0.6b.gguf",), "")
    assert ollama.architecture == "llama" and ollama.told().program == "Ollama"


def test_one_that_is_linked_among_baton_s_own_is_that(folder: Folder, tmp_path: Path) -> None:
    (folder.path / "mine.gguf").symlink_to(keep_in_lm_studio(tmp_path, "Tiny.gguf"))
    assert list(by_id(folder)) == ["mine"]


def test_they_are_never_deleted(folder: Folder, tmp_path: Path) -> None:
    path = keep_in_lm_studio(tmp_path, "Tiny.gguf")
    with pytest.raises(UserError, match="belongs to LM Studio"):
        remove_model(by_id(folder)["Tiny"], in_use={})
    assert path.exists()


def test_notes_are_kept_for_who_looks(folder: Folder, tmp_path: Path) -> None:
    keep_in_ollama(tmp_path, "registry.ollama.ai/library/gone/1b").unlink()
    assert folder.models() == () and "gone:1b" in folder.notes[0]
