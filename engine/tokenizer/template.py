"""Messages to a prompt, by the model's own chat template.

What people write must stay text: a control token spelled out in a message does not become one, while those of the
template do. A guard, a character that no text here holds, is set into every place of the messages where a control
token could begin; the template carries it along, and it is taken out again after control tokens have been found.
Words then merge across the borders of messages as in any other text.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from engine.errors import BatonError, InvalidRequest, ModelFileError
from engine.tokenizer.sandbox import (
    MAX_SOURCE_CHARS,
    TEMPLATE_SYNTAX_ERROR,
    AllowanceSpent,
    RefusedByTemplate,
    TemplateProgram,
)
from engine.tokenizer.specials import SpecialTokens
from engine.tokenizer.tokenizer import Tokenizer

# For files without a template whose vocabulary has ChatML's marks.
CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)

# For all other files without a template: models that were never taught to chat. They go on with a script, as well
# as they can, and only an end token or a stop string ends their part.
SCRIPT = (
    "{% for message in messages %}{% if message.role == 'system' %}{{ message.content }}{% else %}"
    "{{ message.role | capitalize + ': ' + message.content }}{% endif %}{{ '\\n\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}Assistant:{% endif %}"
)

# A rendered prompt may be this much longer than what was put in: templates add a preamble and marks.
MAX_EXTRA_CHARS = 4_000_000
MAX_GROWTH = 4

# Code points that Unicode has set aside for use inside programs; no text should hold them.
_GUARDS = tuple(map(chr, range(0xFDD0, 0xFDF0)))

_ROLE = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,63}")

# Templates that write a call's arguments themselves want them parsed; the API carries them as a text of JSON.
_WANTS_PARSED_ARGUMENTS = re.compile(r"arguments\s*\|\s*(tojson|items|dictsort)|arguments\.items")

# OpenAI's newer word for "system"; few models were taught it.
_DEVELOPER = "developer"

_RESERVED = frozenset({"messages", "tools", "add_generation_prompt"})


class ChatTemplate:
    """A model's chat template together with its tokenizer. Safe to share between threads.

    `source` is the template; `is_fallback` says that the file has none and Baton chose one.
    """

    def __init__(self, source: str, tokenizer: Tokenizer, *, is_fallback: bool = False) -> None:
        """Raises ModelFileError for a template that is not valid Jinja."""
        if len(source) > MAX_SOURCE_CHARS:
            raise ModelFileError(f"the model's chat template has more than {MAX_SOURCE_CHARS} characters")
        self.source = source
        self.is_fallback = is_fallback
        self._tokenizer = tokenizer
        try:
            self._program = TemplateProgram(source)
        except (TEMPLATE_SYNTAX_ERROR, RecursionError, OverflowError) as error:
            raise ModelFileError(f"the model's chat template is not valid: {error}") from None
        self._guards = _Guards(tokenizer.template_tokens)
        self._knows_developers = _DEVELOPER in source
        self._parses_arguments = _WANTS_PARSED_ARGUMENTS.search(source) is not None

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, Any], tokenizer: Tokenizer) -> ChatTemplate:
        """The file's own template, else ChatML where the vocabulary knows it, else a plain script of the talk."""
        source = metadata.get("tokenizer.chat_template")
        if source is None:
            chatml = {"<|im_start|>", "<|im_end|>"} <= set(tokenizer.template_tokens.texts)
            return cls(CHATML if chatml else SCRIPT, tokenizer, is_fallback=True)
        if not isinstance(source, str):
            raise ModelFileError("the model's chat template is not a text: convert the model again")
        return cls(source, tokenizer)

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        variables: Mapping[str, Any] | None = None,
    ) -> str:
        """The prompt as text. Arguments and errors as for `encode`."""
        return self._run(self._inputs(messages, tools, add_generation_prompt, variables))

    def encode(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        variables: Mapping[str, Any] | None = None,
        n_ctx: int | None = None,
        continue_final_message: bool = False,
    ) -> list[int]:
        """The prompt as ids, begin of text first where the model wants it.

        With `continue_final_message` it ends with the last message's text, so that the model goes on with that.

        Messages are OpenAI's: a `role`, and a `content` that is a text or a list of parts of type "text".
        `variables` are further names for the template, such as `enable_thinking`. Raises InvalidRequest for
        messages that are not so or that the template refuses, and for tools or calls of tools that it would leave out
        without a word; ModelFileError for a template that goes astray; PromptTooLong for a prompt that is seen at a
        glance not to fit `n_ctx` tokens.
        """
        add_generation_prompt = add_generation_prompt and not continue_final_message
        inputs = self._inputs(messages, tools, add_generation_prompt, variables)
        end = ""
        if continue_final_message:
            end = self._free_guard(inputs)
            inputs["messages"][-1]["content"] += end
        guard = self._free_guard(inputs)
        plain = self._run(inputs)
        if n_ctx is not None:
            self._tokenizer.check_fits(plain, n_ctx)
        self._check_tools_are_written(inputs, plain)
        text = self._guarded_text(inputs, guard, plain)
        if end:
            text = _up_to(end, text)
        bos_id = self._tokenizer.bos_id
        has_bos = bos_id is not None and text.startswith(self._tokenizer.token_text(bos_id))
        return self._tokenizer.encode_guarded(text, guard=guard, add_bos=not has_bos)

    def _guarded_text(self, inputs: Mapping[str, Any], guard: str, plain: str) -> str:
        """The rendered text with guards wherever a control token in the messages could begin or end.

        A template may look for marks such as </think> in a message, and would not see a guarded one. So fewer places
        are guarded until the text comes out as it would without guards, as `plain`: behind every first character of a
        control token, then where the second follows too, at last only in whole control tokens.
        """
        for n_shared in (1, 2):
            guarded = {
                name: self._guards.beginnings(value, guard, n_shared) for name, value in inputs.items()
            }
            if guarded == inputs:
                return plain
            text = self._run(guarded, guard)
            if text.replace(guard, "") == plain:
                return text
        return self._run({name: self._guards.whole(value, guard) for name, value in inputs.items()}, guard)

    def _check_tools_are_written(self, inputs: Mapping[str, Any], plain: str) -> None:
        """Refuses tools, and earlier calls of them, that make no difference to the text."""
        if inputs["tools"] and self._writes_the_same({**inputs, "tools": None}, plain):
            raise InvalidRequest(
                "this model's chat template has no place for tools: leave tools out, or use a model made for them",
                param="tools",
            )
        messages = inputs["messages"]
        if any(message.get("tool_calls") for message in messages):
            without = [
                {name: value for name, value in message.items() if name != "tool_calls"}
                for message in messages
            ]
            if self._writes_the_same({**inputs, "messages": without}, plain):
                raise InvalidRequest(
                    "this model's chat template has no place for tool_calls: leave them out, or use a model made for "
                    "tools",
                    param="messages",
                )

    def _writes_the_same(self, inputs: Mapping[str, Any], plain: str) -> bool:
        try:
            return self._run(inputs) == plain
        except BatonError:  # a template that minds has a place for it
            return False

    def _free_guard(self, inputs: Mapping[str, Any]) -> str:
        texts = [self.source, *_texts(inputs)]
        for guard in _GUARDS:
            if not any(guard in text for text in texts):
                return guard
        raise InvalidRequest(
            "the messages hold code points that Unicode sets aside (U+FDD0 to U+FDEF): remove one"
        )

    def _inputs(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None,
        add_generation_prompt: bool,
        variables: Mapping[str, Any] | None,
    ) -> dict[str, Any]:
        """All that people decide of what the template sees."""
        if not messages:
            raise InvalidRequest("there are no messages", param="messages")
        given = {name: value for name, value in (variables or {}).items() if name not in _RESERVED}
        given["messages"] = [self._message(message, index) for index, message in enumerate(messages)]
        given["tools"] = [dict(tool) for tool in tools] if tools else None
        given["add_generation_prompt"] = add_generation_prompt
        return given

    def _message(self, message: Mapping[str, Any], index: int) -> dict[str, Any]:
        role = message.get("role")
        if not isinstance(role, str) or not _ROLE.fullmatch(role):
            raise InvalidRequest(
                f"messages[{index}].role must be a word such as user or assistant", param="messages"
            )
        shaped = {name: value for name, value in message.items() if value is not None or name == "content"}
        if role == _DEVELOPER and not self._knows_developers:
            shaped["role"] = "system"
        calls = shaped.get("tool_calls")
        shaped["content"] = _content(message.get("content"), index, may_miss=bool(calls))
        if calls and self._parses_arguments:
            shaped["tool_calls"] = [_with_parsed_arguments(call) for call in calls]
        return shaped

    def _run(self, inputs: Mapping[str, Any], guard: str = "") -> str:
        max_chars = MAX_EXTRA_CHARS + MAX_GROWTH * sum(map(len, _texts(inputs)))
        try:
            return self._program.render({**self._token_names(), **inputs}, max_chars=max_chars, guard=guard)
        except RefusedByTemplate as error:
            raise InvalidRequest(f"the model's chat template refuses: {error}", param="messages") from None
        except AllowanceSpent as error:
            raise ModelFileError(f"the model's chat template was stopped: it {error}") from None
        except MemoryError:
            raise ModelFileError("the model's chat template was stopped: it ran out of memory") from None
        except Exception as error:  # a stranger's program: any error may come out of it
            raise InvalidRequest(
                f"the model's chat template cannot write these messages: {type(error).__name__}: {error}",
                param="messages",
            ) from error

    def _token_names(self) -> dict[str, str]:
        tokenizer = self._tokenizer
        ids = {"bos_token": tokenizer.bos_id, "eos_token": tokenizer.eos_id}
        return {name: "" if index is None else tokenizer.token_text(index) for name, index in ids.items()}


def _up_to(end: str, text: str) -> str:
    """All that stands before the last message's end."""
    at = text.rfind(end)
    if at < 0:
        raise InvalidRequest(
            "this model's chat template leaves the last message out, so that it cannot be continued",
            param="continue_final_message",
        )
    return text[:at].replace(end, "")


class _Guards:
    """Sets guards into texts so that none of `tokens` can be found in them."""

    def __init__(self, tokens: SpecialTokens) -> None:
        self._tokens = tokens
        self._forwards = sorted(tokens.texts)
        self._backwards = sorted(token[::-1] for token in tokens.texts)
        self._longest = max(map(len, tokens.texts), default=0)

    def beginnings(self, value: Any, guard: str, n_shared: int) -> Any:
        """`value` with a guard wherever its texts share this many characters with the beginning of a token."""
        beginnings = sorted({token[:n_shared] for token in self._tokens.texts})

        def guarded(text: str) -> str:
            for beginning in beginnings:
                if beginning in text:
                    text = text.replace(beginning, beginning[0] + guard + beginning[1:])
            return self._ends(text, guard)

        return _each_text(value, guarded)

    def whole(self, value: Any, guard: str) -> Any:
        """`value` with a guard in every token written out in it, and where one could reach across its ends."""
        return _each_text(value, lambda text: self._ends(self._inside_tokens(text, guard), guard))

    def _inside_tokens(self, text: str, guard: str) -> str:
        # Again and again, for tokens that overlap themselves.
        while tokens := self._tokens.occurring(text):
            for token in tokens:
                text = text.replace(token, token[0] + guard + token[1:])
        return text

    def _ends(self, text: str, guard: str) -> str:
        if not text or not self._longest:
            return text
        if _ends_with_beginning_of(self._forwards, text[-self._longest :]):
            text = text + guard
        if _ends_with_beginning_of(self._backwards, text[: self._longest][::-1]):
            text = guard + text
        return text


def _ends_with_beginning_of(tokens: Sequence[str], text: str) -> bool:
    """Whether the end of `text` is the beginning of one of the sorted `tokens`."""
    for start in range(len(text)):
        tail = text[start:]
        at = bisect_left(tokens, tail)
        if at < len(tokens) and tokens[at].startswith(tail):
            return True
    return False


def _each_text(value: Any, change: Callable[[str], str]) -> Any:
    """`value` with every text in it changed, names of fields below the first level among them."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {_each_text(name, change): _each_text(part, change) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_each_text(part, change) for part in value]
    return value


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for name, part in value.items():
            yield from _texts(name)
            yield from _texts(part)
    elif isinstance(value, list | tuple):
        for part in value:
            yield from _texts(part)


def _content(content: Any, index: int, *, may_miss: bool) -> str | None:
    if isinstance(content, str):
        return content
    if content is None and may_miss:
        return None
    if isinstance(content, list | tuple):
        return "".join([_part(part, index) for part in content])
    raise InvalidRequest(f"messages[{index}].content must be a text", param="messages")


def _part(part: Any, index: int) -> str:
    kind = part.get("type") if isinstance(part, Mapping) else None
    text = part.get("text") if kind == "text" else None
    if isinstance(text, str):
        return text
    if kind == "text":
        raise InvalidRequest(f"a text part of messages[{index}].content has no text", param="messages")
    raise InvalidRequest(
        f"messages[{index}].content has a part of type {kind!r}; Baton takes parts of type 'text' only",
        param="messages",
    )


def _with_parsed_arguments(call: Any) -> Any:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(arguments := function.get("arguments"), str):
        return call
    try:
        parsed = json.loads(arguments)
    except (ValueError, RecursionError):
        return call
    return {**call, "function": {**function, "arguments": parsed}} if isinstance(parsed, dict) else call
