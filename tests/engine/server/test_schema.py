import math

import pytest

from engine.errors import InvalidRequest
from engine.server.schema import parse_chat, parse_completion

HELLO = [{"role": "user", "content": "hello"}]


def chat(**fields):
    return parse_chat({"messages": HELLO} | fields)


def completion(**fields):
    return parse_completion({"prompt": "hello"} | fields)


def test_nothing_but_a_prompt_takes_llama_servers_defaults():
    ask = completion()
    assert ask.prompts == ("hello",)
    assert (ask.sampling.temperature, ask.sampling.top_k, ask.sampling.max_tokens) == (0.8, 40, None)
    assert (ask.n, ask.stream, ask.prefill, ask.slot) == (1, False, "auto", None)


def test_null_is_as_good_as_absent():
    names = (
        "temperature",
        "top_p",
        "stop",
        "seed",
        "max_tokens",
        "stream",
        "stream_options",
        "logit_bias",
        "tools",
    )
    assert chat(**dict.fromkeys(names)) == chat()


def test_unknown_fields_are_ignored():
    assert completion(mirostat=2, user="me", store=True) == completion()


@pytest.mark.parametrize(
    ("field", "value", "wanted"),
    [
        ("temperature", "hot", "a number, not a string"),
        ("temperature", True, "a number, not true"),
        ("temperature", 10**400, "usable size"),
        ("top_k", 1.5, "an integer, not a number"),
        ("stream", "yes", "true or false, not a string"),
        ("stop", 5, "a string or a list of strings"),
        ("stop", ["a", 5], "a string or a list of strings"),
        ("seed", "x", "an integer"),
        ("model", 5, "a string, not a number"),
        ("max_tokens", -2, "at least 0, or -1"),
        ("n", 0, "1 to 32"),
        ("n", 33, "1 to 32"),
        ("top_p", 1.5, "at most 1"),
        ("min_p", -1, "at least 0"),
        ("logit_bias", 5, "an object of token ids"),
        ("logit_bias", [[1]], "an object of token ids"),
        ("logit_bias", {"word": 1}, "takes token ids"),
        ("logit_bias", {"5": "x"}, "a number or false"),
        ("logit_bias", {"5": 1e308}, "-100 to 100, or false"),
        ("logit_bias", {"5": 10**400}, "usable size"),
        ("logit_bias", [[5, -101]], "-100 to 100, or false"),
        ("seed", 10**400, "usable size"),
        ("top_k", 1e300, "usable size"),
        ("repeat_last_n", -(10**400), "usable size"),
        ("prefill", "elsewhere", '"auto", "local", "remote"'),
        ("stream_options", [], "an object, not a list"),
        ("response_format", {"type": "json_object"}, "not supported yet"),
        ("grammar", "root ::= x", "not supported yet"),
        ("json_schema", {"type": "object"}, "not supported yet"),
    ],
)
def test_a_wrong_field_is_refused_by_name(field, value, wanted):
    for ask in (chat, completion):
        with pytest.raises(InvalidRequest, match=wanted) as caught:
            ask(**{field: value})
        assert caught.value.param == field


@pytest.mark.parametrize(
    ("field", "value"),
    [("suffix", "end"), ("echo", True), ("best_of", 2), ("logprobs", 21), ("logprobs", True)],
)
def test_what_completions_cannot_do_is_said(field, value):
    with pytest.raises(InvalidRequest):
        completion(**{field: value})


@pytest.mark.parametrize(
    ("fields", "wanted"),
    [
        ({"messages": None}, "at least one"),
        ({"continue_final_message": True}, "has to be the assistant's"),
        ({"messages": []}, "at least one"),
        ({"messages": "hi"}, "a list, not a string"),
        ({"messages": ["hi"]}, r"messages\[0\] must be an object"),
        ({"messages": [{"content": "x"}]}, r"messages\[0\] has no role"),
        (
            {"messages": [{"role": "wizard", "content": "x"}]},
            r"messages\[0\].role is 'wizard': .* user, assistant",
        ),
        ({"messages": [{"role": "User", "content": "x"}]}, "is 'User'"),
        ({"messages": [*HELLO, {"role": "user"}]}, r"messages\[1\].content is missing"),
        ({"messages": [{"role": "user", "content": None}]}, "content is missing"),
        ({"messages": [{"role": "user", "content": []}]}, "content is missing"),
        ({"messages": [{"role": "assistant", "tool_calls": []}]}, "content is missing"),
        ({"messages": [{"role": "user", "tool_calls": [{"id": "1"}]}]}, "content is missing"),
        ({"messages": [{"role": "user", "content": 5}]}, r"messages\[0\].content must be a string"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "not text"),
        ({"top_logprobs": 3}, "needs logprobs"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [1]}, "list of objects"),
        ({"tools": [{"function": {"name": "f"}}]}, r'tools\[0\] must be of the type "function"'),
        ({"tools": [{"type": "function", "function": {}}]}, "with a name"),
        ({"functions": [{"name": "f"}]}, "use tools"),
    ],
)
def test_what_chats_cannot_do_is_said(fields, wanted):
    with pytest.raises(InvalidRequest, match=wanted):
        chat(**fields)


@pytest.mark.parametrize("role", ["system", "developer", "user", "assistant", "tool", "function"])
def test_the_apis_roles_are_taken(role):
    messages = [{"role": role, "content": ""}]
    assert chat(messages=messages).messages == tuple(messages)


def test_a_wrong_message_is_found_by_its_param():
    for message, param in (
        ({"role": "wizard"}, "messages[1].role"),
        ({"role": "user"}, "messages[1].content"),
    ):
        with pytest.raises(InvalidRequest) as caught:
            chat(messages=[*HELLO, message])
        assert caught.value.param == param


def test_the_first_limit_in_use_counts():
    assert completion(n_predict=5).sampling.max_tokens == 5
    assert chat(max_tokens=5, max_completion_tokens=7).sampling.max_tokens == 7
    assert completion(max_tokens=-1).sampling.max_tokens is None
    assert completion(max_tokens=0).sampling.max_tokens == 0


def test_llama_servers_spellings_are_understood():
    sampling = completion(
        seed=-1, top_k=-1, logit_bias=[[5, False], [6, 1.5]], stop="x", repeat_last_n=0
    ).sampling
    assert (sampling.seed, sampling.top_k, sampling.stop, sampling.repeat_last_n) == (None, 0, ("x",), 0)
    assert sampling.logit_bias == {5: -math.inf, 6: 1.5}
    assert completion(logit_bias={"7": -100}).sampling.logit_bias == {7: -100.0}


@pytest.mark.parametrize(
    ("prompt", "prompts"),
    [
        ("text", ("text",)),
        ([1, 2, 3], ((1, 2, 3),)),
        ([[1, 2], [3]], ((1, 2), (3,))),
        (["a", "b"], ("a", "b")),
        (["a", [1]], ("a", (1,))),
        ([], ((),)),
    ],
)
def test_prompts_are_texts_or_token_ids(prompt, prompts):
    assert completion(prompt=prompt).prompts == prompts


@pytest.mark.parametrize(
    "prompt", [None, 5, {"a": 1}, [1, "a"], ["a", 1], [1, 2.5], [[1, "a"]], [True], [None]]
)
def test_mixed_prompts_are_refused(prompt):
    with pytest.raises(InvalidRequest) as caught:
        completion(prompt=prompt)
    assert caught.value.param == "prompt"


def test_more_prompts_or_messages_than_can_be_answered_are_refused_by_their_number():
    with pytest.raises(InvalidRequest, match="33 prompts, at most 32"):
        completion(prompt=["a"] * 33)
    with pytest.raises(InvalidRequest, match="16385 messages, at most 16384"):
        chat(messages=HELLO * 16385)


def test_parts_of_text_are_joined_and_other_keys_kept():
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    messages = [
        {"role": "user", "content": parts},
        {"role": "assistant", "content": None, "tool_calls": [{"id": "1"}]},
        {"role": "tool", "content": "r", "tool_call_id": "1"},
    ]
    assert chat(messages=messages).messages == (
        {"role": "user", "content": "a\nb"},
        {"role": "assistant", "content": "", "tool_calls": [{"id": "1"}]},
        {"role": "tool", "content": "r", "tool_call_id": "1"},
    )


def test_tools_go_to_the_template_unless_told_not_to():
    tools = [{"type": "function", "function": {"name": "f"}}]
    assert chat(tools=tools).tools == tuple(tools)
    assert chat(tools=tools, tool_choice="none").tools == ()


def test_chat_logprobs():
    assert chat().sampling.top_logprobs is None
    assert chat(logprobs=True).sampling.top_logprobs == 0
    assert chat(logprobs=True, top_logprobs=3).sampling.top_logprobs == 3
