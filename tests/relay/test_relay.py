"""Requests and responses through the gateway equal those sent direct, apart from the
list of docs/wire.md, "What is passed up, and what is changed", as ``documented.py`` has it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest

from gateway.core.headers import nominated
from gateway.core.model import Headers
from tests.clients.documented import REQUEST, RESPONSE
from tests.kit.db import Server
from tests.kit.gateway import Stack, policy, stack
from tests.kit.operating import fencegate
from tests.kit.upstream import Answer, Recorded
from tests.relay.generated import MARK, Case, generate
from tests.relay.reading import Heard, exchange

SEED, COUNT, PARTS = 20_26, 500, 10

COMMANDS = [
    f"""
name = "{method.lower()}"
match = "{method} /v1/accounts/{{account}}/things/{{thing}}"
entity = "account:{{path.account}}"
"""
    for method in ("POST", "PUT", "PATCH", "DELETE")
]

CASES = generate(SEED, COUNT)


@pytest.fixture(scope="module")
def served(postgres: Server) -> Iterator[tuple[Stack, str]]:
    with postgres.database() as dsn:
        token = fencegate("keys", "add", "--tenant", "t", "--name", "n", dsn=dsn).out.strip()
        with stack(postgres, lambda url: [policy(url, *COMMANDS)], database=dsn) as made:

            def script(request: Recorded) -> Answer:
                return CASES[int(request.one(MARK) or b"")].scripted()

            made.upstream.script = script
            yield made, token


def outside(headers: Headers, documented: dict[str, str]) -> list[tuple[bytes, bytes]]:
    """The lines that must be the same, in order; names in lower case."""
    gone = {name.encode("ascii") for name in documented} | nominated(headers)
    lower = [(name.lower(), value) for name, value in headers]
    return [pair for pair in lower if pair[0] not in gone]


def carry(made: Stack, token: str, case: Case) -> None:
    """One case, direct and through, and everything that must be equal."""
    upstream, url = made.upstream, urlsplit(made.gateway.url)
    upstream.clear()
    direct = exchange(("127.0.0.1", upstream.port), case.method, case.request("", "direct"))
    request = case.request("/pay", "through").replace(
        b"\r\n", b"\r\nAuthorization: Bearer %b\r\n" % token.encode("ascii"), 1
    )
    assert url.hostname is not None
    assert url.port is not None
    through = exchange((url.hostname, url.port), case.method, request)
    sent, got = upstream.requests
    _requests(case, sent, got, upstream.port)
    _responses(case, direct, through)


def _requests(case: Case, sent: Recorded, got: Recorded, port: int) -> None:
    assert (got.method, got.target, got.body) == (sent.method, sent.target, sent.body)
    assert (sent.target, sent.body) == (case.target.encode("ascii"), case.body)
    assert outside(got.headers, REQUEST) == outside(sent.headers, REQUEST)
    # What the list says becomes of the others.
    assert got.headers[0][1] == b"127.0.0.1:%d" % port
    assert got.all("Via")[:-1] == sent.all("Via")
    assert got.all("Via")[-1].startswith(b"1.1 fencegate-")
    coding, length = got.all("Transfer-Encoding"), got.all("Content-Length")
    if case.guarded:
        expected = b"%d" % len(case.body)
        assert (coding, length) in (([], [expected]), ([], [] if not case.body else [expected]))
    else:
        assert (coding, length) == (sent.all("Transfer-Encoding"), _length(case, sent))
    added = {"host", "via", "content-length", "transfer-encoding"}
    gone = {name for name, _ in got.headers if name.decode("ascii").lower() in {*REQUEST} - added}
    assert gone == set()


def _length(case: Case, sent: Recorded) -> list[bytes]:
    """A body that is none is not announced by a safe method."""
    return [value for value in sent.all("Content-Length") if case.body]


def _responses(case: Case, direct: Heard, through: Heard) -> None:
    assert (through.status, through.body) == (direct.status, direct.body)
    assert direct.status == case.status
    assert outside(through.headers, RESPONSE) == outside(direct.headers, RESPONSE)
    assert through.interims == ()
    not_executed = case.status in (401, 407, 421, 425, 429)
    outcome = b"not-executed" if not_executed else b"applied"
    assert through.all("Gateway-Outcome") == [outcome if case.guarded else b"unguarded"]
    assert through.all("Idempotent-Replayed") == [b"false"]
    dates = direct.all("Date")
    assert through.all("Date") == dates if dates else len(through.all("Date")) == 1
    length = through.all("Content-Length")
    if case.status in (204, 304):
        assert length == []
    elif case.method == "HEAD":
        assert length == direct.all("Content-Length")
    else:
        assert length in ([], [b"%d" % len(direct.body)])
        assert length or not direct.all("Content-Length")


@pytest.mark.parametrize("part", range(PARTS))
def test_what_goes_through_equals_what_goes_direct(served: tuple[Stack, str], part: int) -> None:
    made, token = served
    own = CASES[part::PARTS]
    for case in own:
        try:
            carry(made, token, case)
        except AssertionError as error:
            shown = f"case {case.number} of seed {SEED}: {case.method} {case.target}, {case.status}"
            raise AssertionError(f"{shown}\n{error}") from error
    print(f"relayed {len(own)} of {COUNT} requests and responses, all equal")


def test_the_cases_are_as_various_as_they_claim() -> None:
    """So that the test above cannot go on passing because nothing is generated any more."""
    assert len(CASES) == COUNT
    methods = Counter(case.method for case in CASES)
    sizes = [len(case.body) for case in CASES] + [len(case.answer) for case in CASES]
    statuses = {case.status for case in CASES}
    lines = [line for case in CASES for line in case.lines]
    print(f"{COUNT} cases: {dict(methods)}, {len(statuses)} statuses, {sum(sizes)} bytes")
    assert set(methods) == {"GET", "HEAD", "OPTIONS", "POST", "PUT", "PATCH", "DELETE"}
    assert min(methods.values()) > COUNT // 20
    assert {206, 204, 304, 301, 302, 303, 307, 308, 404, 429, 503} <= statuses
    assert sum(status // 100 == kind for status in statuses for kind in (2, 3, 4, 5)) > 40
    assert len([size for size in sizes if size >= 8 * 1024 * 1024]) >= 4
    assert {0, 1, 64 * 1024} <= set(sizes)
    assert sum(name.lower() == b"transfer-encoding" for name, _ in lines) > COUNT // 5
    assert sum(any(byte > 127 for byte in value) for _, value in lines) > COUNT // 5
    assert sum(b"X-Sum: 1" in case.sent or b"X-Sum:1" in case.sent for case in CASES) > COUNT // 20
    assert any(b"HTTP/1.1 103" in case.answer for case in CASES)
    assert sum(case.closes for case in CASES) > COUNT // 10
