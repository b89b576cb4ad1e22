"""ChatTemplate: renders as transformers does, inside of a sandbox with bounds."""

import pytest
from transformers.utils.chat_template_utils import render_jinja_template

from omruntime.errors import BundleError, RequestError
from server.chat_template import MAX_CHARS, ChatTemplate
from server.text import ChatMessage
from tests.server.tiny_tokenizers import CHAT_TEMPLATE

CHAT = (
    ChatMessage("system", "Be brief."),
    ChatMessage("user", "<b>Grüße</b> & \"quotes\" '🦙'"),
    ChatMessage("assistant", "Hi  "),
    ChatMessage("user", "  Why?\n"),
    ChatMessage("user", ""),
)
TEMPLATES = {
    "chatml": CHAT_TEMPLATE,
    "break, generation, date": (
        "{% for m in messages %}{% if loop.index>2 %}{% break %}{% endif %}{% generation %}"
        "{{ m.content }}{% endgeneration %}{% endfor %}{{ strftime_now('%d %b %Y') }}"
    ),
    "defined": "{% if strftime_now is defined %}yes{% endif %}{{ undefined_name }}",
    "continue, loop": (
        "{%- for m in messages %}{% if m['role'] == 'system' %}{% continue %}{% endif %}"
        "{{ loop.index0 }}:{{ loop.last }} {{ m['content'] | trim }}\n{%- endfor %}"
    ),
    "namespace": (
        "{% set ns = namespace(count=0, found=false) %}{% for m in messages %}"
        "{% set ns.count = ns.count + 1 %}{% endfor %}{{ ns.count }} {{ ns.found }}"
    ),
    "items, tojson": (
        "{% for k, v in messages[1].items() %}{{ k }}={{ v | tojson }};{% endfor %}"
        "{{ {'b': [1, 2.5, none], 'a': true} | tojson(indent=2, sort_keys=true) }}"
        "{{ dict(a=1) }}{{ dict.fromkeys(['x']) }}"
    ),
    "macro, call": (
        "{% macro turn(m) %}[{{ m.role }}|{{ caller() }}]{% endmacro %}"
        "{% for m in messages %}{% call turn(m) %}{{ m.content }}{% endcall %}{% endfor %}"
    ),
    "blocks and space": "  {% if true %}\n  a\n  {% endif %}\n\n{# note #}\nb {{- ' c' -}} \n",
    "slices": "{{ messages[1:] | length }}{{ messages[-1]['content'].strip() }}{{ 'x' * 3 }}",
    "special tokens": "{{ bos_token }}{{ tools }}{{ documents is none }}{{ enable_thinking }}",
}


@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize("add_generation_prompt", [True, False])
def test_templates_render_as_in_transformers(name: str, add_generation_prompt: bool) -> None:
    """BL-14: every construct that real templates use."""
    variables = {"bos_token": "<s>", "enable_thinking": False}
    wanted, _ = render_jinja_template(
        conversations=[[{"role": m.role, "content": m.content} for m in CHAT]],
        chat_template=TEMPLATES[name],
        add_generation_prompt=add_generation_prompt,
        **variables,
    )
    variables["add_generation_prompt"] = add_generation_prompt
    assert ChatTemplate(TEMPLATES[name], "t").render(CHAT, variables) == wanted[0]


def render(source: str, *contents: str) -> str:
    chat = [ChatMessage("user", content) for content in contents or ("hi",)]
    return ChatTemplate(source, "chat_template.jinja").render(chat, {})


def test_the_templates_own_refusal_reaches_the_caller() -> None:
    """BL-15: as a request error with the template's sentence, not as a crash."""
    source = (
        "{% if messages[0].role == messages[1].role %}"
        "{{ raise_exception('Conversation roles must alternate user/assistant') }}{% endif %}"
    )
    with pytest.raises(RequestError, match="Conversation roles must alternate user/assistant"):
        render(source, "a", "b")


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages[0].content + 1 }}",
        "{{ 1 / 0 }}",
        "{{ messages[0].none.attribute }}",
        "{{ range(1000000) }}",
        "{{ [1][5] | upper }}{{ 'x'.index('y') }}",
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    ],
)
def test_a_template_that_fails_is_a_request_error(source: str) -> None:
    with pytest.raises(RequestError, match=r"chat_template\.jinja refuses"):
        render(source)


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.append(1) }}",
        "{{ messages[0].update(role='x') }}",
        "{% set ns = namespace(__class__=1) %}",
        "{% set ns = namespace() %}{% set ns._x = 1 %}",
        "{{ raise_exception.__globals__.items() }}",
    ],
)
def test_a_template_cannot_leave_the_sandbox(source: str) -> None:
    """BL-18: dunder access is refused."""
    with pytest.raises(RequestError, match="sandbox"):
        render(source)


@pytest.mark.parametrize(
    "source",
    [
        "{% for i in range(99999) %}{% for j in range(99999) %}x{% endfor %}{% endfor %}",
        "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
        "{% set x %}{% for i in range(99999) %}{% for j in range(99999) %}y{% endfor %}"
        "{% endfor %}{% endset %}",
        "{% macro m(d) %}{% if d %}{{ m(d - 1) }}{{ m(d - 1) }}{% endif %}{% endmacro %}"
        "{{ m(60) }}",
    ],
)
def test_loops_end_by_a_bound(source: str) -> None:
    """BL-18: nested loops of a hostile template, with output, without, captured, recursive."""
    with pytest.raises(RequestError, match=r"loop rounds|longer than|refuses"):
        render(source)


def test_the_bound_cannot_be_hidden_by_a_variable_of_its_name() -> None:
    source = (
        "{% set spend_step = 1 %}{% set environment = 1 %}"
        "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
    )
    with pytest.raises(RequestError, match=r"loop rounds|longer than"):
        render(source)


def test_output_is_bounded() -> None:
    piece = "y" * 100_000
    with pytest.raises(RequestError, match=str(MAX_CHARS)):
        render("{% for i in range(1000) %}{{ messages[0].content }}{% endfor %}", piece)


def test_each_rendering_has_its_own_budget() -> None:
    template = ChatTemplate("{% for i in range(90000) %}{% endfor %}done", "t")
    assert {template.render(CHAT, {}) for _ in range(12)} == {"done"}


def test_a_template_that_does_not_compile_is_refused_with_line_and_reason() -> None:
    """BL-14: when the bundle is opened, not with the first chat."""
    with pytest.raises(BundleError, match=r"chat_template\.jinja is not valid in line 2: .*endfor"):
        render("{% for m in messages %}\n{% endif %}")


@pytest.mark.parametrize(
    ("source", "role", "is_known"),
    [
        (CHAT_TEMPLATE, "tool", True),
        (CHAT_TEMPLATE, "asistant", False),
        (CHAT_TEMPLATE, "developer", False),
        ("{% if messages[0].role == 'critic' %}c{% endif %}", "critic", True),
        ('{% if messages[0]["role"] == "critic" %}c{% endif %}', "critic", True),
        ("{# a critic #}x", "critic", False),
    ],
)
def test_a_role_is_one_of_four_or_named_by_the_template(
    source: str, role: str, is_known: bool
) -> None:
    template, chat = ChatTemplate(source, "t"), (ChatMessage(role, "x"),)
    if is_known:
        assert template.render(chat, {})
    else:
        with pytest.raises(RequestError, match=f"role '{role}' is unknown") as caught:
            template.render(chat, {})
        assert caught.value.param == "messages"
