"""Chat templates: as transformers renders them, with what people write kept apart from what the template writes."""

from __future__ import annotations

import datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.errors import InvalidRequest, ModelFileError, PromptTooLong
from engine.gguf.reader import GGUFFile
from engine.tokenizer import ChatTemplate, Tokenizer
from engine.tokenizer.sandbox import TemplateProgram
from tests.engine.tokenizer.corpus import NASTY, random_texts
from tests.engine.tokenizer.small import bpe_metadata, spm_metadata

TOKENIZER = Tokenizer.from_metadata(bpe_metadata())
CHATML = ChatTemplate.from_metadata({}, TOKENIZER)

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "Says <b>how</b> it is, e.g. in Zürich",
            "parameters": {"type": "object", "properties": {"<|im_end|>": {"type": "string"}}},
        },
    }
]


def user(content: object) -> list[dict[str, object]]:
    return [{"role": "user", "content": content}]


def texts_of(ids: list[int], tokenizer: Tokenizer = TOKENIZER) -> list[str]:
    return [tokenizer.token_text(index) for index in ids]


def control_texts(ids: list[int], tokenizer: Tokenizer = TOKENIZER) -> list[str]:
    return [tokenizer.token_text(index) for index in ids if tokenizer.is_control(index)]


@pytest.fixture(scope="module", params=["smollm2_path", "qwen_path"])
def real(request):
    with GGUFFile.open(request.getfixturevalue(request.param)) as file:
        tokenizer = Tokenizer.from_metadata(file.metadata)
        return tokenizer, ChatTemplate.from_metadata(file.metadata, tokenizer)


# --- rendering


TALKS = {
    "one question": user("What is 2+2?"),
    "a system message": [{"role": "system", "content": "Be brief."}, *user("Hi")],
    "several turns": [*user("Hi"), {"role": "assistant", "content": "Hello!"}, *user("  and now? \n")],
    "an empty question": user(""),
    "other scripts": user("你好 😀 \u05e9\u05dc\u05d5\u05dd"),
}


@pytest.mark.parametrize("talk", TALKS.values(), ids=TALKS)
@pytest.mark.parametrize("prompt", [True, False])
def test_renders_as_transformers_does(real, talk, prompt):
    utils = pytest.importorskip("transformers.utils.chat_template_utils")
    _, template = real
    theirs, _ = utils.render_jinja_template(
        [talk], chat_template=template.source, add_generation_prompt=prompt
    )
    assert template.render(talk, add_generation_prompt=prompt) == theirs[0]


def test_tools_and_calls_render_as_transformers_does(qwen_path):
    utils = pytest.importorskip("transformers.utils.chat_template_utils")
    with GGUFFile.open(qwen_path) as file:
        template = ChatTemplate.from_metadata(file.metadata, Tokenizer.from_metadata(file.metadata))
    call = {
        "type": "function",
        "function": {"name": "weather", "arguments": {"city": "Zürich", "days": [1, 2]}},
    }
    talk = [
        *user("How is it?"),
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "sunny"},
    ]
    theirs, _ = utils.render_jinja_template(
        [talk], tools=TOOLS, chat_template=template.source, add_generation_prompt=True
    )
    assert template.render(talk, tools=TOOLS) == theirs[0]
    as_text = {
        "type": "function",
        "function": {"name": "weather", "arguments": '{"city": "Zürich", "days": [1, 2]}'},
    }
    talk[1] = {"role": "assistant", "content": None, "tool_calls": [as_text]}
    assert template.render(talk, tools=TOOLS) == theirs[0]


def test_encoding_is_that_of_the_rendered_text(real):
    tokenizer, template = real
    for talk in TALKS.values():
        plain = tokenizer.encode(template.render(talk), add_special=True, parse_special=True)
        assert template.encode(talk) == plain


def test_an_answer_is_continued_where_it_stands(real):
    tokenizer, template = real
    for begun in ("It is fo", "a < b <|im_end|> ", "  x\n"):
        talk = [*user("What is 2+2?"), {"role": "assistant", "content": begun}]
        ids = template.encode(talk, continue_final_message=True)
        closed = template.render(talk, add_generation_prompt=False)
        text = tokenizer.decode(ids, special=True)
        assert text.rstrip() == closed[: closed.rindex(begun.strip()) + len(begun.strip())]
        # The begun answer is text, whatever is in it: no more marks than a question by itself has.
        n_marks = sum(map(tokenizer.is_control, ids))
        asked = template.encode(user("What is 2+2?"))
        assert n_marks == sum(map(tokenizer.is_control, asked))


def test_a_template_without_the_last_message_cannot_continue_it():
    template = ChatTemplate("{{ messages[0].content }}", TOKENIZER)
    talk = [*user("Hi"), {"role": "assistant", "content": "He"}]
    with pytest.raises(InvalidRequest, match="cannot be continued"):
        template.encode(talk, continue_final_message=True)


def test_variables_reach_the_template_but_replace_nothing():
    template = ChatTemplate("{{ thinking }} {{ messages | length }}", TOKENIZER)
    assert template.render(user("a"), variables={"thinking": True, "messages": []}) == "True 1"


def test_the_date_comes_from_the_clock():
    program = TemplateProgram("{{ strftime_now('%d %b %Y') }}", now=lambda: datetime.datetime(2024, 2, 29))
    assert program.render({}, max_chars=100) == "29 Feb 2024"


def test_json_is_plain_and_keeps_other_scripts():
    template = ChatTemplate("{{ tools | tojson }}", TOKENIZER)
    text = template.render(user("a"), tools=[{"a": "<b> & 'c' é"}])
    assert text == '[{"a": "<b> & \'c\' é"}]'
    assert (
        ChatTemplate("{{ [1, {'a': 2}] | tojson(indent=1) }}", TOKENIZER).render(user("a")).count("\n") == 5
    )


def test_trims_blocks_and_knows_loop_controls():
    source = "{% for m in messages %}\n    {% if loop.index > 1 %}{% break %}{% endif %}\n{{ m.role }}\n{% endfor %}\n"
    assert ChatTemplate(source, TOKENIZER).render([*user("a"), *user("b")]) == "user\n"


def test_a_training_mark_is_only_its_contents():
    assert ChatTemplate("{% generation %}x{{ 1 }}{% endgeneration %}", TOKENIZER).render(user("a")) == "x1"


# --- files without a template


def test_chatml_where_the_vocabulary_knows_it():
    assert CHATML.is_fallback
    assert CHATML.render(user("Hi")) == "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"


def test_a_script_for_models_that_never_learnt_to_chat():
    template = ChatTemplate.from_metadata({}, Tokenizer.from_metadata(spm_metadata()))
    talk = [
        {"role": "system", "content": "A talk."},
        *user("Hi"),
        {"role": "assistant", "content": "Ho"},
        *user("?"),
    ]
    assert template.is_fallback
    assert template.render(talk) == "A talk.\n\nUser: Hi\n\nAssistant: Ho\n\nUser: ?\n\nAssistant:"


# --- what people write stays text


@pytest.mark.parametrize("content", NASTY, ids=ascii)
def test_messages_never_become_control_tokens(content):
    ids = CHATML.encode(user(content))
    assert control_texts(ids) == ["<|im_start|>", "<|im_end|>", "<|im_start|>"]
    assert TOKENIZER.decode(ids, special=True) == CHATML.render(user(content))


def test_words_merge_across_the_borders_of_messages(real):
    tokenizer, template = real
    content = "x <|im_end|> <p>\n"
    ids = template.encode(user(content))
    start = template.render(user("\0")).split("\0")[0].split("user")[0] + "user"
    inner = tokenizer.encode(f"\n{content}", add_special=False, parse_special=False)
    head = tokenizer.encode(start, add_special=False, parse_special=True)
    assert ids[: len(head) + len(inner)] == head + inner
    assert tokenizer.decode(ids, special=True) == template.render(user(content))


@settings(max_examples=150, deadline=None)
@given(
    st.lists(
        st.sampled_from(["<", "|", "<|im_", "end|>", "im_end|>", "<|im_end|>", "x", " ", ">"]), max_size=8
    )
)
def test_no_mixture_of_parts_becomes_a_control_token(parts):
    ids = CHATML.encode(user("".join(parts)))
    assert control_texts(ids) == ["<|im_start|>", "<|im_end|>", "<|im_start|>"]


def test_borders_cannot_be_completed():
    template = ChatTemplate(
        "{{ messages[0].content }}|im_end|>{{ '<|im_' ~ messages[1].content }}", TOKENIZER
    )
    assert control_texts(template.encode([*user("a<"), *user("end|> b")])) == []


def test_a_template_that_takes_words_out_cannot_be_used_to_form_tokens():
    template = ChatTemplate("{{ messages[0].content | replace('<image>', '') }}", TOKENIZER)
    ids = template.encode(user("<|im_<image>end|>"))
    assert control_texts(ids) == []
    assert TOKENIZER.decode(ids) == "<|im_end|>"


def test_a_template_may_look_for_its_own_marks_in_messages():
    template = ChatTemplate("{{ messages[0].content.split('</think>')[-1] }}<|im_end|>", TOKENIZER)
    ids = template.encode(user("<think>hm <|im_end|></think>o<|im_start|>o"))
    assert control_texts(ids) == ["<|im_end|>"]
    assert TOKENIZER.decode(ids) == "o<|im_start|>o"


def test_a_template_may_form_its_tokens_around_a_role():
    template = ChatTemplate("{{ '<|' + messages[0].role + '|>' }}", TOKENIZER)
    assert texts_of(template.encode([{"role": "endoftext", "content": ""}])) == ["<|endoftext|>"]


def test_tools_and_variables_stay_text_too():
    template = ChatTemplate("{{ tools | tojson(ensure_ascii=True) }}{{ note }}", TOKENIZER)
    ids = template.encode(user("a"), tools=TOOLS, variables={"note": "<|im_end|>"})
    assert control_texts(ids) == []
    assert TOKENIZER.decode(ids) == template.render(user("a"), tools=TOOLS, variables={"note": "<|im_end|>"})


def test_guards_avoid_the_characters_in_use():
    content = "".join(chr(code) for code in range(0xFDD0, 0xFDEF)) + "<|im_end|>"
    assert TOKENIZER.decode(CHATML.encode(user(content)), special=True) == CHATML.render(user(content))
    with pytest.raises(InvalidRequest, match="sets aside"):
        CHATML.encode(user(content + "\ufdef"))


@pytest.mark.soak
def test_random_messages_encode_as_their_text(real):
    tokenizer, template = real
    for text in random_texts(6, 5000):
        ids = template.encode(user(text))
        plain = tokenizer.encode(text, add_special=False, parse_special=False)
        if tokenizer.decode(plain) == text:  # the starter lacks tokens for some bytes
            assert tokenizer.decode(ids, special=True) == template.render(user(text))
        assert len(control_texts(ids, tokenizer)) == len(control_texts(template.encode(user("")), tokenizer))


# --- begin of text


@pytest.mark.parametrize("source", ["{{ bos_token }}{{ messages[0].content }}", "{{ messages[0].content }}"])
def test_begin_of_text_comes_once(source):
    tokenizer = Tokenizer.from_metadata(spm_metadata(add_space_prefix=False))
    template = ChatTemplate(source, tokenizer)
    assert texts_of(template.encode(user("hello")), tokenizer) == ["<s>", "hello"]


def test_a_message_cannot_take_the_place_of_begin_of_text():
    tokenizer = Tokenizer.from_metadata(spm_metadata(add_space_prefix=False))
    template = ChatTemplate("{{ messages[0].content }}", tokenizer)
    ids = template.encode(user("<s>"))
    assert texts_of(ids, tokenizer)[0] == "<s>"
    assert control_texts(ids, tokenizer).count("<s>") == 1


def test_no_end_of_text_after_a_prompt():
    tokenizer = Tokenizer.from_metadata(bpe_metadata(add_eos_token=True))
    assert texts_of(ChatTemplate("o", tokenizer).encode(user("a")), tokenizer) == ["o"]


# --- prompts that cannot fit


def test_a_prompt_of_megabytes_is_refused_before_it_becomes_tokens(real, monkeypatch):
    tokenizer, template = real
    monkeypatch.setattr(tokenizer, "encode_guarded", lambda *_, **__: pytest.fail("made tokens of it"))
    for text in ("a long story, " * 2_000_000, "x" * 30_000_000, "<|im_end|>" * 3_000_000):
        with pytest.raises(PromptTooLong, match="at least") as caught:
            template.encode(user(text), n_ctx=4096)
        assert caught.value.n_prompt_tokens >= 30_000_000 // 128


def test_a_prompt_of_any_other_length_is_counted(real):
    _, template = real
    text = "a long story, " * 1000
    assert len(template.encode(user(text), n_ctx=16)) > 4000


# --- messages


def test_text_parts_are_joined():
    parts = [{"type": "text", "text": "he"}, {"type": "text", "text": "llo"}]
    assert CHATML.encode(user(parts)) == CHATML.encode(user("hello"))


@pytest.mark.parametrize(
    ("messages", "message"),
    [
        ([], "no messages"),
        ([{"content": "a"}], r"messages\[0\].role"),
        ([{"role": "<|im_start|>", "content": "a"}], r"messages\[0\].role"),
        ([*user("a"), {"role": "user"}], r"messages\[1\].content"),
        (user(3), r"messages\[0\].content"),
        (user([{"type": "image_url", "image_url": {}}]), "'image_url'"),
        (user([{"type": "text"}]), "has no text"),
        (user(["a"]), "part of type None"),
    ],
)
def test_unfit_messages_are_refused(messages, message):
    with pytest.raises(InvalidRequest, match=message) as caught:
        CHATML.encode(messages)
    assert caught.value.param == "messages"


CALL = {"type": "function", "function": {"name": "weather", "arguments": "{}"}}
TALK_WITH_A_CALL = [
    *user("How is it?"),
    {"role": "assistant", "content": "", "tool_calls": [CALL]},
    {"role": "tool", "content": "sunny"},
]


def test_tools_that_a_template_would_leave_out_are_refused(real):
    _, template = real
    written = "weather" in template.render(user("a"), tools=TOOLS)
    if written:
        assert template.encode(user("a"), tools=TOOLS) != template.encode(user("a"))
    else:
        with pytest.raises(InvalidRequest, match="no place for tools") as caught:
            template.encode(user("a"), tools=TOOLS)
        assert caught.value.param == "tools"


def test_templates_without_a_place_for_tools_say_so():
    for messages, options, param in (
        (user("a"), {"tools": TOOLS}, "tools"),
        (TALK_WITH_A_CALL, {}, "messages"),
    ):
        with pytest.raises(InvalidRequest, match="has no place for tool") as caught:
            CHATML.encode(messages, **options)
        assert caught.value.param == param


def test_a_template_with_a_place_for_tools_gets_them():
    source = (
        "{% if not tools %}{{ raise_exception('tools are needed') }}{% endif %}{{ tools[0].function.name }}"
        "{% for m in messages %}{{ m.tool_calls[0].function.name if m.tool_calls else m.content }}{% endfor %}"
    )
    template = ChatTemplate(source, TOKENIZER)
    assert TOKENIZER.decode(template.encode(TALK_WITH_A_CALL, tools=TOOLS)) == "weatherHow is it?weathersunny"


def test_a_developer_is_the_system_where_a_template_knows_no_developers():
    talk = [{"role": "developer", "content": "Be brief."}]
    assert CHATML.render(talk).startswith("<|im_start|>system\n")
    knowing = ChatTemplate("{% if messages[0].role == 'developer' %}yes{% endif %}", TOKENIZER)
    assert knowing.render(talk) == "yes"


def test_a_templates_own_refusal_is_passed_on():
    template = ChatTemplate("{{ raise_exception('roles must alternate') }}", TOKENIZER)
    with pytest.raises(InvalidRequest, match="refuses: roles must alternate"):
        template.encode(user("a"))


def test_a_templates_mistake_is_told():
    with pytest.raises(InvalidRequest, match="UndefinedError"):
        ChatTemplate("{{ nothing.here }}", TOKENIZER).encode(user("a"))


@pytest.mark.parametrize(
    "source", ["{% if %}", "{{ 'a' | nosuchfilter }}", "{{" + "(" * 5000, "x" * 2_000_000]
)
def test_a_template_that_is_none_is_refused(source):
    with pytest.raises(ModelFileError, match="chat template"):
        ChatTemplate(source, TOKENIZER)


def test_a_template_of_another_type_is_refused():
    with pytest.raises(ModelFileError, match="not a text"):
        ChatTemplate.from_metadata({"tokenizer.chat_template": 3}, TOKENIZER)
