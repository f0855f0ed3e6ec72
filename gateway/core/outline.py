"""Which parts of a request differ from the first one under its key, by name and never by value.

No request body is stored, and a fingerprint says only *that* two requests differ. So admit records
a small outline beside it, 2 bytes a part, from which ``differences`` names the paths:

- method, path, query, entity, type and kind of the body and each listed header, by position: 2
  bytes each;
- then members of the body, each as 3 bytes for its label (a JSON pointer) and 2 for its value.

The body is expanded breadth first: a container gives way to its members while there are at most
``MAX_ENTRIES`` entries, else it stands as one. What a policy ignores is left out, as in the
fingerprint.

It is advice, and the fingerprint decides. Two values meet in 16 bits once in 65,536 times, and
then one changed member is not named; two of 32 labels meet in 24 bits once in 34,000 bodies, and
then one is named as added. A different order inside one root of a form has no name at all.

All digests are keyed with the tenant's salt and the command's key, so no two commands' outlines can
be compared. Who has both can confirm a guess out of a small set (yes or no, an amount), as with
any short digest: an outline is never shown, logged or sent anywhere.

The rule version of the fingerprint covers this form too: outlines of other versions say nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from json.encoder import encode_basestring_ascii
from typing import Final, TypeAlias

from gateway.core.canonical import Absent, Json, canonical
from gateway.core.fingerprint import SALT_BYTES, Parts
from gateway.core.names import is_plain

__all__ = [
    "EXPANDED_LIMIT",
    "MAX_ENTRIES",
    "MAX_FIELDS",
    "MAX_NAMED",
    "OUTLINE_LIMIT",
    "Differences",
    "differences",
    "outline",
]

MAX_ENTRIES = 32
"""Members of a body: more than most commands have, and 160 bytes a row."""

MAX_FIELDS = 32
"""Headers that a policy may list, 64 bytes a row; a request has few more that could matter."""

OUTLINE_LIMIT = 256
"""Bytes: 6 fixed parts, ``MAX_FIELDS`` and ``MAX_ENTRIES`` take 236."""

EXPANDED_LIMIT = 64 * 1024
"""Bytes of a body, as it is compared, that is expanded. A larger one is one entry, and needs no
members: writing its parts would cost as much of the event loop again as comparing it did."""

MAX_NAMED = 64
"""Paths in each list of ``Differences``: nobody reads more, and a body may hold 250,000."""

_SHOWN = 64
"""Characters of one member's name that a label shows."""

_CONTAINERS = (dict, list)  # a tuple made once: a union is made anew at every look
_WORDS: Final = {None: b"null", False: b"false", True: b"true"}

_FIXED = ("method", "path", "query", "entity", "type", "body")
_TAGS = tuple(bytes((at,)) for at in range(len(_FIXED) + MAX_FIELDS))
_VALUE_BYTES = 2
_LABEL_BYTES = 3
_ENTRY_BYTES = _LABEL_BYTES + _VALUE_BYTES

# Labels are made of what callers send: a long one must not stay in memory for ever.
_CACHED_LABELS = 4_096
_CACHED_LABEL_LENGTH = 128
_CACHED_SALTS = 256

Members: TypeAlias = "Json | Absent"
"""A body as members; absent where it has none and is compared as one."""


@dataclass(frozen=True, slots=True)
class Differences:
    """Where a request differs from the recorded one: labels such as ``method``, ``field
    Stripe-Version``, ``body /amount`` or ``body``, in the caller's spelling: escape them before
    they reach a terminal. At most ``MAX_NAMED`` of each.

    What is no plain name of a form may be anything, a whole body too, so it is not shown.

    ``changed``: in both. ``added``: only in this request. ``absent``: how many parts only the
    recorded one has, whose names are not stored. All empty for requests that seem equal.
    """

    changed: tuple[str, ...]
    added: tuple[str, ...]
    absent: int


def outline(salt: bytes, key: str, parts: Parts, members: Members) -> bytes:
    """At most ``OUTLINE_LIMIT`` bytes for a request whose policy lists up to ``MAX_FIELDS``
    headers. ``members``: the body without what is ignored, whose written form is ``parts.body``."""
    copy = _keyed_for(salt, key).copy
    written: list[bytes] = []
    for tag, data in zip(_TAGS, _fixed(parts), strict=False):
        digest = copy()
        digest.update(tag + data)
        written.append(digest.digest())
    for name, data in _entries_of(salt, parts, members):
        digest = copy()
        digest.update(name + data)
        written += (name, digest.digest())
    return b"".join(written)


def differences(
    salt: bytes, key: str, parts: Parts, members: Members, recorded: bytes
) -> Differences:
    """How the request differs from the one with the outline ``recorded``: of the same tenant, key
    and rule version; else ``ValueError`` where that shows, and nonsense where it does not."""
    keyed = _keyed_for(salt, key)
    fixed = _fixed(parts)
    start = len(fixed) * _VALUE_BYTES
    if len(recorded) < start or (len(recorded) - start) % _ENTRY_BYTES:
        raise ValueError("the outline was made by other rules, so it cannot be compared")
    changed = [
        label
        for at, (label, data) in enumerate(zip(_fixed_labels(parts), fixed, strict=True))
        if recorded[at * _VALUE_BYTES :][:_VALUE_BYTES] != _digest(keyed, _TAGS[at], data)
    ]
    # Another kind of body has other members throughout: that it is one says more than their names.
    if "body" in changed:
        return Differences(tuple(changed), (), 0)
    entries = {
        recorded[at : at + _LABEL_BYTES]: recorded[at + _LABEL_BYTES : at + _ENTRY_BYTES]
        for at in range(start, len(recorded), _ENTRY_BYTES)
    }
    if len(parts.body) > EXPANDED_LIMIT and _label_digest(salt, "") not in entries:
        return Differences((*changed, "body"), (), 0)
    added: list[str] = []
    waiting: list[tuple[str, Json | Absent]] = [("", members)]
    while waiting:
        label, value = waiting.pop()
        name = _label_digest(salt, label)
        known = entries.pop(name, None)
        if known is None:
            inner = _children(label, value)
            waiting += reversed(inner)
            if not inner:
                added.append(_shown(parts, label))
        elif known != _digest(keyed, name, _written(parts, label, value)):
            changed.append(_shown(parts, label))
    return Differences(tuple(changed[:MAX_NAMED]), tuple(added[:MAX_NAMED]), len(entries))


def _fixed(parts: Parts) -> list[bytes]:
    fixed = [
        parts.method.encode("ascii"),
        parts.path,
        parts.query,
        parts.entity.encode("ascii"),
        parts.type,
        parts.form.encode("ascii"),
    ]
    for _, lines in parts.headers:
        # Lines hold no line feed (RFC 9110 §5.5), and no line is not one empty line.
        fixed.append(b"".join([line + b"\n" for line in lines]))
    return fixed


def _fixed_labels(parts: Parts) -> list[str]:
    return [*_FIXED, *(f"field {name.decode('latin-1').title()}" for name, _ in parts.headers)]


def _entries_of(salt: bytes, parts: Parts, members: Members) -> list[tuple[bytes, bytes]]:
    """The members that stand in an outline: the digest of the label, and the written form."""
    if 0 < len(parts.pieces) <= MAX_ENTRIES and len(parts.body) <= EXPANDED_LIMIT:
        return [
            ((_cached_member if len(name) <= _CACHED_LABEL_LENGTH else _member)(salt, name), data)
            for name, data in parts.pieces
        ]
    return [(_label_digest(salt, label), data) for label, data in _entries(parts, members)]


def _entries(parts: Parts, members: Members) -> list[tuple[str, bytes]]:
    """The members that stand in an outline, each with its written form."""
    if isinstance(members, Absent) or len(parts.body) > EXPANDED_LIMIT:
        return [("", parts.body)]
    entries: list[tuple[str, bytes]] = []
    count = 1
    level: list[tuple[str, Json]] = [("", members)]
    while level:
        below: list[tuple[str, Json]] = []
        for label, value in level:
            size = len(value) if isinstance(value, _CONTAINERS) else 0
            if size and count + size - 1 <= MAX_ENTRIES:
                count += size - 1
                below += _children(label, value)
            else:
                entries.append((label, _written(parts, label, value)))
        level = below
    return entries


def _children(label: str, value: Members) -> list[tuple[str, Json]]:
    """The members of a container with their labels, in an order that equal bodies share."""
    if isinstance(value, dict):
        return [(f"{label}/{_token(token)}", value[token]) for token in sorted(value)]
    if isinstance(value, list):
        return [(f"{label}/{index}", item) for index, item in enumerate(value)]
    return []


def _token(text: str) -> str:
    if "~" in text or "/" in text:
        return text.replace("~", "~0").replace("/", "~1")
    return text


def _written(parts: Parts, label: str, value: Members) -> bytes:
    """As ``canonical`` writes it, which costs ten times as much for a plain value."""
    if not label or isinstance(value, Absent):
        return parts.body
    if isinstance(value, str):
        return encode_basestring_ascii(value).encode("ascii")
    if value is None or isinstance(value, bool):
        return _WORDS[value]
    return b"%d" % value if isinstance(value, int) else canonical(value)


def _shown(parts: Parts, label: str) -> str:
    if not label:
        return "body"
    tokens = label[1:].split("/")
    if parts.form != "json" and not all(map(_is_plain, tokens)):
        return "body (a parameter whose name is not plain)"
    return "".join(("body ", *(f"/{_cut(token)}" for token in tokens)))


def _is_plain(token: str) -> bool:
    """Whether it is one, an empty step or an index of a list."""
    return not token or (len(token) <= _SHOWN and is_plain(token.encode("utf-8", "replace")))


def _cut(token: str) -> str:
    return token if len(token) <= _SHOWN else f"{token[:_SHOWN]}..."


def _digest(keyed: blake2b, tag: bytes, data: bytes) -> bytes:
    digest = keyed.copy()
    digest.update(tag + data)
    return digest.digest()


def _member(salt: bytes, name: str) -> bytes:
    return _label(salt, "/" + _token(name))


_cached_member = lru_cache(maxsize=_CACHED_LABELS)(_member)


def _label_digest(salt: bytes, label: str) -> bytes:
    return _cached(salt, label) if len(label) <= _CACHED_LABEL_LENGTH else _label(salt, label)


def _label(salt: bytes, label: str) -> bytes:
    # A lone surrogate is legal in a member's name (see canonical).
    encoded = label.encode("utf-8", "surrogatepass")
    return blake2b(encoded, key=salt, digest_size=_LABEL_BYTES, person=b"fg-label").digest()


_cached = lru_cache(maxsize=_CACHED_LABELS)(_label)


@lru_cache(maxsize=_CACHED_SALTS)
def _keyed(salt: bytes) -> blake2b:
    """Only ever copied: setting a keyed hash up costs three times what a copy does."""
    if len(salt) != SALT_BYTES:
        raise ValueError(f"a tenant's salt has {SALT_BYTES} bytes, not {len(salt)}")
    return blake2b(key=salt, digest_size=_VALUE_BYTES, person=b"fg-outline")


def _keyed_for(salt: bytes, key: str) -> blake2b:
    keyed = _keyed(salt).copy()
    keyed.update(key.encode("ascii") + b"\x00")  # a key holds no NUL, so it ends there
    return keyed
