"""Templates: literal text with placeholders, e.g. ``invoice:{path.invoice_id}``.

``{path.x}`` is a variable of the command's match, ``{header.NAME}`` a field, ``{query.name}`` a
query parameter, ``{body./json/pointer}`` a string in a JSON body (RFC 6901), or the form parameter
that nests alike. What counts as a value is in ``gateway.core.template``.

A rendered text leads back to one list of values only: two placeholders need text between them, and
a value that holds the text behind its placeholder is refused. Else ``{path.a}:{path.b}`` would be
the same for ``1:2``, ``3`` and for ``1``, ``2:3``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from gateway.core.body import Body
from gateway.core.canonical import Pointer, Unreadable, parse_pointer
from gateway.core.headers import values
from gateway.core.model import Headers
from gateway.core.names import is_plain
from gateway.core.template import (
    Invalid,
    Value,
    check_value,
    read_body,
    read_header,
    read_key_header,
    read_query,
    read_segment,
)
from gateway.core.value import value

__all__ = ["Context", "Placeholder", "Rendered", "Source", "Template", "TemplateError", "parse"]

Source = Literal["path", "header", "query", "body"]
Rendered = Value | Unreadable


@value(frozen=True, slots=True)
class Context:
    """What a template may look at: raw path variables, raw query, fields and the body."""

    variables: Mapping[str, bytes]
    query: bytes
    headers: Headers
    body: Body


class TemplateError(ValueError):
    """A template that cannot be used. ``column``: 1 for its first character."""

    def __init__(self, column: int, problem: str, mend: str):
        super().__init__(problem)
        self.problem = f"column {column}: {problem}"
        self.mend = mend


@dataclass(frozen=True, slots=True)
class Placeholder:
    """One ``{source.name}``. ``name`` as written; a header's is compared in lower case.
    ``pointer``: of a body only. ``read`` gives its value."""

    source: Source
    name: str
    pointer: Pointer
    read: Callable[[Context], Rendered]

    @property
    def text(self) -> str:
        return f"{{{self.source}.{self.name}}}"

    @property
    def place(self) -> str:
        """Where the value stands, for callers, who know no templates."""
        match self.source:
            case "path":
                return f"the path variable {self.name}"
            case "header":
                return f"the field {self.name}"
            case "query":
                return f"the query parameter {self.name}"
            case "body":
                return f"the body member {self.name}"


@dataclass(frozen=True, slots=True)
class Template:
    """``literals`` has one text more than ``placeholders`` and stands around them. ``lowers``: case
    makes no difference, so values are taken in lower case; literals stay as they are written."""

    text: str
    literals: tuple[str, ...]
    placeholders: tuple[Placeholder, ...]
    lowers: bool = False
    alone: Placeholder | None = field(init=False, repr=False, compare=False)
    """The placeholder of a template that is nothing else."""
    _pairs: tuple[tuple[Placeholder, str], ...] = field(init=False, repr=False, compare=False)
    """Each placeholder with the text behind it."""

    def __post_init__(self) -> None:
        alone = self.placeholders[0] if self.literals == ("", "") else None
        object.__setattr__(self, "alone", alone)
        pairs = tuple(zip(self.placeholders, self.literals[1:], strict=True))
        object.__setattr__(self, "_pairs", pairs)

    @property
    def start(self) -> str:
        """The literal text that everything rendered begins with."""
        return self.literals[0]

    @property
    def reads_body(self) -> bool:
        return any(place.source == "body" for place in self.placeholders)

    def render(self, context: Context) -> Rendered:
        """At most 255 printable ASCII characters, or why there is no such text."""
        rendered = [self.literals[0]]
        for placeholder, literal in self._pairs:
            value = placeholder.read(context)
            if not isinstance(value, str):
                return value
            if self.lowers:
                value = value.lower()
            # Not `literal in value`: a value "a" before the text "aa" would begin it too early.
            if literal and (value + literal).find(literal) != len(value):
                return Invalid(
                    f"{placeholder.text} holds {literal!r}, which ends it in {self.text!r}"
                )
            rendered += (value, literal)
        text = "".join(rendered)
        checked = check_value(text, "")  # nearly always good, and then needs no words
        if isinstance(checked, str):
            return text
        return check_value(text, f"what {self.text!r} makes of this request")


_NAMES: Mapping[Source, re.Pattern[str]] = {
    "path": re.compile(r"[A-Za-z_][A-Za-z0-9_]*"),
    "header": re.compile(r"[A-Za-z0-9!#$%&'*+.^`|~-]+"),
    "query": re.compile(r"[!-~]+"),
    "body": re.compile(r"/[ -~]*"),
}
_EXAMPLES = "{path.x}, {header.NAME}, {query.name} or {body./json/pointer}"


def parse(text: str) -> Template:
    """The template that ``text`` spells, or raise ``TemplateError``."""
    if not text:
        raise TemplateError(1, "is empty", f"write text with {_EXAMPLES}")
    literals: list[str] = []
    placeholders: list[Placeholder] = []
    start = 0
    while (opening := text.find("{", start)) >= 0:
        closing = text.find("}", opening)
        if closing < 0:
            raise TemplateError(opening + 1, "opens a placeholder that does not end", "add }")
        literals.append(_literal(text, start, opening))
        if placeholders and not literals[-1]:
            raise TemplateError(
                opening + 1,
                "follows another placeholder at once, so two requests may make one text",
                'put text between them, e.g. ":"',
            )
        placeholders.append(_placeholder(text[opening + 1 : closing], opening + 1))
        start = closing + 1
    literals.append(_literal(text, start, len(text)))
    return Template(text, tuple(literals), tuple(placeholders))


def _literal(text: str, start: int, end: int) -> str:
    for at in range(start, end):
        if text[at] == "}":
            raise TemplateError(at + 1, "closes a placeholder that was not opened", "remove }")
        if not " " <= text[at] <= "~":
            raise TemplateError(at + 1, "is not printable ASCII", "use printable ASCII")
    return text[start:end]


def _placeholder(inner: str, column: int) -> Placeholder:
    source, dot, name = inner.partition(".")
    match source:
        case "path" | "header" | "query" | "body" if dot:
            return _known(source, name, column)
        case _:
            raise TemplateError(column, f"{{{inner}}} is not a placeholder", f"write {_EXAMPLES}")


def _known(source: Source, name: str, column: int) -> Placeholder:
    what = f"{{{source}.{name}}}"
    is_name = _NAMES[source].fullmatch(name) is not None
    if not is_name or (source == "query" and not is_plain(name.encode("ascii"))):
        raise TemplateError(column, f"{what} has no usable name", f"write {_EXAMPLES}")
    pointer = parse_pointer(name) if source == "body" else ()
    if pointer is None:
        raise TemplateError(
            column, f"{what} is not a JSON pointer (RFC 6901)", "write ~0 for ~ and ~1 for /"
        )
    return Placeholder(source, name, pointer, _reader(source, name, pointer, what))


def _reader(
    source: Source, name: str, pointer: Pointer, what: str
) -> Callable[[Context], Rendered]:
    field = name.lower().encode("ascii")
    match source:
        case "path":
            return lambda context: read_segment(context.variables[name], what)
        case "query":
            return lambda context: read_query(context.query, name, what)
        case "body":
            return lambda context: read_body(context.body.document(), pointer, what)
        case "header" if field == b"idempotency-key":
            return lambda context: read_key_header(values(context.headers, field), what)
        case "header":
            return lambda context: read_header(values(context.headers, field), what)
