"""The fields that may differ between a call through the gateway and a direct one.

The list is that of docs/wire.md, "What is passed up, and what is changed", and nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable

from tests.kit.upstream import Recorded

__all__ = ["REQUEST", "RESPONSE", "boundary_aside", "outside"]

REQUEST = {
    "host": "the upstream's name in place of the gateway's",
    "connection": "belongs to one connection",
    "keep-alive": "belongs to one connection",
    "te": "belongs to one connection",
    "trailer": "trailer fields are dropped",
    "transfer-encoding": "a body is read whole and sent with a length",
    "content-length": "sent anew",
    "expect": "the gateway asks the caller for the body itself",
    "authorization": "the caller's speaks to the gateway; the policy sets the upstream's",
    "idempotency-key": "many HTTP stacks resend by themselves what carries it",
    "x-execution-fence": "the gateway's own",
    "via": "added, so that loops are seen",
    "forwarded": "anybody can write it, so it is believed from trusted proxies only",
    "x-forwarded-for": "as Forwarded",
    "x-real-ip": "as Forwarded",
}

RESPONSE = {
    "connection": "belongs to one connection",
    "keep-alive": "belongs to one connection",
    "transfer-encoding": "belongs to one connection",
    "trailer": "trailer fields are dropped",
    "upgrade": "belongs to one connection",
    "content-length": "added where the body is whole and had none; none in a 204 and a 304",
    "date": "added where there was none",
    "idempotent-replayed": "what the answer says about itself",
    "gateway-outcome": "what the answer says about itself",
}

_Pairs = tuple[tuple[str, str], ...]


def outside(headers: Iterable[tuple[str, str]], documented: dict[str, str]) -> _Pairs:
    """The field lines outside the documented list, in order; names in lower case."""
    lower = ((name.lower(), value) for name, value in headers)
    return tuple(pair for pair in lower if pair[0] not in documented)


def boundary_aside(request: Recorded) -> tuple[_Pairs, bytes]:
    """A request's fields and body, with a fixed word for a boundary that is made anew each time."""
    fields = tuple((n.decode("latin-1"), v.decode("latin-1")) for n, v in request.headers)
    kind = (request.one("Content-Type") or b"").decode("latin-1")
    _, found, boundary = kind.partition("boundary=")
    if not found:
        return fields, request.body
    boundary = boundary.strip('"')
    plain = tuple((name, value.replace(boundary, "BOUNDARY")) for name, value in fields)
    return plain, request.body.replace(boundary.encode("latin-1"), b"BOUNDARY")
