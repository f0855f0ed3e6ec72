"""Forms (``application/x-www-form-urlencoded``), read strictly and written in one form.

A body is split at ``&``, a ``+`` is a blank, and names and values are percent-decoded once, to
bytes (the URL Standard, §5.1). ``a`` and ``a=`` are two, as they are to some frameworks.

Two forms are equal when they hold the same pairs and, within each *root* (the name up to its first
``[``, in any case), in the same order: frameworks nest by order (``a[][x]=1&a[][y]=2``) or take the
last of two. Between roots the order means nothing, and clients that write a map change it. Where a
name is not plain (PHP takes ``a.b`` for ``a_b``, others for ``a[b]``) nobody can tell the roots,
and the whole order counts. A raw ``;``, which separates to some, is refused.

A JSON pointer names the parameter that nests alike: ``/metadata/order`` is ``metadata[order]``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from gateway.core.canonical import Json, Pointer, Unreadable

__all__ = [
    "MAX_PARAMETERS",
    "Field",
    "Parameters",
    "chosen",
    "nested",
    "percent_decode",
    "read_form",
    "spelled",
    "well_encoded",
]

MAX_PARAMETERS = 4_096
"""Parameters of one form; frameworks stop at 1,000 to 4,096. One costs up to 5 µs here."""

_ESCAPE = re.compile(rb"%([0-9A-Fa-f]{2})")
_BAD_ESCAPE = re.compile(rb"%(?![0-9A-Fa-f]{2})")
_PLAIN = re.compile(rb"([A-Za-z0-9_-]+)((?:\[[A-Za-z0-9_-]*\])*)")


@dataclass(frozen=True, slots=True)
class Field:
    """One named value of a form or of multipart/form-data. ``value`` is ``None`` for a name alone.
    ``flaw``: why the value cannot be told; it completes "the value …"."""

    name: bytes
    value: bytes | None
    flaw: str | None = None


@dataclass(frozen=True, slots=True)
class Parameters:
    """A body that is a form."""

    fields: tuple[Field, ...]

    def compared(self) -> bytes:
        """The bytes that are equal for equal forms only."""
        fields = self.fields
        roots = _roots(fields)
        if roots is not None:
            order = sorted(range(len(fields)), key=roots.__getitem__)  # stable: keeps each root's
            fields = tuple(fields[at] for at in order)
        # Neither & nor = is left raw by the encoding, so no two lists are written alike.
        return b"&".join(map(_written, fields))

    def without(self, pointers: Sequence[Pointer]) -> Parameters:
        """All but the parameters that ``pointers`` name, and what is nested in those."""
        if not pointers:
            return self
        named = chosen(pointers)
        return Parameters(tuple(field for field in self.fields if not named(field.name)))

    def members(self) -> Json:
        """The same as nested members, for an outline."""
        return nested((field.name, _text(field.value)) for field in self.fields)


def read_form(raw: bytes) -> Parameters | Unreadable:
    """``raw`` as a form within the limit above."""
    if not well_encoded(raw):
        return Unreadable("has a % that begins no percent-encoding; send it as %25")
    if b";" in raw:
        return Unreadable("holds a raw semicolon, which some readers take for an &; send %3B")
    if raw.count(b"&") >= MAX_PARAMETERS:
        return Unreadable(f"holds more than {MAX_PARAMETERS} parameters; send fewer at once")
    return Parameters(tuple(_field(pair) for pair in raw.split(b"&") if pair))


def well_encoded(raw: bytes) -> bool:
    """Whether every ``%`` begins a percent-encoding (RFC 3986 §2.1)."""
    return b"%" not in raw or _BAD_ESCAPE.search(raw) is None


def percent_decode(raw: bytes) -> bytes:
    """``raw`` with each percent-encoding replaced by its byte, once."""
    if b"%" not in raw:
        return raw
    return _ESCAPE.sub(lambda match: bytes((int(match[1], 16),)), raw)


def spelled(pointer: Pointer) -> bytes:
    """The name of the parameter that a pointer names."""
    first, *rest = pointer
    name = first + "".join(f"[{token}]" for token in rest)
    return name.encode("utf-8", "surrogatepass")


def chosen(pointers: Sequence[Pointer]) -> Callable[[bytes], bool]:
    """Whether a name is one that ``pointers`` name, or nested in one."""
    names = frozenset(map(spelled, pointers))
    inside = tuple(name + b"[" for name in names)
    return lambda name: name in names or name.startswith(inside)


def nested(pairs: Iterable[tuple[bytes, Json]]) -> Json:
    """Named values as nested members: ``a[b]`` is member ``b`` of ``a``, a repeated name a list."""
    values: dict[bytes, list[Json]] = {}
    for name, value in pairs:
        values.setdefault(name, []).append(value)
    leaves = {name: found[0] if len(found) == 1 else found for name, found in values.items()}
    tree: dict[str, Json] = {}
    if all(_insert(tree, _steps(name), leaf) for name, leaf in leaves.items()):
        return tree
    # A value stands where others are nested, and no tree holds both: by their whole names then.
    return {_name(name): leaf for name, leaf in leaves.items()}


def _field(pair: bytes) -> Field:
    name, equals, value = pair.replace(b"+", b" ").partition(b"=")
    return Field(percent_decode(name), percent_decode(value) if equals else None)


def _roots(fields: Sequence[Field]) -> list[bytes] | None:
    """The root of each field; ``None`` where a name is not plain."""
    roots: list[bytes] = []
    for field in fields:
        match = _PLAIN.fullmatch(field.name)
        if match is None:
            return None
        roots.append(match[1].lower())
    return roots


def _written(field: Field) -> bytes:
    name = _quoted(field.name)
    return name if field.value is None else name + b"=" + _quoted(field.value)


def _quoted(raw: bytes) -> bytes:
    return raw.replace(b"%", b"%25").replace(b"&", b"%26").replace(b"=", b"%3D")


def _steps(name: bytes) -> list[str]:
    match = _PLAIN.fullmatch(name)
    if match is None:
        return [_name(name)]
    root, rest = match[1].decode("ascii"), match[2].decode("ascii")
    return [root, *rest[1:-1].split("][")] if rest else [root]


def _insert(tree: dict[str, Json], steps: list[str], leaf: Json) -> bool:
    for step in steps[:-1]:
        inner = tree.setdefault(step, {})
        if not isinstance(inner, dict):
            return False
        tree = inner
    return tree.setdefault(steps[-1], leaf) is leaf


def _name(raw: bytes) -> str:
    return raw.decode("utf-8", "surrogateescape")


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode("latin-1")
