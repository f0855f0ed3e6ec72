"""``job.http`` against a server that answers as a gateway may."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from typing import Any

import httpx
import pytest

from gateway.core.leases import LeaseClass
from gateway.worker.clock import now_mono_s
from gateway.worker.errors import (
    Executed,
    LeaseLost,
    NoAnswer,
    NotSent,
    OutcomeUnknown,
    OwnershipUnknown,
    Refused,
)
from gateway.worker.http import Caller
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


def test_nobody_can_be_reached(gate: RecordingUpstream) -> None:
    with pytest.raises(NotSent, match=r"it did not happen, after .* tries, the last one: Connect"):
        post(f"http://127.0.0.1:{closed_port()}", terms=SHORT)


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
    with pytest.raises(OwnershipUnknown, match=r"59\.\d s more, and 60 s are needed: nothing was"):
        post(gate, timeout_s=60)
    assert gate.count == 0


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
        ("/a", {"auth": ("a", "b")}, "takes no 'auth'"),
    ],
)
def test_a_call_that_could_not_be_right_is_refused(
    gate: RecordingUpstream, path: str, more: dict[str, Any], told: str
) -> None:
    with pytest.raises((ValueError, TypeError), match=told):
        post(gate, path, **more)
    assert gate.connections == 0


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
