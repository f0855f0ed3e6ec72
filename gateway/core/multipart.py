"""Multipart bodies (RFC 2046 §5.1), split strictly and written without their boundary.

Clients make a new boundary for every try, so it never counts. What counts is the media type with
its other parameters, and of each part, in their order, the header lines (names in lower case,
blanks around values aside) and the exact bytes.

A reader that cuts elsewhere sees other parts. So every place in the body where the delimiter stands
must be one at which all readers cut: at the start of a line that CR LF ends, and nothing behind it.
A line that ends with a bare LF, blanks behind a delimiter, a delimiter inside a part: refused, not
guessed. So is text before the first or behind the last one (but a line end or two): it would pass
uncompared, and today's clients send none.

For templates, multipart/form-data (RFC 7578) gives named fields. A part has a sure name only if its
``Content-Disposition`` is one of few forms and its other header lines are of few kinds: some
readers look for ``name=`` anywhere in them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from gateway.core.canonical import Json, Pointer, Unreadable
from gateway.core.form import Field, chosen, nested
from gateway.core.keys import OWS
from gateway.core.model import Headers
from gateway.core.names import hides_method, is_plain, says_method

__all__ = ["MAX_PARTS", "MAX_PART_HEAD", "MAX_PART_LINES", "Multipart", "Part", "read_multipart"]

MAX_PARTS = 1_000
"""Parts of one body, as common frameworks take them. One costs up to 10 µs here."""

MAX_PART_HEAD = 4 * 1024
"""Bytes of one part's header lines: PHP cuts a line at 5 KiB, and names are far shorter."""

MAX_PART_LINES = 32
"""Header lines of one part; clients send up to four."""

# RFC 2046 §5.1.1. Bare it must be a token (RFC 9110 §5.6.6): readers disagree where ``a=b`` ends.
# No comma, at which Rack ends it though it is quoted.
_BOUNDARY = re.compile(
    rb";[ \t]*boundary=(?:([A-Za-z0-9'+_.-]{1,70})"
    rb"|\"([A-Za-z0-9'()+_./:=? -]{0,69}[A-Za-z0-9'()+_./:=?-])\")[ \t]*(?=;|\Z)",
    re.IGNORECASE,
)
# RFC 2231 spells it boundary*= and boundary*0= too. Browsers put the bare word into the value.
_NAMED = re.compile(rb"boundary[ \t*0-9]*=", re.IGNORECASE)
_LINE = re.compile(rb"([A-Za-z0-9!#$%&'*+.^_`|~-]+):[ \t]*([^\x00-\x08\x0A-\x1F\x7F]*)")

# The name first, plain, then at most the two ways to name a file. Names are never escaped; in the
# name of a file readers differ about a backslash, but not about where the parameters before it end.
_DISPOSITION = re.compile(
    rb"form-data[ \t]*;[ \t]*name=(?:\"([^\"\\]*)\"|([A-Za-z0-9_.\[\]-]+))"
    rb"((?:[ \t]*;[ \t]*filename=(\"(?:[^\"\\]|\\.)*+\"|[^\x00-\x20\"\\;=]+))?"
    rb"(?:[ \t]*;[ \t]*filename\*=[A-Za-z0-9!#$&'+.^_`|~%-]+)?)",
    re.IGNORECASE,
)
# Rack looks for it inside of quotes, too.
_NAMES_AGAIN = re.compile(rb"name[^A-Za-z]*=", re.IGNORECASE)
_BESIDE = frozenset(
    {
        b"content-disposition",
        b"content-type",
        b"content-transfer-encoding",
        b"content-length",
        b"content-id",
    }
)
_PLAIN_TEXT = re.compile(
    rb"text/plain(?:[ \t]*;[ \t]*charset=(\"?)"
    rb"(?:utf-?8|us-ascii|iso-8859-1|latin1|windows-1252)\1)?",
    re.IGNORECASE,
)
_UNCODED = frozenset({b"7bit", b"8bit", b"binary"})


@dataclass(frozen=True, slots=True)
class Part:
    """Header lines with lower-case names, and the bytes behind them. ``name``: of a field or file
    of multipart/form-data, where all readers take the same one from it."""

    headers: Headers
    content: bytes
    name: bytes | None
    is_file: bool

    @property
    def field(self) -> Field:
        """The part as a named value; nameless and with a flaw where it has no sure name."""
        if self.name is None:
            return Field(b"", None, "has no name that all readers take")
        lines = dict(self.headers)
        coding = lines.get(b"content-transfer-encoding", b"binary").lower()
        flaw = None
        if self.is_file:
            flaw = "is a file; send a field without filename"
        # Its value is printable ASCII or is refused, so any of the charsets gives the same.
        elif not _PLAIN_TEXT.fullmatch(lines.get(b"content-type", b"text/plain")):
            flaw = "is not declared as plain text in UTF-8; send no Content-Type with it"
        elif coding not in _UNCODED:
            flaw = "has a Content-Transfer-Encoding; send it uncoded"
        return Field(self.name, self.content, flaw)


@dataclass(frozen=True, slots=True)
class Multipart:
    """A body in parts. ``media``: its ``Content-Type`` without the boundary."""

    media: bytes
    parts: tuple[Part, ...]

    @property
    def fields(self) -> tuple[Field, ...]:
        """The parts as named values."""
        return tuple(part.field for part in self.parts)

    @property
    def is_ascii(self) -> bool:
        """Whether no charset of the whole body matters: heads and all but files are ASCII."""
        return all(
            all(value.isascii() for _, value in part.headers)
            and (part.is_file or part.content.isascii())
            for part in self.parts
        )

    @property
    def says_method(self) -> bool:
        """Whether some reader takes a part for a parameter ``_method``."""
        return any(map(_says_method, self.parts))

    def compared(self) -> bytes:
        """The bytes that are equal for equal bodies only."""
        written = [_sized(self.media)]
        for part in self.parts:
            written.append(b"%d:" % len(part.headers))
            written += (_sized(text) for line in part.headers for text in line)
            written.append(_sized(part.content))
        return b"".join(written)

    def without(self, pointers: Sequence[Pointer]) -> Multipart:
        """All but the fields (not files) that ``pointers`` name, and what is nested in those."""
        if not pointers:
            return self
        named = chosen(pointers)
        kept = tuple(
            part for part in self.parts if part.name is None or part.is_file or not named(part.name)
        )
        return Multipart(self.media, kept)

    def members(self) -> Json:
        """The same as members, for an outline: by name, or else by number."""
        named = [(part.name, _whole(part)) for part in self.parts if part.name is not None]
        if len(named) == len(self.parts):
            return nested(named)
        return [_whole(part) for part in self.parts]


def read_multipart(raw: bytes, content_type: bytes) -> Multipart | Unreadable:
    """``raw`` as the parts that ``content_type``, the one line of that field, promises."""
    found = _BOUNDARY.search(content_type)
    if found is None or len(_NAMED.findall(content_type)) != 1:
        return _NO_BOUNDARY
    media = content_type[: found.start()] + content_type[found.end() :]
    if b"boundary" in media.lower():  # PHP takes the first one, in whatever word it stands
        return _NO_BOUNDARY
    kind, semicolon, rest = media.strip(OWS).partition(b";")
    kind = kind.rstrip(OWS).lower()
    parts = _split(raw, b"--" + (found[1] or found[2]), is_form=kind == b"multipart/form-data")
    return parts if isinstance(parts, Unreadable) else Multipart(kind + semicolon + rest, parts)


def _split(raw: bytes, delimiter: bytes, *, is_form: bool) -> tuple[Part, ...] | Unreadable:
    parts: list[Part] = []
    at = 2 if raw.startswith(b"\r\n") else 0
    if not raw.startswith(delimiter, at):
        return Unreadable("does not begin with its boundary; send nothing before it")
    while True:
        at += len(delimiter)
        if raw[at : at + 2] != b"\r\n":
            break
        start = at + 2
        at = raw.find(delimiter, start)
        if at < 0:
            return Unreadable("is not ended by its boundary with two dashes behind it; send all")
        # The line end before a delimiter belongs to it, and may not be the one of the line before.
        if at < start + 2 or raw[at - 2 : at] != b"\r\n":
            return _MISPLACED
        if len(parts) == MAX_PARTS:
            return Unreadable(f"holds more than {MAX_PARTS} parts; send fewer at once")
        part = _part(raw[start : at - 2], is_form=is_form)
        if isinstance(part, Unreadable):
            return part
        parts.append(part)
    return tuple(parts) if raw[at:] in _ENDS else _MISPLACED


def _part(raw: bytes, *, is_form: bool) -> Part | Unreadable:
    if raw.startswith(b"\r\n"):
        return Part((), raw[2:], None, is_file=False)
    head, blank, content = raw.partition(b"\r\n\r\n")
    if not blank:
        return Unreadable("has a part without an empty line behind its headers; send one")
    if len(head) > MAX_PART_HEAD:
        return Unreadable(f"has a part with over {MAX_PART_HEAD} bytes of headers; send fewer")
    lines = head.split(b"\r\n")
    if len(lines) > MAX_PART_LINES:
        return Unreadable(f"has a part with over {MAX_PART_LINES} header lines; send fewer")
    headers: list[tuple[bytes, bytes]] = []
    for line in lines:
        match = _LINE.fullmatch(line)
        if match is None:
            return Unreadable("has a part with a line that is no header; send name: value")
        headers.append((match[1].lower(), match[2].rstrip(OWS)))
    name, is_file = _named(headers) if is_form else (None, False)
    return Part(tuple(headers), content, name, is_file)


def _named(headers: Sequence[tuple[bytes, bytes]]) -> tuple[bytes | None, bool]:
    """The name, where no two readers could differ about it, and whether it is a file's."""
    lines = dict(headers)
    if len(lines) != len(headers) or not lines.keys() <= _BESIDE:
        return None, False
    # Rack finds a Content-Disposition in the middle of any line.
    if any(b":" in value for name, value in headers if name != b"content-disposition"):
        return None, False
    match = _DISPOSITION.fullmatch(lines.get(b"content-disposition", b""))
    if match is None:
        return None, False
    name, is_file = match[1] or match[2] or b"", bool(match[3])
    if not is_plain(name) or _NAMES_AGAIN.search(match[4] or b""):
        return None, False
    return name, is_file


def _says_method(part: Part) -> bool:
    if part.name is not None:
        return says_method(part.name)
    head = b"\n".join(b"%b: %b" % line for line in part.headers)
    return hides_method(head, is_head=True)


def _whole(part: Part) -> Json:
    content = part.content.decode("latin-1")
    if part.name is not None and not part.is_file and len(part.headers) == 1:
        return content
    lines = {name.decode("ascii"): value.decode("latin-1") for name, value in part.headers}
    return {**lines, "content": content}


def _sized(text: bytes) -> bytes:
    return b"%d:%b" % (len(text), text)


_MISPLACED = Unreadable(
    "holds its boundary where it is no line of its own, so readers may cut it elsewhere; send "
    "another boundary, lines that end with CR LF, and nothing behind the last one"
)

_NO_BOUNDARY = Unreadable(
    "has no boundary, more than one, or an illegal one in its Content-Type; send one of 1 to 70 "
    "letters, digits, dashes and underscores"
)
# Some clients close with one line end more.
_ENDS = (b"--", b"--\r\n", b"--\r\n\r\n")
