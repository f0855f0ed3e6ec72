"""A request body: which kind it is, and what of it is compared and read.

The kind is the policy's word or, with ``auto``, the request's own ``Content-Type``. With ``auto``,
a body that has a ``Content-Encoding``, and a form or multipart body that cannot be read, is
compared byte by byte, which is the strictest way; it is refused where a template needs more.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Literal, TypeAlias

from gateway.core.canonical import (
    ABSENT,
    Absent,
    Document,
    Json,
    Pieces,
    Pointer,
    Unreadable,
    canonical,
    joined,
    pieces,
    read_json,
    without,
)
from gateway.core.form import Parameters, percent_decode, read_form
from gateway.core.headers import values
from gateway.core.keys import OWS
from gateway.core.model import Headers
from gateway.core.multipart import Multipart, read_multipart
from gateway.core.names import hides_method, says_method
from gateway.core.value import value

__all__ = ["Body", "BodyMode", "Content", "Form", "Understood", "media_of"]

BodyMode = Literal["auto", "json", "form", "multipart", "raw"]
Form = Literal["json", "form", "multipart", "raw"]
"""How a body was compared; ``raw`` is byte by byte."""

Content: TypeAlias = Document | Parameters | Multipart
"""A body that could be read."""

# RFC 9110 §5.6.6; many clients leave the dash of UTF-8 out.
_CHARSET = re.compile(
    rb";[ \t]*charset=(\"?)(?:(utf-?8)|us-ascii|(iso-8859-1|latin1|windows-1252))\1[ \t]*(?:;|$)",
    re.IGNORECASE,
)

_FORM_TYPE = b"application/x-www-form-urlencoded"
_MEDIA = re.compile(rb"[A-Za-z0-9!#$%&'*+.^_`|~-]+/[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_OF_FORMS = re.compile(rb"urlencoded|multipart", re.IGNORECASE)


_PIECES_LIMIT = 64 * 1024
"""Bytes of a body whose members are written one by one: they stay a while beside the whole."""


@value(frozen=True, slots=True)
class Understood:
    """``form``: how the body is compared, ``compared``: the bytes that are equal for equal bodies
    of this form and type. ``content``: what they cover, ``None`` where the body is compared as one.
    ``pieces``: of an object of few plain members, as they stand in ``compared``."""

    form: Form
    compared: bytes
    content: Content | None
    pieces: Pieces = ()

    @property
    def members(self) -> Json | Absent:
        """What is compared, as members; absent where that is one."""
        content = self.content
        if isinstance(content, Document):
            return content.value
        return ABSENT if content is None else content.members()


class _Label:
    """What the fields of a request say about its body, and its policy. ``types``: the lines of
    ``Content-Type``; ``coded``: it has a ``Content-Encoding``."""

    __slots__ = ("declared", "kind", "may_be_form", "media", "must_be_ascii", "type", "unfit")

    def __init__(self, types: tuple[bytes, ...], mode: BodyMode, coded: bool, empty: bool) -> None:
        self.declared = _declared(types)
        self.media = media_of(types)
        self.type = types[0].strip(OWS) if types else b""
        self.kind: Form = self.declared if mode == "auto" or mode == "raw" else mode
        self.may_be_form = (
            not types or self.kind in ("form", "multipart") or any(map(_OF_FORMS.search, types))
        )
        charset = _charset(types, self.kind)
        self.must_be_ascii = charset is True
        why_not = _why_not(self.kind, self.declared, self.type, coded=coded, empty=empty) or (
            charset if isinstance(charset, str) else None
        )
        self.unfit = Unreadable(why_not) if why_not else None


_LABEL_KEPT = 128
"""Bytes of ``Content-Type`` that are understood once for all: clients send few of them."""

_label = lru_cache(256)(_Label)


class Body:
    """One request body: read at most once, whoever asks.

    It is a value: its answers never change, only the first reading is put off.
    """

    __slots__ = (
        "_content",
        "_is_raw",
        "_kind",
        "_label",
        "_mode",
        "declared",
        "is_coded",
        "media",
        "raw",
    )

    def __init__(self, raw: bytes, headers: Headers, mode: BodyMode):
        types, codings = values(headers, b"content-type"), values(headers, b"content-encoding")
        coded = bool(codings) and _is_coded(codings)
        few = len(types) == 1 and len(types[0]) <= _LABEL_KEPT
        label = (_label if few else _Label)(tuple(types), mode, coded, not raw)
        self.raw = raw
        self.is_coded = coded
        self.media = label.media
        """The type as it is compared, where the body is not coded."""
        self._mode = mode
        self._label = label
        self.declared = label.declared
        """The kind that ``Content-Type`` says, whatever the mode."""
        self._kind: Form = label.kind
        self._content: Content | Unreadable | None = None
        # No body at all is no JSON, and the many clients that label it so mean no harm.
        self._is_raw = mode == "raw" or (mode == "auto" and (coded or not raw))

    @property
    def form(self) -> Form:
        """How the body is compared."""
        if self._is_raw or (self.is_lenient and isinstance(self.document(), Unreadable)):
            return "raw"
        return self._kind

    @property
    def is_lenient(self) -> bool:
        """Whether the body is compared byte by byte where it cannot be read."""
        return self._is_raw or (self._mode == "auto" and self._kind in ("form", "multipart", "raw"))

    @property
    def may_be_form(self) -> bool:
        """Whether some reader takes parameters out of it. Rack does so without a type, and goes by
        the start of a field that is no media type."""
        return self._label.may_be_form

    @property
    def says_method(self) -> bool:
        """Whether some reader finds a parameter ``_method`` in it."""
        if not self.may_be_form:
            return False
        match self.document():
            case Parameters(fields):
                return any(says_method(field.name) for field in fields)
            case Multipart() as content:
                return content.says_method
            case _:
                return hides_method(self.raw)

    @property
    def unfit(self) -> Unreadable | None:
        """Why the request's fields alone keep the body from being read; ``None`` if they do not."""
        return self._label.unfit

    def document(self) -> Content | Unreadable:
        """The body as what it is, for the fingerprint and for templates alike."""
        if self._content is None:
            match self._label.unfit or self._kind:
                case "json":
                    self._content = read_json(self.raw)
                case "form":
                    self._content = read_form(self.raw)
                case "multipart":
                    self._content = read_multipart(self.raw, self._label.type)
                case "raw":  # excluded by _why_not
                    self._content = Unreadable("is of no kind that can be read")
                case unfit:
                    self._content = unfit
            if self._label.must_be_ascii and not _is_ascii(self._content, self.raw):
                self._content = Unreadable(_NOT_ASCII)
        return self._content

    def compared(self, ignore: tuple[Pointer, ...]) -> bytes | Unreadable:
        """The bytes that are equal for equal bodies of this form and type."""
        found = self.understood(ignore)
        return found if isinstance(found, Unreadable) else found.compared

    def members(self, ignore: tuple[Pointer, ...]) -> Json | Absent:
        """What ``compared`` covers, as members; absent where it is compared as one."""
        found = self.understood(ignore)
        return ABSENT if isinstance(found, Unreadable) else found.members

    def understood(self, ignore: tuple[Pointer, ...]) -> Understood | Unreadable:
        """All that a fingerprint and an outline need of the body."""
        if self._is_raw:
            return Understood("raw", self.raw, None)
        found = self.document()
        if isinstance(found, Document):
            if ignore:
                found = Document(without(found.value, ignore))
            few = pieces(found.value) if len(self.raw) <= _PIECES_LIMIT else ()
            return Understood(
                self._kind, joined(few) if few else canonical(found.value), found, few
            )
        if isinstance(found, Unreadable):
            return Understood("raw", self.raw, None) if self.is_lenient else found
        kept = found.without(ignore)
        return Understood(self._kind, kept.compared(), kept)


def _declared(types: tuple[bytes, ...]) -> Form:
    """The kind that one ``Content-Type`` says; JSON is ``application/json`` or ``*/*+json`` (RFC
    6839 §3.1)."""
    if len(types) != 1:
        return "raw"
    media = types[0].partition(b";")[0].strip(OWS).lower()
    if not _MEDIA.fullmatch(media):
        return "raw"
    if media.startswith(b"multipart/"):
        return "multipart"
    if media == b"application/json" or media.endswith(b"+json"):
        return "json"
    return "form" if media == _FORM_TYPE else "raw"


def _why_not(
    kind: Form, declared: Form, content_type: bytes, *, coded: bool, empty: bool
) -> str | None:
    """Why a body is not to be read as ``kind``, whatever its bytes are."""
    if coded:
        return "has a Content-Encoding, so it cannot be read here; send it uncoded"
    # An upstream that goes by the type would read other things in the same bytes:
    # {"customer":"a","x":"&customer=b&"} is good JSON, and a form with a customer b. Some find the
    # type in the middle of a field that is no media type.
    match kind:
        case "json" if _OF_FORMS.search(content_type):
            return _undeclared("JSON", b"application/json")
        case "json":
            return "is empty; send JSON" if empty else None
        case "form":
            return None if empty or declared == "form" else _undeclared("a form", _FORM_TYPE)
        case "multipart":
            return (
                None
                if declared == "multipart"
                else _undeclared("multipart", b"multipart/form-data")
            )
        case "raw":
            return (
                "is declared neither as JSON nor as a form; send Content-Type: application/json "
                f"(or {_FORM_TYPE.decode('ascii')}, multipart/form-data)"
            )


def _undeclared(what: str, media: bytes) -> str:
    return f"is not declared as {what}; send Content-Type: {media.decode('ascii')}"


def _charset(types: tuple[bytes, ...], kind: Form) -> str | bool:
    """Why no charset is good, or whether the body must be ASCII since another than UTF-8 is named.
    RFC 8259 knows none, and forms are UTF-8 today, but there are frameworks that decode by it."""
    if len(types) > 1:
        return "has more than one Content-Type; send one"
    value = types[0].strip(OWS) if types else b""
    # Whatever looks like the parameter counts: readers differ in how they take a field apart.
    named = value.lower().count(b"charset")
    match = _CHARSET.search(value)
    if named > 1 or (named and not match) or (match and match[3] and kind == "json"):
        return "names a charset that is not UTF-8, or more than one; send charset=utf-8 or none"
    return match is not None and match[2] is None


def _is_ascii(content: Content | Unreadable, raw: bytes) -> bool:
    match content:
        case Unreadable():
            return True  # refused for what it is
        case Document():
            return raw.isascii()
        case Parameters():
            return percent_decode(raw).isascii()
        case Multipart():
            return content.is_ascii


def media_of(types: Sequence[bytes]) -> bytes:
    """What the lines of ``Content-Type`` name, without parameters, in lower case."""
    return b",".join([line.partition(b";")[0].strip(OWS).lower() for line in types])


def _is_coded(lines: Sequence[bytes]) -> bool:
    return any(line.strip(OWS).lower() not in (b"", b"identity") for line in lines)


_NOT_ASCII = "holds other characters than ASCII, and its charset is not UTF-8; send charset=utf-8"
