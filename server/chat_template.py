"""ChatTemplate: a conversation -> the prompt's text, rendered as transformers renders it.

Owns the jinja2 environment and its bounds. Templates come from the bundle alone, never from a
request; which of a bundle's templates applies is `tokenizer.py`.

A template is a stranger's program, so it runs in jinja2's sandbox, and a rendering ends with an
error after MAX_STEPS loop rounds and macro calls, MAX_RENDER_S seconds (looked at on each of
these) or MAX_CHARS characters. A single expression can still take much memory at once:
serve only bundles whose template you would run.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from datetime import datetime
from typing import Any

import jinja2
import jinja2.ext
from jinja2 import nodes
from jinja2.exceptions import SecurityError, TemplateError
from jinja2.parser import Parser
from jinja2.runtime import Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from omruntime.errors import BundleError, RequestError
from server.text import ChatMessage

# What every template is expected to know; others count where a template has them in quotes.
ROLES = ("system", "user", "assistant", "tool")
MAX_STEPS = 1_000_000
MAX_RENDER_S = 5.0
MAX_CHARS = 1 << 24

# What a template raises on a conversation that it was not written for.
_TEMPLATE_FAULTS = (
    ArithmeticError,
    AttributeError,
    LookupError,
    RecursionError,
    TemplateError,
    TypeError,
    ValueError,
)


class ChatTemplate:
    """One compiled template; may render in several threads at once."""

    def __init__(self, source: str, name: str) -> None:
        """Compile.

        Args:
            source: The template's text.
            name: For messages, such as a file name.

        Raises:
            BundleError: The template is not valid; the message has line and reason.
        """
        self._name = name
        self._source = source
        try:
            self._template = _environment().from_string(source)
        except jinja2.TemplateSyntaxError as error:
            raise BundleError(
                f"chat template {name} is not valid in line {error.lineno}: {error.message}; "
                f"correct the template and build the bundle again"
            ) from error

    def render(
        self,
        messages: Sequence[ChatMessage],
        variables: Mapping[str, Any],
    ) -> str:
        """The prompt of a conversation.

        Args:
            messages: In order.
            variables: What else the template can read: special tokens, add_generation_prompt
                and the caller's own. `tools` and `documents` are None unless given.

        Raises:
            RequestError: A role is unknown, or the template refuses the conversation (its own
                sentence is in the message), fails on it, leaves the sandbox or passes a bound.
        """
        for role in dict.fromkeys(message.role for message in messages):
            self._require_role(role)
        chat = [
            {"role": message.role, "content": message.content, **(message.extras or {})}
            for message in messages
        ]
        given = {"tools": None, "documents": None, **variables, "messages": chat}
        budget = _BUDGET.set(_Budget())
        try:
            return self._render_bounded(given)
        except SecurityError as error:
            raise RequestError(
                f"chat template {self._name} tries to leave its sandbox: {error}", "messages"
            ) from error
        except _TEMPLATE_FAULTS as error:
            raise RequestError(
                f"chat template {self._name} refuses the conversation: {error}", "messages"
            ) from error
        finally:
            _BUDGET.reset(budget)

    def _require_role(self, role: str) -> None:
        """Refuse a role that most templates would write down, for a model that never saw it."""
        if role in ROLES or f"'{role}'" in self._source or f'"{role}"' in self._source:
            return
        raise RequestError(
            f"the role {role[:64]!r} is unknown, wanted one of {', '.join(ROLES)}, or another one "
            f"that chat template {self._name} names",
            "messages",
        )

    def _render_bounded(self, variables: Mapping[str, Any]) -> str:
        pieces, num_chars = [], 0
        for piece in self._template.generate(variables):
            pieces.append(piece)
            num_chars += len(piece)
            if num_chars > MAX_CHARS:
                raise RequestError(
                    f"chat template {self._name} wrote more than {MAX_CHARS} characters; "
                    f"send a shorter conversation",
                    "messages",
                )
        return "".join(pieces)


class _Budget:
    """What one rendering may still spend."""

    def __init__(self) -> None:
        self._steps_left = MAX_STEPS
        self._deadline = time.monotonic() + MAX_RENDER_S

    def spend_step(self) -> None:
        self._steps_left -= 1
        if self._steps_left < 0:
            raise RequestError(
                f"the chat template took more than {MAX_STEPS} loop rounds", "messages"
            )
        if time.monotonic() > self._deadline:
            raise RequestError(f"the chat template took longer than {MAX_RENDER_S} s", "messages")


# One environment serves all threads, so a rendering's budget travels with its context.
_BUDGET: ContextVar[_Budget] = ContextVar("chat_template_budget")


class _BoundedEnvironment(ImmutableSandboxedEnvironment):
    """A sandbox whose loops and macros spend a step on every round."""

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        template = super()._parse(source, name, filename)
        for node in template.find_all((nodes.For, nodes.Macro, nodes.CallBlock)):
            assert isinstance(node, nodes.For | nodes.Macro | nodes.CallBlock)
            # An attribute of the environment, unlike a variable, cannot be set by the template,
            # and reading it is ten times as fast as a call through the sandbox.
            spend = nodes.EnvironmentAttribute("spend_step")
            node.body.insert(0, nodes.ExprStmt(spend, lineno=node.lineno))
        return template

    @property
    def spend_step(self) -> None:
        """Read by compiled templates: takes one step off the budget of the rendering."""
        _BUDGET.get().spend_step()


class _GenerationTag(jinja2.ext.Extension):
    """`{% generation %}`: marks the assistant's words for training; here only its body counts."""

    tags = {"generation"}  # noqa: RUF012 (declared so by jinja2)

    def parse(self, parser: Parser) -> nodes.Node:
        lineno = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_render_body"), [], [], body, lineno=lineno)

    def _render_body(self, caller: Macro) -> str:
        return str(caller())


class _TemplateDict:
    """The `dict` of templates: makes dicts, offers nothing of the class."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict(*args, **kwargs)

    def fromkeys(self, *args: Any) -> dict[Any, Any]:
        return dict.fromkeys(*args)


class _TemplateNamespace(Namespace):
    """The `namespace` of templates: refuses names that begin with an underscore."""

    def __init__(*args: Any, **kwargs: Any) -> None:  # so that `self` may be a keyword
        self, *rest = args
        attributes = dict(*rest, **kwargs)
        for name in attributes:
            _require_public(name)
        Namespace.__init__(self, attributes)

    def __setitem__(self, name: str, value: Any) -> None:
        _require_public(name)
        super().__setitem__(name, value)


def _require_public(name: object) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError(f"{name!r} begins with an underscore")


def _environment() -> ImmutableSandboxedEnvironment:
    environment = _BoundedEnvironment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=[_GenerationTag, jinja2.ext.loopcontrols],
    )
    environment.filters["tojson"] = _to_json
    functions: dict[str, Callable[..., Any]] = {
        "raise_exception": _raise_exception,
        "strftime_now": _strftime_now,
        "dict": _TemplateDict(),
        "namespace": _TemplateNamespace,
    }
    environment.globals.update(functions)
    return environment


def _raise_exception(message: str) -> None:
    raise TemplateError(message)


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Unlike jinja2's own filter this one escapes no HTML."""
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )
