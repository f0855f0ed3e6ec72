"""Which header fields cross the gateway, in each direction, and which are recorded.

Fields are ordered pairs of raw bytes; order and repeats are kept. Names compare without case.

Many stacks hand fields on as variables, and there ``X_Job``, ``X.Job`` and ``X-Job`` are one name
(RFC 9110 §17.10): such names are *twins*. Here a twin is never read as the field itself, and where
that would matter it never reaches the upstream.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterable, Mapping
from functools import lru_cache
from hashlib import blake2b
from itertools import compress
from typing import TypeVar

from gateway.core.model import Headers

__all__ = [
    "CONTROL",
    "LOOP",
    "Head",
    "by_names",
    "decode_lines",
    "encode_lines",
    "end_to_end",
    "folded",
    "handed_on",
    "last_hop",
    "loops",
    "nominated",
    "recordable",
    "relayable",
    "sendable",
    "twin",
    "values",
    "without",
    "written",
]

# RFC 9110 §7.6.1, with the obsolete and HTTP/2-upgrade ones that peers still send.
_HOP_BY_HOP = frozenset(
    {
        b"connection",
        b"keep-alive",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
        b"http2-settings",
    }
)

_NO_NAMES: frozenset[bytes] = frozenset()

CONTROL = frozenset(
    {b"authorization", b"idempotency-key", b"x-execution-fence", b"x-execution-entity"}
)
"""Request fields that speak to the gateway; passed up only where the policy says so."""

LOOP = b"gateway-loop"
"""In the answer to a loop: the gateway that sent us what we refused, by its name in ``Via``, and
which request that was (``handed_on``); or ``other`` where something else did."""

_PSEUDONYM = re.compile(rb"fencegate-[0-9a-f]{12}")

_VIA_LIMIT = 4096
"""Bytes of a ``Via`` line that are read: some hundred hops, and a fraction of a millisecond."""

_VIA_PIECES = re.compile(rb"\\.?|[()]|[^()\\]++", re.DOTALL)

_FOLD = bytes(byte if chr(byte).isalnum() and byte < 128 else 45 for byte in range(256)).lower()
"""Lower case, and a dash for whatever is neither letter nor digit."""

# What the gateway itself says about an answer; an upstream must not be able to say it.
_OURS = frozenset(
    {b"idempotent-replayed", b"gateway-outcome", b"gateway-fingerprint", b"gateway-evidence"}
)

# Bound to one moment or one caller, so a replay must not carry them.
_NOT_RECORDED = frozenset(
    {b"set-cookie", b"set-cookie2", b"www-authenticate", b"date", b"content-length"}
)


_SHAPES = 256
_SHAPE_NAMES, _SHAPE_BYTES = 64, 1024
"""What is kept of names: up to 256 lists of them, of up to 64 names and 1 KiB, and then none.
Clients of one kind send one list, and whoever makes lists up occupies 1 MB for each question."""


class _Names:
    """A list of names, made once for all heads that have it: one object, so that it is looked up
    by what it is. ``at``: by name in lower case, where its lines stand; ``template``: the lines as
    they are written, with places for the values."""

    __slots__ = ("at", "sent", "template")

    def __init__(self, sent: tuple[bytes, ...]) -> None:
        at: dict[bytes, tuple[int, ...]] = {}
        for index, name in enumerate(sent):
            at[name.lower()] = (*at.get(name.lower(), ()), index)
        self.sent, self.at = sent, at
        self.template = b"".join([name.replace(b"%", b"%%") + b": %b\r\n" for name in sent])


_named_before: dict[tuple[bytes, ...], _Names] = {}


def _names(sent: tuple[bytes, ...]) -> _Names:
    known = _named_before.get(sent)
    if known is not None:
        return known
    known = _Names(sent)
    if _is_kept(sent):
        if len(_named_before) >= _SHAPES:
            _named_before.clear()
        _named_before[sent] = known
    return known


def _is_kept(sent: tuple[bytes, ...]) -> bool:
    return len(sent) <= _SHAPE_NAMES and sum(map(len, sent)) <= _SHAPE_BYTES


class Head(tuple[tuple[bytes, bytes], ...]):
    """The field lines of a request, which is asked for some thirty names: looked through once.

    ``shape``: its names; ``sent``: its values, in order; ``lines``: by name in lower case, where
    its lines stand.
    """

    shape: _Names
    sent: tuple[bytes, ...]
    lines: Mapping[bytes, tuple[int, ...]]

    def __new__(cls, headers: Iterable[tuple[bytes, bytes]]) -> Head:
        made = tuple.__new__(cls, headers)
        names, made.sent = zip(*made, strict=True) if made else ((), ())
        shape = made.shape = _names(names)
        made.lines = shape.at
        return made


def values(headers: Headers, name: bytes) -> list[bytes]:
    """Every line of the field ``name`` (lower case), in order."""
    if type(headers) is Head:
        at = headers.lines.get(name)
        if at is None:
            return []
        sent = headers.sent
        return [sent[at[0]]] if len(at) == 1 else [sent[index] for index in at]
    return [value for key, value in headers if key.lower() == name]


K = TypeVar("K", bound=Hashable)
T = TypeVar("T")


def by_names(judge: Callable[[tuple[bytes, ...], K], T]) -> Callable[[Headers, K], T]:
    """A question that the names of a head alone answer, and that many heads of the same names are
    asked. What ``judge`` gives must never be changed."""
    kept: dict[tuple[_Names | tuple[bytes, ...], K], tuple[T]] = {}

    def judged(headers: Headers, about: K) -> T:
        shape = headers.shape if type(headers) is Head else tuple([name for name, _ in headers])
        known = kept.get((shape, about))
        if known is not None:
            return known[0]
        names = shape.sent if isinstance(shape, _Names) else shape
        found = judge(names, about)
        if _is_kept(names):
            if len(kept) >= _SHAPES:
                kept.clear()
            kept[shape, about] = (found,)
        return found

    return judged


def without(headers: Headers, names: frozenset[bytes]) -> Headers:
    """The fields whose lower-case name is not in ``names``."""
    return tuple(pair for pair in headers if pair[0].lower() not in names)


def folded(name: bytes) -> bytes:
    """The same for all names that an upstream may take for one."""
    return name.translate(_FOLD)


def twin(headers: Headers, names: frozenset[bytes]) -> bytes | None:
    """The first field that is none of ``names`` (lower case) and may be taken for one."""
    return _twin(headers, names)


@by_names
def _twin(sent: tuple[bytes, ...], names: frozenset[bytes]) -> bytes | None:
    alike = _folded(names)
    for name in sent:
        if folded(name) in alike and name.lower() not in names:
            return name
    return None


@lru_cache(_SHAPES)
def _folded(names: frozenset[bytes]) -> frozenset[bytes]:
    return frozenset(map(folded, names))


def nominated(headers: Headers) -> frozenset[bytes]:
    """The names in every ``Connection`` line, in lower case (RFC 9110 §7.6.1)."""
    lines = values(headers, b"connection")
    if not lines:
        return _NO_NAMES
    few = len(lines) == 1 and len(lines[0]) <= _SHORT
    return (_usual if few else _named)(tuple(lines))


def _named(lines: tuple[bytes, ...]) -> frozenset[bytes]:
    return frozenset(name.strip().lower() for value in lines for name in value.split(b","))


_SHORT = 32
_usual = lru_cache(_SHAPES)(_named)  # nearly always it is "keep-alive"


def end_to_end(headers: Headers) -> Headers:
    """Drop hop-by-hop fields: the fixed ones, those any ``Connection`` line nominates, and
    ``Proxy-*`` except ``Proxy-Status``, which every hop adds to (RFC 9209 §2)."""
    dropped = _HOP_BY_HOP | nominated(headers)
    return tuple(compress(headers, _end_to_end(headers, dropped)))


@by_names
def _end_to_end(sent: tuple[bytes, ...], dropped: frozenset[bytes]) -> tuple[bool, ...]:
    return tuple(not _is_hop(name.lower(), dropped) for name in sent)


def sendable(headers: Headers, withheld: frozenset[bytes]) -> Headers:
    """What an upstream sees of a request's fields: those that are end to end and not ``withheld``
    (lower case), and no twin of any other."""
    named = nominated(headers)
    dropped = _besides(withheld)
    return tuple(compress(headers, _sendable(headers, dropped | named if named else dropped)))


@lru_cache(_SHAPES)
def _besides(withheld: frozenset[bytes]) -> frozenset[bytes]:
    return _HOP_BY_HOP | withheld


@by_names
def _sendable(sent: tuple[bytes, ...], dropped: frozenset[bytes]) -> tuple[bool, ...]:
    alike = frozenset(map(folded, dropped))
    return tuple(not _is_hop(folded(name), alike) for name in sent)


def relayable(headers: Headers) -> Headers:
    """What a caller sees of an upstream's response head."""
    return tuple(compress(headers, _relayable(headers, nominated(headers))))


@by_names
def _relayable(sent: tuple[bytes, ...], nominated: frozenset[bytes]) -> tuple[bool, ...]:
    dropped = _HOP_BY_HOP | nominated
    names = [name.lower() for name in sent]
    return tuple(name not in _OURS and not _is_hop(name, dropped) for name in names)


def recordable(headers: Headers) -> Headers:
    """What is recorded of an upstream's response head, to be replayed."""
    return tuple(compress(headers, _recordable(headers, nominated(headers))))


@by_names
def _recordable(sent: tuple[bytes, ...], nominated: frozenset[bytes]) -> tuple[bool, ...]:
    kept = zip(sent, _relayable(tuple((name, b"") for name in sent), nominated), strict=True)
    return tuple(stays and name.lower() not in _NOT_RECORDED for name, stays in kept)


def loops(headers: Headers, pseudonym: bytes) -> bool:
    """Whether ``pseudonym`` received this message before, by its ``Via`` (RFC 9110 §7.6.3)."""
    lines = values(headers, b"via")
    return bool(lines) and pseudonym in map(_received_by, b",".join(lines).split(b","))


def last_hop(headers: Headers) -> bytes | None:
    """The pseudonym of the gateway that handed a message on, where a gateway of this kind is the
    last that ``Via`` names; ``None`` where anybody else is, or nobody, or its last line cannot be
    read or is longer than ``_VIA_LIMIT``."""
    lines = values(headers, b"via")
    if not lines:
        return None
    name = _received_by(_bare(lines[-1]).rpartition(b",")[2])
    return name if _PSEUDONYM.fullmatch(name) else None


def handed_on(headers: Headers, method: bytes, target: bytes) -> bytes | None:
    """By whom a request was handed on, and which: as ``last_hop``, and 16 digits that method and
    target make. Whoever copies ``Via`` into a request of its own asks for something else."""
    name = last_hop(headers)
    if name is None:
        return None
    which = blake2b(method + b" " + target, digest_size=8, person=b"fg-loop")
    return name + b" " + which.hexdigest().encode("ascii")


def _bare(via: bytes) -> bytes:
    """A line of ``Via`` without its comments, which nest (RFC 9110 §5.6.5); nothing where it is too
    long, or one is not closed: what stands in it may be a hop as well."""
    depth, kept = 0, b""
    for piece in _VIA_PIECES.findall(via) if len(via) <= _VIA_LIMIT else ():
        if piece == b"(":
            depth += 1
        elif piece == b")":
            depth -= 1
        elif depth == 0:
            kept += piece
        if depth < 0 or (depth == 0 and piece[:1] == b"\\"):
            return b""
    return b"" if depth else kept


def _received_by(hop: bytes) -> bytes:
    words = hop.split()
    return words[1].lower() if len(words) > 1 else b""


def written(headers: Headers) -> bytes:
    """Field lines as they go over the wire, each with its line end."""
    if not headers:
        return b""
    names, sent = zip(*headers, strict=True)
    return _names(names).template % sent


def encode_lines(headers: Headers) -> bytes:
    """Ordered pairs as ``name:value`` lines, each ended by CR LF, for the store."""
    return b"".join(b"%b:%b\r\n" % pair for pair in headers)


def decode_lines(lines: bytes) -> Headers:
    """The inverse of ``encode_lines``; values hold no CR or LF (RFC 9110 §5.5)."""
    pairs = (line.partition(b":") for line in lines.split(b"\r\n")[:-1])
    return tuple((name, value) for name, _, value in pairs)


def _is_hop(name: bytes, dropped: frozenset[bytes]) -> bool:
    return name in dropped or (name.startswith(b"proxy-") and name != b"proxy-status")
