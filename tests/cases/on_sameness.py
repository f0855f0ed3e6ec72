"""Further inputs: what is the same command, which answers are replayed, and new keys for old."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any

from tests.cases.driver import Case
from tests.cases.steps import (
    CREATED,
    LISTS,
    REUSED,
    STALE,
    Fields,
    Step,
    answers,
    applied,
    case,
    http,
    nothing,
    refused,
    replayed,
    twice,
    unknown,
)

__all__ = ["CASES"]

# -- fingerprint-and-json


def _bodies(of: str, name: str, first: str, second: str, *, same: bool) -> Case:
    """Two JSON bodies under one key."""
    steps = [http("r1", body=first), CREATED, http("r2", body=second)]
    return case(of, name, steps, 1, r1=applied(), r2=replayed() if same else REUSED)


JSON = [
    _bodies(
        "FP-01",
        "inner-order",
        '{"a":{"x":1,"y":[{"p":1,"q":2}]}}',
        '{"a":{"y":[{"q":2,"p":1}],"x":1}}',
        same=True,
    ),
    _bodies("FP-01", "list-order-counts", '{"l":[1,2]}', '{"l":[2,1]}', same=False),
    _bodies("FP-01", "blanks", '{"a":1,"b":2}', '\r\n{ "b" : 2,\t"a":1 }\n', same=True),
    _bodies("FP-01", "numbers", '{"a":100,"b":0.5}', '{"b":5e-1,"a":1.00e2}', same=True),
    _bodies("FP-01", "near-numbers", '{"a":0.1}', '{"a":0.10000000000000001}', same=False),
    _bodies("FP-01", "number-and-text", '{"a":1}', '{"a":"1"}', same=False),
    _bodies("FP-01", "null-and-absent", '{"a":1,"b":null}', '{"a":1}', same=False),
    _bodies("FP-05", "escape-in-either-case", '{"s":"\\u00e9"}', '{"s":"\\u00E9"}', same=True),
    _bodies("FP-05", "surrogate-pair", '{"s":"\\ud83d\\ude00"}', '{"s":"\U0001f600"}', same=True),
    _bodies("FP-05", "name-in-another-form", '{"caf\u00e9":1}', '{"cafe\u0301":1}', same=False),
    _bodies("FP-05", "compatibility-form", '{"s":"\ufb01"}', '{"s":"fi"}', same=False),
    _bodies("FP-05", "joiner", '{"s":"a\u200db"}', '{"s":"ab"}', same=False),
    nothing(
        "FP-05",
        "in-the-entity",
        http(path="/v1/cases", body='{"input":{"customer_id":"caf\u00e9"}}'),
        *(400, "request-invalid"),
    ),
    _bodies("FP-10", "equal-lone-surrogates", '{"s":"\\ud800"}', '{"s":"\\uD800"}', same=True),
    _bodies("FP-10", "other-lone-surrogate", '{"s":"\\ud800"}', '{"s":"\\ud801"}', same=False),
]


def _unreadable(name: str, body: bytes, media: str = "application/json") -> Case:
    coded = base64.b64encode(body).decode()
    return nothing("FP-10", name, http(media=media, body_b64=coded), 400, "body-unreadable")


UNREADABLE = [
    _unreadable("utf-8-with-a-mark", b'\xef\xbb\xbf{"amount":100}'),
    _unreadable(
        "utf-16-that-says-so", '{"a":1}'.encode("utf-16"), "application/json; charset=utf-16"
    ),
    _unreadable("utf-16-without-a-mark", '{"a":1}'.encode("utf-16-le")),
    _unreadable("utf-32", '{"a":1}'.encode("utf-32")),
    _unreadable("latin-1", '{"s":"\u00e9"}'.encode("latin-1")),
    _unreadable("overlong", b'{"s":"\xc0\x80"}'),
    _unreadable("surrogate-in-utf-8", b'{"s":"\xed\xa0\x80"}'),
    nothing(
        "FP-10",
        "lone-surrogate-in-the-entity",
        http(path="/v1/cases", body='{"input":{"customer_id":"\\ud800"}}'),
        *(400, "request-invalid"),
    ),
]

# -- forms with parts


def _part(head: str, content: str, boundary: str) -> str:
    return f"--{boundary}\r\nContent-Disposition: form-data; {head}\r\n\r\n{content}\r\n"


def _parts(label: str, boundary: str, *parts: tuple[str, str], quoted: bool = False) -> Step:
    said = f'"{boundary}"' if quoted else boundary
    body = "".join(_part(head, content, boundary) for head, content in parts)
    media = f"multipart/form-data; boundary={said}"
    return http(label, media=media, body=f"{body}--{boundary}--\r\n")


def _two_uploads(name: str, first: Step, second: Step, *, same: bool) -> Case:
    steps = [first, CREATED, second]
    return case("FP-07", name, steps, 1, r1=applied(), r2=replayed() if same else REUSED)


_AMOUNT = ('name="amount"', "100")
_FILE = ('name="f"; filename="a.txt"', "AAA\r\n--AAA is no boundary")

UPLOADS = [
    _two_uploads(
        "file-and-field",
        _parts("r1", "AAAA", _AMOUNT, _FILE),
        _parts("r2", "b'()+_-./:=?c", _AMOUNT, _FILE, quoted=True),
        same=True,
    ),
    _two_uploads(
        "same-boundary", _parts("r1", "A", _AMOUNT), _parts("r2", "A", _AMOUNT), same=True
    ),
    _two_uploads(
        "other-file",
        _parts("r1", "C", _AMOUNT, _FILE),
        _parts("r2", "B", _AMOUNT, (_FILE[0], _FILE[1] + "!")),
        same=False,
    ),
    _two_uploads(
        "other-file-name",
        _parts("r1", "A", ('name="f"; filename="a.txt"', "x")),
        _parts("r2", "B", ('name="f"; filename="b.txt"', "x")),
        same=False,
    ),
    _two_uploads(
        "other-field-name",
        _parts("r1", "A", _AMOUNT),
        _parts("r2", "B", ('name="amounts"', "100")),
        same=False,
    ),
    _two_uploads(
        "a-part-more", _parts("r1", "A", _AMOUNT), _parts("r2", "B", _AMOUNT, _AMOUNT), same=False
    ),
]

# -- idempotency-scope-replay-expiry


def _final(status: int) -> Case:
    body = f'{{"error":{status}}}'
    return twice(
        "IDEM-05",
        str(status),
        answers(status, body, [("Content-Type", "application/problem+json")]),
        applied(status, body=body),
        replayed(status, same_as="r1"),
        commands={"k-1": "settled"},
    )


def _given_back(status: int, headers: Fields = ()) -> Case:
    return case(
        "IDEM-05",
        f"{status}-gives-the-key-back",
        [http("r1"), answers(status, "not now", headers), http("r2"), CREATED],
        2,
        r1={"status": status, "outcome": "not-executed", "body": "not now"},
        r2=applied(),
        audit=[{"event": "released"}],
    )


ERRORS = [
    *map(_final, (400, 403, 404, 409, 410, 422, 451)),
    _given_back(401, [("WWW-Authenticate", "Basic")]),
    _given_back(425),
    _given_back(429, [("Retry-After", "1")]),
    twice(
        "IDEM-05",
        "500-is-final-where-the-policy-says-so",
        answers(500, "boom"),
        applied(500, body="boom"),
        replayed(500, body="boom"),
        path=LISTS,
    ),
]


def _not_replayed(name: str, *fields: tuple[str, str]) -> Case:
    """Fields that a fresh answer carries and a replay must not."""
    return twice(
        "IDEM-07",
        name,
        answers(201, "x", fields),
        applied(lines=[list(pair) for pair in fields], body="x"),
        replayed(headers_absent=[field for field, _ in fields], body="x"),
    )


SECRETS = [
    _not_replayed("cookies", ("Set-Cookie", "a=1"), ("set-cookie", "b=2"), ("Set-Cookie2", "c=3")),
    _not_replayed("challenges", ("WWW-Authenticate", "Basic"), ("www-authenticate", "Negotiate x")),
    twice(
        "IDEM-07",
        "marks-of-the-upstream",
        answers(
            201,
            "x",
            [
                *(("Idempotent-Replayed", "true"), ("Gateway-Outcome", "replayed")),
                ("Gateway-Fingerprint", "not-compared"),
            ],
        ),
        applied(headers_absent=["Gateway-Fingerprint"]),
        replayed(headers_absent=["Gateway-Fingerprint"]),
    ),
    twice(
        "IDEM-07",
        "proxy-challenge-goes-nowhere",
        answers(403, "x", [("Proxy-Authenticate", "Basic"), ("X-Kept", "1")]),
        applied(403, headers_absent=["Proxy-Authenticate"], headers=[["X-Kept", "1"]]),
        replayed(403, headers_absent=["Proxy-Authenticate"], headers=[["X-Kept", "1"]]),
    ),
]

_FREE = "/v1/accounts/acc-1/free"


def _wishes(
    name: str, steps: Sequence[Step], calls: int, equal: int, *, of: str = "charge", **expected: Any
) -> Case:
    """So many commands are counted as equal to an earlier one but for their key."""
    series = f'equal_commands_total{{policy="pay/{of}"}}'
    return case("IDEM-12", name, steps, calls, counts={series: equal}, **expected)


NEW_KEYS = [
    _wishes(
        "third-key",
        [http("r1"), CREATED, http("r2", key="k-2"), CREATED, http("r3", key="k-3"), CREATED],
        3,
        2,
        r1=applied(),
        r2=applied(),
        r3=applied(),
    ),
    _wishes(
        "spelled-otherwise",
        [
            http("r1", body='{"a":1,"b":2}'),
            CREATED,
            http("r2", key="k", body='{"b":2.0,"a":1}'),
            CREATED,
        ],
        2,
        1,
        r1=applied(),
        r2=applied(),
    ),
    _wishes("same-key", [http("r1"), CREATED, http("r2")], 1, 0, r1=applied(), r2=replayed()),
    _wishes(
        "another-wish",
        [
            *(http("r1"), CREATED, http("r2", key="k-2", body='{"amount":101}'), CREATED),
            *(http("r3", key="k-3", path="/v1/accounts/acc-2/charges"), CREATED),
            *(http("r4", key="k-4", token="Bearer tenant-B"), CREATED),
        ],
        4,
        0,
        **{f"r{number}": applied() for number in range(1, 5)},
    ),
    _wishes(
        "held-behind-an-unknown-one",
        [http("r1"), answers(500), http("r2", key="k-2")],
        1,
        0,
        r1=unknown("yes"),
        r2=refused(409, "entity-unresolved"),
    ),
    _wishes(
        "behind-an-unknown-one-that-holds-nothing",
        [http("r1", path=_FREE), answers(500), http("r2", path=_FREE, key="k-2"), CREATED],
        2,
        1,
        of="free",
        r1=unknown("yes"),
        r2=applied(),
    ),
    _wishes(
        "declined-or-not-executed-before",
        [
            *(http("r1"), answers(429), http("r2", key="k-2"), answers(402)),
            *(http("r3", key="k-3"), CREATED),
        ],
        3,
        0,
        r1={"status": 429, "outcome": "not-executed"},
        r2=applied(402),
        r3=applied(),
    ),
    _wishes(
        "refused",
        [http("r1"), CREATED, http("r2", key="k-2", fence="41")],
        1,
        0,
        r1=applied(),
        r2=STALE,
    ),
]

CASES: list[Case] = [*JSON, *UNREADABLE, *UPLOADS, *ERRORS, *SECRETS, *NEW_KEYS]
