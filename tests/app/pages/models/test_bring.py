"""Which of the files that were dropped are models."""

from __future__ import annotations

from pathlib import Path

from app.pages.models.bring import models_among


def test_gguf_files_and_those_in_folders_are_models(tmp_path: Path) -> None:
    (tmp_path / "folder" / "deep").mkdir(parents=True)
    for name in ("a.gguf", "notes.txt", "folder/deep/b.gguf"):
        (tmp_path / name).write_bytes(b"")
    models, others = models_among(str(tmp_path / name) for name in ("a.gguf", "notes.txt", "folder"))
    assert [Path(model).name for model in models] == ["a.gguf", "b.gguf"]
    assert others == ["notes.txt"]


def test_parts_of_one_model_stand_for_it() -> None:
    parts = [f"/m/Big-0000{number}-of-00003.gguf" for number in (1, 2, 3)]
    models, _ = models_among([*parts, "/m/Other-00001-of-00002.gguf"])
    assert models == [parts[0], "/m/Other-00001-of-00002.gguf"]
