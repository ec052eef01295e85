"""The bodies of completion requests: OpenAI's fields, llama-server's, and our own `prefill`, read into plain data.

Unknown fields are ignored; known ones of the wrong type, or that ask for what Baton cannot do, are refused by name.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from engine.batching.request import PrefillChoice, SamplingParams
from engine.errors import InvalidRequest
from engine.server.fields import Fields
from engine.server.settings import MAX_CHOICES, MAX_MESSAGES

# Seeds that llama-server takes for "a new one each time".
_RANDOM_SEEDS = (-1, 0xFFFFFFFF)

# As the OpenAI API has them. What else a client calls a speaker would reach the model as marks that it never saw.
ROLES = ("system", "developer", "user", "assistant", "tool", "function")

# Characters of a client's own word that an error repeats.
_SHOWN_CHARS = 40

Prompt = str | tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Ask:
    """What chat and text completions have in common."""

    sampling: SamplingParams
    prefill: PrefillChoice
    n: int
    stream: bool
    include_usage: bool
    return_tokens: bool
    return_progress: bool
    slot: int | None


@dataclass(frozen=True, kw_only=True)
class CompletionAsk(Ask):
    """Each prompt, text or token ids, is continued `n` times."""

    prompts: tuple[Prompt, ...]


@dataclass(frozen=True, kw_only=True)
class ChatAsk(Ask):
    """Messages for the model's template, with what else it may want."""

    messages: tuple[Mapping[str, Any], ...]
    tools: tuple[Mapping[str, Any], ...]
    add_generation_prompt: bool
    continue_final_message: bool
    variables: Mapping[str, Any]


def parse_completion(content: Mapping[str, Any]) -> CompletionAsk:
    """Body of /v1/completions. Raises InvalidRequest."""
    fields = Fields(content)
    _refuse(fields, "suffix", "text after the answer is not supported")
    if fields.flag("echo", False):
        raise InvalidRequest("echo is not supported: the answer holds only what was generated", param="echo")
    if fields.integer("best_of", 1) > 1:
        raise InvalidRequest("best_of is not supported: use n", param="best_of")
    prompts = _prompts(fields)
    return CompletionAsk(
        prompts=prompts, **_common(fields, len(prompts), top_logprobs=fields.optional_integer("logprobs"))
    )


def parse_chat(content: Mapping[str, Any]) -> ChatAsk:
    """Body of /v1/chat/completions. Raises InvalidRequest."""
    fields = Fields(content)
    top_logprobs = fields.optional_integer("top_logprobs")
    if not fields.flag("logprobs", False):
        if top_logprobs:
            raise InvalidRequest("top_logprobs needs logprobs to be true", param="top_logprobs")
        top_logprobs = None
    elif top_logprobs is None:
        top_logprobs = 0
    messages = _messages(fields)
    continue_final_message = fields.flag("continue_final_message", False)
    if continue_final_message and messages[-1]["role"] != "assistant":
        raise InvalidRequest(
            "continue_final_message goes on with an answer: the last message has to be the assistant's",
            param="continue_final_message",
        )
    return ChatAsk(
        messages=messages,
        tools=_tools(fields),
        add_generation_prompt=fields.flag("add_generation_prompt", True),
        continue_final_message=continue_final_message,
        variables=fields.object("chat_template_kwargs"),
        **_common(fields, 1, top_logprobs=top_logprobs),
    )


def _common(fields: Fields, n_prompts: int, *, top_logprobs: int | None) -> dict[str, Any]:
    _refuse_structure(fields)
    n = fields.integer("n", 1)
    if not 1 <= n * n_prompts <= MAX_CHOICES:
        raise InvalidRequest(
            f"n is {n} for {n_prompts} prompt(s): 1 to {MAX_CHOICES} answers are allowed", param="n"
        )
    return_tokens = fields.flag("return_tokens", False)
    if return_tokens and n * n_prompts > 1:
        raise InvalidRequest("return_tokens works with one answer only", param="return_tokens")
    options = Fields(fields.object("stream_options"), inside="stream_options")
    # Any name is taken, as one model is loaded; the answer names that one.
    fields.optional_text("model")
    return {
        "sampling": _sampling(fields, top_logprobs),
        "prefill": _prefill(fields),
        "n": n,
        "stream": fields.flag("stream", False),
        "include_usage": options.flag("include_usage", False),
        "return_tokens": return_tokens,
        "return_progress": fields.flag("return_progress", False),
        "slot": _slot(fields),
    }


def _sampling(fields: Fields, top_logprobs: int | None) -> SamplingParams:
    defaults = SamplingParams()
    seed = fields.optional_integer("seed")
    return SamplingParams(
        temperature=fields.number("temperature", defaults.temperature),
        top_k=max(0, fields.integer("top_k", defaults.top_k)),
        top_p=fields.number("top_p", defaults.top_p),
        min_p=fields.number("min_p", defaults.min_p),
        typical_p=fields.number("typical_p", defaults.typical_p),
        repeat_penalty=fields.number("repeat_penalty", defaults.repeat_penalty),
        repeat_last_n=fields.integer("repeat_last_n", defaults.repeat_last_n),
        presence_penalty=fields.number("presence_penalty", defaults.presence_penalty),
        frequency_penalty=fields.number("frequency_penalty", defaults.frequency_penalty),
        logit_bias=_logit_bias(fields),
        seed=None if seed in _RANDOM_SEEDS else seed,
        stop=_stops(fields),
        ignore_eos=fields.flag("ignore_eos", False),
        max_tokens=_max_tokens(fields),
        cache_prompt=fields.flag("cache_prompt", True),
        top_logprobs=top_logprobs,
    )


def _max_tokens(fields: Fields) -> int | None:
    """The first of the names in use; -1 is no limit."""
    for name in ("max_completion_tokens", "max_tokens", "n_predict"):
        value = fields.optional_integer(name)
        if value is not None:
            if value < -1:
                raise InvalidRequest(
                    f"{name} is {value}: it must be at least 0, or -1 for no limit", param=name
                )
            return None if value == -1 else value
    return None


def _stops(fields: Fields) -> tuple[str, ...]:
    value = fields.raw("stop")
    if value is None:
        return ()
    stops = [value] if isinstance(value, str) else value
    if not isinstance(stops, list) or not all(isinstance(stop, str) for stop in stops):
        raise fields.wrong("stop", "a string or a list of strings", value)
    return tuple(stop for stop in stops if stop)


def _logit_bias(fields: Fields) -> dict[int, float]:
    """OpenAI's {"id": bias} or llama-server's [[id, bias], ...]; false bans a token."""
    value = fields.raw("logit_bias")
    if value is None:
        return {}
    pairs = list(value.items()) if isinstance(value, dict) else value
    if not isinstance(pairs, list) or not all(isinstance(p, list | tuple) and len(p) == 2 for p in pairs):
        raise fields.wrong("logit_bias", "an object of token ids, or a list of pairs", value)
    bias = {}
    for token, amount in pairs:
        if isinstance(token, str) and token.isascii() and token.isdigit() and len(token) < 12:
            token = int(token)
        if isinstance(token, bool) or not isinstance(token, int):
            raise InvalidRequest("logit_bias takes token ids: see /tokenize", param="logit_bias")
        if amount is False:
            amount = -math.inf
        if isinstance(amount, bool) or not isinstance(amount, int | float):
            raise InvalidRequest(f"logit_bias of token {token} must be a number or false", param="logit_bias")
        try:
            bias[token] = float(amount)
        except OverflowError:
            raise InvalidRequest(
                f"logit_bias of token {token} must be a number of a usable size", param="logit_bias"
            ) from None
    return bias


def _prefill(fields: Fields) -> PrefillChoice:
    value = fields.text("prefill", PrefillChoice.AUTO)
    try:
        return PrefillChoice(value)
    except ValueError:
        choices = ", ".join(f'"{choice}"' for choice in PrefillChoice)
        raise InvalidRequest(f"prefill must be one of {choices}", param="prefill") from None


def _slot(fields: Fields) -> int | None:
    slot = fields.integer("id_slot", -1)
    return None if slot == -1 else slot


def _prompts(fields: Fields) -> tuple[Prompt, ...]:
    """A text, a list of token ids, or a list of such; not the two mixed in one prompt."""
    value = fields.raw("prompt")
    if isinstance(value, str):
        return (value,)
    if not isinstance(value, list):
        raise fields.wrong("prompt", "a string, a list of token ids, or a list of those", value)
    if not value:
        return ((),)
    if _is_token(value[0]):
        return (_tokens(value),)
    if len(value) > MAX_CHOICES:
        raise InvalidRequest(
            f"prompt holds {len(value)} prompts, at most {MAX_CHOICES} are allowed", param="prompt"
        )
    prompts: list[Prompt] = []
    for part in value:
        if isinstance(part, str):
            prompts.append(part)
        elif isinstance(part, list):
            prompts.append(_tokens(part))
        else:
            raise InvalidRequest(
                "prompt must be all token ids, or a list of texts and lists of token ids", param="prompt"
            )
    return tuple(prompts)


def _tokens(value: list[Any]) -> tuple[int, ...]:
    if not set(map(type, value)) <= {
        int
    }:  # of millions, in a fraction of the time that looking at each takes
        raise InvalidRequest("a prompt of token ids must hold integers and nothing else", param="prompt")
    return tuple(value)


def _is_token(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _messages(fields: Fields) -> tuple[dict[str, Any], ...]:
    messages = fields.items("messages")
    if not messages:
        raise InvalidRequest("messages must be a list with at least one message", param="messages")
    if len(messages) > MAX_MESSAGES:
        raise InvalidRequest(
            f"messages holds {len(messages)} messages, at most {MAX_MESSAGES} are allowed", param="messages"
        )
    return tuple(_message(message, index) for index, message in enumerate(messages))


def _message(message: Any, index: int) -> dict[str, Any]:
    where = f"messages[{index}]"
    if not isinstance(message, dict):
        raise InvalidRequest(f"{where} must be an object with a role and a content", param=where)
    fields = Fields(message, inside=where)
    role = fields.optional_text("role")
    if role is None:
        raise InvalidRequest(f"{where} has no role", param=f"{where}.role")
    if role not in ROLES:
        raise InvalidRequest(
            f"{where}.role is {role[:_SHOWN_CHARS]!r}: it must be one of {', '.join(ROLES)}",
            param=f"{where}.role",
        )
    calls = fields.items("tool_calls")
    return message | {"content": _content(fields, may_miss=role == "assistant" and bool(calls))}


def _content(fields: Fields, *, may_miss: bool) -> str:
    """The message's text; parts are joined by line breaks, as llama-server does."""
    value = fields.raw("content")
    if value is None and may_miss:
        return ""
    if value in (None, []):
        raise InvalidRequest(
            f"{fields.path('content')} is missing: only an assistant's message with tool_calls may be without",
            param=fields.path("content"),
        )
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise fields.wrong("content", "a string or a list of parts", value)
    texts = []
    for part in value:
        kind = part.get("type") if isinstance(part, dict) else None
        if kind != "text" or not isinstance(part.get("text"), str):
            raise InvalidRequest(
                f"{fields.path('content')} holds a part that is not text: this model reads text only",
                param=fields.path("content"),
            )
        texts.append(part["text"])
    return "\n".join(texts)


def _tools(fields: Fields) -> tuple[dict[str, Any], ...]:
    choice = fields.raw("tool_choice")
    if choice not in (None, "auto", "none"):
        raise InvalidRequest(
            'tool_choice can only be "auto" or "none": a call cannot be forced yet', param="tool_choice"
        )
    _refuse(fields, "functions", "this older form is not supported: use tools")
    tools = fields.items("tools")
    for index, tool in enumerate(tools):
        _check_tool(tool, f"tools[{index}]")
    return () if choice == "none" else tuple(tools)


def _check_tool(tool: Any, where: str) -> None:
    if not isinstance(tool, dict):
        raise InvalidRequest(f"tools must be a list of objects, and {where} is none", param="tools")
    fields = Fields(tool, inside=where)
    function = Fields(fields.object("function"), inside=f"{where}.function")
    if fields.text("type", "") != "function" or not function.text("name", ""):
        raise InvalidRequest(
            f'{where} must be of the type "function", with a name in its function', param=where
        )


def _refuse_structure(fields: Fields) -> None:
    """An answer that must have a certain form: a client that asks for it could not use anything else."""
    _refuse(fields, "grammar", "grammars are not supported yet")
    _refuse(fields, "json_schema", "JSON schemas are not supported yet")
    form = Fields(fields.object("response_format"), inside="response_format").text("type", "text")
    if form != "text":
        raise InvalidRequest(
            f'response_format "{form}" is not supported yet: only "text" is', param="response_format"
        )


def _refuse(fields: Fields, name: str, why: str) -> None:
    if fields.raw(name) not in (None, "", {}, []):
        raise InvalidRequest(f"{name}: {why}", param=name)
