"""Chat templates: a model's own Jinja, rendered in Jinja's sandbox with a limit on time and on text.

A template comes with a model file, so it is input. It can neither reach Python nor run for long. This module knows
text; it does not know tokens.
"""

from __future__ import annotations

import functools
import json
import re
import string
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

import jinja2
import jinja2.runtime
from jinja2 import meta, nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

from voxlane.engine.text.tools import CALL, CallStyle

MAX_SOURCE_CHARACTERS = 256 * 1024
"""The longest published templates, with tool calling, have 20,000."""
MAX_SECONDS = 1.0
"""Processor time of one rendering. A conversation of 4,000 messages takes 0.2 s."""
MAX_CHARACTERS = 64 * 1024 * 1024
"""Characters that one rendering may write, intermediate texts included. The longest message has a quarter of them."""
ITEM_CHARACTERS = 8
"""What an item of a list counts for: its bytes."""

FALLBACK_SOURCE = (
    "{% for message in messages %}{{ message['role'] | capitalize }}: {{ message['content'] | trim }}\n{% endfor %}"
    "{% if add_generation_prompt %}Assistant:{% endif %}"
)
"""For a model without a template: one "Role: text" line per message, then "Assistant:"."""

_WIDE = re.compile(r"[0-9]{6}")
"""A field width in a format string that no chat needs."""
_READING = frozenset(
    {"length", "count", "first", "last", "default", "d", "map", "select", "reject", "selectattr", "rejectattr"}
)
"""Filters that write no text. Templates use them on the whole conversation in each round of a loop."""


class ChatTemplateError(ValueError):
    """A conversation cannot be rendered; str() is one line fit for the person who sent it."""


class ChatTemplate:
    """A compiled chat template."""

    def __init__(self, source: str) -> None:
        if len(source) > MAX_SOURCE_CHARACTERS:
            raise ChatTemplateError(f"the chat template is longer than {MAX_SOURCE_CHARACTERS} characters")
        self.source = source
        self._environment = _Environment()
        self._one_at_a_time = threading.Lock()
        try:
            tree = self._environment.parse(source)
            variables = meta.find_undeclared_variables(tree)
            self.shows_tools = "tools" in variables
            self.may_think = "enable_thinking" in variables  # the model thinks first unless it is told not to
            # A template is used for tools only if it writes both the tools and the calls.
            self.knows_tools = "tool_calls" in source and self.shows_tools
            code = self._environment.compile(_Limits().visit(tree))
            self._template = jinja2.Template.from_code(self._environment, code, self._environment.globals)
        except (jinja2.TemplateError, SyntaxError, RecursionError, MemoryError, ValueError) as error:
            raise ChatTemplateError(f"the chat template does not compile: {error}") from error

    @property
    def call_style(self) -> CallStyle:
        """How this template's model writes a call."""
        if not self.knows_tools or CALL in self.source:
            return CallStyle()
        return CallStyle(opening="", key="parameters" if '"parameters": dict' in self.source else "arguments")

    def render(self, messages: Sequence[Mapping[str, Any]], variables: Mapping[str, object]) -> str:
        """Return the conversation as the template writes it, or raise ChatTemplateError."""
        with self._one_at_a_time:  # the environment holds the limits of one rendering
            self._environment.begin()
            return self._render(messages, variables)

    def _render(self, messages: Sequence[Mapping[str, Any]], variables: Mapping[str, object]) -> str:
        try:
            parts = self._template.generate(messages=[dict(message) for message in messages], **variables)
            return "".join(map(self._environment.made, parts))
        except _Refused as error:
            raise ChatTemplateError(f"the model's chat template refuses this conversation: {error}") from error
        except (jinja2.TemplateError, ArithmeticError, LookupError, TypeError, ValueError, AttributeError) as error:
            raise ChatTemplateError(f"the model's chat template fails: {error}") from error
        except (RecursionError, MemoryError) as error:
            raise ChatTemplateError("the model's chat template needs too much memory") from error


class _Refused(jinja2.TemplateError):
    """The template called raise_exception()."""


class _OverLimit(jinja2.TemplateRuntimeError):
    """The template runs too long or writes too much."""


class _Environment(ImmutableSandboxedEnvironment):
    """Jinja as chat templates expect it. Loops, calls and filters check the time; results count as written text."""

    intercepted_binops = frozenset({"*", "**", "+", "%"})

    def __init__(self) -> None:
        # Unoptimised, and with a finalizer that needs a context: otherwise Jinja would run constant expressions while
        # it compiles, before any limit holds.
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            optimized=False,
            cache_size=0,
            finalize=_finalize,
            extensions=["jinja2.ext.loopcontrols", _Generation],
        )
        self._characters_left, self._ends_s = 0, 0.0
        self.globals |= {"raise_exception": _raise_exception, "strftime_now": _strftime_now}
        self.globals.pop("lipsum", None)
        self.filters["tojson"] = _to_json
        self.filters = {name: self._limited(name, function) for name, function in self.filters.items()}
        self.filters |= {"timed": self._timed, "concatenated": self._concatenated}

    def begin(self) -> None:
        """Start the limits of a rendering."""
        self._characters_left, self._ends_s = MAX_CHARACTERS, time.thread_time() + MAX_SECONDS

    def check_time(self) -> None:
        """Raise _OverLimit after MAX_SECONDS."""
        if time.thread_time() > self._ends_s:
            raise _OverLimit(f"it runs for more than {MAX_SECONDS:g} s")

    def check_size(self, characters: int) -> None:
        """Raise _OverLimit if a text of this length may not be written any more."""
        if characters > self._characters_left:
            raise _OverLimit(f"it writes more than {MAX_CHARACTERS} characters")

    def check_growth(self, *operands: object) -> None:
        """Raise _OverLimit if an operation could write too much. No result is longer than the product of two operands.

        A number among the operands counts as a length: it may be a width or a count.
        """
        sizes = [abs(one) if isinstance(one, int) else self.weigh(one) for one in operands]
        largest, second, *_ = sorted([1, 1, *sizes], reverse=True)
        self.check_size(largest * second)

    def weigh(self, value: object) -> int:
        """Return about how long the text of a value is, or raise _OverLimit if it takes too long to find out."""
        match value:
            case str():
                return len(value)
            case int():
                return value.bit_length() // 3 + 1  # at least its digits
            case list() | tuple():
                self.check_time()
                return sum(map(self.weigh, value)) + len(value)
            case Mapping():
                return self.weigh([*value.keys(), *value.values()])
        return 1

    def made(self, value: Any) -> Any:
        """Count a result as written and return it; an iterator becomes a list."""
        if isinstance(value, Iterator):
            value = list(self._timed(value))
        if isinstance(value, str | list | tuple):
            size = len(value) * (1 if isinstance(value, str) else ITEM_CHARACTERS)
            self.check_size(size)
            self._characters_left -= size
        return value

    def _concatenated(self, items: Sequence[Any]) -> str:
        """Return `a ~ b`. Only the shorter parts count as written: a template may add to one text in each round."""
        self.check_time()
        sizes = [self.weigh(item) for item in items]
        self.check_size(sum(sizes))
        text = "".join(map(str, items))
        self._characters_left -= sum(sizes) - max(sizes)
        return text

    def concat(self, parts: Iterable[str]) -> str:
        """Join the output of a macro or a block; Jinja calls this."""
        texts = list(parts)
        self.check_size(sum(map(len, texts)))
        return str(self.made("".join(texts)))

    def call(__self, __context: Any, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        """Call a function, a method or a macro."""
        __self.check_time()
        owner = getattr(__obj, "__self__", None)
        if isinstance(owner, str | int | float):
            __self.check_growth(owner, *args, *kwargs.values())
        return __self.made(super().call(__context, __obj, *args, **kwargs))

    def wrap_str_format(self, value: Any) -> Any:
        """Return str.format made safe, or None for anything else."""
        wrapped = super().wrap_str_format(value)
        if wrapped is None:
            return None
        text = value.__self__
        _check_format(text)
        if any(spec and "{" in spec for _, _, spec, _ in string.Formatter().parse(text)):
            raise _OverLimit("a format string with a computed width is not allowed in a chat template")

        def checked(*args: Any, **kwargs: Any) -> Any:
            self.check_growth(text, *args, *kwargs.values())
            return wrapped(*args, **kwargs)

        return checked

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        """Compute `left operator right`, unless the result would be huge."""
        if operator == "**" or (operator == "%" and isinstance(left, str)):
            raise _OverLimit(f"{operator} is not allowed here in a chat template")
        if operator == "*":
            self.check_growth(left, right)
        if operator == "+" and isinstance(left, str) and isinstance(right, str):
            return self._concatenated([left, right])
        return self.made(super().call_binop(context, operator, left, right))

    def _timed(self, items: Iterable[Any]) -> Iterator[Any]:
        for item in items:
            self.check_time()
            yield item

    def _limited(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a filter with the limits of a call; wraps() keeps the marks that Jinja sets on the function."""

        @functools.wraps(function)
        def limited(*args: Any, **kwargs: Any) -> Any:
            self.check_time()
            if name not in _READING:
                # Jinja gives some filters its context, with all variables, as their first argument.
                operands = args[1:] if hasattr(function, "jinja_pass_arg") else args
                self.check_growth(*operands, *kwargs.values())
            if name == "format":
                _check_format(str(args[0]))
            return self.made(function(*args, **kwargs))

        return limited


class _Limits(NodeTransformer):
    """Routes loops and `~` through filters of the environment: Jinja's sandbox has no hook for either."""

    def visit_For(self, node: nodes.For) -> nodes.Node:
        """Return the loop with a check of the time in each round."""
        self.generic_visit(node)
        node.iter = nodes.Filter(node.iter, "timed", [], [], None, None, lineno=node.lineno)
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        """Return `a ~ b` as `[a, b] | concatenated`."""
        self.generic_visit(node)
        return nodes.Filter(nodes.List(node.nodes), "concatenated", [], [], None, None, lineno=node.lineno)


class _Generation(Extension):
    """Accepts {% generation %} … {% endgeneration %}, a mark for training without any effect here."""

    tags = {"generation"}  # noqa: RUF012 - jinja2 declares it so

    def parse(self, parser: Parser) -> list[nodes.Node]:
        """Return the body alone."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


@jinja2.pass_context
def _finalize(context: jinja2.runtime.Context, value: Any) -> Any:
    environment = context.environment
    assert isinstance(environment, _Environment)
    if not isinstance(value, str | int):
        environment.check_size(environment.weigh(value))
    return value


def _raise_exception(message: str) -> None:
    raise _Refused(message)


def _strftime_now(text: str) -> str:
    _check_format(text)
    return datetime.now().strftime(text)


def _to_json(value: object, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _check_format(text: str) -> None:
    if _WIDE.search(text):
        raise _OverLimit("a format string this wide is not allowed in a chat template")
