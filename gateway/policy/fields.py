"""Checks of single fields of a policy file, each with a sentence that says how to mend it.

They raise ``Wrong``, which pydantic collects with every other mistake of the file.
"""

from __future__ import annotations

import contextlib
import ipaddress
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal
from urllib.parse import urlsplit

from pydantic_core import PydanticCustomError

from gateway.core.canonical import parse_pointer
from gateway.core.egress import network
from gateway.core.forwarded import is_forwarding
from gateway.core.headers import folded
from gateway.policy.matcher import PatternError, check_path, parse_pattern
from gateway.policy.probes import TargetError, parse_target
from gateway.policy.templates import Placeholder, TemplateError, parse

__all__ = [
    "FIXED",
    "FIXED_PATHS",
    "MAX_KEEP",
    "Address",
    "address",
    "choice",
    "compared_name",
    "header_name",
    "is_own",
    "keep",
    "mount",
    "network_text",
    "pattern",
    "pointer",
    "probe_target",
    "sent_name",
    "size",
    "slug",
    "template",
    "upstream_url",
    "wrong",
]

FIXED_PATHS = frozenset(
    {"/healthz", "/readyz", "/metrics", "/openapi.json", "/v1/evidence", "/v1/fences"}
)
"""What the gateway answers itself, beside the routes of jobs."""

# Any plain word may stand for a job's id; what is percent-encoded is no path of ours.
_JOBS = re.compile(r"/v1/jobs(?:/[0-9A-Za-z._-]{1,64}(?:/cancel|/retry|/approve)?)?")


def is_own(raw_path: str) -> bool:
    """Whether the gateway answers a path itself; as it came, never decoded."""
    return raw_path in FIXED_PATHS or _JOBS.fullmatch(raw_path) is not None


FIXED = frozenset({"healthz", "readyz", "metrics", "openapi.json", "v1", "console"})
"""First segments of the gateway's own paths."""

# Framing and connection fields are the gateway's own business (RFC 9110 §7.6.1, RFC 9112 §6).
_UNSETTABLE = frozenset(
    {
        "connection",
        "content-encoding",
        "content-length",
        "expect",
        "host",
        "http2-settings",
        "keep-alive",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
        "via",
    }
)

# A content coding is the command's, the rest is not.
_UNREADABLE = _UNSETTABLE - {"content-encoding", "via"}

_CREDENTIALS = frozenset({"authorization", "cookie"})

MAX_KEEP = 16 * 2**20
"""Bytes of a recorded body: what a slow line to the database carries within one statement (2 s)."""

_TOKEN = re.compile(r"[A-Za-z0-9!#$%&'*+.^`|~-]{1,100}")
_SLUG = re.compile(r"[a-z0-9](?:[a-z0-9_-]{0,62}[a-z0-9])?")
_MOUNT_SEGMENT = re.compile(r"[A-Za-z0-9_~-][A-Za-z0-9._~-]*")
_SIZE = re.compile(r"([0-9]{1,12}) ?(B|KiB|MiB|GiB)")
_UNITS = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
_LABEL = re.compile(r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?")


def wrong(problem: str, mend: str) -> PydanticCustomError:
    """A mistake and its mend, for pydantic to collect."""
    return PydanticCustomError("policy", "{problem}", {"problem": problem, "mend": mend})


def slug(text: str) -> str:
    """A name that is safe in logs, metrics and on the command line."""
    if not _SLUG.fullmatch(text):
        raise wrong(
            f"{text!r} is not a usable name",
            "use 1 to 64 lower-case letters, digits, inner dashes and underscores",
        )
    return text


def mount(text: str) -> str:
    """A path prefix of at least one plain segment, none of the gateway's own."""
    if not text.startswith("/"):
        raise wrong(f"{text!r} does not begin with a slash", 'write e.g. "/payments"')
    segments = text[1:].split("/")
    if segments == [""]:
        raise wrong('"/" would cover the gateway\'s own paths', 'write e.g. "/payments"')
    if segments[-1] == "":
        raise wrong(f"{text!r} ends with a slash", "leave the last slash out")
    if not all(_MOUNT_SEGMENT.fullmatch(segment) for segment in segments):
        raise wrong(
            f"{text!r} has a segment that is empty or not plain",
            "use letters, digits, dash, dot, underscore and tilde, not beginning with a dot",
        )
    if segments[0].lower() in FIXED:
        raise wrong(f"/{segments[0]} is one of the gateway's own paths", "mount it somewhere else")
    return text


@dataclass(frozen=True, slots=True)
class Address:
    """An upstream URL, taken apart. ``host`` without brackets; ``base`` without a last slash."""

    scheme: Literal["http", "https"]
    host: str
    port: int
    authority: str
    base: str


def upstream_url(text: str) -> str:
    """A URL that ``address`` can take apart."""
    address(text)
    return text


def address(text: str) -> Address:
    """Scheme, host, port and base path of ``text``; nothing else may be in it."""
    scheme, colon, rest = text.partition("://")
    if not colon or scheme not in ("http", "https"):
        raise wrong("is not an http or https URL", 'write e.g. "https://payments.example"')
    if not text.isascii() or not text.isprintable() or " " in text:
        raise wrong("holds a blank or non-ASCII character", "write an international name as xn--…")
    if "@" in rest.partition("/")[0]:
        raise wrong("holds credentials", "put them under upstream_headers, as ${VARIABLE}")
    if "?" in rest or "#" in rest:
        raise wrong("holds a query or fragment", "write scheme, host and base path only")
    try:
        parts = urlsplit(text)
        host, port = parts.hostname or "", parts.port
    except ValueError:
        raise wrong(
            "has no usable host or port", 'write e.g. "https://payments.example:8443"'
        ) from None
    bracketed = ":" in host
    shown = f"[{host}]" if bracketed else host
    behind = parts.netloc.lower().removeprefix(shown)
    if port == 0 or not _is_host(host) or not re.fullmatch("(:[0-9]{1,5})?", behind):
        raise wrong("has no usable host or port", 'write e.g. "https://payments.example:8443"')
    if _is_number(host):
        raise wrong(
            "names its host by a number in an unusual form",
            "write an IPv4 address as four decimal numbers, e.g. 127.0.0.1",
        )
    base = parts.path.rstrip("/")
    if base and check_path(base.encode("ascii")) is not None:
        raise wrong(
            "has a base path that no request could have",
            "leave out empty, dot and encoded-slash segments",
        )
    kind: Literal["http", "https"] = "https" if scheme == "https" else "http"
    default = 443 if kind == "https" else 80
    authority = shown if port in (None, default) else f"{shown}:{port}"
    return Address(kind, host, port or default, authority, base)


def _is_number(host: str) -> bool:
    """Whether resolvers take it for an address, which readers of the policy may not see: ``127.1``,
    ``0x7f000001``, ``0177.0.0.1``."""
    last = host.rpartition(".")[2]
    if ":" in host or not re.fullmatch("[0-9]+|0x[0-9a-f]*", last):
        return False
    try:
        ipaddress.IPv4Address(host)
    except ValueError:
        return True
    return False


def _is_host(host: str) -> bool:
    """Whether the client can be made for it: a name without a last dot, or an address without a
    zone."""
    if ":" in host:
        with contextlib.suppress(ValueError):
            return ipaddress.IPv6Address(host).scope_id is None
        return False
    return len(host) <= 253 and all(_LABEL.fullmatch(label) for label in host.split("."))


def network_text(text: str) -> str:
    """A network that ``network`` takes."""
    try:
        network(text)
    except ValueError:
        mend = 'write e.g. "10.0.0.0/8" or "10.1.2.3"'
        with contextlib.suppress(ValueError):
            mend = f'write "{ipaddress.ip_network(text, strict=False)}"'
        raise wrong(f"{text!r} is not a network", mend) from None
    return text


def header_name(text: str) -> str:
    """A field name that a policy may set or read. Underscores are refused: many stacks read them
    as dashes (RFC 9110 §17.10)."""
    if not _TOKEN.fullmatch(text):
        raise wrong(
            f"{text!r} is not a usable field name", "use letters, digits and dashes, e.g. X-Trace"
        )
    if _is_of_connection(text, _UNSETTABLE):
        raise wrong(f"{text} belongs to the connection, not to a command", "remove it")
    return text


def compared_name(text: str) -> str:
    """A field name that a fingerprint may cover."""
    if is_forwarding(header_name(text).encode("ascii")):
        raise wrong(
            f"{text} says where a request came from, which may change from one try to the next",
            "remove it",
        )
    return text


def sent_name(text: str) -> str:
    """A field name under which the gateway may send a value of its own."""
    name = _folded(header_name(text))
    if name in _CREDENTIALS or name == "date" or name.startswith("content-"):
        raise wrong(
            f"{text} means something else to every upstream",
            'use the name that yours documents, e.g. "Idempotency-Key", or a new one',
        )
    return text


def _is_of_connection(name: str, fixed: frozenset[str]) -> bool:
    lower = _folded(name)
    return lower in fixed or lower.startswith("proxy-")


def _folded(name: str) -> str:
    return folded(name.encode("ascii")).decode("ascii")


def pattern(text: str) -> str:
    """A match that ``parse_pattern`` takes."""
    try:
        parse_pattern(text)
    except PatternError as error:
        raise wrong(error.problem, error.mend) from None
    return text


def template(text: str) -> str:
    """A template that ``parse`` takes, and that reads no field which says nothing about a command
    or ends at this hop, so that an upstream could not read the same."""
    try:
        parsed = parse(text)
    except TemplateError as error:
        raise wrong(error.problem, error.mend) from None
    _check_read(parsed.placeholders)
    return text


def probe_target(text: str) -> str:
    """A status query that ``parse_target`` takes, and that reads what a template may read."""
    try:
        parsed = parse_target(text)
    except TargetError as error:
        raise wrong(error.problem, error.mend) from None
    _check_read(parsed.placeholders)
    return text


def _check_read(placeholders: Iterable[Placeholder]) -> None:
    for place in placeholders:
        problem = _unreadable(place.name) if place.source == "header" else None
        if problem is not None:
            raise wrong(f"{place.text} {problem}", "read the path, the body or another field")


def _unreadable(name: str) -> str | None:
    lower = _folded(name)
    if lower in _CREDENTIALS:
        return "is a credential, which would stand in records and logs"
    if lower == "date":
        return "is another at every attempt"
    if is_forwarding(name.encode("ascii")):
        return "says where a request came from, which anybody may write, and may change"
    if _is_of_connection(name, _UNREADABLE):
        return "belongs to the connection, not to a command"
    return None


def pointer(text: str) -> str:
    """A JSON pointer below the document."""
    if not parse_pointer(text):
        raise wrong(
            f"{text!r} is not a JSON pointer to a member (RFC 6901)", 'write e.g. "/metadata/id"'
        )
    return text


def size(value: object) -> object:
    """Bytes, from ``"8 MiB"`` or a plain number."""
    if not isinstance(value, str):
        return value
    match = _SIZE.fullmatch(value)
    if match is None:
        raise wrong(f"{value!r} is not a size", 'write e.g. "8 MiB" (B, KiB, MiB or GiB)')
    return int(match[1]) * _UNITS[match[2]]


def keep(size: int) -> int:
    """Bytes of a response body that one statement can record."""
    if size > MAX_KEEP:
        raise wrong(
            "is above 16 MiB, and a recorded body must fit into one statement of 2 s on a slow "
            "line to the database",
            'write at most "16 MiB"; a larger response is relayed and not replayed',
        )
    return size


def choice(*now: str, later: tuple[str, ...] = ()) -> Callable[[object], object]:
    """One of ``now``; those in ``later`` are known, and not in this release."""
    mend = "use " + " or ".join(f'"{word}"' for word in now)

    def check(value: object) -> object:
        if value in now:
            return value
        if isinstance(value, str) and value in later:
            raise wrong(f'"{value}" is not in this release', mend)
        raise wrong(f"{value!r} is not a choice", mend)

    return check
