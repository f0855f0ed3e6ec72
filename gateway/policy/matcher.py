"""Which command a method and a raw path mean.

A pattern is ``METHOD /path/{x}``: literal segments match raw bytes exactly, ``{x}`` is exactly one
non-empty raw segment. Among several, a literal beats a variable; two patterns of which neither is
the more literal are refused when the policies are loaded.

An upstream may read a path more loosely than this gateway does: decode it, ignore case, drop
``;parameters`` or a last slash. So a path is matched twice, as it is and *loosened*, and where the
two name different commands it cannot be told what the upstream would do, and it is refused. Else
``/charges/%72efund`` would pass as ``/charges/{id}`` and run as ``/charges/refund``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from gateway.core.form import percent_decode, well_encoded
from gateway.core.keys import Refusal
from gateway.core.template import SURE_SEGMENT

__all__ = [
    "SAFE_METHODS",
    "Pattern",
    "PatternError",
    "Table",
    "check_path",
    "overlap",
    "parse_pattern",
    "split_path",
]

SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
"""Stream through where no command lists them (RFC 9110 §9.2.1). TRACE is safe too, but answers
with the request's own fields, credentials that the gateway added among them (§9.3.8): refused."""

_METHOD = re.compile(r"[A-Z][A-Z0-9-]{0,31}")
_VARIABLE = re.compile(r"\{([A-Za-z_][A-Za-z0-9_]*)\}")
_LITERAL = re.compile(r"(?:[A-Za-z0-9._~!$&'()*+,=:@-]|%[0-9A-F]{2})*")

# RFC 3986 §3.3: path-abempty. A stray %, controls, blanks, #, ?, \ and raw UTF-8 all fail here.
_PATH = re.compile(rb"(?:/(?:[A-Za-z0-9._~!$&'()*+,;=:@-]++|%[0-9A-Fa-f]{2})*+)++")

_HIDDEN = re.compile(rb"[/\\\x00-\x1f\x7f]")


class PatternError(ValueError):
    """A pattern that cannot be used: ``problem`` and ``mend``."""

    def __init__(self, problem: str, mend: str):
        super().__init__(problem)
        self.problem = problem
        self.mend = mend


@dataclass(frozen=True, slots=True)
class Pattern:
    """``segments``: the literal's raw bytes, or ``None`` for a variable; ``loose``: the same with
    literals loosened; ``names``: the variables in order. A last slash is an empty last literal."""

    text: str
    method: str
    segments: tuple[bytes | None, ...]
    loose: tuple[bytes | None, ...]
    names: tuple[str, ...]

    def takes(self, segments: Sequence[bytes]) -> bool:
        """Whether raw ``segments`` are this pattern's, exactly."""
        return _takes(self.segments, segments)

    def bind(self, segments: Sequence[bytes]) -> dict[str, bytes]:
        """The raw segment of each variable."""
        bound = [raw for own, raw in zip(self.segments, segments, strict=True) if own is None]
        return dict(zip(self.names, bound, strict=True))


def parse_pattern(text: str) -> Pattern:
    """``METHOD /path/{x}``, or raise ``PatternError``."""
    method, blank, path = text.partition(" ")
    if not blank or not path.startswith("/"):
        raise PatternError(
            "is not a method and a path", 'write e.g. "POST /v1/invoices/{invoice_id}/capture"'
        )
    if not _METHOD.fullmatch(method) or method in ("TRACE", "CONNECT"):
        raise PatternError(
            f"has the method {method!r}, which cannot be guarded", "write e.g. POST, in capitals"
        )
    if "?" in path or "#" in path:
        raise PatternError(
            "has a query, and requests are told apart by method and path alone",
            "leave it out; a template reads it as {query.name}",
        )
    segments: list[bytes | None] = []
    names: list[str] = []
    parts = path[1:].split("/")
    for place, part in enumerate(parts):
        variable = _VARIABLE.fullmatch(part)
        if variable:
            names.append(variable[1])
            segments.append(None)
        else:
            segments.append(_literal(part, last=place == len(parts) - 1))
    twice = {name for name in names if names.count(name) > 1}
    if twice:
        raise PatternError(f"names {{{min(twice)}}} twice", "give each variable its own name")
    loose = tuple(None if own is None else _loosened(own) for own in segments)
    return Pattern(text, method, tuple(segments), _trimmed(loose), tuple(names))


def _literal(part: str, *, last: bool) -> bytes:
    if "{" in part or "}" in part:
        raise PatternError(
            f"has the segment {part!r}, which is not one variable",
            "write a whole segment as {name}",
        )
    if not part and not last:
        raise PatternError("has an empty segment", "write single slashes")
    if not _LITERAL.fullmatch(part):
        raise PatternError(
            f"has the segment {part!r}, which no path can hold",
            "percent-encode it, with capital hex digits (RFC 3986 §3.3)",
        )
    raw = part.encode("ascii")
    decoded = percent_decode(raw)
    if decoded in (b".", b"..") or _HIDDEN.search(decoded):
        raise PatternError(
            f"has the segment {part!r}, which is refused in requests",
            "leave out dot segments and encoded slashes",
        )
    return raw


def check_path(raw: bytes) -> Refusal | None:
    """Why it cannot be told where ``raw``, the path of a request target, leads; else ``None``."""
    if not raw.startswith(b"/"):
        return _refused("is not in origin form; send a path that begins with one slash")
    if not _PATH.fullmatch(raw):
        if not well_encoded(raw):
            return _refused("has a % that begins no percent-encoding; send it as %25")
        return _refused("holds a character that RFC 3986 does not allow there; percent-encode it")
    if b"//" in raw:
        return _refused("has an empty segment; send single slashes")
    if b"%" in raw or b"/." in raw:
        return _check_segments(raw)
    return None


def _check_segments(raw: bytes) -> Refusal | None:
    for segment in raw.split(b"/"):
        # "..;x" is ".." to servers that cut parameters first.
        decoded = percent_decode(segment)
        if decoded.partition(b";")[0] in (b".", b".."):
            return _refused("has a dot segment; send the path that it resolves to")
        if _HIDDEN.search(decoded):
            return _refused("has an encoded slash, backslash or control character; leave it out")
    return None


def split_path(path: bytes) -> list[bytes]:
    """The raw segments of a path behind its mount; the bare mount is the same as its slash."""
    return path[1:].split(b"/")


def overlap(one: Pattern, other: Pattern) -> bool:
    """Whether some path is both patterns' and neither is the more literal, also when loosened."""
    if one.method != other.method or len(one.loose) != len(other.loose):
        return False
    first_wins = second_wins = False
    for a, b in zip(one.loose, other.loose, strict=True):
        if a is not None and b is not None and a != b:
            return False
        first_wins |= a is not None and b is None
        second_wins |= a is None and b is not None
    return first_wins == second_wins


Target = TypeVar("Target")


class Table(Generic[Target]):
    """The commands of one mount. No two of its patterns ``overlap``."""

    __slots__ = ("_exact", "_loose", "_sure")

    def __init__(self, entries: Iterable[tuple[Pattern, Target]]):
        # The most literal first: of two that take one path, its variables are fewer.
        ordered = sorted(entries, key=lambda entry: len(entry[0].names))
        self._exact: dict[tuple[str, int], list[tuple[Pattern, Target]]] = {}
        self._loose: dict[tuple[str, int], list[tuple[Pattern, Target]]] = {}
        for entry in ordered:
            pattern = entry[0]
            self._exact.setdefault((pattern.method, len(pattern.segments)), []).append(entry)
            self._loose.setdefault((pattern.method, len(pattern.loose)), []).append(entry)
        self._sure: dict[str, list[tuple[re.Pattern[bytes], Pattern, Target]]] = {}
        for key, group in self._loose.items():
            for pattern, target in group:
                if not any(_meet(pattern, other) for other, _ in group if other is not pattern):
                    self._sure.setdefault(key[0], []).append((_sure(pattern), pattern, target))

    def at_once(self, method: str, path: bytes) -> tuple[Target, dict[str, bytes]] | None:
        """The command of a path behind the mount, with the raw segment of each variable, where one
        look tells both that nobody may read the path in another way and that no other pattern is
        near. ``None`` says nothing: ``check_path`` and ``find`` do."""
        tried = self._sure.get(method)
        if tried is None or len(tried) > _TRIED:
            return None
        for sure, pattern, target in tried:
            found = sure.fullmatch(path)
            if found is not None:
                return target, dict(zip(pattern.names, found.groups(), strict=True))
        return None

    def find(
        self, method: str, segments: Sequence[bytes]
    ) -> tuple[Pattern, Target] | Refusal | None:
        """The command of ``segments``; ``None`` if no command is meant, even loosely."""
        exact = None
        for entry in self._exact.get((method, len(segments)), ()):
            if entry[0].takes(segments):
                exact = entry
                break
        loosened = _trimmed(_all_loosened(segments))
        if self._loosely(method, loosened) is not exact:
            return _refused(
                "is another command to an upstream that decodes it, ignores case or drops a last "
                "slash; send it as the policy writes it"
            )
        if exact is None and self._shadowed(method, loosened):
            return _refused("is a command under another method; use the one that the policy lists")
        return exact

    def _loosely(self, method: str, loosened: Sequence[bytes]) -> tuple[Pattern, Target] | None:
        for entry in self._loose.get((method, len(loosened)), ()):
            if _takes(entry[0].loose, loosened):
                return entry
        return None

    def _shadowed(self, method: str, loosened: Sequence[bytes]) -> bool:
        """A listed GET also runs at HEAD in most frameworks, so it must not stream through."""
        return method == "HEAD" and self._loosely("GET", loosened) is not None


_TRIED = 8
"""Patterns of one method that are tried in a row; with more, the table by lengths is quicker."""


def _meet(one: Pattern, other: Pattern) -> bool:
    """Whether some path of as many segments is both patterns', loosened."""
    pairs = zip(one.loose, other.loose, strict=True)
    return all(a is None or b is None or a == b for a, b in pairs)


def _sure(pattern: Pattern) -> re.Pattern[bytes]:
    """Of paths behind a mount: those of the pattern that nobody reads in another way."""
    segments = [
        b"(%b)" % SURE_SEGMENT if own is None else re.escape(own) for own in pattern.segments
    ]
    return re.compile(b"".join(b"/" + segment for segment in segments))


def _takes(own: Sequence[bytes | None], segments: Sequence[bytes]) -> bool:
    if len(own) != len(segments):
        return False
    for literal, segment in zip(own, segments, strict=True):
        if (not segment) if literal is None else literal != segment:
            return False
    return True


def _loosened(segment: bytes) -> bytes:
    return percent_decode(segment.partition(b";")[0]).lower()


def _all_loosened(segments: Sequence[bytes]) -> tuple[bytes, ...]:
    path = b"/".join(segments)
    if b"%" in path or b";" in path:
        return tuple(_loosened(segment) for segment in segments)
    return tuple(path.lower().split(b"/"))  # nearly always there is nothing to decode or to drop


T = TypeVar("T")


def _trimmed(segments: tuple[T, ...]) -> tuple[T, ...]:
    """Without the empty segment that a last slash makes; the root alone keeps its own."""
    return segments[:-1] if len(segments) > 1 and segments[-1] == b"" else segments


def _refused(what: str) -> Refusal:
    return Refusal("request-invalid", f"The path {what}.")
