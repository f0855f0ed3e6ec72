"""The target of a request line, taken apart."""

from __future__ import annotations

import httptools

__all__ = ["split_target"]


def split_target(target: bytes) -> tuple[bytes, bytes]:
    """Path and query of a target as it came, in origin form or absolute. Raises ``ValueError``
    where it is neither."""
    try:
        found = httptools.parse_url(target)
    except httptools.HttpParserInvalidURLError as error:
        raise ValueError("the target is no URL") from error
    if found.path is None:
        raise ValueError("the target names no path")
    return found.path, found.query or b""
