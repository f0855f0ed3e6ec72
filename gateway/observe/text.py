"""Text from outside, made safe to show: one event is one line, and nothing in it is obeyed."""

from __future__ import annotations

__all__ = ["one_line"]


def one_line(text: str) -> str:
    r"""``text`` with everything that is not printable written as an escape (``\n``, ``\x1b``).

    That covers line ends of every kind, terminal controls, marks that turn the direction of
    writing, and lone surrogates. A backslash is doubled, so an escape cannot be forged.
    """
    if text.isprintable() and "\\" not in text:
        return text
    return "".join(map(_escape, text))


def _escape(char: str) -> str:
    if char == "\\" or not char.isprintable():
        return char.encode("unicode_escape").decode("ascii")
    return char
