"""The node's settings as it declares them, and what follows from a declaration for its control. Knows nothing of Qt."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from app.words import translate

# More words than these do not fit side by side.
_MAX_SEGMENTS = 5

# What people try out, by its stops; everything else is typed.
_SLIDERS = frozenset({"prefills", "chunk", "ctx", "slots"})

# A context that no model here has would only be far away on the slider; it can be typed all the same.
_MAX_CTX_STOP = 1 << 17
_MIN_CTX_STOP = 1024


class Kind(Enum):
    """The control that a setting gets."""

    SEGMENTS = "segments"
    CHOICE = "choice"
    SLIDER = "slider"
    NUMBER = "number"
    SWITCH = "switch"
    FOLDER = "folder"
    MODEL = "model"
    TEXT = "text"
    SECRET = "secret"


@dataclass(frozen=True, kw_only=True)
class Declared:
    """One setting. `value` holds now, `kept` is what the file says; None in either is Baton's own choice."""

    name: str
    group: str
    type: str
    help: str
    unit: str = ""
    minimum: float | None = None
    maximum: float | None = None
    choices: tuple[str, ...] = ()
    default: Any = None
    is_secret: bool = False
    is_set: bool = False
    flag: str = ""
    environment: str = ""
    needs: str = "nothing"
    value: Any = None
    kept: Any = None
    source: str = "default"
    waits_for: str = "nothing"

    @property
    def fixed_by(self) -> str:
        """The flag or variable that goes before what is set here, "" where there is none."""
        return {"flag": self.flag, "environment": self.environment}.get(self.source, "")

    @property
    def can_be_reset(self) -> bool:
        if self.is_secret:
            return self.is_set and self.source == "file"
        return self.kept is not None

    @property
    def kind(self) -> Kind:
        if self.is_secret:
            return Kind.SECRET
        if self.type == "bool":
            return Kind.SWITCH
        if self.choices:
            return Kind.SEGMENTS if len(self.choices) <= _MAX_SEGMENTS else Kind.CHOICE
        if self.name in _SLIDERS:
            return Kind.SLIDER
        if self.type in ("int", "float"):
            return Kind.NUMBER
        return {"models": Kind.FOLDER, "preload": Kind.MODEL}.get(self.name, Kind.TEXT)

    @property
    def sentence(self) -> str:
        """The help as a sentence, without what the control shows anyway."""
        text = self.help.partition(" (default:")[0].strip().rstrip(".")
        text = text.replace("at most --slots", translate("Settings", "at most as many as answers at once"))
        return f"{text[:1].upper()}{text[1:]}." if text else ""

    def matches(self, words: str, *titles: str) -> bool:
        """Whether a search finds it: all words, in what it is called or what is said of it."""
        found = " ".join(
            (*titles, self.name.replace("_", " "), self.help, self.group, *self.choices)
        ).casefold()
        return all(word in found for word in words.casefold().split())


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """All of them, in the node's order, and how what waits gets on."""

    settings: tuple[Declared, ...] = ()
    faults: tuple[str, ...] = ()
    file: str = ""
    is_reloading: bool = False
    reload_fault: str = ""
    by_name: Mapping[str, Declared] = field(default_factory=dict)

    def waiting(self, for_what: str) -> list[Declared]:
        return [one for one in self.settings if one.waits_for == for_what]

    def groups(self) -> list[str]:
        return list(dict.fromkeys(one.group for one in self.settings))

    def number(self, name: str, default: int) -> int:
        one = self.by_name.get(name)
        return one.value if one is not None and isinstance(one.value, int) else default


_FIELDS = frozenset(Declared.__dataclass_fields__)


def read(told: Mapping[str, Any] | None) -> Snapshot:
    """Of the node's part `settings`; a later node may tell more."""
    if not told:
        return Snapshot()
    settings = tuple(map(_read_one, told.get("settings", [])))
    return Snapshot(
        settings=settings,
        faults=tuple(map(str, told.get("faults", []))),
        file=str(told.get("file") or ""),
        is_reloading=bool(told.get("is_reloading")),
        reload_fault=str(told.get("reload_fault") or ""),
        by_name={one.name: one for one in settings},
    )


def _read_one(told: Mapping[str, Any]) -> Declared:
    values = {name: value for name, value in told.items() if name in _FIELDS}
    values["choices"] = tuple(told.get("choices") or ())
    values["flag"], values["environment"] = told.get("flag") or "", told.get("environment") or ""
    return Declared(**values)


def stops(declared: Declared, *, n_ctx_train: int = 0, slots: int = 0) -> list[int]:
    """The values that a slider has, in order; the one that holds is among them. None for what has no slider.

    `n_ctx_train` is what the model can take that is loaded, 0 without one; `slots` as many answers as there may be.
    """
    if declared.kind is not Kind.SLIDER:
        return []
    low, high = int(declared.minimum or 0), int(declared.maximum or 0)
    match declared.name:
        case "ctx":
            high = min(high, n_ctx_train or _MAX_CTX_STOP)
            found = _doubling(max(low, min(_MIN_CTX_STOP, high)), high, halfway=True)
        case "chunk":
            found = _doubling(low, high, halfway=False)
        case "prefills":
            found = list(range(low, max(low, min(high, slots or high)) + 1))
        case _:
            found = [n for n in range(low, high + 1) if n <= 8 or (n % 4 == 0 and n <= 32) or n % 16 == 0]
    if isinstance(declared.value, int):
        found.append(declared.value)
    return sorted(set(found))


def _doubling(low: int, high: int, *, halfway: bool) -> list[int]:
    """Twice as much each time, and what is half way where that is wished; the ends are among them."""
    found, step = [low], 1
    while step <= high:
        found += [n for n in (step, step * 3 // 2 if halfway else step) if low <= n <= high]
        step *= 2
    return [*found, high]


def nearest(values: Iterable[int], wanted: int) -> int:
    """The place of the stop that is nearest to what is wanted."""
    return min(enumerate(values), key=lambda pair: abs(pair[1] - wanted))[0]


def parsed(declared: Declared, text: str) -> tuple[Any, str]:
    """The value that a text stands for, None where it is empty, and what is wrong with it, as a kind.

    The node has the last word; this is what can be said while somebody types.
    """
    text = text.strip()
    if not text:
        return None, ""
    if declared.type not in ("int", "float"):
        return text, ""
    try:
        number = int(text.replace(",", "").replace(" ", "")) if declared.type == "int" else float(text)
    except ValueError:
        return None, "no number"
    if declared.minimum is not None and number < declared.minimum:
        return None, "too small"
    if declared.maximum is not None and number > declared.maximum:
        return None, "too large"
    return number, ""
