"""Runs a chat template, a small program that came with a model file: Jinja in its sandbox, with an allowance.

The sandbox keeps a template from the interpreter; the allowance keeps it from this computer's time and memory: steps
(loop turns, calls, operators, filters), seconds, and the length of any text it makes. Knows nothing of tokens.
"""

from __future__ import annotations

import datetime
import functools
import json
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

# The longest known template has about 20 thousand characters.
MAX_SOURCE_CHARS = 1_000_000

# A conversation of ten thousand messages takes real templates some hundred steps a message.
MAX_STEPS = 2_000_000

# Rendering takes milliseconds; this is only reached by a template that means not to end.
MAX_SECONDS = 10.0

# The largest whole number a template may compute with, in bits; and the largest one given to a filter or format.
_MAX_BITS = 4096
_MAX_COUNT = 10_000

_CHECK_CLOCK_EVERY = 256

# Filters that only lengthen or decorate text, by an amount that is hard to foresee; no chat template uses them.
_REMOVED_FILTERS = (
    "batch",
    "center",
    "filesizeformat",
    "pprint",
    "random",
    "slice",
    "striptags",
    "urlize",
    "wordwrap",
)
_REMOVED_GLOBALS = ("lipsum",)

_WIDENING_METHODS = frozenset({"center", "expandtabs", "ljust", "rjust", "zfill"})


class AllowanceSpent(Exception):
    """The template did what no honest one needs: too many steps, too much time or room; the message says which."""


class RefusedByTemplate(Exception):
    """The template itself called `raise_exception`; the message is its own."""


class _Allowance:
    """What one rendering may still use. `guard` is a character that `tojson` must keep as it is."""

    def __init__(self, *, max_chars: int, guard: str) -> None:
        self.max_chars = max_chars
        self.guard = guard
        self._steps = 0
        self._deadline = time.monotonic() + MAX_SECONDS

    def step(self) -> None:
        self._steps += 1
        if self._steps > MAX_STEPS:
            raise AllowanceSpent(f"took more than {MAX_STEPS} steps")
        if self._steps % _CHECK_CLOCK_EVERY == 0:
            self.check_clock()

    def check_clock(self) -> None:
        if time.monotonic() > self._deadline:
            raise AllowanceSpent(f"took longer than {MAX_SECONDS:.0f} s")

    def room(self, n_chars: int) -> None:
        """Checks that a text or list of this length may be made."""
        self.step()
        if n_chars > self.max_chars:
            raise AllowanceSpent(f"made a text of more than {self.max_chars} characters")
        if n_chars > 10_000:
            self.check_clock()

    def size(self, value: Any) -> int:
        """About the length of `value` written out; nested lists are counted each time they are named."""
        if isinstance(value, str):
            return len(value)
        total = 0
        pending = [value]
        while pending:
            part = pending.pop()
            total += len(part) if isinstance(part, str) else 1
            if isinstance(part, Mapping):
                pending.extend(part.keys())
                pending.extend(part.values())
            elif isinstance(part, list | tuple | set | frozenset):
                pending.extend(part)
            if len(pending) + total > self.max_chars:
                raise AllowanceSpent(f"made a value of more than {self.max_chars} characters")
        return total


_allowance: ContextVar[_Allowance] = ContextVar("allowance")


class _GenerationBlock(Extension):
    """{% generation %} marks an answer for training; here it is only its contents."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Environment(ImmutableSandboxedEnvironment):
    """Every loop turn, call, operator, filter and output goes by the allowance."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        template = super()._parse(source, name, filename)
        for loop in template.find_all(nodes.For):
            loop.iter = _filtered(loop.iter, "_counted")
        _replace_concatenations(template)
        template.set_environment(self)
        return template

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        allowance = _allowance.get()
        if operator == "+":
            if isinstance(left, str | list | tuple):
                allowance.room(len(left) + _length(right))
        elif operator == "*":
            _check_product(allowance, left, right)
        elif operator == "**":
            _check_power(allowance, left, right)
        elif isinstance(left, str):
            _check_format(allowance, left, (right,))
        return super().call_binop(context, operator, left, right)

    def call(self, context: Context, called: Any, /, *args: Any, **kwargs: Any) -> Any:
        allowance = _allowance.get()
        allowance.step()
        # The sandbox hands out its own str.format, which wraps the method.
        method = getattr(called, "__wrapped__", called)
        owner = getattr(method, "__self__", None)
        if isinstance(owner, str):
            _check_method(allowance, owner, getattr(method, "__name__", ""), args, kwargs)
        return super().call(context, called, *args, **kwargs)


class TemplateProgram:
    """A compiled template. Raises jinja2.TemplateSyntaxError when made from text that is none.

    Rendering raises RefusedByTemplate, AllowanceSpent, or whatever the template's own mistakes lead to.
    """

    def __init__(self, source: str, *, now: Callable[[], datetime.datetime] = datetime.datetime.now) -> None:
        environment = _Environment(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[loopcontrols, _GenerationBlock],
            finalize=_finalize,
        )
        for name in _REMOVED_GLOBALS:
            environment.globals.pop(name, None)
        for name in _REMOVED_FILTERS:
            environment.filters.pop(name, None)
        for name, function in list(environment.filters.items()):
            environment.filters[name] = _metered(name, function)
        environment.filters.update(_counted=_counted, _concatenate=_concatenate, tojson=_tojson)
        environment.globals.update(
            range=_range, raise_exception=_raise_exception, strftime_now=functools.partial(_strftime, now)
        )
        self._template = environment.from_string(source)

    def render(self, variables: Mapping[str, Any], *, max_chars: int, guard: str = "") -> str:
        """The text for these variables, of at most `max_chars` characters."""
        token = _allowance.set(_Allowance(max_chars=max_chars, guard=guard))
        try:
            parts = []
            n_chars = 0
            for piece in self._template.generate(dict(variables)):
                parts.append(piece)
                n_chars += len(piece)
                _allowance.get().room(n_chars)
            return "".join(parts)
        except jinja2.exceptions.SecurityError as error:
            raise AllowanceSpent(f"tried what templates may not: {error}") from None
        finally:
            _allowance.reset(token)


def _filtered(node: nodes.Node, name: str) -> nodes.Filter:
    return nodes.Filter(node, name, [], [], None, None, lineno=node.lineno)


def _replace_concatenations(node: nodes.Node) -> None:
    """`a ~ b` becomes a filter over the list of its parts: Jinja has no other way to watch it."""
    for field, value in node.iter_fields():
        parts = value if isinstance(value, list) else [value]
        for index, part in enumerate(parts):
            if not isinstance(part, nodes.Node):
                continue
            _replace_concatenations(part)
            if isinstance(part, nodes.Concat):
                watched = _filtered(nodes.List(part.nodes, lineno=part.lineno), "_concatenate")
                if isinstance(value, list):
                    value[index] = watched
                else:
                    setattr(node, field, watched)


def _counted(iterable: Iterable[Any]) -> Iterator[Any]:
    allowance = _allowance.get()
    for item in iterable:
        allowance.step()
        yield item


def _concatenate(parts: Sequence[Any]) -> str:
    allowance = _allowance.get()
    allowance.room(sum(allowance.size(part) for part in parts))
    return "".join(map(str, parts))


def _finalize(value: Any) -> Any:
    # Template text is finalised when it is compiled, outside of any rendering.
    allowance = _allowance.get(None)
    if allowance is not None:
        allowance.room(allowance.size(value))
    return value


def _range(*args: int) -> range:
    numbers = range(*args)
    if len(numbers) > MAX_STEPS:
        raise AllowanceSpent(f"asked for a range of more than {MAX_STEPS} numbers")
    return numbers


def _raise_exception(message: object) -> None:
    raise RefusedByTemplate(str(message))


def _strftime(now: Callable[[], datetime.datetime], form: str) -> str:
    _check_format(_allowance.get(), form, ())
    return now().strftime(form)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Plain JSON as transformers writes it: no HTML escapes, other scripts as they are."""
    allowance = _allowance.get()
    allowance.room(allowance.size(value))
    if isinstance(indent, int) and indent > 64:
        raise AllowanceSpent("asked for JSON with an indent of more than 64")
    text = json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )
    if allowance.guard and ensure_ascii:
        text = text.replace(json.dumps(allowance.guard)[1:-1], allowance.guard)
    return text


def _metered(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """The filter, within the allowance; Jinja's marks on it (which ask for the context) are kept by `wraps`."""

    # Filters that want the context or the environment get it before the value.
    value_at = 1 if getattr(function, "jinja_pass_arg", None) is not None else 0

    @functools.wraps(function)
    def metered(*args: Any, **kwargs: Any) -> Any:
        allowance = _allowance.get(None)
        if allowance is None:  # the compiler tries filters of constants
            raise nodes.Impossible()
        _check_filter(allowance, name, args[value_at:], kwargs)
        return function(*args, **kwargs)

    return metered


def _check_filter(allowance: _Allowance, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    value, rest = (args[0] if args else None), (*args[1:], *kwargs.values())
    for option in rest:
        if isinstance(option, int) and abs(option) > _MAX_COUNT and name not in ("default", "d"):
            raise AllowanceSpent(f"gave the filter {name!r} a number of more than {_MAX_COUNT}")
    allowance.step()
    if name == "format":
        _check_format(allowance, str(value), rest)
    elif name == "replace" and isinstance(value, str):
        _check_replace(allowance, value, *rest[:2])
    elif name == "indent" and isinstance(value, str):
        width = rest[0] if rest else 4
        allowance.room(
            len(value) + (value.count("\n") + 1) * (len(width) if isinstance(width, str) else width)
        )
    elif name == "join" and isinstance(value, list | tuple):
        separator = rest[0] if rest else ""
        allowance.room(allowance.size(value) + len(value) * _length(separator))
    elif name == "sum" and any(isinstance(option, list | tuple) for option in rest):
        raise AllowanceSpent("summed up lists")
    elif isinstance(value, str | list | tuple | dict):
        allowance.room(allowance.size(value))


def _check_product(allowance: _Allowance, left: Any, right: Any) -> None:
    if isinstance(left, int) and isinstance(right, int):
        if left.bit_length() + right.bit_length() > _MAX_BITS:
            raise AllowanceSpent("multiplied numbers that are too large")
        return
    for text, count in ((left, right), (right, left)):
        if isinstance(text, str | list | tuple) and isinstance(count, int):
            allowance.room(len(text) * max(count, 0))


def _check_power(allowance: _Allowance, base: Any, exponent: Any) -> None:
    allowance.step()
    if isinstance(base, int) and isinstance(exponent, int) and base.bit_length() * abs(exponent) > _MAX_BITS:
        raise AllowanceSpent("raised a number to too high a power")


def _check_method(
    allowance: _Allowance, text: str, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> None:
    if name in _WIDENING_METHODS:
        numbers = [value for value in (*args, *kwargs.values()) if isinstance(value, int)]
        factor = text.count("\t") if name == "expandtabs" else 1
        allowance.room(len(text) + factor * max(numbers, default=8))
    elif name in ("format", "format_map"):
        _check_format(allowance, text, (*args, *kwargs.values()))
    elif name == "replace":
        _check_replace(allowance, text, *args[:2])
    elif name == "join" and args and isinstance(args[0], list | tuple):
        allowance.room(allowance.size(args[0]) + len(text) * len(args[0]))
    else:
        allowance.room(len(text))


def _check_replace(allowance: _Allowance, text: str, old: Any = "", new: Any = "") -> None:
    if isinstance(old, str) and isinstance(new, str):
        allowance.room(len(text) + text.count(old) * len(new))


def _check_format(allowance: _Allowance, form: str, values: tuple[Any, ...]) -> None:
    """A width in a format can make a text of any length."""
    widths = [int(digits[:20]) for digits in re.findall(r"\d+", form)]
    nested = "*" in form or re.search(r"\{[^{}]*\{", form) is not None
    if nested:
        widths += [abs(value) for value in _flat(values) if isinstance(value, int)]
    if max(widths, default=0) > _MAX_COUNT:
        raise AllowanceSpent(f"formatted with a width of more than {_MAX_COUNT}")
    allowance.room(len(form) * (1 + max(widths, default=0)) + allowance.size(values) * (1 + form.count("{")))


def _flat(values: Iterable[Any]) -> Iterator[Any]:
    for value in values:
        if isinstance(value, tuple | list):
            yield from value
        elif isinstance(value, Mapping):
            yield from value.values()
        else:
            yield value


def _length(value: Any) -> int:
    return len(value) if isinstance(value, str | list | tuple) else 1


TEMPLATE_SYNTAX_ERROR = jinja2.TemplateSyntaxError
