"""`baton models`: what the catalogue has, what is on this computer and on paired ones, and how it gets there."""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec

from engine.cli.lifetime import watch_stdin
from engine.cli.progress import ProgressBar, ProgressLines
from engine.errors import BatonError, HostError, ModelNotFound, UserError
from engine.files import folder_fault, user_path
from engine.node.client import NodeClient
from engine.node.models.catalogue import (
    CatalogueModel,
    HubSource,
    load_catalogue,
    model_id_of,
)
from engine.node.models.catalogue import find_model as find_entry
from engine.node.models.elsewhere import kept_elsewhere
from engine.node.models.hub_models import get_from_hub
from engine.node.models.inspection import inspect_file
from engine.node.models.library import SOURCE_KINDS, Library
from engine.node.models.model_folder import Folder, ToldModel, find_model, import_model, remove_model
from engine.node.models.unfinished import (
    clear_unfinished,
    find_unfinished,
    named_unfinished,
)
from engine.node.presence import NoNode
from engine.node.progress import Progress
from engine.node.running import list_running
from engine.paths import cache_dir, models_dir

EXAMPLE = """\
  baton models list
  baton models get qwen2.5-coder-0.5b
  baton models get Qwen/Qwen3-0.6B-GGUF/Qwen3-0.6B-Q8_0.gguf
  baton models path smollm2-135m
  baton models inspect ./model.gguf --json
  baton models import ~/Downloads/model.gguf
  baton models send qwen2.5-coder-0.5b --to studio
  baton models fetch qwen2.5-coder-1.5b --from spark
  baton models rm smollm2-135m
"""


# Of a name in the list.
_SHOWN_NAME = 48


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)

    listing = actions.add_parser(
        "list", help="show all models, and where they are: here, on paired computers"
    )
    listing.add_argument("--json", action="store_true", help="print JSON")

    get = actions.add_parser("get", help="fetch a model and verify it")
    get.add_argument(
        "name",
        metavar="NAME",
        help="a name from the catalogue, or OWNER/REPO/FILE.gguf of the Hugging Face hub",
    )
    get.add_argument(
        "--source", choices=SOURCE_KINDS, help="where from (default: $BATON_MODEL_SOURCE, else auto)"
    )
    get.add_argument("--verify", action="store_true", help="read a model that is here already again, too")
    get.add_argument("--json", action="store_true", help="print JSON")
    get.add_argument("--lines", action="store_true", help="print progress as lines of JSON")
    get.add_argument("--exit-with-stdin", action="store_true", help="end when standard input does")

    path = actions.add_parser("path", help="print where a model's file is, or will be")
    path.add_argument("name", metavar="NAME", help="a name from the catalogue")

    bring = actions.add_parser("import", help="have a GGUF file among the models; the file stays as it is")
    bring.add_argument("file", metavar="FILE", help="a GGUF file; any part of a split model stands for all")
    bring.add_argument("--copy", action="store_true", help="copy it (default: a link to it)")
    bring.add_argument("--json", action="store_true", help="print JSON")

    send = actions.add_parser("send", help="copy a model to a paired computer; sent again, it goes on")
    send.add_argument("name", metavar="NAME", help="a model of this computer")
    send.add_argument("--to", metavar="PEER", help="its name or id (default: the only one that is there)")
    send.add_argument("--json", action="store_true", help="print JSON")

    fetch = actions.add_parser(
        "fetch", help="copy a model of a paired computer to this one; fetched again, it goes on"
    )
    fetch.add_argument("name", metavar="NAME", help="a model that `baton models list` shows on it")
    fetch.add_argument(
        "--from", dest="source", metavar="PEER", help="its name or id (default: the only one that is there)"
    )
    fetch.add_argument("--json", action="store_true", help="print JSON")

    remove = actions.add_parser(
        "rm", help="delete a model from this computer, or what is left of one; of a linked one only the link"
    )
    remove.add_argument("name", metavar="NAME", help="a model of this computer")
    remove.add_argument("--yes", action="store_true", help="do not ask")

    unload = actions.add_parser(
        "unload", help="end the engine that has a model loaded; the next request loads it"
    )
    unload.add_argument("name", metavar="NAME", help="a model that `baton status` shows")

    inspect = actions.add_parser("inspect", help="show what a model file holds")
    inspect.add_argument(
        "model", metavar="NAME|FILE", help="a model of this computer or of the catalogue, or a GGUF file"
    )
    inspect.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> int:
    actions = {
        "list": _list,
        "get": _get,
        "path": _path,
        "inspect": _inspect,
        "import": _import,
        "send": _send,
        "fetch": _fetch,
        "rm": _remove,
        "unload": _unload,
    }
    actions[args.action](args)
    return 0


def _list(args: argparse.Namespace) -> None:
    peers = _peers()
    rows = _rows(peers)
    if fault := folder_fault(models_dir()):
        print(f"no models are found in {models_dir()}: {fault}", file=sys.stderr)
    if args.json:
        print(json.dumps(rows, indent=2))
        return
    width = max(len(_shown(row["name"])) for row in rows)
    places = {"HERE": [row["name"] for row in rows if row["here"]]}
    places |= {peer["name"]: [row["name"] for row in rows if peer["name"] in row["on"]] for peer in peers}
    print(f"{'NAME':<{width}} {'SIZE':>8}  {'  '.join(places)}  ABOUT")
    for row in rows:
        marks = (
            f"{'yes' if row['name'] in there else 'no':<{len(place)}}" for place, there in places.items()
        )
        size = f"{row['size_bytes'] / 1e6:.0f} MB"
        print(f"{_shown(row['name']):<{width}} {size:>8}  {'  '.join(marks)}  {_about(row)}")
    for peer in peers:
        if peer["problem"]:
            print(f"{peer['name']} did not say what it has: {peer['problem']}")


def _shown(name: str) -> str:
    """A file's name may hold anything, and be longer than a line."""
    text = "".join(letter if letter.isprintable() else "?" for letter in name)
    return text if len(text) <= _SHOWN_NAME else f"{text[: _SHOWN_NAME - 1]}…"


def _about(row: dict[str, Any]) -> str:
    if row["problem"]:
        return f"cannot be run: {row['problem']}"
    left = (
        f"{row['unfinished_bytes'] / 1e6:.0f} MB are left of it, unfinished"
        if row["unfinished_bytes"]
        else ""
    )
    kept = f"kept by {row['program']}" if row["program"] else ""
    about = (row["title"], row["architecture"], row["quantization"], row["licence"], kept, left)
    return ", ".join(filter(None, about))


def _rows(peers: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The catalogue's models, then those that are only here, then those that are only on paired computers."""
    library = Library()
    rows = {model.name: _describe(model, library) for model in load_catalogue().values()}
    for model in _folder(library).models():
        if model.model_id in rows:
            rows[model.model_id] |= {"digest": model.digest, "problem": model.problem}
        else:
            rows[model.model_id] = _other(model.told()) | {
                "here": True,
                "path": str(model.path),
                "program": model.program,
            }
    for peer in peers:
        for told in msgspec.convert(peer["models"], list[ToldModel]):
            _row_of(told, rows)["on"].append(peer["name"])
    for left in find_unfinished(library.folder):
        rows.setdefault(left.model_id, _unknown(left.model_id))["unfinished_bytes"] += left.size_bytes
    return list(rows.values())


def _row_of(told: ToldModel, rows: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """The row of a model that a paired computer has: of the same content, else of the same name."""
    same = [row for row in rows.values() if told.digest is not None and row["digest"] == told.digest]
    if not same and told.id in rows and None in (told.digest, rows[told.id]["digest"]):
        same = [rows[told.id]]
    if same:
        return same[0]
    name = told.id if told.id not in rows else f"{told.id} ({(told.digest or '')[:8]})"
    return rows.setdefault(name, _other(told) | {"name": name})


def _other(told: ToldModel) -> dict[str, Any]:
    """A model that is not in the catalogue."""
    return {
        "name": told.id,
        "title": told.title,
        "architecture": told.architecture,
        "quantization": told.quantization or None,
        "licence": None,
        "program": "",
        "size_bytes": told.size_bytes,
        "here": False,
        "path": None,
        "digest": told.digest,
        "problem": told.problem,
        "unfinished_bytes": 0,
        "on": [],
        "sources": [],
    }


def _unknown(model_id: str) -> dict[str, Any]:
    """A model of which nothing is known but its name."""
    told = ToldModel(
        id=model_id,
        files=(),
        path="",
        size_bytes=0,
        is_link=False,
        problem="",
        title="",
        architecture="",
        n_params=0,
        n_ctx_train=0,
        digest=None,
    )
    return _other(told)


def _peers() -> list[dict[str, Any]]:
    """The paired computers that are there, with their models; none where no node runs here."""
    try:
        found = NodeClient.find().get("/models")
    except NoNode:
        return []
    peers: list[dict[str, Any]] = found["peers"]
    return peers


def _folder(library: Library) -> Folder:
    return Folder(library.folder, cache_dir() / "digests", kept_elsewhere)


def _import(args: argparse.Namespace) -> None:
    library = Library()
    source = user_path(args.file)
    with ProgressBar(source.name) as progress:
        model = import_model(_folder(library), source, progress, copy=args.copy)
    if args.json:
        print(json.dumps(msgspec.to_builtins(model.told()), indent=2))
    else:
        how = f"a link to {model.path.resolve()}" if model.is_link else str(model.path)
        print(f"{model.model_id}: {how}")


def _send(args: argparse.Namespace) -> None:
    copy = _copied("/models/send", args.name, {"to": args.to} if args.to else {})
    print(json.dumps(copy, indent=2) if args.json else f"{args.name} is on {copy['peer']}")


def _fetch(args: argparse.Namespace) -> None:
    copy = _copied("/models/fetch", args.name, {"from": args.source} if args.source else {})
    print(json.dumps(copy, indent=2) if args.json else f"{copy['model']} is here")


def _copied(path: str, name: str, where: dict[str, str]) -> dict[str, Any]:
    """The copy when it is done; who interrupts this command cancels it."""
    node = NodeClient.find()
    copy: dict[str, Any] = {}
    try:
        with ProgressBar(name) as progress:
            for copy in node.watch(path, {"model": name} | where):
                progress.advance(copy["done_bytes"], copy["total_bytes"])
    except KeyboardInterrupt:
        if copy:
            with contextlib.suppress(BatonError):
                node.delete(f"/copies/{copy['id']}")
        raise
    if copy.get("state") != "done":
        raise HostError(
            f"the node ended before {name} was copied: start it (baton node), and ask again; it goes on where it "
            "stopped"
        )
    return copy


def _unload(args: argparse.Namespace) -> None:
    NodeClient.find().post("/models/unload", {"model": args.name})
    print(f"{args.name} is not loaded any more")


def _remove(args: argparse.Namespace) -> None:
    folder = _folder(Library())
    try:
        model = find_model(folder.models(), args.name)
    except ModelNotFound:
        if not named_unfinished(folder.path, args.name):
            raise
        _remove_unfinished(args, folder.path)
        return
    if not args.yes:
        what = "the link to it" if model.is_link else f"{model.size_bytes / 1e6:.0f} MB"
        _ask(f"Delete {model.model_id} ({what})?")
    try:
        NodeClient.find().delete(f"/models/{quote(model.model_id)}")
    except NoNode:
        remove_model(
            model,
            {note["model"]: f"ending process {note['pid']}" for note in list_running() if "model" in note},
        )
    print(f"{model.model_id} was deleted")


def _remove_unfinished(args: argparse.Namespace, folder: Path) -> None:
    left = named_unfinished(folder, args.name)
    if not args.yes:
        size = f"{sum(each.size_bytes for each in left) / 1e6:.0f} MB"
        _ask(f"Delete what is left of {args.name}, which is not whole ({size})?")
    try:
        NodeClient.find().delete(f"/models/{quote(args.name)}")
    except NoNode:
        for each in left:
            clear_unfinished(folder, each)
    print(f"what was left of {args.name} was deleted")


def _ask(question: str) -> None:
    """Raises UserError for anything but a yes, and where nobody is there to say it."""
    if not sys.stdin.isatty():
        raise UserError("nobody is here to be asked: say --yes to delete it")
    print(f"{question} [y/N] ", end="", flush=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise UserError("nothing was deleted")


def _get(args: argparse.Namespace) -> None:
    if args.exit_with_stdin:
        watch_stdin()
    library = Library()
    bar: ProgressLines | ProgressBar = ProgressLines() if args.lines else ProgressBar(args.name)
    with bar as progress:
        if "/" in args.name:
            path = get_from_hub(library, _folder(library), args.name, progress)
            about: dict[str, Any] = {"name": model_id_of(path), "path": str(path)}
        else:
            path, about = _get_known(args, library, progress)
    if args.lines:
        print(json.dumps({"model_id": about["name"]}), flush=True)
    elif args.json:
        print(json.dumps(about, indent=2))
    else:
        print(path)


def _get_known(args: argparse.Namespace, library: Library, progress: Progress) -> tuple[Path, dict[str, Any]]:
    """One of the catalogue."""
    model = find_entry(args.name)
    if library.has(model) and args.verify and not library.verify(model):
        progress.note(f"{model.file} has changed since it was fetched, and is fetched again")
        library.forget(model)
    path = library.get(model, progress, args.source)
    return path, _describe(model, library)


def _path(args: argparse.Namespace) -> None:
    print(Library().path(find_entry(args.name)))


def _inspect(args: argparse.Namespace) -> None:
    library = Library()
    with ProgressBar(args.model) as progress:
        # what other programs keep has a name, too
        named = [model.path for model in _folder(library).models() if model.model_id == args.model]
        path = named[0] if named else library.resolve(args.model, progress)
    report = inspect_file(path)
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
        "program": "",
        "size_bytes": model.size_bytes,
        "here": library.has(model),
        "path": str(library.path(model)),
        "digest": None,
        "problem": "",
        "unfinished_bytes": 0,
        "on": [],
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
