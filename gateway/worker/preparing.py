"""A request of ``job.http``, made whole and looked over before anything of it is sent.

What is wrong here would be wrong in every attempt: it is ``Misuse``, and its text holds no values.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

import httpx

from gateway.core.headers import folded
from gateway.core.leases import DRIFT, LeaseClass
from gateway.worker.errors import Misuse
from gateway.worker.trust import usual_timeout_s

__all__ = ["SAFE", "Prepared", "check_step", "prepare"]

SAFE = frozenset({"GET", "HEAD", "OPTIONS"})

_STEP = re.compile(r"[A-Za-z0-9._-]{1,64}")

_KEYWORDS = ("json", "data", "files", "content", "params", "headers")

_CONTROL = frozenset(
    {
        b"authorization",
        b"idempotency-key",
        b"x-execution-fence",
        b"x-execution-entity",
        b"x-request-id",
    }
)

# How a message is framed, and what holds for one connection (RFC 9110 §7.6.1), is the sender's.
_FRAMING = frozenset(
    {
        b"connection",
        b"content-length",
        b"expect",
        b"host",
        b"http2-settings",
        b"keep-alive",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    }
)

# RFC 9110 §5.1, §5.5 and §9.1.
_TOKEN = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_VALUE = re.compile(rb"(?:[\x21-\x7e\x80-\xff](?:[\t\x20-\x7e\x80-\xff]*[\x21-\x7e\x80-\xff])?)?")

_LONGEST_S = 86_400


@dataclass(frozen=True, slots=True)
class Prepared:
    """A request with its bytes. ``step``: where it has one, it is a command, and carries a key and
    the fence."""

    request: httpx.Request
    body: bytes
    step: str | None
    timeout_s: float

    @property
    def digest(self) -> bytes:
        """Of what makes it the same command. A multipart body is cut by a boundary that is drawn
        anew each time; the gateway compares its parts."""
        kind = self.request.headers.get("Content-Type", "")
        multipart = kind.startswith("multipart/")
        digest = sha256(f"{self.request.method} {self.request.url}\n".encode())
        digest.update(b"" if multipart else self.body)
        return digest.digest()

    def fresh(self, trace: Callable[[str, object], object]) -> httpx.Request:
        """The same request, for one try."""
        return httpx.Request(
            self.request.method,
            self.request.url,
            headers=self.request.headers,
            content=self.body,
            extensions={"trace": trace},
        )


def check_step(step: object) -> None:
    if not isinstance(step, str) or not _STEP.fullmatch(step):
        raise Misuse(f"step {step!r} is not 1 to 64 of A-Z a-z 0-9 . _ -")


def prepare(
    client: httpx.AsyncClient,
    method: str,
    path: str,
    *,
    step: str | None,
    timeout_s: float | None,
    control: Mapping[str, str],
    content: Mapping[str, Any],
    terms: LeaseClass,
) -> Prepared:
    """``control``: the fields that the request gets of us. Raises ``Misuse``."""
    method = _method_of(method, step)
    within_s = _timeout_of(timeout_s, step, terms)
    _check_target(path, client.base_url)
    _check_content(content)
    try:
        headers = httpx.Headers(content.get("headers"))
        _check_headers(headers)
        headers.update(control)
        request = client.build_request(method, path, **{**content, "headers": headers})
        body = request.read()
    except Misuse:
        raise
    except (TypeError, ValueError, AttributeError, RuntimeError, httpx.InvalidURL) as error:
        # Its own text may hold a value; the job's error has it, as the cause.
        raise Misuse(
            f"a request cannot be built of what job.http was given ({type(error).__name__}, told "
            "with the job's error)"
        ) from error
    # A file of unknown length would come in chunks; its bytes are here now.
    for name in ("Content-Length", "Transfer-Encoding"):
        request.headers.pop(name, None)
    return Prepared(request, body, step, within_s)


def _method_of(given: object, step: str | None) -> str:
    method = given.upper() if isinstance(given, str) and given.isascii() else ""
    if not _TOKEN.fullmatch(method.encode()) or method == "CONNECT":
        raise Misuse("the method is none, such as POST")
    if step is not None:
        check_step(step)
    elif method not in SAFE:
        raise Misuse(f'{method} changes something, so it needs a name: step="…"')
    return method


def _timeout_of(timeout_s: object, step: str | None, terms: LeaseClass) -> float:
    usual_s = usual_timeout_s(terms)
    if timeout_s is None:
        return usual_s
    if not isinstance(timeout_s, int | float) or not 0 < timeout_s <= _LONGEST_S:
        raise Misuse(f"timeout_s={timeout_s!r} is no number of seconds from 0 to {_LONGEST_S}")
    longest_s = terms.lease_s * (1 - DRIFT)
    if step is not None and timeout_s >= longest_s:
        raise Misuse(
            f"timeout_s={timeout_s:g} never fits into a lease: lease_s is {terms.lease_s:g}, of "
            f"which {longest_s:g} s can be trusted. Give at most {usual_s:g}, or raise lease_s in "
            "tools.toml"
        )
    return float(timeout_s)


def _check_target(path: object, base: httpx.URL) -> None:
    if not isinstance(path, str):
        raise Misuse(f"the path is a {type(path).__name__}, not a text")
    try:
        target = httpx.URL(path)
    except httpx.InvalidURL as error:
        raise Misuse("the path cannot be read as one; encode what is in it") from error
    elsewhere = (target.scheme, target.host, target.port) != (base.scheme, base.host, base.port)
    if target.userinfo or ((target.host or target.scheme) and elsewhere):
        raise Misuse(
            f"job.http sends to the gateway at {base} only; give a path such as "
            "/payments/v1/charges"
        )
    if not target.host and not path.startswith("/"):
        raise Misuse("the path is none; begin it with / and the upstream's mount")


def _check_content(content: Mapping[str, Any]) -> None:
    if unknown := sorted(content.keys() - set(_KEYWORDS)):
        raise Misuse(f"job.http takes no {unknown[0]!r}; it takes {', '.join(_KEYWORDS)}")
    if not isinstance(content.get("content") or b"", bytes | str):
        raise Misuse("content= is kept whole to be repeated; give bytes or str")
    if not isinstance(content.get("data") or {}, Mapping):
        raise Misuse("data= is a form, as a dict; give bytes or str as content=")


def _check_headers(headers: httpx.Headers) -> None:
    for name, value in headers.raw:
        told = name.decode("latin-1")
        if not _TOKEN.fullmatch(name):
            raise Misuse(f"{told!r} is no name of a header")
        # A name that some servers take for one of ours (`Idempotency_Key`) would be refused later.
        if folded(name) in _CONTROL:
            raise Misuse(f"{told!r} is set by job.http; leave it out")
        if folded(name) in _FRAMING:
            raise Misuse(f"{told!r} is the connection's, and set by job.http; leave it out")
        if not _VALUE.fullmatch(value):
            raise Misuse(
                f"the value of {told!r} is none: it has control characters, or blanks around"
            )
