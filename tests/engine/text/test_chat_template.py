"""Chat templates: the same features as in Hugging Face's environment, and limits for hostile templates."""

from __future__ import annotations

import tracemalloc

import pytest
from examples import SOAK

from voxlane.engine.text.chat_template import MAX_SOURCE_CHARACTERS, ChatTemplate, ChatTemplateError

MESSAGES = [{"role": "system", "content": "Be <kind>."}, {"role": "user", "content": "  Hi & bye\n"}]


def render(source: str, **variables: object) -> str:
    return ChatTemplate(source).render(MESSAGES, {"add_generation_prompt": True} | variables)


# Each is rendered by transformers too: the two must agree.
ORDINARY = {
    "loop variables": "{% for m in messages %}{{ loop.index0 }}{{ loop.last }}{{ loop.length }}{% endfor %}",
    "loop controls": "{% for m in messages %}{% if loop.last %}{% break %}{% endif %}{{ m.role }}{% endfor %}",
    "block whitespace": "{% if true %}\n  x\n  {% endif %}\ny",
    "no escaping": "{{ messages[0].content }}",
    "concatenation": "{{ 'a' ~ 1 ~ none ~ messages[1]['content'] }}",
    "addition": "{{ '<|' + messages[0]['role'] + '|>' }}",
    "filters": "{{ messages | map(attribute='role') | join(', ') | upper }} {{ messages[1].content | trim }}",
    "methods": "{{ messages[1].content.strip().split(' ')[-1] }} {{ ', '.join(['a', 'b']) }} {{ 'x'.startswith('x') }}",
    "slices": "{{ messages[::-1][0].role }}{{ messages[1:] | length }}",
    "json": "{{ messages | tojson }} {{ {'a': [1, 'é']} | tojson(indent=2) }}",
    "namespace": "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}",
    "macro": "{% macro turn(m) %}[{{ m.role }}]{% endmacro %}{% for m in messages %}{{ turn(m) }}{% endfor %}",
    "generation": "{% generation %}a{{ messages[0].role }}{% endgeneration %}b",
    "tests": "{% if tools is none and tools is not defined %}a{% else %}b{% endif %}{{ 'x' in messages[0].content }}",
    "filtered loop": "{% for m in messages if m.role != 'system' %}{{ m.role }}{% endfor %}",
    "tokens": "{{ bos_token }}{% if add_generation_prompt %}go{% endif %}",
    "items": "{% for key, value in messages[0].items() %}{{ key }}={{ value }};{% endfor %}",
    "numbers": "{{ 7 * 6 }} {{ 7 // 2 }} {{ 7 % 4 }} {{ 'ab' * 3 }} {{ '=' * 5 }}",
    "indent": "{{ 'a\nb' | indent(2) }}",
    "format": "{{ '%s-%s' | format('a', 1) }} {{ '{} {}'.format('a', 'b') }}",
}  # fmt: skip


@pytest.mark.parametrize("name", ORDINARY)
def test_ordinary_templates_render_as_in_transformers(name: str) -> None:
    from transformers.utils.chat_template_utils import render_jinja_template

    expected, _ = render_jinja_template(
        conversations=[MESSAGES], chat_template=ORDINARY[name], add_generation_prompt=True, bos_token="<s>"
    )
    assert render(ORDINARY[name], bos_token="<s>", tools=None, documents=None) == expected[0]


@pytest.mark.parametrize(
    ("source", "may_think"),
    [
        ("{% if enable_thinking is defined and enable_thinking is false %}no{% endif %}", True),
        (
            "{% if enable_thinking is not defined %}{% set enable_thinking = true %}{% endif %}{{ enable_thinking }}",
            True,
        ),
        ("{% set enable_thinking = enable_thinking | default(true) %}{{ enable_thinking }}", True),
        ("{% set ns = namespace(enable_thinking=true) %}{{ ns.enable_thinking }}", False),
        ("{% set enable_thinking = true %}{{ enable_thinking }}", False),
        ("enable_thinking {{ messages[0].enable_thinking }}", False),
    ],
)
def test_a_template_that_asks_whether_to_think_is_known(source: str, may_think: bool) -> None:
    assert ChatTemplate(source).may_think is may_think


HOSTILE = {
    "attributes": "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "attribute filter": "{{ ''|attr('__class__') }}{{ messages.append(1) }}",
    "mutation": "{{ messages.append(1) }}",
    "environment": "{{ self._TemplateReference__context.environment }}",
    "import": "{% include 'x' %}",
    "nested loops": "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "long range": "{% for a in range(10 ** 9) %}{% endfor %}",
    "doubling by +": "{% set n = namespace(x='a') %}{% for a in range(60) %}{% set n.x = n.x + n.x %}{% endfor %}",
    "doubling by ~": "{% set n = namespace(x='a') %}{% for a in range(60) %}{% set n.x = n.x ~ n.x %}{% endfor %}",
    "doubling lists": "{% set n = namespace(x=[1]) %}{% for a in range(60) %}{% set n.x = n.x + n.x %}{% endfor %}",
    "repeated text": "{{ 'a' * 10000000000 }}",
    "repeated list": "{{ [1] * 10000000000 }}",
    "power": "{{ 10 ** 100000000 }}",
    "padding": "{{ 'a'.ljust(10000000000) }}",
    "centring": "{{ 'a' | center(10000000000) }}",
    "batches": "{{ 'a' | batch(10000000000, 'x') | list }}",
    "wide format": "{{ '%10000000000d' | format(1) }}",
    "wide method format": "{{ '{:10000000000}'.format(1) }}",
    "computed width": "{{ '{:{w}}'.format('a', w=3000000000) }}",
    "computed width as text": "{{ '{:{w}}'.format('a', w='3000000000') }}",
    "repeated field": "{% set a = 'a' * 1000000 %}{{ ('{0}' * 100000).format(a) }}",
    "wide operator": "{{ '%10000000000s' % 'a' }}",
    "replace": "{% set a = 'a' * 1000000 %}{{ a.replace('a', a) }}",
    "replace filter": "{% set a = 'a' * 1000000 %}{{ a | replace('a', a) }}",
    "join": "{% set a = 'a' * 1000000 %}{{ a.join(a.split('') if false else ['b'] * 1000000) }}",
    "join filter": "{% set a = 'a' * 1000000 %}{{ (['b'] * 100000) | join(a) }}",
    "indent": "{{ ('\n' * 1000000) | indent(1000000) }}",
    "recursion": "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "branching": "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(40) }}",
    "captured text": "{% set y = 'a' * 1000000 %}{% set x %}{% for a in range(9999) %}{{ y }}{% endfor %}{% endset %}",
    "many texts": "{% set n = namespace() %}{% for a in range(99) %}{% set n.x = [n.x,a ~ 'a' * 999999] %}{% endfor %}",
    "nested lists": "{% set n = namespace() %}{% for a in range(60) %}{% set n.x = [n.x, n.x] %}{% endfor %}{{ n.x }}",
    "loops over a variable": "{% set r = range(99999) %}{% for a in r %}{% for b in r %}{% endfor %}{% endfor %}",
    "long bytes": "{{ (1).to_bytes(10000000000) }}",
    "wide date": "{{ strftime_now('%10000000000d') }}",
    "captured source": "{% set x %}{% for a in range(99999) %}" + "a" * 50_000 + "{% endfor %}{% endset %}",
    "division": "{{ 1 // 0 }}",
    "missing": "{{ nothing.at.all }}",
    "syntax": "{% for %}",
    "unclosed": "{{ 'a",
    "deep nesting": "{{ " + "(" * 5000 + ")" * 5000 + " }}",
    "long": "a" * (MAX_SOURCE_CHARACTERS + 1),
}  # fmt: skip

SLOW = ("branching", "loops over a variable", "nested lists")  # each has a quicker sister


@pytest.mark.parametrize("name", [name for name in HOSTILE if SOAK or name not in SLOW])
def test_hostile_templates_end_in_an_error(name: str) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(ChatTemplateError):
            render(HOSTILE[name])
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 512 * 1024 * 1024


def test_a_template_may_refuse() -> None:
    with pytest.raises(ChatTemplateError, match="refuses this conversation: roles must alternate"):
        render("{{ raise_exception('roles must alternate') }}")


def test_a_failed_rendering_leaves_the_template_usable() -> None:
    template = ChatTemplate("{% for m in messages %}{{ m.role + '' }}{% endfor %}")
    with pytest.raises(ChatTemplateError):
        template.render([{"content": "no role"}], {})
    assert template.render(MESSAGES, {}) == "systemuser"


def test_the_limits_are_those_of_one_rendering() -> None:
    template = ChatTemplate("{% for a in range(50000) %}{% endfor %}ok")
    assert [template.render(MESSAGES, {}) for _ in range(10)] == ["ok"] * 10


def test_a_long_conversation_is_far_from_the_limits() -> None:
    source = (
        "{% for m in messages %}{% if messages | length > 1 and loop.index0 % 2 == 0 %}{{ '<|' + m.role ~ '|>' }}"
        "{{ m.content | trim | replace('a', 'aa') }}{{ m['content'].split('x') | join(' ') }}{% endif %}{% endfor %}"
    )
    messages = [{"role": "user", "content": "some words to say " * 50}] * 4000
    assert ChatTemplate(source).render(messages, {})


ROOMY = {
    "large numbers in tools": "{{ tools | tojson }}{{ tools }}",
    "filters with the context": "{{ messages | selectattr('role', 'equalto', 'user') | map(attribute='role') | list }}",
    "a text that grows by +": "{% set n = namespace(x='') %}{% for m in messages %}{% set n.x = n.x + m.content %}"
    "{% endfor %}{{ n.x }}",
    "a text that grows by ~": "{% set n = namespace(x='') %}{% for m in messages %}{% set n.x = n.x ~ m.content %}"
    "{% endfor %}{{ n.x }}",
}  # fmt: skip


@pytest.mark.parametrize("name", ROOMY)
def test_what_real_templates_do_with_much_text_is_allowed(name: str) -> None:
    messages = [{"role": "user", "content": "a few words, " * 25}] * 1000
    tools = [{"name": "wait", "parameters": {"maximum": 2**63 - 1, "minimum": -2147483648}}]
    assert ChatTemplate(ROOMY[name]).render(messages, {"tools": tools})
