"""The status query of a policy: ``GET /v1/charges?reference={upstream_key}``.

``{key}``, ``{entity}`` and ``{upstream_key}`` are the command's; every placeholder of templates
works too. Each value is percent-encoded whole, so that it is one segment, or one parameter, and
nothing else. What a value must be is as everywhere (``gateway.core.template``).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import quote

from gateway.core.canonical import Unreadable
from gateway.core.keys import Refusal
from gateway.core.template import Invalid, Missing
from gateway.policy.matcher import Pattern, PatternError, check_path, parse_pattern
from gateway.policy.templates import Context, Placeholder, TemplateError, parse

__all__ = ["Target", "TargetError", "parse_target"]

_OWN = ("key", "entity", "upstream_key")

MAX_PLACES = 8
"""Placeholders of one target: 255 characters each, encoded three bytes long, make 6,120."""

MAX_LITERAL = 1_000
"""Characters around them; in all less than the 8,192 bytes that are recorded."""

_HOLE = re.compile(r"\{([^{}]*)\}")
_QUERY = re.compile(r"[!$&'()*+,./:;=?@A-Za-z0-9_~%\[\]-]*")


class TargetError(ValueError):
    """A request that cannot be used: ``problem`` and ``mend``."""

    def __init__(self, problem: str, mend: str):
        super().__init__(problem)
        self.problem = problem
        self.mend = mend


@dataclass(frozen=True, slots=True)
class Target:
    """``literals`` has one text more than ``places``, which are placeholders or own names."""

    text: str
    literals: tuple[str, ...]
    places: tuple[Placeholder | str, ...]

    @property
    def placeholders(self) -> tuple[Placeholder, ...]:
        """What is read of the request itself."""
        return tuple(place for place in self.places if isinstance(place, Placeholder))

    @property
    def names(self) -> frozenset[str]:
        """Which of ``key``, ``entity`` and ``upstream_key`` it uses."""
        return frozenset(place for place in self.places if isinstance(place, str))

    def pattern(self) -> Pattern:
        """The paths that it may have; a segment with a placeholder is a variable."""
        return _pattern(self.literals)

    def read(self, context: Context) -> tuple[str, ...] | Missing | Invalid | Unreadable:
        """The values of its placeholders, in order."""
        found = []
        for place in self.placeholders:
            value = place.read(context)
            if not isinstance(value, str):
                return value
            found.append(value)
        return tuple(found)

    def render(self, values: Sequence[str], key: str, entity: str, upstream_key: str) -> bytes:
        """Path and query behind the upstream's base path."""
        own = {"key": key, "entity": entity, "upstream_key": upstream_key}
        rest = iter(values)
        text = self.literals[0]
        for place, literal in zip(self.places, self.literals[1:], strict=True):
            value = own[place] if isinstance(place, str) else next(rest)
            text += quote(value, safe="") + literal
        return text.encode("ascii")

    def check(self, rendered: bytes) -> Refusal | None:
        """Why a rendered target could lead elsewhere: a value that is a dot segment, or holds a
        slash, in the path."""
        return check_path(rendered.partition(b"?")[0])


def parse_target(text: str) -> Target:
    """The target that ``GET /path?query`` spells, or raise ``TargetError``."""
    method, blank, rest = text.partition(" ")
    if method != "GET" or not blank or not rest.startswith("/"):
        raise TargetError(
            "is not GET and a path; a probe must change nothing",
            'write e.g. "GET /v1/charges?reference={upstream_key}"',
        )
    literals = tuple(_HOLE.split(rest)[::2])
    inner = _HOLE.findall(rest)
    if sum(map(len, literals)) > MAX_LITERAL or len(inner) > MAX_PLACES:
        raise TargetError(
            f"is longer than {MAX_LITERAL} characters, or has more than {MAX_PLACES} placeholders",
            "shorten it",
        )
    if any(character in "{}#" for literal in literals for character in literal):
        raise TargetError("holds a stray brace or a fragment", "percent-encode it")
    target = Target(text, literals, tuple(map(_place, inner)))
    query = "x".join(literals).partition("?")[2]
    if not _QUERY.fullmatch(query) or re.search(r"%(?![0-9A-Fa-f]{2})", query):
        raise TargetError("has a query with a character that must be encoded", "percent-encode it")
    _pattern(literals)
    return target


def _place(inner: str) -> Placeholder | str:
    if inner in _OWN:
        return inner
    try:
        found = parse(f"{{{inner}}}").alone
    except TemplateError as error:
        own = ", ".join(f"{{{name}}}" for name in _OWN)
        raise TargetError(error.problem, f"{error.mend}, or {own}") from None
    assert found is not None, "nothing stands around it"
    return found


def _pattern(literals: Sequence[str]) -> Pattern:
    """With each segment that holds a placeholder as one variable."""
    path = "\0".join(literals).partition("?")[0]
    segments = [
        f"{{x{number}}}" if "\0" in segment else segment
        for number, segment in enumerate(path.split("/"))
    ]
    try:
        return parse_pattern(f"GET {'/'.join(segments)}")
    except PatternError as error:
        raise TargetError(error.problem, error.mend) from None
