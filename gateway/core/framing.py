"""What a request's head must be, beyond what the server's parser sees to, so that nobody on the way
can have read another request than we do.

Each check gives one sentence that says what to send, or ``None`` where all is well. Names are in
lower case, as the server hands them on.
"""

from __future__ import annotations

from gateway.core.headers import values
from gateway.core.model import Headers

__all__ = ["check_head", "has_body"]

_VERSIONS = ("1.0", "1.1")
_NOT_IN_A_HOST = frozenset(b" \t,/@")


def check_head(version: str, headers: Headers, target: bytes) -> str | None:
    """What is wrong with a head that was read whole. ``version``: as in ``HTTP/1.1``, digits and
    point alone; ``target``: as it stood in the request line."""
    return (
        _check_version(version)
        or _check_target(target)
        or _check_host(version, headers)
        or _check_coding(version, headers)
    )


def has_body(headers: Headers) -> bool:
    """Whether a head that can be framed at all announces a body (RFC 9112 §6.3)."""
    lengths = _values(headers, b"content-length")
    return bool(_values(headers, b"transfer-encoding")) or any(each != b"0" for each in lengths)


def _check_version(version: str) -> str | None:
    """RFC 9112 §2.3. The parser also takes 0.9, even where no version is named, and 2.0."""
    return None if version in _VERSIONS else "Send HTTP/1.1: no other version is spoken here."


def _check_target(target: bytes) -> str | None:
    """No form of a target has a fragment (RFC 9112 §3.2); the server would cut it off unseen."""
    return "Send the target without a #, or encode it as %23." if b"#" in target else None


def _check_host(version: str, headers: Headers) -> str | None:
    """RFC 9112 §3.2: a missing, a repeated and an invalid one are each a 400."""
    hosts = _values(headers, b"host")
    if len(hosts) > 1 or (not hosts and version != "1.0"):
        return "Send exactly one Host field."
    if hosts and (not hosts[0] or not _NOT_IN_A_HOST.isdisjoint(hosts[0])):
        return "Send a Host field that is one host, with a port or without."
    return None


def _check_coding(version: str, headers: Headers) -> str | None:
    """A coding before ``chunked`` would be passed up as if it were the body. Beside a length, or
    in HTTP/1.0, two readers may see two different messages (RFC 9112 §6.1)."""
    codings = _values(headers, b"transfer-encoding")
    if not codings:
        return None
    if [coding.lower() for coding in codings] != [b"chunked"]:
        return "Send the body with Content-Length, or with Transfer-Encoding: chunked alone."
    if version == "1.0" or _values(headers, b"content-length"):
        return "Send Transfer-Encoding in HTTP/1.1 only, and no Content-Length beside it."
    return None


def _values(headers: Headers, name: bytes) -> list[bytes]:
    """Without the blanks around them, which are no part of a value (RFC 9112 §5.1)."""
    return [value.strip(b" \t") for value in values(headers, name)]
