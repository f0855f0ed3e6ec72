"""Requests that are wrong: each is told what is wrong and whether anything was sent, and leaves
nothing behind: no record, no fence, no request at the upstream."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import pytest

from gateway.core.problems import ProblemType
from tests.kit.client import Exchange, assert_problem
from tests.kit.db import Server
from tests.kit.gateway import CASE, Scene, Stack, policy, rows, stack
from tests.kit.upstream import Gate, cut, gated, hang, raw, respond

CHARGE = """
name = "charge"
match = "POST /v1/accounts/{account}/charges"
entity = "account:{path.account}"
timeout_s = 1
request_limit = "1 MiB"
"""

NAMED = """
name = "named"
match = "POST /v1/named"
entity = "{header.X-Execution-Entity}"
"""

IN_BODY = """
name = "in-body"
match = "POST /v1/fenced"
entity = "fenced:{query.id}"
fence_from = "{body./fence}"
"""

LIMIT = 1024 * 1024


@pytest.fixture(scope="module")
def served(postgres: Server) -> Iterator[Stack]:
    with stack(postgres, lambda url: [policy(url, CHARGE, CASE, NAMED, IN_BODY)]) as made:
        yield made


@pytest.fixture
def scene(served: Stack) -> Scene:
    return served.scene()


def remembered(scene: Scene) -> dict[str, int]:
    """How many rows each table has."""
    found = rows(
        scene.stack.database,
        "select (select count(*) from gateway.commands) as commands,"
        " (select count(*) from gateway.entities) as entities,"
        " (select count(*) from gateway.audit) as audit",
    )
    return dict(found[0])


Test = TypeVar("Test", bound=Callable[..., None])


def admits(test: Test) -> Test:
    """Marks a test that goes on to a good request, so that something is sent and remembered."""
    vars(test)["admits"] = True
    return test


@pytest.fixture(autouse=True)
def left_nothing(request: pytest.FixtureRequest, scene: Scene) -> Iterator[None]:
    """Nothing was sent and nothing is remembered, unless a test ``admits``."""
    before = remembered(scene)
    yield
    if not getattr(request.function, "admits", False):
        assert (scene.upstream.requests, scene.upstream.partial) == ([], [])
        assert remembered(scene) == before


# -- keys

BAD_KEYS = {
    "empty": [""],
    "blank": ["  "],
    "empty quoted": ['""'],
    "doubled": ["a", "b"],
    "doubled and equal": ["a", "a"],
    "doubled with an empty one": ["a", ""],
    "comma": ["a, b"],
    "comma without a blank": ["a,b"],
    "256 characters": ["a" * 256],
    "256 quoted characters": ['"' + "a" * 256 + '"'],
    "9000 characters": ["b" * 9000],
    "inner blank": ["a b"],
    "inner tab": ["a\tb"],
    "quoted blank": ['"a b"'],
    "non-ASCII": ["caf\u00e9"],
    "open quote": ['"abc'],
    "bad escape": ['"a\\bc"'],
    "ends in an escape": ['"abc\\'],
    "parameters": ['"abc";v=1'],
    "bare parameters": ["abc;v=1"],
    "two strings": ['"a" "b"'],
    "byte sequence with a semicolon": [":YWJj:;a"],
}


@pytest.mark.parametrize("lines", BAD_KEYS.values(), ids=BAD_KEYS)
def test_a_key_that_is_not_one_key_is_refused(scene: Scene, lines: list[str]) -> None:
    reply = scene.send(None, 5, fields=[("Idempotency-Key", line) for line in lines])
    assert_problem(reply, "key-invalid")


def test_no_key_is_refused(scene: Scene) -> None:
    assert_problem(scene.send(None, 5), "key-missing")


@pytest.mark.parametrize("name", ["Idempotency_Key", "X-Idempotency-Key", "IdempotencyKey"])
def test_a_field_that_only_looks_like_the_key_is_none(scene: Scene, name: str) -> None:
    assert_problem(scene.send(None, 5, fields=[(name, "k-1")]), "key-missing")


@admits
@pytest.mark.parametrize("key", ["a" * 255, "!~#$%&'()*+-./:<=>?@[]^_`{|}", "\\", '"a,;\\"b"'])
def test_the_whole_grammar_of_keys_is_taken(scene: Scene, key: str) -> None:
    fields = [("Idempotency-Key", key)]
    assert scene.send(None, 1, fields=fields).status == 201
    assert scene.send(None, 1, fields=fields).replayed
    assert scene.upstream.count == 1


@admits
def test_keys_that_differ_only_at_their_end_or_in_case_are_two(scene: Scene) -> None:
    for key in ("x" * 254 + "a", "x" * 254 + "b", "Key", "key"):
        fields = [("Idempotency-Key", f"{key}"[-255:])]
        assert scene.send(None, 1, fields=fields).outcome == "applied"
    assert len(scene.upstream.effects) == 4


# -- fences

BAD_FENCES = {
    "empty": [""],
    "blank": [" "],
    "doubled": ["41", "42"],
    "doubled and equal": ["42", "42"],
    "comma": ["41, 42"],
    "plus": ["+4"],
    "minus": ["-1"],
    "leading zero": ["042"],
    "two zeros": ["00"],
    "fraction": ["4.0"],
    "exponent": ["4e1"],
    "hex": ["0x2a"],
    "underscore": ["4_2"],
    "inner blank": ["4 2"],
    "words": ["forty-two"],
    "quoted": ['"42"'],
    "other digits": ["\u00b2"],
    "above the limit": [str(2**62)],
    "a bigint": [str(2**63 - 1)],
    "above a bigint": [str(2**63)],
    "5000 digits": ["9" * 5000],
}


@pytest.mark.parametrize("lines", BAD_FENCES.values(), ids=BAD_FENCES)
def test_a_fence_that_is_not_one_number_is_refused(scene: Scene, lines: list[str]) -> None:
    reply = scene.send("k", None, fields=[("X-Execution-Fence", line) for line in lines])
    assert_problem(reply, "fence-invalid")


def test_no_fence_is_refused_where_the_policy_requires_one(scene: Scene) -> None:
    assert_problem(scene.send("k", None), "fence-required")


@pytest.mark.parametrize("name", ["X_Execution_Fence", "X-Execution-Fences", "Execution-Fence"])
def test_a_field_that_only_looks_like_the_fence_is_none(scene: Scene, name: str) -> None:
    assert_problem(scene.send("k", None, fields=[(name, "9")]), "fence-required")


@admits
@pytest.mark.parametrize("fence", ["0", "1", " 7\t", str(2**62 - 1)])
def test_the_whole_range_of_fences_is_taken(scene: Scene, fence: str) -> None:
    assert scene.send("k", fence).status == 201
    assert scene.mark() == int(fence)


def fenced(scene: Scene, body: bytes, *fields: tuple[str, str]) -> Exchange:
    own = [("Idempotency-Key", scene.key()), ("Content-Type", "application/json")]
    target = f"/pay/v1/fenced?id={scene.account}"
    return scene.caller.open("POST", target, [*own, *fields], body)


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        (b'{"fence":4.0}', "fence-invalid"),
        (b'{"fence":4e1}', "fence-invalid"),
        (b'{"fence":-0}', "fence-invalid"),
        (b'{"fence":true}', "fence-invalid"),
        (b'{"fence":null}', "fence-invalid"),
        (b'{"fence":[4]}', "fence-invalid"),
        (b'{"fence":"04"}', "fence-invalid"),
        (b'{"fence":4,"fence":5}', "body-unreadable"),
        (b'{"fences":4}', "fence-required"),
    ],
)
def test_a_fence_in_the_body_is_read_as_strictly(
    scene: Scene, body: bytes, problem: ProblemType
) -> None:
    assert_problem(fenced(scene, body).reply(), problem)


def test_two_fences_in_two_places_that_differ_are_refused(scene: Scene) -> None:
    reply = fenced(scene, b'{"fence":4}', ("X-Execution-Fence", "5")).reply()
    assert_problem(reply, "fence-invalid")


# -- entities


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        (b"null", "entity-missing"),
        (b"[]", "entity-missing"),
        (b'"x"', "entity-missing"),
        (b"{}", "entity-missing"),
        (b'{"input":null}', "entity-missing"),
        (b'{"input":{"customer_id":""}}', "entity-missing"),
        (b'{"input":{"customer_id":1048}}', "request-invalid"),
        (b'{"input":{"customer_id":1048.0}}', "request-invalid"),
        (b'{"input":{"customer_id":true}}', "request-invalid"),
        (b'{"input":{"customer_id":null}}', "request-invalid"),
        (b'{"input":{"customer_id":["c-1"]}}', "request-invalid"),
        (b'{"input":{"customer_id":{"id":"c-1"}}}', "request-invalid"),
        (b'{"input":{"customer_id":"c-1 "}}', "request-invalid"),
        (b'{"input":{"customer_id":"caf\xc3\xa9"}}', "request-invalid"),
        (b'{"input":{"customer_id":"a\\u0000b"}}', "request-invalid"),
        (b'{"input":{"customer_id":"c-1","Customer_ID":"c-2"}}', "request-invalid"),
        (b'{"input":{"customer_id":"' + b"a" * 256 + b'"}}', "request-invalid"),
        (b'{"input":{"customer_id":"c-1"', "body-unreadable"),
        (b'{"input":{"customer_id":"c-1","customer_id":"c-2"}}', "body-unreadable"),
        (b"\xff\xfe{}", "body-unreadable"),
        (b"", "body-unreadable"),
        (b'{"a":NaN}', "body-unreadable"),
        (b"[" * 2000, "body-unreadable"),
    ],
)
def test_an_entity_in_the_body_is_one_string_or_none(
    scene: Scene, body: bytes, problem: ProblemType
) -> None:
    fields = [("Content-Type", "application/json"), ("Idempotency-Key", scene.key())]
    fields += [("X-Execution-Fence", "1")]
    assert_problem(scene.caller.call("POST", "/pay/v1/cases", fields, body), problem)


@pytest.mark.parametrize(
    ("lines", "problem"),
    [
        ([], "entity-missing"),
        ([""], "entity-missing"),
        (["a", "b"], "request-invalid"),
        (["a", "a"], "request-invalid"),
        (["a, b"], "request-invalid"),
        (["caf\u00e9"], "request-invalid"),
        (["a" * 256], "request-invalid"),
    ],
)
def test_an_entity_in_a_field_is_one_line(
    scene: Scene, lines: list[str], problem: ProblemType
) -> None:
    fields = [("Idempotency-Key", scene.key()), ("X-Execution-Fence", "1")]
    fields += [("X-Execution-Entity", line) for line in lines]
    assert_problem(scene.caller.call("POST", "/pay/v1/named", fields, b"{}"), problem)


@pytest.mark.parametrize("lines", [[""], ["account:x", "account:x"], [" "]])
def test_an_entity_field_beside_a_derived_one_is_one_line_with_a_value(
    scene: Scene, lines: list[str]
) -> None:
    reply = scene.send("k", 1, fields=[("X-Execution-Entity", line) for line in lines])
    assert_problem(reply, "request-invalid")


# -- bodies


def charge_head(scene: Scene, *more: str) -> bytes:
    lines = [
        f"POST /pay/v1/accounts/{scene.account}/charges HTTP/1.1",
        "Host: localhost",
        f"Idempotency-Key: {scene.key()}",
        "X-Execution-Fence: 5",
        *more,
        "",
        "",
    ]
    return "\r\n".join(lines).encode()


def write_on(exchange: Exchange, piece: bytes, times: int) -> threading.Thread:
    """Write like a caller that reads only when it is done."""

    def work() -> None:
        for _ in range(times):
            exchange.send(piece)

    thread = threading.Thread(target=work)
    thread.start()
    return thread


@pytest.mark.parametrize("size", [LIMIT + 1, 11 * LIMIT])
def test_a_declared_body_over_the_limit_is_a_413_and_no_reset(scene: Scene, size: int) -> None:
    exchange = scene.caller.raw(charge_head(scene, f"Content-Length: {size}"))
    writer = write_on(exchange, b"x" * size, 1)
    reply = exchange.next()
    writer.join()
    exchange.hang_up()
    assert_problem(reply, "body-too-large", limit=LIMIT)
    assert reply.one("Connection") == "close"


@pytest.mark.parametrize("size", [LIMIT + 1, 11 * LIMIT])
def test_a_caller_that_writes_all_before_it_reads_sees_the_413(scene: Scene, size: int) -> None:
    exchange = scene.caller.raw(charge_head(scene, f"Content-Length: {size}"))
    exchange.send(b"x" * size)
    assert_problem(exchange.reply(), "body-too-large", limit=LIMIT)


@pytest.mark.parametrize("chunks", [17, 176])
def test_a_chunked_body_over_the_limit_is_a_413_and_no_reset(scene: Scene, chunks: int) -> None:
    exchange = scene.caller.raw(charge_head(scene, "Transfer-Encoding: chunked"))
    exchange.send((b"10000\r\n" + b"x" * 65536 + b"\r\n") * chunks + b"0\r\n\r\n")
    assert_problem(exchange.reply(), "body-too-large", limit=LIMIT)


def test_a_caller_that_asks_first_is_told_before_it_sends_a_body(scene: Scene) -> None:
    more = (f"Content-Length: {LIMIT + 1}", "Expect: 100-continue")
    answer = scene.caller.raw(charge_head(scene, *more)).read_all()
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 413 ")
    assert b"body-too-large" in body
    assert b"\r\nconnection: close" in head.lower()


@admits
def test_a_caller_that_asks_first_is_told_to_go_on(scene: Scene) -> None:
    more = ("Content-Length: 2", "Expect: 100-continue")
    exchange = scene.caller.raw(charge_head(scene, *more))
    assert exchange.read() == b"HTTP/1.1 100 Continue\r\n\r\n"
    exchange.send(b"{}")
    assert exchange.reply().status == 201
    (request,) = scene.upstream.requests
    assert request.all("Expect") == []


@admits
@pytest.mark.parametrize("how", ["declared", "chunked"])
def test_the_limit_itself_passes(scene: Scene, how: str) -> None:
    body = b"x" * LIMIT
    if how == "declared":
        exchange = scene.caller.raw(charge_head(scene, f"Content-Length: {LIMIT}") + body)
    else:
        chunk = b"%x\r\n" % LIMIT + body + b"\r\n0\r\n\r\n"
        exchange = scene.caller.raw(charge_head(scene, "Transfer-Encoding: chunked") + chunk)
    assert exchange.reply().status == 201
    assert scene.upstream.requests[0].body == body


def peak_memory(scene: Scene) -> int:
    """KiB, by the kernel's high-water mark."""
    process = scene.stack.gateway.process
    assert process is not None
    status = Path(f"/proc/{process.pid}/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0])


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux's /proc")
@pytest.mark.parametrize("framing", ["Content-Length: 50331648", "Transfer-Encoding: chunked"])
def test_memory_stays_bounded_while_large_bodies_are_refused(scene: Scene, framing: str) -> None:
    before = peak_memory(scene)
    exchanges = [scene.caller.raw(charge_head(scene, framing)) for _ in range(3)]
    chunk = b"x" * 65536
    piece = chunk if "Length" in framing else b"10000\r\n" + chunk + b"\r\n"
    writers = [write_on(exchange, piece, 768) for exchange in exchanges]
    for writer in writers:
        writer.join()
    for exchange in exchanges:
        if "chunked" in framing:
            exchange.send(b"0\r\n\r\n")
        assert_problem(exchange.reply(), "body-too-large")
    assert peak_memory(scene) - before < 32 * 1024


def test_a_large_body_is_refused_for_its_first_mistake_and_read_off(scene: Scene) -> None:
    fields = [("Content-Length", str(4 * LIMIT))]
    exchange = scene.caller.open("POST", "/pay/v1/nothing", fields, None)
    exchange.send(b"x" * 4 * LIMIT)
    assert_problem(exchange.next(), "no-policy")


# -- routes and methods


@pytest.mark.parametrize("target", ["/", "/unknown/v1", "/payments/v1/x", "/pay2/v1/cases"])
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_a_path_under_no_mount_is_refused(scene: Scene, method: str, target: str) -> None:
    assert_problem(scene.caller.call(method, target), "no-policy")


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "TRACE", "LINK"])
def test_an_unsafe_method_without_a_policy_is_refused(scene: Scene, method: str) -> None:
    fields = [("Idempotency-Key", "k"), ("X-Execution-Fence", "1")]
    assert_problem(scene.caller.call(method, "/pay/v1/unlisted", fields), "no-policy")


@pytest.mark.parametrize("method", ["PUT", "DELETE", "PATCH"])
def test_a_command_under_another_unsafe_method_is_refused(scene: Scene, method: str) -> None:
    assert_problem(scene.send(method=method), "no-policy")


@pytest.mark.parametrize(
    "target",
    [
        "/pay/v1/accounts//charges",
        "/pay//v1/accounts/a/charges",
        "/pay/v1/accounts/./charges",
        "/pay/v1/accounts/a/../b/charges",
        "/pay/v1/accounts/%2e%2e/charges",
        "/pay/v1/accounts/a%2Fb/charges",
        "/pay/v1/accounts/a%5Cb/charges",
        "/pay/v1/accounts/a%00b/charges",
        "/pay/v1/accounts/a%0d%0ab/charges",
        "/pay/v1/accounts/a%zz/charges",
        "/pay/v1/accounts/a%252Fb/charges",
        "/pay/v1/accounts/a;b=c/charges",
        "/pay/v1/accounts/%C3%A9/charges",
        "/pay/v1/accounts/a/Charges",
        "/pay/v1/accounts/a/charges/",
        "/pay/v1/accounts/a/%63harges",
        "/pay/v1/accounts/a/charges?q=<x>",
    ],
)
def test_a_path_that_can_be_read_in_two_ways_is_refused(scene: Scene, target: str) -> None:
    fields = [("Idempotency-Key", "k"), ("X-Execution-Fence", "1")]
    assert_problem(scene.caller.call("POST", target, fields, b"{}"), "request-invalid")


@pytest.mark.parametrize("name", ["X-HTTP-Method-Override", "X_HTTP_Method", "x-method-override"])
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_a_field_that_changes_the_method_is_refused(scene: Scene, method: str, name: str) -> None:
    assert_problem(scene.send(method=method, fields=[(name, "DELETE")]), "request-invalid")


# -- what is no HTTP

NO_HTTP = {
    "garbage": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    "another version": b"POST /pay/v1/cases HTTP/3.0\r\nHost: g\r\n\r\n",
    "folded line": b"POST /pay/v1/cases HTTP/1.1\r\nHost: g\r\nIdempotency-Key: a\r\n b\r\n\r\n",
    "control character": b"POST /pay/v1/cases HTTP/1.1\r\nHost: g\r\nX-A: \x01\r\n\r\n",
    "several blanks": b"POST  /pay/v1/cases HTTP/1.1\r\nHost: g\r\n\r\n",
    "blank behind the version": b"POST /pay/v1/cases HTTP/1.1 \r\nHost: g\r\n\r\n",
    "another protocol": b"POST /pay/v1/cases RTSP/1.0\r\nHost: g\r\n\r\n",
    "another protocol's method": b"SOURCE /pay/v1/cases ICE/1.0\r\nHost: g\r\n\r\n",
    "bare line feeds": b"POST /pay/v1/cases HTTP/1.1\nHost: g\nContent-Length: 0\n\n",
    "a bare line feed in front": b"\nPOST /pay/v1/cases HTTP/1.1\r\nHost: g\r\n\r\n",
    "a bare line feed in the head": b"POST /pay/v1/cases HTTP/1.1\r\nHost: g\nX-A: 1\r\n\r\n",
    "a bare line feed at the end": b"POST /pay/v1/cases HTTP/1.1\r\nHost: g\r\n\n",
    "a bare carriage return": b"POST /pay/v1/cases HTTP/1.1\r\nHost: g\r\nX-A: a\rX-B: b\r\n\r\n",
    "a null": b"POST /pay/v1/cases HTTP/1.1\r\nHost: g\r\nX-A: a\x00b\r\n\r\n",
    "a name that is no token": b"POST /pay/v1/cases HTTP/1.1\r\nHost: g\r\nX\xe9: b\r\n\r\n",
    "no colon": b"POST /pay/v1/cases HTTP/1.1\r\nHost: g\r\nX-A\r\n\r\n",
    "no name": b"POST /pay/v1/cases HTTP/1.1\r\nHost: g\r\n: a\r\n\r\n",
    "a first line that is folded": b"POST /pay/v1/cases HTTP/1.1\r\n X-A: 1\r\nHost: g\r\n\r\n",
    "a method in lower case": b"post /pay/v1/cases HTTP/1.1\r\nHost: g\r\n\r\n",
    "an authority as target": b"CONNECT g:443 HTTP/1.1\r\nHost: g\r\n\r\n",
    "no target": b"POST  HTTP/1.1\r\nHost: g\r\n\r\n",
    "a target that is no path": b"POST @g/pay/v1/cases HTTP/1.1\r\nHost: g\r\n\r\n",
    "a raw control character in the path": b"GET /pay/\x01 HTTP/1.1\r\nHost: g\r\n\r\n",
    "raw UTF-8 in the path": b"GET /pay/\xc3\xa9 HTTP/1.1\r\nHost: g\r\n\r\n",
    "a raw byte in the query": b"GET /pay/a?\xe9 HTTP/1.1\r\nHost: g\r\n\r\n",
    "another host's URL": b"GET http://other/pay/v1/x HTTP/1.1\r\nHost: g\r\n\r\n",
    "a URL of another scheme": b"GET ftp://g/pay/v1/x HTTP/1.1\r\nHost: g\r\n\r\n",
    "lengths in a list": b"POST /pay/v1/cases HTTP/1.1\r\nHost: g\r\n"
    b"Content-Length: 2, 2\r\n\r\n{}",
    "equal lengths": b"POST /pay/v1/cases HTTP/1.1\r\nHost: g\r\nContent-Length: 2\r\n"
    b"Content-Length: 2\r\n\r\n{}",
    "a signed length": b"POST /pay/v1/cases HTTP/1.1\r\nHost: g\r\nContent-Length: +2\r\n\r\n{}",
    "a length of 2^64 and more": b"POST /pay/v1/cases HTTP/1.1\r\nHost: g\r\n"
    b"Content-Length: 18446744073709551618\r\n\r\n{}",
    "blank before the colon": b"POST /pay/v1/cases HTTP/1.1\r\nHost: g\r\nX-A : 1\r\n\r\n",
    "length and coding": b"POST /pay/v1/cases HTTP/1.1\r\nHost: g\r\nContent-Length: 4\r\n"
    b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "two lengths": b"POST /pay/v1/cases HTTP/1.1\r\nHost: g\r\nContent-Length: 1\r\n"
    b"Content-Length: 2\r\n\r\nab",
    "negative length": b"POST /pay/v1/cases HTTP/1.1\r\nHost: g\r\nContent-Length: -1\r\n\r\n",
    "bad chunk": b"POST /pay/v1/accounts/x/charges HTTP/1.1\r\nHost: g\r\nIdempotency-Key: k\r\n"
    b"X-Execution-Fence: 1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
}


BAD_CHUNKS = {
    "0x in front": b"0x2\r\n{}\r\n0\r\n\r\n",
    "a blank behind": b"2 \r\n{}\r\n0\r\n\r\n",
    "a blank in front": b" 2\r\n{}\r\n0\r\n\r\n",
    "a sign": b"+2\r\n{}\r\n0\r\n\r\n",
    "an underscore": b"0_2\r\n{}\r\n0\r\n\r\n",
    "no size": b"\r\n{}\r\n0\r\n\r\n",
    "2^64 and 2": b"10000000000000002\r\n{}\r\n0\r\n\r\n",
    "a bare line feed behind the size": b"2\n{}\r\n0\r\n\r\n",
    "a bare line feed behind the data": b"2\r\n{}\n0\r\n\r\n",
    "bare line feeds at the end": b"2\r\n{}\r\n0\n\n",
    "a bare line feed at the end": b"2\r\n{}\r\n0\r\n\n",
    "more data than it says": b"2\r\n{}x\r\n0\r\n\r\n",
    "no line behind the data": b"2\r\n{}0\r\n\r\n",
    "a bare line feed in an extension": b"2;a\nb\r\n{}\r\n0\r\n\r\n",
    "a bare carriage return in an extension": b"2;a\rb\r\n{}\r\n0\r\n\r\n",
    "a null in an extension": b"2;a\x00b\r\n{}\r\n0\r\n\r\n",
    "a line feed in a quoted extension": b'2;a="\n"\r\n{}\r\n0\r\n\r\n',
    "a length in the trailers": b"2\r\n{}\r\n0\r\nContent-Length: 5\r\n\r\n",
    "a coding in the trailers": b"2\r\n{}\r\n0\r\nTransfer-Encoding: chunked\r\n\r\n",
    "a folded trailer": b"2\r\n{}\r\n0\r\nX-A: a\r\n b\r\n\r\n",
}


@pytest.mark.parametrize("chunks", BAD_CHUNKS.values(), ids=BAD_CHUNKS)
def test_chunks_that_two_readers_may_cut_differently_are_refused(
    scene: Scene, chunks: bytes
) -> None:
    exchange = scene.caller.raw(charge_head(scene, "Transfer-Encoding: chunked") + chunks)
    assert_problem(exchange.next(), "request-invalid")
    assert exchange.read_all() == b""


@pytest.mark.parametrize("data", NO_HTTP.values(), ids=NO_HTTP)
def test_what_is_no_http_is_a_problem_too_and_the_connection_closes(
    scene: Scene, data: bytes
) -> None:
    exchange = scene.caller.raw(data)
    reply = exchange.next()
    assert_problem(reply, "request-invalid")
    assert reply.one("Connection") == "close"
    assert exchange.read_all() == b""
    request_id = reply.json()["request_id"]
    scene.stack.gateway.wait_for_log(request_id=request_id, problem="request-invalid")


@pytest.mark.parametrize("size", [300, 30_000])  # fewer than 256 lines
def test_a_head_without_an_end_is_cut_off(scene: Scene, size: int) -> None:
    exchange = scene.caller.raw(b"POST /pay/v1/cases HTTP/1.1\r\n")
    sent = 29
    while sent <= 65536:
        exchange.send(line := b"X-A: " + b"a" * size + b"\r\n")
        sent += len(line)
    assert_problem(exchange.next(), "request-invalid")
    exchange.hang_up()


@admits
@pytest.mark.parametrize("how", ["in one piece", "one after the other"])
@pytest.mark.parametrize("behind", [b"garbage\r\n\r\n", b"{}{}{}", b"\x00" * 10])
def test_garbage_behind_a_request_is_never_its_answer(
    scene: Scene, behind: bytes, how: str
) -> None:
    """A 400 there would say "not sent" of a command that is on its way. It gets its own answer,
    and the connection ends."""
    gate = Gate()
    scene.upstream.next(gated(gate))
    command = charge_head(scene, "Content-Length: 2") + b"{}"
    if how == "in one piece":
        exchange = scene.caller.raw(command + behind)
        scene.upstream.wait_for_requests(1)
    else:
        exchange = scene.caller.raw(command)
        scene.upstream.wait_for_requests(1)
        exchange.send(behind)
        assert scene.caller.call("GET", "/healthz").status == 200  # so that it has been read
    gate.release()
    reply = exchange.next()
    assert (reply.status, reply.one("Connection")) == (201, "close")
    assert exchange.read_all() == b""
    assert (scene.state(), scene.upstream.count) == ("settled", 1)


@admits
def test_a_trailer_names_neither_key_nor_fence(scene: Scene) -> None:
    head = charge_head(scene, "Transfer-Encoding: chunked")
    trailers = b"Idempotency-Key: other\r\nX-Execution-Fence: 99\r\nX-Trailer: 1\r\n"
    exchange = scene.caller.raw(head + b"2\r\n{}\r\n0\r\n" + trailers + b"\r\n")
    assert exchange.reply().status == 201
    assert scene.mark() == 5
    assert scene.upstream.requests[0].all("X-Trailer") == []
    only = (
        b"POST /pay/v1/accounts/%b/charges HTTP/1.1\r\nHost: localhost\r\n" % scene.account.encode()
    )
    only += b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n" + trailers + b"\r\n"
    assert_problem(scene.caller.raw(only).reply(), "key-missing")


UPGRADE = ("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABk")


@pytest.mark.parametrize("framing", ["Content-Length: 14", "Transfer-Encoding: chunked"])
def test_a_body_behind_an_offer_to_upgrade_is_refused_and_never_lost(
    scene: Scene, framing: str
) -> None:
    body = b'{"amount":100}' if "Length" in framing else b'e\r\n{"amount":100}\r\n0\r\n\r\n'
    reply = scene.caller.raw(charge_head(scene, *UPGRADE, framing) + body).reply()
    assert "Upgrade" in assert_problem(reply, "request-invalid")["detail"]


@pytest.mark.parametrize(
    "offer",
    [UPGRADE, ("Connection: upgrade", "Upgrade: websocket"), ("Connection: UPGRADE", "Upgrade: ,")],
)
def test_an_offer_to_upgrade_is_refused_on_a_command_without_a_body_too(
    scene: Scene, offer: tuple[str, ...]
) -> None:
    reply = scene.caller.raw(charge_head(scene, *offer, "Content-Length: 0")).reply()
    assert "Upgrade" in assert_problem(reply, "request-invalid")["detail"]


@admits
@pytest.mark.parametrize("offer", [("Upgrade: h2c",), ("Connection: upgrade",)])
def test_half_an_offer_is_none(scene: Scene, offer: tuple[str, ...]) -> None:
    assert scene.caller.raw(charge_head(scene, *offer, "Content-Length: 0")).reply().status == 201
    assert scene.upstream.requests[0].all("Upgrade") == []


@admits
def test_an_offer_to_upgrade_is_passed_over_where_nothing_is_guarded(scene: Scene) -> None:
    lines = "\r\n".join(["GET /pay/v1/report HTTP/1.1", "Host: localhost", *UPGRADE, "", ""])
    reply = scene.caller.raw(lines.encode(), method="GET").reply()
    assert (reply.status, reply.one("Connection")) == (201, "close")
    (request,) = scene.upstream.requests
    assert (request.all("Upgrade"), request.all("HTTP2-Settings")) == ([], [])


NEVER_NAMED = [
    *("host", "Content-Length", "VIA", "authorization", "Idempotency-Key", "x-execution-fence"),
    *("x-execution-entity", "X_Execution_Fence", "forwarded", "X-Forwarded-For", "x-real-ip"),
]


@pytest.mark.parametrize("name", NEVER_NAMED)
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_connection_may_not_take_away_what_somebody_depends_on(
    scene: Scene, method: str, name: str
) -> None:
    reply = scene.send(method=method, fields=[("Connection", f"close, {name}")])
    assert "Connection names" in assert_problem(reply, "request-invalid")["detail"]


# -- a key for something else, and upstreams that misbehave


@admits
def test_a_key_used_again_with_another_body_sends_nothing(scene: Scene) -> None:
    assert scene.send().status == 201
    assert_problem(scene.send("k", 8, body=b'{"amount":1}'), "key-reused")
    assert (scene.upstream.count, scene.mark()) == (1, 8)


@admits
@pytest.mark.parametrize(
    ("answer", "status", "problem", "sent"),
    [
        (respond(500, effect=True), 504, "outcome-unknown", "yes"),
        (hang(), 504, "outcome-unknown", "yes"),
        (cut(), 504, "outcome-unknown", "yes"),
        (
            raw(b"HTTP/1.1 201 C\r\nContent-Length: 9\r\n\r\nab", then="close"),
            *(502, "response-incomplete", "yes"),
        ),
    ],
    ids=["answers 500", "hangs", "closes", "truncates"],
)
def test_an_upstream_that_misbehaves_is_told_with_what_was_sent(
    scene: Scene, answer: object, status: int, problem: str, sent: str
) -> None:
    scene.upstream.next(answer)  # type: ignore[arg-type]
    reply = scene.send()
    assert (reply.status, reply.problem, reply.json()["sent"]) == (status, problem, sent)
    assert scene.upstream.count == 1
    assert scene.row() is not None


@admits
def test_an_upstream_that_refuses_is_told_with_nothing_sent(scene: Scene) -> None:
    scene.upstream.refuse()
    scene.upstream.drop_connections()
    try:
        reply = fenced(scene, b'{"fence":0}').reply()
    finally:
        scene.upstream.accept()
    assert (reply.status, reply.problem, reply.json()["sent"]) == (502, "not-sent", "no")
    assert scene.row() is None
