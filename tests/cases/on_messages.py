"""Further inputs: fields, bodies, framing, and what clients do by themselves."""

from __future__ import annotations

from tests.cases.driver import Case
from tests.cases.steps import (
    ACCOUNT,
    CREATED,
    LISTS,
    Step,
    answers,
    applied,
    case,
    http,
    nothing,
    refused,
    replayed,
)

__all__ = ["CASES"]

# -- duplicate-and-multi-valued-headers


def _doubled(*lines: str, name: str = "X-Execution-Fence") -> Step:
    return http(fence=None, fields=[(name, line) for line in lines])


MULTI = [
    nothing("MULTI-03", "equal-lines", _doubled("42", "42"), 400, "fence-invalid"),
    nothing(
        "MULTI-03", "other-case", http(fields=[("x-execution-fence", "99")]), 400, "fence-invalid"
    ),
    nothing("MULTI-03", "comma-without-blank", _doubled("41,42"), 400, "fence-invalid"),
    nothing("MULTI-03", "trailing-comma", _doubled("42,"), 400, "fence-invalid"),
    nothing("MULTI-03", "empty-second-line", _doubled("42", ""), 400, "fence-invalid"),
    nothing("MULTI-03", "three-lines", _doubled("1", "2", "3"), 400, "fence-invalid"),
    nothing("MULTI-03", "two-keys", http(fields=[("Idempotency-Key", "k-2")]), 400, "key-invalid"),
    nothing(
        "MULTI-03", "equal-keys", http(fields=[("idempotency-key", "k-1")]), 400, "key-invalid"
    ),
    nothing("MULTI-03", "joined-keys", http(key="k-1, k-2"), 400, "key-invalid"),
    nothing(
        "MULTI-03",
        "two-entities",
        http(fields=[("X-Execution-Entity", ACCOUNT), ("X-Execution-Entity", ACCOUNT)]),
        *(400, "request-invalid"),
    ),
    nothing(
        "MULTI-03",
        "two-lines-that-make-the-entity",
        http(path="/v1/by-field", fields=[("X-Account", "a"), ("X-Account", "b")]),
        *(400, "request-invalid"),
    ),
    nothing("MULTI-03", "query-twice", http(path="/v1/by-query?id=a&id=b"), 400, "request-invalid"),
    nothing(
        "MULTI-03",
        "body-and-header-differ",
        http(path="/v1/fenced", body='{"id":"a","fence":41}'),
        *(400, "fence-invalid"),
    ),
]


# -- http-client-automatism

_COOKIE = [("Set-Cookie", "sid=A; Path=/")]

CLIENT = [
    case(
        "CLIENT-02",
        "same-tenant",
        [http("r1", key="k-1"), answers(201, headers=_COOKIE), http("r2", key="k-2"), CREATED],
        2,
        r1=applied(headers=[["Set-Cookie", "sid=A; Path=/"]]),
        r2=applied(),
        upstream_sees={"headers_absent": ["Cookie"]},
    ),
    case(
        "CLIENT-02",
        "callers-own-cookie-goes-up-unmixed",
        [
            *(http("r1", key="k-1"), answers(201, headers=_COOKIE)),
            *(http("r2", key="k-2", fields=[("Cookie", "mine=1")]), CREATED),
            *(http("r3", key="k-3", token="Bearer tenant-B"), CREATED),
        ],
        3,
        r1=applied(),
        r2=applied(),
        r3=applied(headers_absent=["Set-Cookie"]),
    ),
    case(
        "CLIENT-02",
        "challenge-is-not-answered",
        [http(), answers(401, headers=[("WWW-Authenticate", 'Basic realm="x"')])],
        1,
        r1={"status": 401, "outcome": "not-executed"},
        upstream_sees={"headers_absent": ["Authorization"]},
    ),
    case(
        "CLIENT-02",
        "redirect-is-not-followed",
        [http("r1"), answers(307, headers=[("Location", "/v1/elsewhere")]), http("r2")],
        1,
        r1=applied(307, headers=[["Location", "/v1/elsewhere"]]),
        r2=replayed(307, headers=[["Location", "/v1/elsewhere"]]),
    ),
    case(
        "CLIENT-02",
        "retry-after-is-not-obeyed",
        [http(path=LISTS), answers(503, headers=[("Retry-After", "0")])],
        1,
        r1={"status": 503, "outcome": "not-executed"},
    ),
    case(
        "CLIENT-02",
        "coded-body-is-not-decoded",
        [http("r1"), answers(201, "not gzip", [("Content-Encoding", "gzip")]), http("r2")],
        1,
        r1=applied(body="not gzip", headers=[["Content-Encoding", "gzip"]]),
        r2=replayed(body="not gzip", headers=[["Content-Encoding", "gzip"]]),
        upstream_sees={"headers_absent": ["Accept-Encoding", "User-Agent", "Accept"]},
    ),
]


# -- size-and-slowness


def _large(name: str, step: Step) -> Case:
    return case(
        "SIZE-01",
        name,
        [step],
        0,
        r1=refused(413, "body-too-large", headers=[["Connection", "close"]]),
        entities=0,
        peak_growth_mib_max=32,
    )


SIZE = [
    _large("chunked", http(body_generator="11 MiB of 'x'", chunked=True)),
    _large("one-byte-over", http(body_generator="10485761 B of 'x'")),
    _large("one-byte-over-chunked", http(body_generator="10485761 B of 'x'", chunked=True)),
    _large("much-larger", http(body_generator="60 MiB of 'x'")),
    case(
        "SIZE-01",
        "the-limit-itself",
        [http(body_generator="10 MiB of 'x'", fields=[("X-Kind", "raw")], key="k-1")],
        0,
        r1=refused(400, "body-unreadable"),
        entities=0,
    ),
    nothing(
        "SIZE-01",
        "unauthenticated-and-large",
        http(token="Bearer nobody", body_generator="11 MiB of 'x'"),
        *(401, "unauthenticated"),
    ),
    nothing(
        "SIZE-01",
        "no-policy-and-large",
        http(path="/v1/none", body_generator="11 MiB of 'x'", chunked=True),
        *(404, "no-policy"),
    ),
]

CASES: list[Case] = [*MULTI, *CLIENT, *SIZE]
