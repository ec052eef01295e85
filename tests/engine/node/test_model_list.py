"""What the endpoint lists: looked at when the shelf has changed, and not for each request."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import cast

from engine.node.engines import Engines
from engine.node.model_list import ModelList
from engine.node.models.model_folder import LocalModel
from engine.node.models.shelf import Shelf


def model(path: Path, **about: str) -> LocalModel:
    return LocalModel(model_id=path.stem, paths=(path,), size_bytes=7, is_link=False, **about)


def test_files_are_looked_at_when_the_shelf_has_changed(tmp_path: Path) -> None:
    one, two = tmp_path / "one.gguf", tmp_path / "two.gguf"
    one.write_bytes(b"")
    shelf = SimpleNamespace(models=(model(one), model(two, problem="it is cut short")))
    listed = ModelList(cast(Shelf, shelf), cast(Engines, SimpleNamespace(get=lambda model_id: None)))
    (found,) = listed.entries()
    assert found["id"] == "one" and found["created"] == int(one.stat().st_mtime)
    assert found["status"] == {"value": "unloaded"}
    assert listed.problem_of("two") == "it is cut short" and listed.problem_of("one") == ""

    one.unlink()
    assert listed.entries() == [found]
    shelf.models = (model(one),)
    assert [entry["created"] for entry in listed.entries()] == [0]
