"""``job.http`` against a server that answers as a gateway may."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from typing import Any

import httpx
import pytest

from gateway.core.leases import LeaseClass
from gateway.worker import Job
from gateway.worker.clock import now_mono_s
from gateway.worker.endings import FINAL
from gateway.worker.errors import (
    Executed,
    LeaseLost,
    Misuse,
    NoAnswer,
    NotSent,
    OutcomeUnknown,
    OwnershipUnknown,
    Refused,
)
from gateway.worker.http import AsyncHttp, Caller
from gateway.worker.keeper import Tended
from gateway.worker.trust import refused
from tests.kit.upstream import Answer, Recorded, RecordingUpstream, closed_port, cut, hang, respond
from tests.worker.standin import caller, problem

DONE = respond(201, b'{"id": 1}', [("Gateway-Outcome", "applied")])
SHORT = LeaseClass(lease_s=1, heartbeat_s=0.2, jitter_s=0)
"""So that giving up does not take a minute."""


@pytest.fixture
def gate() -> Iterator[RecordingUpstream]:
    with RecordingUpstream() as made:
        yield made


def run(
    gate: RecordingUpstream | str,
    work: Callable[[Caller, Tended], Awaitable[Any]],
    **more: Any,
) -> Any:
    """Run ``work`` in a loop of its own."""
    url = gate if isinstance(gate, str) else gate.url

    async def main() -> Any:
        made, kept, _ = caller(url, **more)
        try:
            return await work(made, kept)
        finally:
            await made.lane.close()

    return asyncio.run(main())


def post(gate: RecordingUpstream | str, path: str = "/shop/v1/acts", **more: Any) -> httpx.Response:
    about = {name: more.pop(name) for name in ("terms",) if name in more}
    wish = {"step": "a", "json": {"n": 1}, "timeout_s": 0.5, **more}
    answer = run(gate, lambda c, _: c.send("POST", path, **wish), **about)
    assert isinstance(answer, httpx.Response)
    return answer


def test_a_command_carries_its_key_its_fence_and_its_entity(gate: RecordingUpstream) -> None:
    gate.next(DONE)
    assert post(gate, headers={"X-Own": "1"}, params={"q": "ü"}).json() == {"id": 1}
    (sent,) = gate.requests
    assert sent.target == b"/shop/v1/acts?q=%C3%BC"
    assert sent.one("Idempotency-Key") == b'"tool-job:j-1:a"'
    assert sent.one("X-Execution-Fence") == b"7"
    assert sent.one("X-Execution-Entity") == b"job:j-1"
    assert sent.one("Authorization") == b"Bearer fg_k"
    assert sent.one("X-Own") == b"1"
    assert len(sent.one("X-Request-Id") or b"") == 32


def test_a_safe_request_without_a_step_carries_no_fence(gate: RecordingUpstream) -> None:
    gate.next(respond(404, b"{}", [("Gateway-Outcome", "unguarded")]))
    assert run(gate, lambda c, _: c.send("GET", "/shop/v1/acts")).status_code == 404
    (sent,) = gate.requests
    for name in ("Idempotency-Key", "X-Execution-Fence", "X-Execution-Entity"):
        assert sent.one(name) is None


@pytest.mark.parametrize(
    "first",
    [
        problem("not-sent", outcome="not-sent"),
        problem("overloaded"),
        problem("store-unavailable"),
        problem("in-flight"),
        problem("entity-busy"),
        problem("response-incomplete", outcome="not-executed", retry="same-key"),
        respond(429, b"", [("Gateway-Outcome", "not-executed"), ("Retry-After", "0")]),
        respond(503, b"<html>", []),
        cut(),
        cut("reset"),
        hang(),
    ],
)
def test_what_may_be_repeated_is_with_the_same_bytes(
    gate: RecordingUpstream, first: Answer
) -> None:
    gate.next(first, DONE)
    assert post(gate).status_code == 201
    one, two = gate.requests
    assert (one.method, one.target, one.body) == (two.method, two.target, two.body)
    assert one.headers == two.headers


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (problem("fence-stale"), LeaseLost),
        (problem("fence-not-held"), LeaseLost),
        (problem("outcome-unknown", outcome="unknown"), OutcomeUnknown),
        (problem("key-reused"), Refused),
        (problem("no-policy"), Refused),
        (problem("response-not-retained"), Executed),
        (problem("response-incomplete", outcome="applied"), Executed),
    ],
)
def test_what_no_repeat_helps_is_sent_once(
    gate: RecordingUpstream, answer: Answer, error: type[Exception]
) -> None:
    gate.next(answer)
    with pytest.raises(error):
        post(gate)
    assert gate.count == 1


def test_a_fence_that_is_refused_is_the_loss_of_the_lease(gate: RecordingUpstream) -> None:
    gate.next(problem("fence-stale"))

    async def work(made: Caller, kept: Tended) -> None:
        with pytest.raises(LeaseLost):
            await made.send("POST", "/shop/v1/acts", step="a", timeout_s=1)
        assert kept.lost == "taken"
        for method, step in (("POST", "b"), ("GET", None)):
            with pytest.raises(LeaseLost):
                await made.send(method, "/shop/v1/acts", step=step, timeout_s=1)

    run(gate, work)
    assert gate.count == 1


@pytest.mark.parametrize("attempt", [1, 2])
def test_where_nobody_can_be_reached_nobody_says_that_it_did_not_happen(attempt: int) -> None:
    """Nor at the first attempt: one that was handed back before, in the middle of a request, does
    not count."""
    told = r"no gateway has said whether .* the last one: ConnectError.*; FENCEGATE_URL is http"
    url = f"http://127.0.0.1:{closed_port()}"
    with pytest.raises(OutcomeUnknown, match=told) as caught:
        run(url, lambda c, _: c.send("POST", "/a", step="a"), terms=SHORT, attempt=attempt)
    assert caught.value.step == "a"


@pytest.mark.parametrize("name", ["overloaded", "store-unavailable", "unauthenticated"])
def test_a_gateway_that_did_not_look_has_not_said_so(gate: RecordingUpstream, name: str) -> None:
    gate.script = lambda _: problem(name, after_s=1)
    with pytest.raises(OutcomeUnknown, match="no gateway has said whether") as caught:
        post(gate, terms=SHORT)
    assert ("FENCEGATE_KEY" in str(caught.value)) == (name == "unauthenticated")
    assert caught.value.retry_after_s == 1


def test_a_doubt_outlasts_its_call(gate: RecordingUpstream) -> None:
    async def work(made: Caller, _: Tended) -> None:
        wish = {"step": "a", "json": {}, "timeout_s": 0.5}
        gate.next(problem("outcome-unknown", outcome="unknown"))
        with pytest.raises(OutcomeUnknown):
            await made.send("POST", "/a", **wish)
        gate.script = lambda _: problem("entity-busy", after_s=1)
        with pytest.raises(OutcomeUnknown, match="it may have happened"):
            await made.send("POST", "/a", **wish)
        with pytest.raises(NotSent, match="it did not happen"):
            await made.send("POST", "/a", **{**wish, "step": "b"})

    run(gate, work, terms=SHORT)


def test_a_call_that_was_cancelled_on_its_way_leaves_a_doubt(gate: RecordingUpstream) -> None:
    async def work(made: Caller, _: Tended) -> None:
        gate.next(hang())
        call = asyncio.create_task(made.send("POST", "/a", step="a", json={}, timeout_s=0.8))
        await asyncio.to_thread(gate.wait_for_requests, 1)
        call.cancel()
        await asyncio.wait([call])
        gate.script = lambda _: problem("entity-busy", after_s=1)
        with pytest.raises(OutcomeUnknown, match="it may have happened"):
            await made.send("POST", "/a", step="a", json={}, timeout_s=0.8)

    run(gate, work, terms=SHORT)


def test_a_doubt_does_not_become_a_question_of_ownership(gate: RecordingUpstream) -> None:
    async def work(made: Caller, kept: Tended) -> None:
        def cut_and_over(_: Recorded) -> Answer:
            kept.trust = replace(kept.trust, until_mono_s=now_mono_s())
            return cut()

        gate.script = cut_and_over  # heartbeats as well
        made.keeper.start()
        try:
            with pytest.raises(OutcomeUnknown, match="cannot be repeated now"):
                await made.send("POST", "/a", step="a", timeout_s=1)
        finally:
            await asyncio.to_thread(made.keeper.stop)

    run(gate, work)
    assert [r.target for r in gate.requests].count(b"/a") == 1


def test_what_waits_for_an_entity_says_so(gate: RecordingUpstream) -> None:
    gate.script = lambda _: problem("entity-unresolved", after_s=30)
    with pytest.raises(NotSent, match="entity-unresolved") as caught:
        post(gate, terms=SHORT)
    found = caught.value
    assert (found.unresolved, found.retry_after_s, found.step) == (True, 30, "a")


def test_once_the_handler_is_out_nothing_is_sent(gate: RecordingUpstream) -> None:
    async def work(made: Caller, kept: Tended) -> None:
        job = Job(made, AsyncHttp(made), lambda: False)
        job.headers("a")
        kept.close()
        assert job.request_timeout_s == 0
        for call in (job.check, lambda: job.headers("a")):
            with pytest.raises(LeaseLost, match="ended"):
                call()
        for method, step in (("POST", "a"), ("GET", "b"), ("GET", None)):
            with pytest.raises(LeaseLost, match="ended"):
                await job.http.request(method, "/a", step=step)
        assert kept.lost is None  # the end is still to be delivered

    run(gate, work)
    assert gate.connections == 0


@pytest.mark.parametrize("answer", [problem("entity-busy"), problem("fence-stale")])
def test_a_call_that_is_on_its_way_then_is_not_repeated(
    gate: RecordingUpstream, answer: Answer
) -> None:
    async def work(made: Caller, kept: Tended) -> None:
        def out(_: Recorded) -> Answer:
            kept.close()
            return answer

        gate.script = out
        with pytest.raises(LeaseLost):
            await made.send("POST", "/a", step="a", timeout_s=1)
        assert kept.lost is None  # its own end is no loss

    run(gate, work)
    assert gate.count == 1


def test_a_problem_of_the_upstreams_own_gateway_is_its_answer(gate: RecordingUpstream) -> None:
    gate.next(problem("fence-stale", outcome="unguarded"))

    async def work(made: Caller, kept: Tended) -> int:
        answer = await made.send("GET", "/shop/v1/inner")
        assert kept.lost is None
        return answer.status_code

    assert run(gate, work) == 412


BAD_GZIP = [("Content-Encoding", "gzip"), ("Gateway-Outcome", "applied")]


def test_an_answer_that_cannot_be_decoded_has_come_all_the_same(gate: RecordingUpstream) -> None:
    gate.script = lambda _: respond(201, b"no gzip", BAD_GZIP)
    with pytest.raises(Executed, match="cannot be decoded"):
        post(gate)
    assert gate.count == 1


@pytest.mark.parametrize(
    ("outcome", "step", "final"),
    [("applied", "a", True), ("replayed", "a", True), ("unguarded", None, False)],
)
def test_the_final_answer_to_a_command_is_marked(
    gate: RecordingUpstream, outcome: str, step: str | None, final: bool
) -> None:
    gate.next(respond(402, b"", [("Gateway-Outcome", outcome)]))
    method = "POST" if step else "GET"
    answer = run(gate, lambda c, _: c.send(method, "/a", step=step))
    assert (FINAL in answer.extensions) == final


def test_the_usual_time_fits_into_a_short_lease(gate: RecordingUpstream) -> None:
    gate.next(DONE)
    brief = LeaseClass(lease_s=6, heartbeat_s=0.4, jitter_s=0.1)
    sent = run(gate, lambda c, _: c.send("POST", "/a", step="a"), terms=brief, remaining_ms=6_000)
    assert sent.status_code == 201


def test_a_try_without_an_answer_leaves_the_outcome_unknown(gate: RecordingUpstream) -> None:
    gate.script = lambda _: problem("overloaded", after_s=1)
    gate.next(cut())
    with pytest.raises(OutcomeUnknown, match="it may have happened"):
        post(gate, terms=SHORT)


def test_what_was_never_let_in_was_not_sent(gate: RecordingUpstream) -> None:
    gate.script = lambda _: problem("entity-busy", after_s=1)
    with pytest.raises(NotSent, match="entity-busy"):
        post(gate, terms=SHORT)


def test_a_command_in_flight_has_an_unknown_outcome(gate: RecordingUpstream) -> None:
    gate.script = lambda _: problem("in-flight", after_s=1)
    with pytest.raises(OutcomeUnknown, match="in-flight"):
        post(gate, terms=SHORT)


def test_a_safe_request_has_no_outcome(gate: RecordingUpstream) -> None:
    gate.script = lambda _: respond(502, b"", [])
    with pytest.raises(NoAnswer, match="without a Gateway-Outcome"):
        run(gate, lambda c, _: c.send("GET", "/x"), terms=SHORT)


def test_nothing_is_sent_that_might_not_end_inside_the_window(gate: RecordingUpstream) -> None:
    gate.script = lambda _: respond(503, b"", [])  # to the heartbeat that is asked for

    async def work(made: Caller, kept: Tended) -> None:
        made.keeper.start()
        try:
            kept.trust = replace(kept.trust, until_mono_s=now_mono_s() + 20)
            told = r"(1\d|20)\.\d s more, and 25 s are needed: nothing was"
            with pytest.raises(OwnershipUnknown, match=told):
                await made.send("POST", "/shop/v1/acts", step="a", timeout_s=25)
        finally:
            await asyncio.to_thread(made.keeper.stop)

    run(gate, work)
    assert {r.target for r in gate.requests} == {b"/v1/jobs/heartbeat"}


def test_the_window_is_looked_at_again_as_the_first_byte_leaves(gate: RecordingUpstream) -> None:
    """A pause between the first look and the write: here, while the connection is made."""

    async def work(made: Caller, kept: Tended) -> None:
        connect = made.lane.client()._transport._pool._network_backend  # type: ignore[attr-defined]
        usual = connect.connect_tcp

        async def paused(*args: Any, **named: Any) -> Any:
            stream = await usual(*args, **named)
            kept.trust = replace(kept.trust, until_mono_s=now_mono_s())
            return stream

        connect.connect_tcp = paused
        with pytest.raises(OwnershipUnknown, match="nobody has confirmed the lease"):
            await made.send("POST", "/shop/v1/acts", step="a", timeout_s=1)

    run(gate, work)
    gate.wait_for_disconnects(1)
    assert (gate.connections, gate.count, gate.partial) == (1, 0, [])


def test_a_loss_meanwhile_ends_the_repeats(gate: RecordingUpstream) -> None:
    async def work(made: Caller, kept: Tended) -> None:
        def lost(_: Recorded) -> Answer:
            kept.trust = refused(kept.trust, "cancelled")
            return problem("entity-busy")

        gate.script = lost
        with pytest.raises(LeaseLost, match="cancelled"):
            await made.send("POST", "/shop/v1/acts", step="a", timeout_s=1)

    run(gate, work)
    assert gate.count == 1


def test_redirects_and_cookies_are_nobodys(gate: RecordingUpstream) -> None:
    outcome = ("Gateway-Outcome", "applied")
    gate.next(
        respond(307, b"", [outcome, ("Location", f"{gate.url}/else"), ("Set-Cookie", "a=b")]), DONE
    )

    async def work(made: Caller, _: Tended) -> int:
        answer = await made.send("POST", "/shop/v1/acts", step="a", timeout_s=1)
        await made.send("POST", "/shop/v1/acts", step="b", timeout_s=1)
        return answer.status_code

    assert run(gate, work) == 307
    assert [r.target for r in gate.requests] == [b"/shop/v1/acts"] * 2
    assert gate.requests[1].one("Cookie") is None


@pytest.mark.parametrize(
    ("path", "more", "told"),
    [
        ("http://elsewhere.example/a", {}, "sends to the gateway at"),
        ("//elsewhere.example/a", {}, "sends to the gateway at"),
        ("shop/v1", {}, "begin it with /"),
        ("/a", {"step": None}, "step="),
        ("/a", {"step": "a b"}, "1 to 64"),
        ("/a", {"step": "x" * 65}, "1 to 64"),
        ("/a", {"timeout_s": 0}, "timeout_s"),
        ("/a", {"headers": {"IDEMPOTENCY-KEY": "k"}}, "set by job.http"),
        ("/a", {"headers": {"Authorization": "k"}}, "set by job.http"),
        ("/a", {"json": None, "content": iter([b"a"])}, "give bytes or str"),
        ("/a", {"json": None, "data": iter([b"a"])}, "give bytes or str"),
        ("/a", {"json": None, "data": b"a"}, "give bytes or str"),
        ("/a", {"json": {"a": {1}}}, "cannot be built"),
        ("/a", {"json": {"a": float("nan")}}, "cannot be built"),
        ("/a", {"auth": ("a", "b")}, "takes no 'auth'"),
        ("/a\r\nX: y", {}, "cannot be read"),
        (7, {}, "is a int, not a text"),
        ("/a", {"step": 7}, "1 to 64"),
        ("/a", {"step": "a\n"}, "1 to 64"),
        ("/a", {"timeout_s": float("nan")}, "no number of seconds"),
        ("/a", {"timeout_s": "5"}, "no number of seconds"),
        ("/a", {"timeout_s": 60}, "never fits into a lease: lease_s is 60, of which 59.94 s"),
        ("/a", {"headers": {"Idempotency-Key ": "k"}}, "no name of a header"),
        ("/a", {"headers": {"Idempotency_Key": "k"}}, "set by job.http"),
        ("/a", {"headers": {"X-A": "a\r\nX-B: b"}}, "the value of 'X-A' is none"),
        ("/a", {"headers": {"X-A": "a\0b"}}, "the value of 'X-A' is none"),
        ("/a", {"headers": {"X-A": " a"}}, "the value of 'X-A' is none"),
        ("/a", {"headers": {"X-A": "é"}}, "cannot be built"),
        ("/a", {"headers": {"Content-Length": "3"}}, "leave it out"),
        ("/a", {"headers": {"Transfer-Encoding": "chunked"}}, "leave it out"),
        ("/a", {"headers": {"TE": "gzip"}}, "leave it out"),
        ("/a", {"headers": {"Host": "evil"}}, "leave it out"),
        ("/a", {"headers": {"Connection": "X-Execution-Fence"}}, "leave it out"),
        ("/a", {"headers": {"Expect": "100-continue"}}, "leave it out"),
    ],
)
def test_a_call_that_could_not_be_right_is_refused(
    gate: RecordingUpstream, path: str, more: dict[str, Any], told: str
) -> None:
    with pytest.raises(Misuse, match=told):
        post(gate, path, **more)
    assert gate.connections == 0


@pytest.mark.parametrize("method", ["POST /a HTTP/1.1\r\nX: y\r\n\r\nGET", "CONNECT", "", "É"])
def test_a_method_that_is_none_is_refused(gate: RecordingUpstream, method: str) -> None:
    with pytest.raises(Misuse, match="the method is none"):
        run(gate, lambda c, _: c.send(method, "/a", step="a"))
    assert gate.connections == 0


def test_what_is_wrong_is_told_without_its_values(gate: RecordingUpstream) -> None:
    for more in ({"headers": {"X-A": "secret\r\n"}}, {"json": {"a": {"secret"}}}):
        with pytest.raises(Misuse) as caught:
            post(gate, **more)
        assert "secret" not in str(caught.value)


def test_a_file_of_unknown_length_is_sent_whole(gate: RecordingUpstream) -> None:
    class Pipe(io.BytesIO):
        def fileno(self) -> int:
            raise io.UnsupportedOperation

        def seek(self, *_: int) -> int:
            raise io.UnsupportedOperation

        def tell(self) -> int:
            raise io.UnsupportedOperation

    gate.next(cut(), DONE)
    wish = {"step": "a", "files": {"f": ("n.txt", Pipe(b"abc"))}}
    assert run(gate, lambda c, _: c.send("POST", "/a", **wish)).status_code == 201
    one, two = gate.requests
    assert one.body == two.body
    assert b"abc" in one.body
    for sent in (one, two):
        assert sent.one("Transfer-Encoding") is None
        assert sent.one("Content-Length") == str(len(sent.body)).encode()


def test_the_same_step_may_be_sent_again_as_it_was_and_not_otherwise(
    gate: RecordingUpstream,
) -> None:
    gate.script = lambda _: DONE

    async def work(made: Caller, _: Tended) -> None:
        for files in ({"f": b"a"}, {"f": b"a"}):  # another boundary each time
            await made.send("POST", "/a", step="files", files=files, timeout_s=1)
        for method, path, n in (("PUT", "/a", 1), ("PUT", "/a", 1)):
            await made.send(method, path, step="s", json={"n": n}, timeout_s=1)
        for method, path, n in (("PUT", "/a", 2), ("PUT", "/b", 1), ("POST", "/a", 1)):
            with pytest.raises(ValueError, match="a step of its own"):
                await made.send(method, path, step="s", json={"n": n}, timeout_s=1)

    run(gate, work)
    assert gate.count == 4
