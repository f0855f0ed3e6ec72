"""What a request's head must be, beyond what the server's parser sees to, so that nobody on the way
can have read another request than we do.

Each check gives one sentence that says what to send, or ``None`` where all is well. Names are in
lower case, as the server hands them on.
"""

from __future__ import annotations

import re

from gateway.core.headers import nominated, values
from gateway.core.model import Headers

__all__ = [
    "HEAD_LIMIT",
    "HOST",
    "LINES_LIMIT",
    "NO_UPGRADE",
    "TOO_LONG",
    "TOO_MANY",
    "UNREADABLE",
    "check_head",
    "check_message",
    "check_request_line",
    "expects_continue",
    "has_body",
]

HEAD_LIMIT = 64 * 1024
"""Bytes of a request's head; nginx takes 32 KiB, Node 16 KiB, and keys are at most 255 bytes. Also
of what comes behind it and is no body: trailers, chunk extensions (RFC 9112 §7.1.1, §7.1.2)."""

LINES_LIMIT = 256
"""Header lines of a head; Apache takes 100, and clients send 30. Each costs some 120 bytes beside
its own, so that 64 KiB of the shortest would occupy more than a mebibyte."""

UNREADABLE = "Send well-formed HTTP/1.1: this request cannot be read."
TOO_LONG = (
    f"Send a head of at most {HEAD_LIMIT} bytes, and no more than that behind it in trailers or"
    " chunk extensions."
)
TOO_MANY = f"Send a head of at most {LINES_LIMIT} header lines."
NO_UPGRADE = "Send it without Upgrade: this gateway speaks HTTP/1.1 only."

_METHOD_LIMIT = 32
"""Letters of a method; the longest registered one has 17."""
_LENGTH = re.compile(rb"[0-9]{1,19}")

_VERSIONS = ("1.0", "1.1")

# RFC 9110 §7.2, RFC 3986 §3.2.2: a name or address, in brackets if it is of IPv6, and a port. No
# comma, though the grammar has it: it may be two fields that a proxy joined.
HOST = re.compile(
    rb"(?:\[[0-9A-Fa-f:.]+\]|(?:[A-Za-z0-9._~!$&'()*+;=-]|%[0-9A-Fa-f]{2})+)(?::[0-9]*)?"
)
_ABSOLUTE = re.compile(rb"https?://([^/?]*)[/?]", re.IGNORECASE)


def check_head(version: str, headers: Headers, target: bytes) -> str | None:
    """What is wrong with a head that was read whole. ``version``: as in ``HTTP/1.1``, digits and
    point alone; ``target``: as it stood in the request line."""
    return (
        _check_version(version)
        or _check_target(target)
        or _check_host(version, headers)
        or _check_authority(target, headers)
        or _check_coding(version, headers)
        or _check_length(headers)
    )


def check_request_line(line: bytes, read: bytes) -> str | None:
    """Whether ``line``, as the parser understood it, is what was read. It takes several blanks for
    one, other protocols for HTTP, and a bare CR or LF for an empty line (RFC 9112 §2.2, §3).

    ``read``: everything from the end of the message before up to that of the head.
    """
    before, found, _ = read.partition(line)
    return UNREADABLE if not found or before.replace(b"\r\n", b"") else None


def check_message(method: str, target: bytes, headers: Headers, size: int) -> str | None:
    """What the server finds wrong while it reads a request with a body of ``size`` bytes; beyond
    ``check_head``, for whoever has the request but no server."""
    lengths = _values(headers, b"content-length")
    if len(method) > _METHOD_LIMIT or len(lengths) > 1:
        return UNREADABLE
    if lengths and not _LENGTH.fullmatch(lengths[0]):
        return UNREADABLE
    lines = sum(len(name) + len(value) + len(": \r\n") for name, value in headers)
    if len(method) + len(target) + lines + len("  HTTP/1.1\r\n\r\n") > HEAD_LIMIT:
        return TOO_LONG
    if len(headers) > LINES_LIMIT:
        return TOO_MANY
    upgrades = values(headers, b"upgrade") and b"upgrade" in nominated(headers)
    if upgrades and has_body(headers):
        return NO_UPGRADE
    if lengths and int(lengths[0]) != size:
        return f"Send the Content-Length that the body has, {size}, or leave it to your client."
    return None


def has_body(headers: Headers) -> bool:
    """Whether a head that can be framed at all announces a body (RFC 9112 §6.3)."""
    lengths = _values(headers, b"content-length")
    return bool(_values(headers, b"transfer-encoding")) or any(each != b"0" for each in lengths)


def expects_continue(version: str, headers: Headers) -> bool:
    """Whether the caller waits for ``100 Continue`` (RFC 9110 §10.1.1): never one that speaks
    HTTP/1.0, and none that has no body to send."""
    if version == "1.0" or not has_body(headers):
        return False
    members = b",".join(values(headers, b"expect")).lower().split(b",")
    return any(member.strip(b" \t") == b"100-continue" for member in members)


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
    if hosts and not HOST.fullmatch(hosts[0]):
        return "Send a Host field that is one host, with a port or without."
    return None


def _check_authority(target: bytes, headers: Headers) -> str | None:
    """Absolute form is for all servers to take (RFC 9112 §3.2.2). One reader goes by its host, the
    other by the field, so they must agree; nothing is fetched from there in any case."""
    if target.startswith(b"/") or b"://" not in target:
        return None
    found = _ABSOLUTE.match(target)
    hosts = _values(headers, b"host")
    if found is None or not hosts or found[1].lower() != hosts[0].lower():
        return "Send the path alone, or an http or https URL with the host that Host names."
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


def _check_length(headers: Headers) -> str | None:
    """The parser takes any number of zeros in front, and so many digits that Python refuses to read
    them. 2^63 has 19."""
    if all(_LENGTH.fullmatch(length) for length in _values(headers, b"content-length")):
        return None
    return "Send a Content-Length of 1 to 19 digits."


def _values(headers: Headers, name: bytes) -> list[bytes]:
    """Without the blanks around them, which are no part of a value (RFC 9112 §5.1)."""
    return [value.strip(b" \t") for value in values(headers, name)]
