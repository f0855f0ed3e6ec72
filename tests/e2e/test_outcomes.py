"""Every row of the outcome table: what is seen of the upstream, what the caller hears, and what
may be done with the key afterwards."""

from __future__ import annotations

import contextlib
import http.client
import socket
import threading
from collections.abc import Iterator
from email.utils import parsedate_to_datetime
from typing import Any

import pytest

from tests.kit.client import Reply, assert_problem
from tests.kit.db import Server
from tests.kit.gateway import Scene, Stack, policy, stack
from tests.kit.upstream import (
    Answer,
    Gate,
    RecordingUpstream,
    closed_port,
    cut,
    drip,
    early,
    gated,
    hang,
    raw,
    respond,
)

CHARGE = """
name = "charge"
match = "POST /v1/accounts/{account}/charges"
entity = "account:{path.account}"
timeout_s = 20
settle_delay_s = 0
keep_limit = "4 KiB"
"""

HASTY = """
name = "hasty"
match = "POST /v1/accounts/{account}/hasty"
entity = "account:{path.account}"
timeout_s = 0.4
settle_delay_s = 60
"""

OWN_LISTS = """
name = "own"
match = "POST /v1/accounts/{account}/own"
entity = "account:{path.account}"
not_executed = [409, 503]
ambiguous = [202, 404]
"""

COMMANDS = (CHARGE, HASTY, OWN_LISTS)


@pytest.fixture(scope="module")
def served(postgres: Server) -> Iterator[Stack]:
    with stack(postgres, lambda url: [policy(url, *COMMANDS)]) as made:
        yield made


@pytest.fixture
def scene(served: Stack) -> Scene:
    return served.scene()


def assert_unknown(scene: Scene, reply: Reply, **members: Any) -> None:
    """Told as unknown, held with its evidence, never sent again, and blocking its entity."""
    assert_problem(reply, "outcome-unknown", outcome="unknown", sent="yes", waits=True, **members)
    assert scene.state() == "unknown"
    count = scene.upstream.count
    assert scene.send().problem in ("outcome-unknown", "key-reused")
    assert scene.send("next", 9).problem == "entity-unresolved"
    assert scene.upstream.count == count
    assert scene.audit()[0]["event"] == "outcome_unknown"


def assert_released(scene: Scene, **more: str) -> None:
    """The key is new again, the entity free, the release in the audit; a retry is forwarded."""
    assert scene.state() is None
    assert [row["event"] for row in scene.audit()] == ["released"]
    before = len(scene.upstream.effects)
    again = scene.send(**more)
    assert (again.status, again.outcome) == (201, "applied")
    assert len(scene.upstream.effects) == before + 1


# -- nothing left: not-sent


def test_a_refused_connection_is_not_sent_and_gives_the_key_back(scene: Scene) -> None:
    scene.upstream.refuse()
    scene.upstream.drop_connections()
    try:
        reply = scene.send()
        assert_problem(reply, "not-sent", outcome="not-sent", waits=True)
        assert "error=connection_refused" in (reply.one("Proxy-Status") or "")
    finally:
        scene.upstream.accept()
    assert_released(scene)
    assert scene.mark() == 1


def not_sent_through(postgres: Server, url: str, error: str) -> None:
    with stack(postgres, lambda _: [policy(url, CHARGE, HASTY)]) as made:
        scene = made.scene()
        reply = scene.send(what="hasty")
        assert_problem(reply, "not-sent", outcome="not-sent", waits=True)
        assert f"error={error}" in (reply.one("Proxy-Status") or "")
        assert (scene.state(), made.upstream.connections) == (None, 0)
        assert [row["event"] for row in scene.audit()] == ["released"]
        # The entity is free and the fence is remembered.
        assert scene.send("other", 2, what="hasty").problem == "not-sent"
        assert scene.mark() == 2


def test_nothing_is_sent_to_a_port_that_is_closed(postgres: Server) -> None:
    not_sent_through(postgres, f"http://127.0.0.1:{closed_port()}", "connection_refused")


def test_a_name_without_an_address_is_not_sent(postgres: Server) -> None:
    not_sent_through(postgres, "http://no-such-host.invalid", "dns_error")


def test_a_port_that_accepts_nothing_is_not_sent(postgres: Server) -> None:
    with full_backlog() as port:
        not_sent_through(postgres, f"http://127.0.0.1:{port}", "connection_timeout")


def test_a_certificate_that_is_not_trusted_is_not_sent(postgres: Server) -> None:
    with RecordingUpstream(tls=True) as secret:
        not_sent_through(postgres, secret.url, "tls_protocol_error")
        assert secret.count == 0


def test_an_upstream_that_speaks_no_tls_is_not_sent(postgres: Server) -> None:
    with listening() as listener:
        listener.listen()
        port = listener.getsockname()[1]
        threading.Thread(target=greet, args=(listener,), daemon=True).start()
        not_sent_through(postgres, f"https://127.0.0.1:{port}", "tls_protocol_error")


def greet(listener: socket.socket) -> None:
    """Speak first and in plain text, to whoever connects."""
    with contextlib.suppress(OSError):
        while True:
            with listener.accept()[0] as connection:
                connection.sendall(b"220 mail.example ESMTP\r\n")


def listening() -> socket.socket:
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    return listener


@contextlib.contextmanager
def full_backlog() -> Iterator[int]:
    """A port whose queue of connections is full: a SYN is dropped, not refused."""
    with contextlib.ExitStack() as held:
        listener = held.enter_context(listening())
        listener.listen(0)
        port = listener.getsockname()[1]
        for _ in range(16):
            filler = held.enter_context(socket.socket())
            filler.settimeout(0.1)
            try:
                filler.connect(("127.0.0.1", port))
            except TimeoutError:
                break
        yield port


def test_no_free_connection_to_the_upstream_is_not_sent(postgres: Server) -> None:
    hasty = HASTY.replace("0.4", "0.5")
    with stack(
        postgres, lambda url: [policy(url, CHARGE, hasty, head="max_connections = 1")]
    ) as made:
        scene = made.scene()
        gate = Gate()
        scene.upstream.next(gated(gate))
        first = scene.open("first", 1, account="busy")
        scene.upstream.wait_for_requests(1)
        reply = scene.send(what="hasty")
        assert_problem(reply, "not-sent", outcome="not-sent", waits=True)
        gate.release()
        assert first.reply().status == 201
        assert_released(scene, what="hasty")


# -- not executed


@pytest.mark.parametrize("status", [401, 407, 421, 425, 429])
def test_a_status_that_proves_nothing_was_done_is_relayed_and_released(
    scene: Scene, status: int
) -> None:
    scene.upstream.next(respond(status, b"no", [("Retry-After", "3"), ("X-Why", "because")]))
    reply = scene.send()
    assert (reply.status, reply.body, reply.outcome) == (status, b"no", "not-executed")
    assert (reply.replayed, reply.one("Retry-After"), reply.one("X-Why")) == (False, "3", "because")
    assert_released(scene)


# -- ambiguous


@pytest.mark.parametrize("status", [408, 500, 502, 503, 504])
def test_an_ambiguous_status_is_unknown_with_the_answer_as_evidence(
    scene: Scene, status: int
) -> None:
    scene.upstream.next(respond(status, b"<h1>oops \xff</h1>", effect=True))
    reply = scene.send()
    evidence = {"status": status, "body_start": "<h1>oops �</h1>"}
    assert_unknown(scene, reply, upstream=evidence)
    assert f"received-status={status}" in (reply.one("Proxy-Status") or "")
    row = scene.row()
    assert row is not None
    assert (row["evidence_status"], row["evidence"]) == (status, b"<h1>oops \xff</h1>")
    assert len(scene.upstream.effects) == 1


def test_only_the_start_of_a_long_ambiguous_body_is_shown(scene: Scene) -> None:
    scene.upstream.next(respond(500, b"e" * 100_000, effect=True))
    document = scene.send().json()
    assert document["upstream"] == {"status": 500, "body_start": "e" * 2048}


# -- answered


@pytest.mark.parametrize(
    "status", [200, 201, 202, 204, 301, 303, 304, 400, 403, 404, 409, 422, 501]
)
def test_any_other_status_is_settled_and_replayed(scene: Scene, status: int) -> None:
    body = b"" if status in (204, 304) else b'{"n":1}'
    scene.upstream.next(respond(status, body, [("Location", "/x"), ("ETag", '"v1"')]))
    first, again = scene.send(), scene.send()
    assert (first.status, first.body, first.outcome) == (status, body, "applied")
    assert (again.status, again.body, again.outcome) == (status, body, "replayed")
    for reply in (first, again):
        assert (reply.one("Location"), reply.one("ETag")) == ("/x", '"v1"')
        assert reply.one("Content-Length") == (None if status in (204, 304) else "7")
    assert scene.upstream.count == 1
    assert scene.state() == "settled"
    assert scene.audit() == []


def test_redirects_are_never_followed(scene: Scene) -> None:
    scene.upstream.next(respond(307, b"", [("Location", scene.upstream.url + "/elsewhere")]))
    assert scene.send().status == 307
    assert scene.upstream.count == 1


def test_a_policy_may_list_its_own_statuses(scene: Scene) -> None:
    scene.upstream.next(respond(503, b"queue full"))
    assert scene.send(what="own").outcome == "not-executed"
    assert scene.state() is None
    scene.upstream.next(respond(500, b"final", effect=True))
    assert (scene.send(what="own").status, scene.send(what="own").outcome) == (500, "replayed")
    scene.upstream.next(respond(202, b"later"))
    reply = scene.send("k2", what="own")
    assert_problem(
        reply,
        "outcome-unknown",
        outcome="unknown",
        sent="yes",
        waits=True,
        upstream={"status": 202, "body_start": "later"},
    )


def test_interim_responses_are_passed_over(scene: Scene) -> None:
    scene.upstream.next(
        raw(
            b"HTTP/1.1 102 Processing\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n"
            b"HTTP/1.1 201 Created\r\nContent-Length: 2\r\n\r\nok"
        )
    )
    reply = scene.send()
    assert (reply.status, reply.body, reply.one("Link")) == (201, b"ok", None)
    assert scene.send().replayed


def test_a_chunked_answer_is_recorded_as_its_content(scene: Scene) -> None:
    scene.upstream.next(
        raw(
            b"HTTP/1.1 201 Created\r\nTransfer-Encoding: chunked\r\nTrailer: X-Sum\r\n\r\n"
            b"3;ext=1\r\nabc\r\n2\r\nde\r\n0\r\nX-Sum: 5\r\n\r\n"
        )
    )
    first, again = scene.send(), scene.send()
    assert (first.body, again.body) == (b"abcde", b"abcde")
    assert first.one("Transfer-Encoding") is None
    assert again.one("Content-Length") == "5"


def test_an_answer_before_the_body_was_read_counts(scene: Scene) -> None:
    scene.upstream.next(early(respond(403, b"no", close=True)))
    reply = scene.send(body=b'"' + b"x" * 2_000_000 + b'"')
    assert (reply.status, reply.body, reply.outcome) == (403, b"no", "applied")
    assert len(scene.upstream.effects) == 0


# -- status seen, body cut short

CUTS = {
    "fixed": lambda status: raw(
        b"HTTP/1.1 %d X\r\nContent-Length: 10\r\n\r\nabc" % status, then="close"
    ),
    "chunked": lambda status: raw(
        b"HTTP/1.1 %d X\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n" % status, then="close"
    ),
    "reset": lambda status: raw(
        b"HTTP/1.1 %d X\r\nContent-Length: 10\r\n\r\nabc" % status, then="reset"
    ),
    "bad chunk": lambda status: raw(
        b"HTTP/1.1 %d X\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\nzz\r\n" % status
    ),
    "no byte of it": lambda status: raw(
        b"HTTP/1.1 %d X\r\nContent-Length: 10\r\n\r\n" % status, then="close"
    ),
}


@pytest.mark.parametrize("how", CUTS)
def test_executed_but_cut_short_is_settled_without_a_body(scene: Scene, how: str) -> None:
    scene.upstream.next(CUTS[how](201))
    reply = scene.send()
    assert_problem(reply, "response-incomplete", outcome="applied", upstream={"status": 201})
    assert "received-status=201" in (reply.one("Proxy-Status") or "")
    assert_problem(scene.send(), "response-not-retained", upstream={"status": 201})
    assert scene.send("next").status == 201
    assert scene.upstream.count == 2
    assert scene.audit() == []


@pytest.mark.parametrize("how", CUTS)
def test_ambiguous_and_cut_short_is_unknown(scene: Scene, how: str) -> None:
    scene.upstream.next(CUTS[how](500))
    start = "" if how == "no byte of it" else "abc"
    assert_unknown(scene, scene.send(), upstream={"status": 500, "body_start": start})


@pytest.mark.parametrize("how", CUTS)
def test_not_executed_and_cut_short_is_released(scene: Scene, how: str) -> None:
    answer = CUTS[how](429)
    scene.upstream.next(Answer(answer.pieces, answer.then, effect=False))
    reply = scene.send()
    assert_problem(
        reply,
        "response-incomplete",
        outcome="not-executed",
        retry="same-key",
        waits=True,
        upstream={"status": 429},
    )
    assert_released(scene)


@pytest.mark.parametrize("then", ["close", "fin"])
def test_a_body_that_the_close_ends_is_complete(scene: Scene, then: str) -> None:
    scene.upstream.next(raw(b"HTTP/1.1 201 Created\r\nX-A: 1\r\n\r\nabc", then=then))  # type: ignore[arg-type]
    first, again = scene.send(), scene.send()
    assert (first.status, first.body, first.outcome) == (201, b"abc", "applied")
    assert (again.body, again.replayed, again.one("X-A")) == (b"abc", True, "1")


# -- larger than the keep limit


@pytest.mark.parametrize("framing", ["fixed", "chunked", "close"])
def test_a_large_answer_is_relayed_whole_and_not_kept(scene: Scene, framing: str) -> None:
    body = bytes(range(256)) * 4096  # 1 MiB
    head = b"HTTP/1.1 201 Created\r\nX-A: 1\r\n"
    answer = {
        "fixed": raw(head + b"Content-Length: %d\r\n\r\n" % len(body) + body),
        "chunked": raw(
            head + b"Transfer-Encoding: chunked\r\n\r\n%x\r\n" % len(body) + body + b"\r\n0\r\n\r\n"
        ),
        "close": raw(head + b"\r\n" + body, then="close"),
    }[framing]
    scene.upstream.next(answer)
    reply = scene.send()
    assert (reply.status, reply.body, reply.outcome) == (201, body, "applied")
    assert reply.one("X-A") == "1"
    assert_problem(scene.send(), "response-not-retained", upstream={"status": 201})
    assert scene.upstream.count == 1


@pytest.mark.parametrize("size", [4096, 4097])
def test_the_keep_limit_is_exact(scene: Scene, size: int) -> None:
    scene.upstream.next(respond(201, b"x" * size))
    assert scene.send().body == b"x" * size
    assert scene.send().status == (201 if size == 4096 else 410)


def test_a_large_answer_is_settled_before_the_caller_sees_its_head(scene: Scene) -> None:
    gate = Gate()
    pieces = [b"HTTP/1.1 201 Created\r\nContent-Length: 100000\r\n\r\n" + b"a" * 50_000]
    scene.upstream.next(drip([*pieces, b"b" * 50_000], gate=gate))
    gate.step()
    caller = scene.open()
    start = caller.read()
    assert start.startswith(b"HTTP/1.1 201")
    assert scene.state() == "settled"
    gate.step()
    caller.hang_up()


def test_a_large_answer_that_breaks_off_is_not_completed_to_the_caller(scene: Scene) -> None:
    head = b"HTTP/1.1 201 Created\r\nContent-Length: 100000\r\n\r\n"
    scene.upstream.next(raw(head + b"a" * 50_000, then="close"))
    with pytest.raises(http.client.IncompleteRead):
        scene.send()
    assert_problem(scene.send(), "response-not-retained", upstream={"status": 201})
    assert scene.upstream.count == 1


def test_a_large_answer_with_an_ambiguous_status_is_unknown(scene: Scene) -> None:
    scene.upstream.next(respond(503, b"x" * 50_000, effect=True))
    assert_unknown(scene, scene.send())


def test_a_large_answer_that_says_not_executed_is_relayed_and_released(scene: Scene) -> None:
    scene.upstream.next(respond(429, b"x" * 50_000))
    assert scene.send().body == b"x" * 50_000
    assert_released(scene)


# -- anything else after the first byte

NO_ANSWER = {
    "closed": cut(),
    "reset": cut("reset"),
    "garbage": raw(b"SSH-2.0-OpenSSH_9.6\r\n", then="close"),
    "half a head": raw(b"HTTP/1.1 201 Created\r\nX-A: 1\r\n", then="close"),
    "another version": raw(b"HTTP/2.0 201 Created\r\nContent-Length: 0\r\n\r\n"),
    "a status that is none": raw(b"HTTP/1.1 999 Whatever\r\nContent-Length: 0\r\n\r\n"),
    "unsolicited 101": raw(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: h2c\r\n\r\n"),
    "two lengths": raw(b"HTTP/1.1 201 C\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab"),
    "length and coding": raw(
        b"HTTP/1.1 201 C\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
    ),
    "a huge head": raw(b"HTTP/1.1 201 C\r\nX-A: " + b"a" * 100_000 + b"\r\n\r\n"),
}


@pytest.mark.parametrize("what", NO_ANSWER)
def test_no_answer_after_the_request_left_is_unknown(scene: Scene, what: str) -> None:
    scene.upstream.next(NO_ANSWER[what])
    assert_unknown(scene, scene.send())
    assert len(scene.upstream.effects) == 1


def test_silence_until_the_deadline_is_unknown(scene: Scene) -> None:
    scene.upstream.next(hang())
    reply = scene.send(what="hasty")
    assert "error=http_response_timeout" in (reply.one("Proxy-Status") or "")
    assert_unknown(scene, reply)


def test_a_request_that_the_upstream_did_not_take_whole_is_unknown(scene: Scene) -> None:
    scene.upstream.next(early(cut("reset")))
    reply = scene.send(body=b'"' + b"x" * 7_000_000 + b'"')
    assert_problem(reply, "outcome-unknown", outcome="unknown", sent="unknown", waits=True)
    assert scene.state() == "unknown"
    assert len(scene.upstream.effects) == 0


# -- late bytes


def test_an_answer_that_comes_late_heals_the_command(scene: Scene) -> None:
    gate = Gate()
    scene.upstream.next(gated(gate, respond(201, b'{"id":"ch_1"}', [("Location", "/ch_1")])))
    assert_problem(
        scene.send(what="hasty"), "outcome-unknown", outcome="unknown", sent="yes", waits=True
    )
    assert scene.send("next", 1, what="hasty").problem == "entity-unresolved"
    gate.release()
    scene.wait_for_state("settled")
    again = scene.send(what="hasty")
    assert (again.status, again.body, again.outcome) == (201, b'{"id":"ch_1"}', "replayed")
    assert again.one("Location") == "/ch_1"
    assert [row["event"] for row in scene.audit()] == ["outcome_unknown", "late_evidence"]
    assert scene.send("next", 1, what="hasty").status == 201
    assert scene.upstream.count == 2


def test_the_rest_of_an_answer_that_comes_late_heals_the_command(scene: Scene) -> None:
    gate = Gate()
    scene.upstream.next(drip([b"HTTP/1.1 201 C\r\n", b"Content-Length: 2\r\n\r\nok"], gate=gate))
    gate.step()
    assert scene.send(what="hasty").problem == "outcome-unknown"
    gate.step()
    scene.wait_for_state("settled")
    assert scene.send(what="hasty").body == b"ok"


@pytest.mark.parametrize("status", [429, 503])
def test_late_bytes_that_prove_nothing_leave_it_unknown(scene: Scene, status: int) -> None:
    gate = Gate()
    scene.upstream.next(gated(gate, respond(status, b"", close=True)))
    assert scene.send(what="hasty").problem == "outcome-unknown"
    gate.release()
    scene.upstream.wait_for_requests(1)
    assert scene.send(what="hasty").problem == "outcome-unknown"
    assert scene.state() == "unknown"


# -- the upstream's headers


def test_headers_reach_the_caller_in_order_with_repeats_and_without_the_hop(scene: Scene) -> None:
    scene.upstream.next(
        respond(
            201,
            b"ok",
            [
                ("Link", "<a>; rel=next"),
                ("Connection", "keep-alive, X-Hop"),
                ("X-Hop", "dropped"),
                ("Keep-Alive", "timeout=5"),
                ("Proxy-Authenticate", "Basic"),
                ("Date", "Thu, 01 Jan 1970 00:00:00 GMT"),
                ("Set-Cookie", "sid=1"),
                ("WWW-Authenticate", "Basic"),
                ("X-Name", "résumé"),
                ("WARNING", "199 - x"),
                ("Link", "<b>; rel=last"),
                ("Gateway-Outcome", "replayed"),
                ("Idempotent-Replayed", "true"),
                ("Content-Encoding", "identity"),
            ],
        )
    )
    first, again = scene.send(), scene.send()
    for reply in (first, again):
        assert reply.all("Link") == ["<a>; rel=next", "<b>; rel=last"]
        assert reply.one("Warning") == "199 - x"
        assert reply.one("X-Name") == "résumé".encode().decode("latin-1")
        for name in ("Connection", "X-Hop", "Keep-Alive", "Proxy-Authenticate"):
            assert reply.one(name) is None
        kept = [key.lower() for key, _ in reply.headers]
        order = [name for name in kept if name in ("link", "x-name", "warning")]
        assert order == ["link", "x-name", "warning", "link"]
    assert (first.outcome, first.replayed) == ("applied", False)
    assert (again.outcome, again.replayed) == ("replayed", True)
    assert (first.one("Set-Cookie"), again.one("Set-Cookie")) == ("sid=1", None)
    assert (first.one("WWW-Authenticate"), again.one("WWW-Authenticate")) == ("Basic", None)
    assert first.one("Date") == "Thu, 01 Jan 1970 00:00:00 GMT"
    assert parsedate_to_datetime(again.one("Date") or "").year >= 2025


@pytest.mark.parametrize("status", [204, 304])
def test_a_bodiless_answer_with_a_length_is_answered_and_replayed(
    scene: Scene, status: int
) -> None:
    length = b"Content-Length: 5\r\n" if status == 304 else b""
    scene.upstream.next(raw(b"HTTP/1.1 %d X\r\n%bX-A: 1\r\n\r\n" % (status, length)))
    for outcome in ("applied", "replayed"):
        caller = scene.open()
        reply = caller.next()
        assert (reply.status, reply.outcome, reply.one("X-A")) == (status, outcome, "1")
        caller.hang_up()
    errors = [line for line in scene.stack.gateway.log if line.get("exception")]
    assert errors == []
