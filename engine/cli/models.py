"""`baton models`: what the catalogue has, what is on this computer, and what a model file holds."""

from __future__ import annotations

import argparse
import json
from collections import Counter
from typing import TYPE_CHECKING, Any

from engine.cli.progress import ProgressBar
from engine.node.catalogue import CatalogueModel, HubSource, find_model, load_catalogue
from engine.node.library import SOURCE_KINDS, Library

if TYPE_CHECKING:
    from engine.gguf.reader import GGUFFile

EXAMPLE = """\
  baton models list
  baton models get qwen2.5-coder-0.5b
  baton models path smollm2-135m
  baton models inspect ./model.gguf --json
"""


# Longer metadata texts, such as chat templates, are counted and not shown.
_LONGEST_TEXT = 200


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)

    listing = actions.add_parser("list", help="show the catalogue, and which models are here")
    listing.add_argument("--json", action="store_true", help="print JSON")

    get = actions.add_parser("get", help="fetch a model and verify it")
    get.add_argument("name", metavar="NAME", help="a name from the catalogue")
    get.add_argument(
        "--source", choices=SOURCE_KINDS, help="where from (default: $BATON_MODEL_SOURCE, else auto)"
    )
    get.add_argument("--verify", action="store_true", help="read a model that is here already again, too")
    get.add_argument("--json", action="store_true", help="print JSON")

    path = actions.add_parser("path", help="print where a model's file is, or will be")
    path.add_argument("name", metavar="NAME", help="a name from the catalogue")

    inspect = actions.add_parser("inspect", help="show what a model file holds")
    inspect.add_argument("model", metavar="NAME|FILE", help="a name from the catalogue, or a GGUF file")
    inspect.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> int:
    action = {"list": _list, "get": _get, "path": _path, "inspect": _inspect}[args.action]
    action(args)
    return 0


def _list(args: argparse.Namespace) -> None:
    library = Library()
    rows = [_describe(model, library) for model in load_catalogue().values()]
    if args.json:
        print(json.dumps(rows, indent=2))
        return
    print(f"{'NAME':<20} {'SIZE':>8}  {'HERE':<5} {'LICENCE':<20} TITLE")
    for row in rows:
        here = "yes" if row["here"] else "no"
        size = f"{row['size_bytes'] / 1e6:.0f} MB"
        title = f"{row['title']}, {row['quantization']}"
        print(f"{row['name']:<20} {size:>8}  {here:<5} {row['licence']:<20} {title}")


def _get(args: argparse.Namespace) -> None:
    library = Library()
    model = find_model(args.name)
    was_here = library.has(model)
    with ProgressBar(model.name) as progress:
        if was_here and args.verify and not library.verify(model):
            progress.note(f"{model.file} has changed since it was fetched, and is fetched again")
            library.forget(model)
        path = library.get(model, progress, args.source)
    if args.json:
        print(json.dumps(_describe(model, library), indent=2))
    else:
        print(path)


def _path(args: argparse.Namespace) -> None:
    print(Library().path(find_model(args.name)))


def _inspect(args: argparse.Namespace) -> None:
    from engine.gguf.reader import GGUFFile

    with ProgressBar(args.model) as progress:
        path = Library().resolve(args.model, progress)
    with GGUFFile.open(path) as file:
        report = _report(file)
    if args.json:
        print(json.dumps(report, indent=2))
        return
    for key, value in report.items():
        if isinstance(value, dict):
            print(f"{key}:")
            for name, count in value.items():
                print(f"  {name:<42} {count}")
        else:
            print(f"{key + ':':<14} {value}")


def _describe(model: CatalogueModel, library: Library) -> dict[str, Any]:
    return {
        "name": model.name,
        "title": model.title,
        "architecture": model.architecture,
        "quantization": model.quantization,
        "licence": model.licence,
        "size_bytes": model.size_bytes,
        "here": library.has(model),
        "path": str(library.path(model)),
        "sources": [
            {
                "kind": source.kind,
                "from": source.repository if isinstance(source, HubSource) else source.parts[0].requirement,
                "sha256": source.sha256,
                "checked": source.checked,
            }
            for source in model.sources
        ],
    }


def _report(file: GGUFFile) -> dict[str, Any]:
    """What a person wants to know of a model file; long arrays are counted, not shown."""
    types = Counter(tensor.type.name for tensor in file.tensors.values())
    return {
        "path": str(file.paths[0]),
        "files": len(file.paths),
        "size_bytes": file.n_bytes,
        "architecture": file.architecture,
        "tensors": dict(types.most_common()),
        "metadata": {key: _plain(value) for key, value in file.metadata.items()},
    }


def _plain(value: Any) -> Any:
    if isinstance(value, bool | int | float):
        return value
    if isinstance(value, str):
        return value if len(value) <= _LONGEST_TEXT else f"{len(value)} characters"
    return f"{len(value)} values"
