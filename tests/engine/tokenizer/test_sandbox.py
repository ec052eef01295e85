"""Templates that mean harm are stopped, quickly and with a reason; harmless ones notice nothing."""

from __future__ import annotations

import pytest

from engine.tokenizer import sandbox
from engine.tokenizer.sandbox import AllowanceSpent, TemplateProgram

MAX_CHARS = 10_000

_DOUBLE = "{% set ns = namespace(s=START) %}{% for i in range(60) %}{% set ns.s = STEP %}{% endfor %}"


def doubling(start: str, step: str, end: str = "") -> str:
    return _DOUBLE.replace("START", start).replace("STEP", step) + end


HOSTILE = {
    "a long range": "{% for i in range(10 ** 9) %}x{% endfor %}",
    "loops in loops": "{% for i in range(3000) %}{% for j in range(3000) %}{% endfor %}{% endfor %}",
    "a loop over a text": "{% set s = 'x' * 3000 %}{% for a in s %}{% for b in s %}{% endfor %}{% endfor %}",
    "much output": "{% for i in range(20000) %}x{% endfor %}",
    "a long text": "{{ 'a' * 10 ** 9 }}",
    "a long list": "{{ [0] * 10 ** 9 }}",
    "a large power": "{% set n = 10 ** 9 %}{{ 2 ** n }}",
    "a large product": doubling("7", "ns.s * ns.s"),
    "doubling by +": doubling("'aa'", "ns.s + ns.s"),
    "doubling by ~": doubling("'aa'", "ns.s ~ ns.s"),
    "doubling by join": doubling("'aa'", "[ns.s, ns.s] | join"),
    "doubling by the method join": doubling("'aa'", "''.join([ns.s, ns.s])"),
    "doubling by format": doubling("'aa'", "'{0}{0}'.format(ns.s)"),
    "doubling by replace": doubling("'aa'", "ns.s.replace('a', 'aa')"),
    "doubling by the filter replace": doubling("'aa'", "ns.s | replace('a', 'aa')"),
    "a nested list written": doubling("[1]", "[ns.s, ns.s]", "{{ ns.s }}"),
    "a nested list as JSON": doubling("[1]", "[ns.s, ns.s]", "{{ ns.s | tojson }}"),
    "a nested list as a text": doubling("[1]", "[ns.s, ns.s]", "{{ (ns.s | string) | length }}"),
    "a width by %": "{{ '%1000000000d' % 1 }}",
    "a width by *": "{{ '%*d' % (1000000000, 1) }}",
    "a width in format": "{{ '{:1000000000}'.format(1) }}",
    "a width as argument": "{{ '{:{}}'.format(1, 1000000000) }}",
    "a wide text": "{{ 'a'.ljust(10 ** 9) }}",
    "wide tabs": "{{ '\\t'.expandtabs(10 ** 9) }}",
    "a wide indent": "{{ 'a\\nb' | indent(9999) }}",
    "a wide indent of JSON": "{{ [1] | tojson(indent=9999) }}",
    "a wide time": "{{ strftime_now('%1000000000d') }}",
    "macros that call each other": (
        "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}"
    ),
    "the interpreter": "{{ ''.__class__.__mro__ }}",
    "the interpreter by a filter": "{{ ('a' | attr('__class__')).__mro__ }}",
    "a change of what is given": "{{ given.append(1) }}",
}


@pytest.mark.parametrize("source", HOSTILE.values(), ids=HOSTILE)
def test_harm_is_stopped(source, monkeypatch):
    monkeypatch.setattr(sandbox, "MAX_STEPS", 100_000)
    with pytest.raises((AllowanceSpent, RecursionError)):
        TemplateProgram(source).render({"given": [1]}, max_chars=MAX_CHARS)


def test_time_is_limited(monkeypatch):
    monkeypatch.setattr(sandbox, "MAX_SECONDS", 0.0)
    with pytest.raises(AllowanceSpent, match="longer"):
        TemplateProgram("{% for i in range(1000) %}{% endfor %}").render({}, max_chars=MAX_CHARS)


HARMLESS = {
    "{{ '%s-%05.1f' % ('a', 3.14159) }} {{ '{:>5}'.format('a') }}": "a-003.1     a",
    "{{ 'a' ~ 1 ~ none ~ [2] }}{{ 'a' + 'b' * 3 }}{{ 2 ** 3 % 5 }}": "a1None[2]abbb3",
    "{{ (1, 2) | map('string') | join('-') }}{{ 'a,b'.split(',') | last | upper }}": "1-2B",
    "{% for k, v in {'a': 1} | dictsort %}{{ k }}{{ v }}{{ loop.last }}{{ loop.length }}{% endfor %}": "a1True1",
    "{% for k, v in {'a': 1}.items() %}{{ k }}{% endfor %}{% for x in [] %}{% else %}none{% endfor %}": "anone",
    "{% macro m(x, y='d') %}{{ x }}{{ y }}{% endmacro %}{{ m('a') }}{{ m(x='b', y='c') }}": "adbc",
    "{{ [{'r': 'u'}, {'r': 'a'}] | selectattr('r', 'equalto', 'u') | list | length }}": "1",
    "{{ missing is defined }}{{ missing | default('x') }}{{ ' a '.strip() }}{{ 'abc'[::-1] }}": "Falsexacba",
    "{% for x in [1, [2]] recursive %}{{ loop(x) if x is iterable else x }}{% endfor %}": "12",
    "{% set ns = namespace(n=0) %}{% for i in range(5) %}{% set ns.n = ns.n + i %}{% endfor %}{{ ns.n }}": "10",
    "{% filter upper %}a{% endfilter %}{% set b %}x{{ 1 }}{% endset %}{{ b }}": "Ax1",
}


@pytest.mark.parametrize(("source", "text"), HARMLESS.items())
def test_ordinary_templates_notice_nothing(source, text):
    assert TemplateProgram(source).render({}, max_chars=MAX_CHARS) == text


def test_renderings_do_not_share_an_allowance():
    program = TemplateProgram("{% for i in range(90) %}{{ i % 10 }}{% endfor %}")
    for _ in range(5):
        assert len(program.render({}, max_chars=100)) == 90
