"""What a computer's user should know of its node just now, a sentence each."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from engine.files import folder_fault, keeping_fault
from engine.link.permission import State as PermissionState
from engine.node.finding.discovery import Found


def notes_of(
    said: Iterable[str], *, twins: Iterable[Found], permission: Mapping[str, Any], awake: Mapping[str, Any]
) -> list[str]:
    """`said` are sentences of parts, of which some may be empty; the rest is made from snapshots."""
    found = (*said, *map(_of_twin, twins), *_of_permission(permission), _of_awake(awake))
    return [note for note in found if note]


def of_models_folder(folder: Path, *, variable: str = "") -> str:
    """Why no model in their folder is found, or none can be kept there; nothing where all is well.

    `variable` is the one of the environment that names it, if one does.
    """
    another = (
        f"set {variable} to another folder, and start Baton anew"
        if variable
        else "another folder is set in Settings, or by `baton config set models`"
    )
    if fault := folder_fault(folder):
        return f"no models are found in {folder}: {fault}; {another}"
    if fault := keeping_fault(folder):
        return f"no models can be brought into {folder}: {fault}; {another}"
    return ""


def _of_twin(twin: Found) -> str:
    return (
        f"another computer, {twin.name}, says that it is this one, as a copy of its disk would: if it is one, "
        "end the node on one of the two, run `baton pair renew` there, start it again, and pair it anew; if it "
        "is none, somebody on this network pretends to be, and gets nothing by it"
    )


def _of_permission(permission: Mapping[str, Any]) -> Iterator[str]:
    if permission["state"] in (PermissionState.DENIED.value, PermissionState.UNDETERMINED.value):
        yield permission["sentence"]


def _of_awake(awake: Mapping[str, Any]) -> str:
    return f"kept from sleeping, as {awake['why']}" if awake["held"] else str(awake["note"])
