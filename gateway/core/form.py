"""Forms (``application/x-www-form-urlencoded``), read strictly and written in one form.

A body is split at ``&``, a ``+`` is a blank, and names and values are percent-decoded once, to
bytes (the URL Standard, §5.1). ``a`` and ``a=`` are two, as they are to some frameworks.

Two forms are equal when they hold the same pairs and, within each *root* (the name up to its first
``[``, in any case), in the same order: frameworks nest by order (``a[][x]=1&a[][y]=2``) or take the
last of two. Between roots the order means nothing, and clients that write a map change it. Where a
name is not plain or holds a dot (PHP takes ``a.b`` for ``a_b``, others for ``a[b]``) nobody can
tell the roots, and the whole order counts. So it does beyond ``MAX_READ`` parameters: some readers
stop there. A raw ``;``, which separates to some, is refused.

A pair is compared decoded only where its raw bytes are printable ASCII without blanks, it decodes
to UTF-8, and no ``]`` stands before an ``=`` in its value (qs ends the name there); any other is
compared by its raw bytes.

A JSON pointer names the parameter that nests alike: ``/metadata/order`` is ``metadata[order]``.
"""

from __future__ import annotations

import re
from binascii import a2b_qp
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from gateway.core.canonical import Json, Pointer, Unreadable
from gateway.core.names import is_plain, steps

__all__ = [
    "ENDS_EARLY",
    "MAX_PARAMETERS",
    "MAX_READ",
    "Field",
    "Parameters",
    "chosen",
    "ends_early",
    "nested",
    "percent_decode",
    "read_form",
    "spelled",
    "well_encoded",
]

MAX_PARAMETERS = 4_096
"""Parameters of one form; frameworks stop at 1,000 to 4,096. One costs up to 5 µs here."""

MAX_READ = 999
"""Parameters that surely all reach the upstream: PHP and qs drop what follows the thousandth."""

ENDS_EARLY = "holds ]= or %5D=, at which some readers end the name; send %5D%3D"

_BAD_ESCAPE = re.compile(rb"%(?![0-9A-Fa-f]{2})")
_UNUSUAL = re.compile(rb"[^!-~]")
_ENDS_EARLY = re.compile(rb"(?:\]|%5D)=", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Field:
    """One named value of a form or of multipart/form-data. ``value`` is ``None`` for a name alone.
    ``flaw``: why the value cannot be told; it completes "the value …". ``raw``: of a form's pair
    that is compared undecoded."""

    name: bytes
    value: bytes | None
    flaw: str | None = None
    raw: bytes | None = None


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
        kept = (field for field in self.fields if field.flaw or not named(field.name))
        return Parameters(tuple(kept))

    def members(self) -> Json:
        """The same as nested members, for an outline."""
        return nested((field.name, _text(field)) for field in self.fields)


def read_form(raw: bytes) -> Parameters | Unreadable:
    """``raw`` as a form within the limit above."""
    if not well_encoded(raw):
        return Unreadable("has a % that begins no percent-encoding; send it as %25")
    if b";" in raw:
        return Unreadable("holds a raw semicolon, which some readers take for an &; send %3B")
    pairs = raw.split(b"&", MAX_PARAMETERS)
    if len(pairs) > MAX_PARAMETERS:
        return Unreadable(f"holds more than {MAX_PARAMETERS} parameters; send fewer at once")
    # To readers that stop at some number, an empty pair is one too.
    many = len(pairs) > MAX_READ
    return Parameters(tuple(_field(pair) for pair in pairs if pair or many))


def well_encoded(raw: bytes) -> bool:
    """Whether every ``%`` begins a percent-encoding (RFC 3986 §2.1)."""
    return b"%" not in raw or _BAD_ESCAPE.search(raw) is None


def percent_decode(raw: bytes) -> bytes:
    """``raw`` with each percent-encoding replaced by its byte, once."""
    if b"%" not in raw:
        return raw
    # As quoted-printable, which is read in C: a call for each escape takes thirty times as long.
    return a2b_qp(_BAD_ESCAPE.sub(b"%25", raw).replace(b"=", b"%3D").replace(b"%", b"="))


def ends_early(raw_value: bytes) -> bool:
    """Whether some reader takes the start of a value for the end of its name."""
    return _ENDS_EARLY.search(raw_value) is not None


def spelled(pointer: Pointer) -> bytes:
    """The name of the parameter that a pointer names."""
    first, *rest = pointer
    name = first + "".join(f"[{token}]" for token in rest)
    return name.encode("utf-8", "surrogatepass")


def chosen(pointers: Sequence[Pointer]) -> Callable[[bytes], bool]:
    """Whether a name is one that ``pointers`` name, or nested in one, to all readers."""
    names = frozenset(map(spelled, pointers))
    inside = tuple(name + b"[" for name in names)
    return lambda name: (name in names or name.startswith(inside)) and is_plain(name)


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
    field = Field(percent_decode(name), percent_decode(value) if equals else None)
    flaw = ENDS_EARLY if ends_early(value) else None
    if flaw or _UNUSUAL.search(pair) or not (_is_text(field.name) and _is_text(field.value)):
        return Field(field.name, field.value, flaw, pair)
    return field


def _is_text(raw: bytes | None) -> bool:
    if raw is None or raw.isascii():
        return True
    try:
        raw.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def _roots(fields: Sequence[Field]) -> list[bytes] | None:
    """The root of each field; ``None`` where they cannot be told, or all the order counts."""
    if len(fields) > MAX_READ:
        return None
    roots: list[bytes] = []
    for field in fields:
        whole = steps(field.name)
        if whole is None or field.flaw or b"." in field.name:
            return None
        roots.append(whole[0].lower())
    return roots


def _written(field: Field) -> bytes:
    if field.raw is not None:
        return b"==" + field.raw  # begins no other: in those no = is left raw but the first
    name = _quoted(field.name)
    return name if field.value is None else name + b"=" + _quoted(field.value)


def _quoted(raw: bytes) -> bytes:
    return raw.replace(b"%", b"%25").replace(b"&", b"%26").replace(b"=", b"%3D")


def _steps(name: bytes) -> list[str]:
    whole = steps(name)
    return [_name(name)] if whole is None else [step.decode("ascii") for step in whole]


def _insert(tree: dict[str, Json], path: list[str], leaf: Json) -> bool:
    for step in path[:-1]:
        inner = tree.setdefault(step, {})
        if not isinstance(inner, dict):
            return False
        tree = inner
    return tree.setdefault(path[-1], leaf) is leaf


def _name(raw: bytes) -> str:
    return raw.decode("utf-8", "surrogateescape")


def _text(field: Field) -> str | None:
    """What is compared of the value, as characters."""
    if field.raw is not None:
        return field.raw.decode("latin-1")
    return None if field.value is None else field.value.decode("latin-1")
