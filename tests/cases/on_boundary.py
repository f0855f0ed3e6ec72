"""Further inputs: what stands at the boundary itself. Offers of other protocols, whose word counts,
what is not ASCII, where a message ends, targets, and values that answers repeat."""

from __future__ import annotations

import gzip
import zlib
from base64 import b64encode

from tests.cases.driver import Case
from tests.cases.steps import (
    CHARGES,
    CREATED,
    Fields,
    applied,
    bytes_of,
    case,
    http,
    nothing,
    refused,
    replayed,
    twice,
    wire,
)

__all__ = ["CASES"]

_INVALID = (400, "request-invalid")
_LINE = f"POST /pay{CHARGES} HTTP/1.1\r\nHost: gw.test\r\nCONTROL"

# -- hop-by-hop


def _offer(name: str, *fields: tuple[str, str], **more: str) -> Case:
    return nothing("HOP-04", name, http(fields=fields, **more), *_INVALID)


OFFERS = [
    _offer("without-a-body", ("Connection", "Upgrade"), ("Upgrade", "h2c"), body=""),
    _offer("websocket", ("Connection", "keep-alive, upgrade"), ("Upgrade", "websocket"), body=""),
    _offer("tls", ("Connection", "UPGRADE"), ("Upgrade", "TLS/1.3"), ("Upgrade", "h2c")),
    _offer("in-two-lines", ("Connection", "close"), ("connection", "upgrade"), ("Upgrade", "x")),
    nothing("HOP-04", "preface", wire("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"), *_INVALID),
    nothing("HOP-04", "tunnel", wire("CONNECT a.test:443 HTTP/1.1\r\nHost: a\r\n\r\n"), *_INVALID),
    case(
        "HOP-04",
        "passed-over-where-nothing-is-guarded",
        [
            http(
                method="GET",
                path="/v1/accounts/acc-1",
                body="",
                fields=[("Connection", "Upgrade, HTTP2-Settings"), ("Upgrade", "h2c")],
            ),
            CREATED,
        ],
        1,
        r1={"status": 201, "outcome": "unguarded", "headers": [["Connection", "close"]]},
        upstream_sees={"headers_absent": ["Upgrade", "Connection"]},
    ),
    _offer("names-via", ("Connection", "Via"), ("Via", "1.1 edge")),
    _offer("names-who-asked", ("Connection", "X-Forwarded-For"), ("X-Forwarded-For", "192.0.2.1")),
]

# -- forwarding-identity


def _twin(name: str, field: str, **about: str | None) -> Case:
    return nothing("FWD-04", name, http(fields=[(field, "99")], **about), *_INVALID)


TWINS = [
    _twin("of-the-fence-alone", "X_Execution_Fence"),
    _twin("in-other-case", "x_EXECUTION-fence"),
    _twin("with-dots", "X.Execution.Fence"),
    _twin("of-the-entity", "X_Execution_Entity"),
    _twin("of-the-type", "Content_Type"),
    nothing(
        "FWD-04",
        "in-place-of-the-fence",
        http(fence=None, fields=[("X_Execution_Fence", "42")]),
        *(428, "fence-required"),
    ),
    case(
        "FWD-04",
        "who-asked",
        [
            http(
                fields=[
                    *(("X-Forwarded-For", "192.0.2.1"), ("X_Forwarded_For", "192.0.2.2")),
                    *(("Forwarded", "for=192.0.2.1"), ("X-Real-IP", "192.0.2.1")),
                    *(("X-Forwarded-Host", "evil.example"), ("X-Forwarded-Proto", "https")),
                ]
            ),
            CREATED,
        ],
        1,
        r1=applied(),
        upstream_sees={
            "headers_absent": [
                *("X-Forwarded-For", "X_Forwarded_For", "Forwarded", "X-Real-IP"),
                *("X-Forwarded-Host", "X-Forwarded-Proto"),
            ]
        },
    ),
]

# -- header-encoding


def _not_ascii(name: str, field: str, value: str) -> Case:
    """Latin-1, UTF-8 or neither: the bytes are kept, fresh and replayed."""
    head = f"HTTP/1.1 201 X\r\n{field}: {value}\r\nContent-Length: 1\r\n\r\nx"
    return twice(
        *("ENC-02", name, bytes_of(head, "keep")),
        applied(lines=[[field, value]], body="x"),
        replayed(lines=[[field, value]], body="x"),
    )


def _key(name: str, key: str) -> Case:
    return nothing("ENC-03", name, http(key=key), 400, "key-invalid")


NOT_ASCII = [
    _not_ascii("utf-8", "X-Name", "Zo\u00c3\u00ab \u00e2\u0098\u0095"),
    _not_ascii("all-high-bytes", "X-Name", "".join(map(chr, range(0x80, 0x100)))),
    _not_ascii("in-the-location", "Location", "/caf\xe9"),
    _not_ascii("in-the-type", "Content-Type", 'text/plain; x="\xff"'),
    twice(
        "ENC-02",
        "in-the-reason",
        bytes_of("HTTP/1.1 201 Cr\xe9\xe9\r\nContent-Length: 1\r\n\r\nx", "keep"),
        applied(body="x"),
        replayed(body="x"),
    ),
    case(
        "ENC-02",
        "of-the-request",
        [http(fields=[("X-Name", "caf\xe9 \xff")]), CREATED],
        1,
        r1=applied(),
        upstream_sees={"headers_present": [["X-Name", "caf\xe9 \xff"]]},
    ),
    _key("one-latin-1-letter", "k-\xe9"),
    _key("one-letter-of-two-bytes", "k-\xc3\xa9"),
    _key("256-characters", "k" * 256),
    _key("quoted-and-not-ascii", '"k-\xe9"'),
    case(
        "ENC-03",
        "255-characters",
        [http(key="k" * 255), CREATED],
        1,
        r1=applied(),
        commands={"k" * 255: "settled"},
    ),
]

# -- content-encoding

_BODY = b'{"input":{"customer_id":"c-1"}}'


def _hidden(name: str, coding: str, body: bytes, *more: tuple[str, str]) -> Case:
    """A coded body from which the entity would have to be read."""
    fields = [("Content-Encoding", coding), *more]
    step = http(path="/v1/cases", fields=fields, body_b64=b64encode(body).decode())
    return nothing("CE-05", name, step, 400, "body-unreadable")


CODED = [
    _hidden("gzip", "gzip", gzip.compress(_BODY, mtime=0)),
    _hidden("deflate", "DEFLATE", zlib.compress(_BODY)),
    _hidden("twice", "gzip, gzip", gzip.compress(gzip.compress(_BODY, mtime=0), mtime=0)),
    _hidden("in-two-lines", "gzip", gzip.compress(_BODY, mtime=0), ("Content-Encoding", "br")),
    _hidden("said-and-not-done", "gzip", _BODY),
    _hidden("no-such-coding", "x-none", _BODY),
    case(
        "CE-05",
        "unread-where-nothing-reads-it",
        [
            http(fields=[("Content-Encoding", "gzip")], body_generator="gzip(2 GiB zeros)"),
            CREATED,
        ],
        1,
        r1=applied(),
        peak_growth_mib_max=64,
    ),
]

# -- message-framing-and-smuggling

_VICTIM = "POST /pay/v1/accounts/victim/charges HTTP/1.1\r\nHost: gw.test\r\nCONTROL"
_BEHIND = f"0\r\n\r\n{_VICTIM}Content-Length: 2\r\n\r\n{{}}"


def _framed(of: str, name: str, fields: str, body: str = _BEHIND) -> Case:
    return nothing(of, name, wire(f"{_LINE}{fields}\r\n{body}"), *_INVALID)


FRAMED = [
    _framed("FRAME-01", "coding-first", "Transfer-Encoding: chunked\r\nContent-Length: 4\r\n"),
    _framed("FRAME-01", "length-of-zero", "Content-Length: 0\r\nTransfer-Encoding: chunked\r\n"),
    _framed("FRAME-01", "other-case", "CONTENT-LENGTH: 4\r\ntransfer-encoding: CHUNKED\r\n"),
    _framed(
        "FRAME-01", "blank-before-colon", "Content-Length: 4\r\nTransfer-Encoding : chunked\r\n"
    ),
    _framed("FRAME-01", "behind-a-tab", "Content-Length: 4\r\nTransfer-Encoding:\x0bchunked\r\n"),
    _framed("FRAME-02", "equal", "Content-Length: 2\r\nContent-Length: 2\r\n", "{}"),
    _framed("FRAME-02", "in-a-list", "Content-Length: 2, 2\r\n", "{}"),
    _framed("FRAME-02", "signed", "Content-Length: +2\r\n", "{}"),
    _framed("FRAME-02", "hex", "Content-Length: 0x2\r\n", "{}"),
    _framed("FRAME-02", "over-64-bits", "Content-Length: 18446744073709551618\r\n", "{}"),
    _framed("FRAME-03", "twice", "Transfer-Encoding: chunked, chunked\r\n"),
    _framed("FRAME-03", "identity-behind", "Transfer-Encoding: chunked, identity\r\n"),
    _framed("FRAME-03", "parameter", "Transfer-Encoding: chunked;q=1\r\n"),
    _framed("FRAME-03", "empty", "Transfer-Encoding:\r\nContent-Length: 2\r\n", "{}"),
    _framed(
        "FRAME-03", "size-over-64-bits", "Transfer-Encoding: chunked\r\n", "10000000000000000\r\n"
    ),
    _framed("FRAME-03", "bare-line-feed", "Transfer-Encoding: chunked\r\n", "2\n{}\r\n0\r\n\r\n"),
    _framed(
        "FRAME-03", "size-with-a-prefix", "Transfer-Encoding: chunked\r\n", "0x2\r\n{}\r\n0\r\n\r\n"
    ),
    _framed("FRAME-06", "tab", "X-A: a\r\n\tb\r\nContent-Length: 2\r\n", "{}"),
    _framed("FRAME-06", "of-the-length", "Content-Length:\r\n 2\r\n", "{}"),
    _framed("FRAME-06", "blank-line-alone", "X-A: a\r\n \r\nContent-Length: 2\r\n", "{}"),
    _framed("FRAME-06", "bare-carriage-return", "X-A: a\rX-B: b\r\nContent-Length: 2\r\n", "{}"),
    _framed("FRAME-06", "null", "X-A: a\0b\r\nContent-Length: 2\r\n", "{}"),
    case(
        "FRAME-01",
        "garbage-behind-a-command",
        [wire(f"{_LINE}Content-Length: 2\r\n\r\n{{}}\0\0garbage\r\n\r\n"), CREATED],
        1,
        r1=applied(headers=[["Connection", "close"]]),
        commands={"k-1": "settled"},
    ),
]

# -- bodyless-interim-trailers


def _trailer(name: str, trailers: str, **about: object) -> Case:
    text = f"{_LINE}Transfer-Encoding: chunked\r\n\r\n2\r\n{{}}\r\n0\r\n{trailers}\r\n"
    step = {**wire(text), "to_the_end": False}
    return case("MSG-04", name, [step, CREATED], 1, r1=applied(), **about)


TRAILERS = [
    _trailer(
        "other-control-fields",
        "Idempotency-Key: other\r\nX-Execution-Fence: 99\r\nAuthorization: Bearer nobody\r\n",
        commands={"k-1": "settled", "other": None},
        marks={"account:acc-1": 42},
    ),
    _trailer("host-and-hops", "Host: other\r\nConnection: close\r\nUpgrade: h2c\r\n"),
    _trailer("who-asked", "X-Forwarded-For: 192.0.2.1\r\n"),
    _framed(
        "MSG-04", "a-length", "Transfer-Encoding: chunked\r\n", "0\r\nContent-Length: 9\r\n\r\n"
    ),
    _framed(
        "MSG-04",
        "a-coding",
        "Transfer-Encoding: chunked\r\n",
        "0\r\nTransfer-Encoding: chunked\r\n\r\n",
    ),
    twice(
        "MSG-04",
        "of-the-response",
        bytes_of(
            "HTTP/1.1 201 X\r\nTransfer-Encoding: chunked\r\nTrailer: ETag\r\n\r\n"
            "1\r\nx\r\n0\r\nETag: 1\r\nGateway-Outcome: replayed\r\n\r\n",
            "keep",
        ),
        applied(body="x", headers_absent=["ETag", "Trailer"]),
        replayed(body="x", headers_absent=["ETag", "Trailer"]),
    ),
]

# -- path-query-and-target


def _target(of: str, name: str, target: str, *, host: str = "gw.test") -> Case:
    text = f"POST {target} HTTP/1.1\r\nHost: {host}\r\nCONTROLContent-Length: 2\r\n\r\n{{}}"
    step = {**wire(text), "to_the_end": False}
    return nothing(of, name, step, *_INVALID)


def _reaches(of: str, name: str, target: str) -> Case:
    text = f"POST {target} HTTP/1.1\r\nHost: gw.test\r\nCONTROLContent-Length: 2\r\n\r\n{{}}"
    step = {**wire(text), "to_the_end": False}
    return case(of, name, [step, CREATED], 1, r1=applied(), marks={"account:acc-1": 42})


TARGETS = [
    _target("URL-03", "on-a-mounted-path", f"http://169.254.169.254/pay{CHARGES}"),
    _target("URL-03", "another-port", f"http://gw.test:8080/pay{CHARGES}"),
    _target("URL-03", "a-user-in-front", f"http://gw.test@evil.example/pay{CHARGES}"),
    _target("URL-03", "another-scheme", f"ftp://gw.test/pay{CHARGES}"),
    _target("URL-03", "no-path", "http://gw.test"),
    _target("URL-03", "an-authority", "gw.test:443"),
    _reaches("URL-03", "the-host-that-Host-names", f"http://GW.test/pay{CHARGES}"),
    _target("URL-04", "behind-the-mount", f"/pay//evil.example{CHARGES}"),
    _target("URL-04", "backslashes", "/pay\\\\evil.example/v1"),
    _target("URL-04", "in-absolute-form", "http://gw.test//evil.example/v1"),
    _target("URL-04", "asterisk", "*"),
    _target("URL-04", "no-slash", "evil.example/v1"),
    _target("URL-08", "null", "/pay/v1/accounts/a%00/charges"),
    _target("URL-08", "encoded-slash", "/pay/v1/accounts/a%2Fb/charges"),
    _target("URL-08", "dots", "/pay/v1/accounts/acc-1/../acc-2/charges"),
    _target("URL-08", "encoded-dots", "/pay/v1/accounts/%2E%2e/charges"),
    _target("URL-08", "raw-utf-8", "/pay/v1/accounts/caf\xc3\xa9/charges"),
    _target("URL-08", "raw-control-character", "/pay/v1/accounts/a\x01/charges"),
    _target("URL-08", "half-an-encoding", "/pay/v1/accounts/a%4/charges"),
    _target("URL-08", "raw-query", f"/pay{CHARGES}?q=\xe9"),
    _target("URL-08", "two-blanks", f"/pay{CHARGES} HTTP/1.1 x"),
    _target("URL-08", "host-that-is-none", f"/pay{CHARGES}", host="gw.test:port"),
    _reaches("URL-08", "a-query-is-not-read", f"/pay{CHARGES}?a=%zz&b=%00&c=%2F..%2F"),
]

# -- security-and-observability


def _echo(name: str, status: int, kind: str, **about: object) -> Case:
    """A refusal that repeats what was sent, in a document and never in a field."""
    fields: Fields = about.pop("fields", ())  # type: ignore[assignment]
    step = http(fields=fields, **about)  # type: ignore[arg-type]
    return case("SEC-07", name, [step], 0, r1=refused(status, kind, headers_absent=["Set-Cookie"]))


ECHOES = [
    _echo("line-feed-alone", *_INVALID, path="/v1/accounts/a%0aSet-Cookie:%20x=1/charges"),
    _echo("encoded-twice", *_INVALID, path="/v1/accounts/a%250d%250aSet-Cookie:x/charges"),
    _echo(
        "in-the-entity-that-is-named",
        *(403, "entity-mismatch"),
        fields=[("X-Execution-Entity", 'a%0d%0aSet-Cookie: x=1"\\ \x85 \xff')],
    ),
    _echo(
        "in-the-id-of-the-request",
        *(400, "key-missing"),
        key=None,
        fields=[("X-Request-Id", "a%0d%0aSet-Cookie: x=1")],
    ),
    _echo(
        "in-a-name",
        *_INVALID,
        fields=[("Connection", "X_Execution_Fence%0d%0aSet-Cookie"), ("X_Execution_Fence", "1")],
    ),
    case(
        "SEC-07",
        "in-the-query",
        [http(path=f"{CHARGES}?next=%0d%0aSet-Cookie:%20x=1"), CREATED],
        1,
        r1=applied(headers_absent=["Set-Cookie"]),
        upstream_sees={"headers_absent": ["Set-Cookie"]},
    ),
    case(
        "SEC-07",
        "in-via",
        [http(fields=[("Via", "1.1 a%0d%0aSet-Cookie: x=1")]), CREATED],
        1,
        r1=applied(headers_absent=["Set-Cookie"]),
    ),
]

CASES: list[Case] = [
    *OFFERS,
    *TWINS,
    *NOT_ASCII,
    *CODED,
    *FRAMED,
    *TRAILERS,
    *TARGETS,
    *ECHOES,
]
