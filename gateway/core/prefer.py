"""``Prefer: wait=N``: how long a caller will wait for a command in flight (RFC 7240 §4.3).

A preference is a wish: one that cannot be read is ignored, never refused (§2). Of several equal
names, over any number of lines, only the first counts (§2), also where it cannot be read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gateway.core.keys import OWS

__all__ = ["WAIT_CAP_S", "WAIT_DEFAULT_S", "parse_wait"]

WAIT_DEFAULT_S = 10.0
"""Longer than nearly every upstream call, shorter than the idle limits of common proxies."""

WAIT_CAP_S = 60.0
"""A waiter occupies memory and a socket; the usual idle limit of load balancers is 60 s."""

_DIGITS = frozenset(b"0123456789")


def parse_wait(lines: Sequence[bytes]) -> float:
    """Seconds, ``WAIT_DEFAULT_S`` where none is asked for, at most ``WAIT_CAP_S``."""
    for line in lines:
        for preference in _split(line, b","):
            # Parameters after a semicolon belong to the preference and change nothing here.
            name, equals, word = _split(preference, b";")[0].partition(b"=")
            if name.strip(OWS).lower() == b"wait":
                return _seconds(word.strip(OWS)) if equals else WAIT_DEFAULT_S
    return WAIT_DEFAULT_S


def _seconds(word: bytes) -> float:
    if len(word) > 2 and word[:1] == word[-1:] == b'"':
        word = word[1:-1]
    if not word or not _DIGITS.issuperset(word):
        return WAIT_DEFAULT_S
    digits = word.lstrip(b"0")
    # Nine digits are three decades; a longer number is the cap without being converted.
    return WAIT_CAP_S if len(digits) > 9 else min(float(int(digits or b"0")), WAIT_CAP_S)


def _split(line: bytes, separator: bytes) -> list[bytes]:
    """The parts between separators that stand outside quoted strings (RFC 9110 §5.6.4)."""
    return list(_parts(line, separator))


def _parts(line: bytes, separator: bytes) -> Iterator[bytes]:
    start, quoted, escaped = 0, False, False
    for at in range(len(line)):
        char = line[at : at + 1]
        if escaped:
            escaped = False
        elif quoted and char == b"\\":
            escaped = True
        elif char == b'"':
            quoted = not quoted
        elif char == separator and not quoted:
            yield line[start:at]
            start = at + 1
    yield line[start:]
