"""JSON, read strictly and written in one form, so that equal commands have equal bytes.

Reading (RFC 8259, and the strictness of RFC 7493) refuses what two readers may understand
differently: duplicate members, NaN and Infinity, anything but UTF-8 without a byte order mark.

Two documents are equal when they are the same but for member order, white space, escapes
(``\\u00e9`` is ``é``; no Unicode normalisation, so composed and decomposed forms differ) and the
spelling of numbers. Numbers compare by exact decimal value: ``1``, ``1.0`` and ``10e-1`` are equal,
``0.1`` and ``0.10000000000000001`` are not, and ``-0`` equals ``0``. They never become floats, and
exponents are never written out beyond ``_PLAIN_DIGITS``.

A lone surrogate (``"\\ud800"``) is kept as the escape that it is.

The canonical form is for digests, not for people: JSON with sorted members in which every number
that is not a plain integer is ``NaN`` (which no document can hold), followed by those numbers.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from json.encoder import encode_basestring_ascii
from typing import Final, TypeAlias

from gateway.core.value import value

__all__ = [
    "ABSENT",
    "MAX_DEPTH",
    "MAX_DIGITS",
    "MAX_PIECES",
    "MAX_VALUES",
    "Absent",
    "Document",
    "Json",
    "Number",
    "Pieces",
    "Pointer",
    "Unreadable",
    "canonical",
    "joined",
    "lookup",
    "parse_pointer",
    "pieces",
    "read_json",
    "without",
]

MAX_DEPTH = 128
"""Levels of nesting: deeper than commands are, and far from the recursion limit (1,000)."""

MAX_VALUES = 250_000
"""Values in one document, counted generously. One costs up to 1 µs and 100 bytes here, so the most
that a body can cost is a quarter of a second of the event loop and 25 MB."""

MAX_PIECES = 32
"""Members that are written one by one: as many as an outline names."""

MAX_DIGITS = 1_000
"""Digits of one number. The longest exact binary64 has 767; ``int()`` costs their square."""

MAX_EXPONENT_DIGITS = 9
"""Digits of an exponent, leading zeros aside. It is only ever added to, never written out."""

_PLAIN_DIGITS = 40
"""Integers up to this length stay plain; 39 digits hold 128 bits."""

Json: TypeAlias = "bool | int | str | Number | list[Json] | dict[str, Json] | None"
Container: TypeAlias = "list[Json] | dict[str, Json]"
Pieces: TypeAlias = "tuple[tuple[str, bytes], ...]"
Pointer = tuple[str, ...]
"""The reference tokens of a JSON pointer (RFC 6901), unescaped."""


@dataclass(frozen=True, slots=True)
class Number:
    """A number that was not spelled as a plain integer: ±``digits`` × 10^``exponent``, the digits
    without leading or trailing zeros; zero is ``("0", 0)`` without a sign."""

    negative: bool
    digits: str
    exponent: int


@value(frozen=True, slots=True)
class Document:
    """A body that is JSON. ``value`` may be ``None``, which is JSON's ``null``."""

    value: Json


@dataclass(frozen=True, slots=True)
class Unreadable:
    """Why bytes are not JSON that can be told; ``reason`` completes "the body …"."""

    reason: str


class Absent:
    """Nothing stands at a pointer; JSON's ``null`` is something."""

    __slots__ = ()


ABSENT: Final = Absent()


class _Refused(ValueError):
    """Raised by the hooks, caught in ``read_json``."""


def read_json(raw: bytes) -> Document | Unreadable:
    """``raw`` as one JSON document within the limits above."""
    if raw.startswith(b"{") and raw.count(b"{") == 1 and b"[" not in raw:
        flat = _flat(raw)
        if flat is not None:
            return Document(flat)
    if raw.startswith(b"\xef\xbb\xbf"):
        return Unreadable("begins with a byte order mark; send UTF-8 without one")
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError:
        return Unreadable("is not UTF-8; send JSON in UTF-8")
    brackets, values = _count(raw)
    if values > MAX_VALUES:
        return Unreadable(f"holds more than {MAX_VALUES} JSON values; send fewer at once")
    try:
        value: Json = _DECODER.decode(text)
    except RecursionError:
        return Unreadable(f"is nested deeper than {MAX_DEPTH} levels; flatten it")
    except json.JSONDecodeError as error:
        return Unreadable(f"is not JSON ({error.msg}, character {error.pos})")
    except _Refused as error:
        return Unreadable(str(error))
    if brackets > MAX_DEPTH and _deeper_than(value, MAX_DEPTH):
        return Unreadable(f"is nested deeper than {MAX_DEPTH} levels; flatten it")
    return Document(value)


def _flat(raw: bytes) -> dict[str, Json] | None:
    """The one object without containers that ``raw`` is, as most bodies are, read without a look
    at each pair; ``None`` where that does not tell. It has as many members as its commas allow only
    if no name came twice."""
    most = raw.count(b",") + 1
    if most > _FEW:
        return None
    members: dict[str, Json]
    try:
        text = raw.decode("utf-8")
        members, end = _FLAT_DECODER.raw_decode(text)
    except ValueError:
        return None  # what is wrong with it, the other way says
    return members if len(members) == most and end == len(text) else None


def canonical(value: Json) -> bytes:
    """The bytes that are equal for equal values only."""
    try:
        return _PLAIN_ENCODER.encode(value).encode("ascii")
    except _Numbers:
        pass
    numbers: list[str] = []

    def reduced(number: Number) -> int | float:
        # Called in the order of writing, so the n-th NaN is the n-th number below.
        plain = _plain(number)
        if plain is not None:
            return plain
        numbers.append(f"{'-' if number.negative else ''}{number.digits}e{number.exponent}")
        return _NAN

    written = json.JSONEncoder(
        sort_keys=True, separators=(",", ":"), check_circular=False, default=reduced
    ).encode(value)
    return "\n".join((written, *numbers)).encode("ascii")


def pieces(value: Json) -> Pieces:
    """The members of an object of few texts, words and plain integers, by name, each value as
    ``canonical`` writes it; nothing of any other value. ``joined`` makes the whole of them, and an
    outline takes them one by one."""
    if type(value) is not dict or len(value) > MAX_PIECES:
        return ()
    found: list[tuple[str, bytes]] = []
    for name in sorted(value):
        member = value[name]
        if type(member) is str:
            found.append((name, encode_basestring_ascii(member).encode("ascii")))
        elif type(member) is int:
            found.append((name, b"%d" % member))
        elif member is None or type(member) is bool:
            found.append((name, _WORDS[member]))
        else:
            return ()
    return tuple(found)


def joined(members: Pieces) -> bytes:
    """What ``canonical`` makes of the object that has these ``pieces``."""
    each = [
        (_usual_name if len(name) <= _NAME_KEPT else _name)(name) + written
        for name, written in members
    ]
    return b"{" + b",".join(each) + b"}"


def _name(name: str) -> bytes:
    return encode_basestring_ascii(name).encode("ascii") + b":"


_usual_name = lru_cache(4096)(_name)
_NAME_KEPT = 128
"""Characters of a member's name that is written once for all: callers make them up."""

_WORDS: Final = {None: b"null", False: b"false", True: b"true"}


def parse_pointer(text: str) -> Pointer | None:
    """The tokens of a JSON pointer; ``None`` if it is not one (RFC 6901 §3)."""
    if not text:
        return ()
    if text[0] != "/" or re.search(r"~(?![01])", text):
        return None
    return tuple(token.replace("~1", "/").replace("~0", "~") for token in text[1:].split("/"))


def lookup(value: Json, pointer: Pointer) -> Json | Absent:
    """The value that ``pointer`` names (RFC 6901 §4)."""
    for token in pointer:
        if isinstance(value, dict):
            if token not in value:
                return ABSENT
            value = value[token]
        elif isinstance(value, list):
            index = _index(token)
            if index is None or index >= len(value):
                return ABSENT
            value = value[index]
        else:
            return ABSENT
    return value


def without(value: Json, pointers: Sequence[Pointer]) -> Json:
    """A copy of ``value`` that lacks the object members at ``pointers``. An array element is not
    removed: the others would change their places."""
    for pointer in pointers:
        if not isinstance(lookup(value, pointer), Absent):
            value = _removed(value, pointer)
    return value


def _removed(value: Json, pointer: Pointer) -> Json:
    """``value`` without its existing ``pointer``, copying only the containers on the way."""
    token, rest = pointer[0], pointer[1:]
    if isinstance(value, dict):
        copied = dict(value)
        if rest:
            copied[token] = _removed(copied[token], rest)
        else:
            del copied[token]
        return copied
    if isinstance(value, list) and rest:
        items = list(value)
        items[int(token)] = _removed(items[int(token)], rest)
        return items
    return value


def _index(token: str) -> int | None:
    """An array index: digits without a leading zero. Nine of them reach beyond any body."""
    if not re.fullmatch(r"0|[1-9][0-9]{0,8}", token):
        return None
    return int(token)


# Strings, closed or running into the end: possessive, so that no input makes it backtrack.
_STRINGS = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?', re.DOTALL)


def _count(raw: bytes) -> tuple[int, int]:
    """Upper bounds of the number of containers and of values in ``raw``, before parsing."""
    brackets = raw.count(b"[") + raw.count(b"{")
    commas = raw.count(b",")
    if brackets + commas >= MAX_VALUES:
        bare = _STRINGS.sub(b"", raw)
        brackets, commas = bare.count(b"[") + bare.count(b"{"), bare.count(b",")
    # A value is the first of its container, follows a comma, or is the document itself.
    return brackets, brackets + commas + 1


def _deeper_than(value: Json, limit: int) -> bool:
    """Whether containers nest more than ``limit`` deep; level by level, without recursion."""
    level = _containers([value])
    for _ in range(limit):
        level = [inner for outer in level for inner in _containers(_children(outer))]
    return bool(level)


def _containers(values: Iterable[Json]) -> list[Container]:
    return [value for value in values if isinstance(value, dict | list)]


def _children(container: Container) -> Iterable[Json]:
    return container.values() if isinstance(container, dict) else container


def _integer(text: str) -> int | Number:
    # "-0" is equal to 0, but it is not how an integer is spelled.
    return int(text) if len(text) <= _PLAIN_DIGITS and text != "-0" else _number(text)


_NUMBER = re.compile(r"(-?)([0-9]+)(?:\.([0-9]+))?(?:[eE]([+-]?)0*([0-9]*))?")


def _number(text: str) -> Number:
    """A number as the JSON grammar spells it, reduced."""
    match = _NUMBER.fullmatch(text)
    if match is None:  # the decoder hands over nothing else
        raise _Refused("holds a number that is not JSON")
    sign, whole, fraction, exponent_sign, exponent_digits = match.groups(default="")
    if len(whole) + len(fraction) > MAX_DIGITS:
        raise _Refused(f"holds a number of more than {MAX_DIGITS} digits; send it as a string")
    if len(exponent_digits) > MAX_EXPONENT_DIGITS:
        raise _Refused("holds a number with an exponent beyond a thousand million; send less")
    significant = (whole + fraction).lstrip("0")
    digits = significant.rstrip("0")
    if not digits:
        return Number(negative=False, digits="0", exponent=0)
    exponent = int(exponent_sign + (exponent_digits or "0")) - len(fraction)
    return Number(sign == "-", digits, exponent + len(significant) - len(digits))


def _plain(number: Number) -> int | None:
    """The number as an integer, if it is one of at most ``_PLAIN_DIGITS`` digits."""
    if number.exponent < 0 or len(number.digits) + number.exponent > _PLAIN_DIGITS:
        return None
    magnitude = int(number.digits + "0" * number.exponent)
    return -magnitude if number.negative else magnitude


def _members(pairs: list[tuple[str, Json]]) -> dict[str, Json]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise _Refused("holds a duplicate member name; send each name once")
    return members


def _constant(name: str) -> Json:
    raise _Refused(f"holds {name}, which is not JSON")


class _Numbers(Exception):
    """A document has numbers that are not plain integers."""


def _not_plain(_: object) -> object:
    raise _Numbers


# Most documents have none, and making an encoder costs as much as writing a small document.
_PLAIN_ENCODER = json.JSONEncoder(
    sort_keys=True, separators=(",", ":"), check_circular=False, default=_not_plain
)

_NAN = float("nan")

_decoder = partial(
    json.JSONDecoder, parse_int=_integer, parse_float=_number, parse_constant=_constant
)
_DECODER = _decoder(object_pairs_hook=_members)
_FLAT_DECODER = _decoder()

_FEW = 1024
"""Members of an object that is read without a look at each pair: far below ``MAX_VALUES``."""
