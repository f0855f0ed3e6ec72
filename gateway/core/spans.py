"""Parts of a JSON document as they were sent, byte for byte.

``canonical.read_json`` says what a document means; writing that again would lose how numbers,
escapes and white space were spelled. So what somebody sent to be kept is cut out of the bytes.
Only for documents that ``read_json`` took: of others nothing is promised.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterator
from json import JSONDecoder

__all__ = ["slices"]

_BLANK = re.compile(r"[ \t\n\r]*")

# Numbers stay text: int() refuses more than 4,300 digits, and their value is not asked for.
_SKIP = JSONDecoder(parse_int=str, parse_float=str, object_pairs_hook=len)


def slices(raw: bytes, outer: str, inner: Container[str]) -> list[dict[str, bytes]]:
    """Of each element of the array ``outer`` in the object that ``raw`` is, the members named in
    ``inner`` that it has; an element that is no object has none. Empty without such an array.

    Each value is passed over once, by the decoder in C.
    """
    cursor = _Cursor(raw.decode("utf-8"))
    found: list[dict[str, bytes]] = []
    if cursor.peek() != "{":
        return found
    for name in cursor.members():
        if name == outer and cursor.peek() == "[":
            found = [_element(cursor, inner) for _ in cursor.elements()]
    return found


def _element(cursor: _Cursor, inner: Container[str]) -> dict[str, bytes]:
    if cursor.peek() != "{":
        return {}
    return {name: cursor.cut() for name in cursor.members() if name in inner}


class _Cursor:
    """A place in the text, always before a value or a mark (never before white space)."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._blank()

    def peek(self) -> str:
        return self._text[self._at]

    def members(self) -> Iterator[str]:
        """Names of an object's members, each with the cursor before its value. A value that was
        not taken by then is passed over."""
        for _ in self._items("}"):
            name = self._value()
            self._mark()
            before = self._at
            yield str(name)
            if self._at == before:
                self._value()

    def elements(self) -> Iterator[None]:
        """An array's elements, as ``members`` does."""
        for _ in self._items("]"):
            before = self._at
            yield None
            if self._at == before:
                self._value()

    def cut(self) -> bytes:
        """The value here, as it was sent."""
        start = self._at
        _, end = _SKIP.raw_decode(self._text, start)
        self._move(end)
        return self._text[start:end].encode("utf-8")

    def _items(self, close: str) -> Iterator[None]:
        self._mark()
        if self.peek() == close:
            self._mark()
            return
        while True:
            yield None
            if self._mark() == close:
                return

    def _value(self) -> object:
        value, end = _SKIP.raw_decode(self._text, self._at)
        self._move(end)
        return value

    def _mark(self) -> str:
        mark = self._text[self._at]
        self._move(self._at + 1)
        return mark

    def _move(self, to: int) -> None:
        self._at = to
        self._blank()

    def _blank(self) -> None:
        match = _BLANK.match(self._text, self._at)
        assert match is not None  # it matches nothing, too
        self._at = match.end()
