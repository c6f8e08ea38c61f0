"""Chat templates: a model's own Jinja, rendered in a sandbox that bounds time and memory.

A template comes with a model file, so it is input, not code of ours: it can neither reach Python nor run for long. This
module knows text; it does not know tokens.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

import jinja2
import jinja2.runtime
from jinja2 import meta, nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from voxlane.engine.text.tools import CALL, CallStyle

MAX_SOURCE_CHARACTERS = 256 * 1024
"""The longest published templates, with tool calling, have 20,000."""
MAX_STEPS = 200_000
"""Loop rounds and calls of one rendering, each weighing 1 more per KiB of template: 4,000 messages and to spare."""
CALL_STEPS = 4
"""What a call weighs, in loop rounds: about the ratio of their times."""
MAX_TEXT_CHARACTERS = 16 * 1024 * 1024
"""Longest text a template may build: the longest message the engine accepts."""

FALLBACK_SOURCE = (
    "{% for message in messages %}{{ message['role'] | capitalize }}: {{ message['content'] | trim }}\n{% endfor %}"
    "{% if add_generation_prompt %}Assistant:{% endif %}"
)
"""For a model without a template: one "Role: text" line per message, then "Assistant:"."""

_WIDE = re.compile(r"[0-9]{6}")  # a field width in a format string that no chat needs
_GROWING = frozenset({"replace", "join", "format", "indent", "expandtabs", "translate", "format_map"})


class ChatTemplateError(ValueError):
    """A conversation cannot be rendered; str() is one line fit for the person who sent it."""


class ChatTemplate:
    """A compiled chat template."""

    def __init__(self, source: str) -> None:
        if len(source) > MAX_SOURCE_CHARACTERS:
            raise ChatTemplateError(f"the chat template is longer than {MAX_SOURCE_CHARACTERS} characters")
        self.source = source
        self._environment = _Environment(step_cost=1 + len(source) // 1024)
        self._one_at_a_time = threading.Lock()
        try:
            tree = self._environment.parse(source)
            # Only a template that writes both the tools and the calls can be trusted with either.
            self.knows_tools = "tool_calls" in source and "tools" in meta.find_undeclared_variables(tree)
            _count_loops(tree)
            code = self._environment.compile(tree)
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
        with self._one_at_a_time:  # the environment counts what a rendering does
            self._environment.reset()
            return self._render(messages, variables)

    def _render(self, messages: Sequence[Mapping[str, Any]], variables: Mapping[str, object]) -> str:
        parts: list[str] = []
        size = 0
        try:
            for part in self._template.generate(messages=[dict(message) for message in messages], **variables):
                parts.append(part)
                size += len(part)
                _check_size(size)
        except _Refused as error:
            raise ChatTemplateError(f"the model's chat template refuses this conversation: {error}") from error
        except (jinja2.TemplateError, ArithmeticError, LookupError, TypeError, ValueError, AttributeError) as error:
            raise ChatTemplateError(f"the model's chat template fails: {error}") from error
        except (RecursionError, MemoryError) as error:
            raise ChatTemplateError("the model's chat template needs too much memory") from error
        return "".join(parts)


class _Refused(jinja2.TemplateError):
    """The template called raise_exception()."""


class _OverLimit(jinja2.TemplateRuntimeError):
    """The template runs too long or writes too much."""


class _Environment(ImmutableSandboxedEnvironment):
    """Jinja as chat templates expect it, with every loop, call and growing text counted."""

    intercepted_binops = frozenset({"*", "**", "+", "%"})

    def __init__(self, step_cost: int) -> None:
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
        self._step_cost = step_cost  # a step can at most write the whole template
        self._steps = self._characters = 0
        self.globals |= {
            "raise_exception": _raise_exception,
            "strftime_now": lambda text: datetime.now().strftime(text),
        }
        self.globals.pop("lipsum", None)
        self.filters |= {"tojson": _to_json, "join": self._join}
        self.filters = {name: self._measured(name, function) for name, function in self.filters.items()}
        self.filters |= {"counted": self._counted, "concatenated": self._concatenated}

    def reset(self) -> None:
        """Start a rendering with all its steps and characters left."""
        self._steps, self._characters = MAX_STEPS, 4 * MAX_TEXT_CHARACTERS  # a text may be written again on its way out

    def call(__self, __context: Any, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        """Call a function, method or macro, and charge for it."""
        __self.charge(CALL_STEPS)
        name, owner = getattr(__obj, "__name__", ""), getattr(__obj, "__self__", None)
        if name == "join" and isinstance(owner, str) and len(args) == 1:
            args = (__self._counted(args[0]),)
        _check_growth(name, owner, *args, *kwargs.values())
        return _checked(super().call(__context, __obj, *args, **kwargs))

    def wrap_str_format(self, value: Any) -> Any:
        """Return str.format made safe, or None for anything else."""
        wrapped = super().wrap_str_format(value)
        if wrapped is not None and _WIDE.search(value.__self__):
            raise _OverLimit("a format string this wide is not allowed in a chat template")
        return wrapped

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        """Compute `left operator right`, unless the result would be huge."""
        if operator == "**":
            raise _OverLimit("powers are not allowed in a chat template")
        if operator == "*":
            for sequence, times in ((left, right), (right, left)):
                if isinstance(sequence, str | list | tuple) and isinstance(times, int):
                    _check_size(len(sequence) * times)
        elif operator == "%" and isinstance(left, str):
            raise _OverLimit("the % operator on text is not allowed in a chat template")
        return _checked(super().call_binop(context, operator, left, right))

    def charge(self, steps: int) -> None:
        """Take `steps` from what this rendering may still use."""
        self._steps -= steps * self._step_cost
        if self._steps < 0:
            raise _OverLimit(f"it takes more than {MAX_STEPS // self._step_cost} steps")

    def charge_text(self, characters: int) -> None:
        """Take `characters` from what this rendering may still write."""
        self._characters -= characters
        if self._characters < 0:
            raise _OverLimit(f"it writes more than {MAX_TEXT_CHARACTERS} characters")

    def _counted(self, iterable: Any) -> list[Any]:
        items: list[Any] = []
        for item in iterable:
            self.charge(1)
            items.append(item)
        return items

    def _join(self, value: Any, d: str = "", attribute: str | int | None = None) -> str:
        items = self._counted(value)
        if attribute is not None:
            items = [self.getitem(item, attribute) for item in items]
        texts = [str(item) for item in items]
        _check_size(sum(map(len, texts)) + len(d) * len(texts))
        return d.join(texts)

    def _concatenated(self, items: list[Any]) -> str:
        texts = [str(item) for item in items]
        _check_size(sum(map(len, texts)))
        return "".join(texts)

    def _measured(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a filter that checks what goes in, keeping what Jinja notes on the function."""
        context_arguments = 1 if hasattr(function, "jinja_pass_arg") else 0

        def wrapper(*args: Any, **kwargs: Any) -> Any:
            self.charge(1)
            _check_growth(name, *args[context_arguments:], *kwargs.values())
            return _checked(function(*args, **kwargs))

        wrapper.__dict__.update(getattr(function, "__dict__", {}))
        return wrapper


class _Generation(Extension):
    """Accepts {% generation %} … {% endgeneration %}, a mark for training that changes nothing."""

    tags = {"generation"}  # noqa: RUF012 - jinja2 declares it so

    def parse(self, parser: Parser) -> list[nodes.Node]:
        """Return the body alone."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _count_loops(tree: nodes.Template) -> None:
    """Wrap what every loop runs over, and every `~`, so that the environment can count."""
    for loop in tree.find_all(nodes.For):
        loop.iter = nodes.Filter(loop.iter, "counted", [], [], None, None, lineno=loop.lineno)
    for node in list(_walk(tree)):
        for name, value in list(node.iter_fields()):
            if isinstance(value, nodes.Concat):
                setattr(node, name, _concatenation(value))
            elif isinstance(value, list):
                value[:] = [_concatenation(item) if isinstance(item, nodes.Concat) else item for item in value]


def _walk(node: nodes.Node) -> Iterator[nodes.Node]:
    yield node
    for child in node.iter_child_nodes():
        yield from _walk(child)


def _concatenation(node: nodes.Concat) -> nodes.Filter:
    items = nodes.List(node.nodes, lineno=node.lineno)
    return nodes.Filter(items, "concatenated", [], [], None, None, lineno=node.lineno)


@jinja2.pass_context
def _finalize(context: jinja2.runtime.Context, value: Any) -> Any:
    environment = context.environment
    assert isinstance(environment, _Environment)
    if isinstance(value, str):
        environment.charge_text(len(value))
    return value


def _raise_exception(message: str) -> None:
    raise _Refused(message)


def _to_json(value: object, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _check_size(characters: int) -> None:
    if characters > MAX_TEXT_CHARACTERS:
        raise _OverLimit(f"it writes more than {MAX_TEXT_CHARACTERS} characters")


def _check_growth(name: str, subject: object, *arguments: object) -> None:
    """Refuse a call whose result could not be held, before it is made."""
    for argument in arguments:
        if isinstance(argument, int) and not isinstance(argument, bool):
            _check_size(abs(argument))
    if name not in _GROWING or not isinstance(subject, str):
        return
    match subject, arguments:
        case str(text), (str(old), str(new), *_) if name == "replace":
            _check_size(len(text) + text.count(old) * len(new))
        case str(glue), (list(items),) if name == "join":
            _check_size(len(glue) * len(items) + sum(len(item) for item in items if isinstance(item, str)))
        case str(text), _ if name == "format" and not _WIDE.search(text):
            _check_size(len(text) + sum(len(item) for item in arguments if isinstance(item, str)))
        case str(text), (int(width), *_) if name == "indent":
            _check_size((text.count("\n") + 1) * width + len(text))
        case str(), () if name == "indent":
            pass
        case _:
            raise _OverLimit(f"{name} is not allowed here in a chat template")


def _checked(value: Any) -> Any:
    if isinstance(value, str | list | tuple):
        _check_size(len(value))
    return value
