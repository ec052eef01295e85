"""The tables of docs/protocol.md, made from the code: `python -m engine.wire.document` prints them.

A test holds the page against them, so the page cannot fall behind.
"""

from __future__ import annotations

import ast
import inspect
import re
import typing
from enum import Enum
from typing import Any

import msgspec

from engine.wire import limits
from engine.wire.client import _NEXT_STATE as CLIENT_STATES
from engine.wire.codec import DATA_HEADER, FRAME_HEADER
from engine.wire.messages import AnyMessage, Code, LayerShape, Message, ModelIdentity
from engine.wire.worker import _NEXT_STATE as WORKER_STATES

# Names of the fields in the order of the struct formats, which have none.
FRAME_FIELDS = ("magic", "kind", "zero", "body bytes")
DATA_FIELDS = ("request", "chunk", "layer", "codec", "zero", "first row", "rows", "payload bytes")
_FORMAT_BYTES = {"B": 1, "H": 2, "I": 4, "Q": 8}


def render() -> dict[str, str]:
    """Every table of the page as Markdown, by the name of its place there."""
    return {
        "frame header": _layout(FRAME_FIELDS, FRAME_HEADER.format),
        "data header": _layout(DATA_FIELDS, DATA_HEADER.format),
        "messages": _messages(),
        "records": _records(),
        "codes": _table(("code", "of"), [(f"`{code}`", _code_group(code)) for code in Code]),
        "client states": _states(CLIENT_STATES),
        "worker states": _states(WORKER_STATES),
        "limits": _limits(),
    }


def place(page: str, tables: dict[str, str]) -> str:
    """The page with the text between each pair of table marks replaced; KeyError for a mark without a table."""

    def table(match: re.Match[str]) -> str:
        name = match.group(1)
        return f"<!-- table: {name} -->\n{tables[name]}\n<!-- end -->"

    return re.sub(r"<!-- table: ([a-z ]+) -->\n.*?<!-- end -->", table, page, flags=re.DOTALL)


def _table(head: tuple[str, ...], rows: typing.Sequence[tuple[str, ...]]) -> str:
    lines = [head, tuple("---" for _ in head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _layout(names: tuple[str, ...], layout: str) -> str:
    rows = []
    offset = 0
    for name, letter in zip(names, layout.removeprefix("<"), strict=True):
        rows.append((str(offset), str(_FORMAT_BYTES[letter]), name))
        offset += _FORMAT_BYTES[letter]
    return _table(("offset", "bytes", "field"), rows)


def _messages() -> str:
    rows = []
    for message in typing.get_args(AnyMessage):
        rows.append((f"`{_tag(message)}`", _fields(message), _prose(message)))
    return _table(("message", "fields", "who says it, and what it means"), rows)


def _records() -> str:
    rows = [
        (f"`{record.__name__}`", _fields(record), _prose(record)) for record in (ModelIdentity, LayerShape)
    ]
    return _table(("record", "fields", "what it is"), rows)


def _prose(thing: type) -> str:
    return " ".join((inspect.getdoc(thing) or "").split())


def _fields(struct: type[msgspec.Struct]) -> str:
    return (
        "<br>".join(f"`{field.encode_name}` {_type(field.type)}" for field in msgspec.structs.fields(struct))
        or "none"
    )


def _type(of: object) -> str:
    """A field's type and bounds in words."""
    if typing.get_origin(of) is typing.Annotated:
        inner, *metas = typing.get_args(of)
        return " ".join([_type(inner), *(_bounds(meta) for meta in metas)])
    if typing.get_origin(of) is tuple:
        args = typing.get_args(of)
        if args[-1] is Ellipsis:
            return f"list of {_type(args[0])}"
        return f"({', '.join(_type(arg) for arg in args)})"
    if isinstance(of, type) and issubclass(of, Enum):
        if of is Code:
            return "code"
        return " or ".join(f"`{member.value}`" for member in of)
    if isinstance(of, type) and issubclass(of, msgspec.Struct):
        return f"`{of.__name__}`"
    return of.__name__ if isinstance(of, type) else str(of)


def _bounds(meta: msgspec.Meta) -> str:
    if meta.max_length is not None:
        if meta.min_length == meta.max_length:
            return f"of exactly {meta.max_length}"
        return (
            f"of {meta.min_length} to {meta.max_length}"
            if meta.min_length
            else f"of at most {meta.max_length}"
        )
    low = meta.ge if meta.ge is not None else meta.gt
    high = f"up to {meta.le}" if meta.le is not None else f"below {meta.lt}"
    return f"from {low} {high.replace(str((1 << 63) - 1), '2^63 - 1')}"


def _code_group(code: Code) -> str:
    """The comment above the code's block in its class."""
    group = ""
    for line in inspect.getsource(Code).splitlines():
        if line.strip().startswith("# "):
            group = line.strip().removeprefix("# of ")
        if line.strip().startswith(f"{code.name} ="):
            return group
    return group


def _states(table: typing.Mapping[tuple[Any, Any], Enum]) -> str:
    rows = []
    for (state, step), after in table.items():
        name = step.value if isinstance(step, Enum) else _tag(step)
        rows.append((f"{state.name}", f"`{name}`", f"{after.name}"))
    return _table(("in state", "comes", "then"), rows)


def _tag(message: type[Message]) -> str:
    return str(message.__struct_config__.tag)


def _limits() -> str:
    """Each constant of `limits` with the comment above it."""
    source = inspect.getsource(limits)
    lines = source.splitlines()
    rows = []
    why = ""
    for node in ast.parse(source).body:
        if not isinstance(node, ast.Assign) or not isinstance(node.targets[0], ast.Name):
            continue
        name = node.targets[0].id
        above = node.lineno - 2
        comment: list[str] = []
        while above >= 0 and lines[above].startswith("#"):
            comment.insert(0, lines[above].removeprefix("#").strip())
            above -= 1
        # Constants in one block share the comment above the first.
        why = " ".join(comment) or why
        rows.append((f"`{name}`", f"{getattr(limits, name):,}", why))
    return _table(("limit", "value", "why"), rows)


def main() -> None:
    for name, table in render().items():
        print(f"<!-- table: {name} -->\n{table}\n<!-- end -->\n")


if __name__ == "__main__":
    main()
