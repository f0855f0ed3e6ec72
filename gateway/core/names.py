"""Names of parameters and parts: which all readers take alike, and which two meet in some reader.

Frameworks make one name of many. PHP takes ``a.b`` for ``a_b`` and cuts at NUL, Rack and qs find a
``customer`` in ``[customer]``, others strip blanks. Such a list never ends, so wherever a name is
acted on, only *plain* names are sure: a root of letters, digits and ``_.:@$~-``, behind it steps of
the same characters in brackets, which may be empty.
"""

from __future__ import annotations

import re

from gateway.core.headers import folded

__all__ = ["MAX_LEVELS", "alike", "hides_method", "is_plain", "says_method", "steps"]

MAX_LEVELS = 32
"""Of one name, its root among them: where Rack stops. Far from the recursion limit, too."""

_PLAIN = re.compile(
    rb"([A-Za-z0-9_.:@$~-]++)((?:\[[A-Za-z0-9_.:@$~-]*+\]){0,%d})" % (MAX_LEVELS - 1)
)

# Decoded or not. It begins with few bytes, so that a search is quick.
_METHOD = re.compile(
    rb"[_.%](?:(?<!%)|5[fF]|2[eE])(?:[mM]|%[46][dD])(?:[eE]|%[46]5)(?:[tT]|%[57]4)"
    rb"(?:[hH]|%[46]8)(?:[oO]|%[46][fF])(?:[dD]|%[46]4)(?![A-Za-z0-9_])"
)
# Behind a letter or a digit it is part of another word, such as payment_method.
_IN_A_WORD = re.compile(rb"(?<=[A-Za-z0-9])(?<!%[0-9A-Fa-f]{2})")
# A name in pieces (RFC 2231), as a MIME word (RFC 2047) or with a backslash may be any name.
# Up to the next such name, which is looked at for itself: no input makes it read on from each.
_VEILED = re.compile(
    rb"(?<![a-z])name(?:\*[0-9]"
    rb"|\*?=\"?(?:=\?|(?:(?!(?<![a-z])name\*?=)[^\";\\])*+\\))",
    re.IGNORECASE,
)


def is_plain(name: bytes) -> bool:
    """Whether all readers take the name, and what it is nested in, alike."""
    return _PLAIN.fullmatch(name) is not None


def steps(name: bytes) -> list[bytes] | None:
    """The root of a plain name and what stands in its brackets; ``None`` for any other."""
    match = _PLAIN.fullmatch(name)
    if match is None:
        return None
    root, rest = match.groups()
    return [root, *rest[1:-1].split(b"][")] if rest else [root]


def alike(one: bytes, other: bytes) -> bool:
    """Whether some reader takes one plain name for the other, or one for what the other is nested
    in; true where one of them is not plain."""
    first, second = steps(one), steps(other)
    if first is None or second is None:
        return True
    return _meet(first, second) or _meet(_dotted(first), _dotted(second))


def says_method(name: bytes) -> bool:
    """Whether some reader takes the parameter for ``_method``, by which Rack, Symfony, Laravel and
    Express change the method of a request."""
    whole = steps(name)
    if whole is not None:
        return whole[0].lower().replace(b".", b"_") == b"_method"
    return hides_method(name)


def hides_method(text: bytes, *, is_head: bool = False) -> bool:
    """Whether ``_method`` stands anywhere in what has no sure names, decoded or not. ``is_head``:
    in header lines of a part, where a name may be written in ways that do not show it."""
    found = (_IN_A_WORD.match(text, match.start()) for match in _METHOD.finditer(text))
    return None in found or (is_head and _VEILED.search(text) is not None)


def _dotted(whole: list[bytes]) -> list[bytes]:
    """As readers see it to whom a dot nests."""
    return [step for part in whole for step in part.strip(b".").split(b".")]


def _meet(first: list[bytes], second: list[bytes]) -> bool:
    """As far as both go. An empty step is the next free index, whichever that is."""
    pairs = zip(first, second, strict=False)
    return all(not one or not other or folded(one) == folded(other) for one, other in pairs)
