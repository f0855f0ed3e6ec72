"""Callers that hang up, at each stage of a request (SETTLE-01, acceptance 6)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import pytest

from tests.kit.client import Exchange
from tests.kit.faults import ADMIT, SETTLE, Rig
from tests.kit.upstream import Gate, gated

HEAD = (
    "POST /pay/v1/accounts/{account}/charges HTTP/1.1\r\n"
    "Host: localhost\r\n"
    "Idempotency-Key: {key}\r\n"
    "X-Execution-Fence: 9\r\n"
    "Content-Type: application/json\r\n"
)
PARTS = {
    "head": "",
    "head_without_its_body": "Content-Length: 9\r\n\r\n",
    "body": 'Content-Length: 9\r\n\r\n{"a',
    "body_but_its_last_byte": 'Content-Length: 9\r\n\r\n{"a": 11',
    "chunked_body": 'Transfer-Encoding: chunked\r\n\r\n4\r\n{"a"\r\n5\r\n: 1',
    "chunked_body_but_its_last_chunk": (
        'Transfer-Encoding: chunked\r\n\r\n4\r\n{"a"\r\n5\r\n: 11}\r\n0\r\n'
    ),
}


@pytest.mark.parametrize("reset", [False, True], ids=["closed", "reset"])
def test_before_the_last_byte(here: Rig, reset: bool) -> None:
    """Nothing is admitted, no row is written, the fence is not advanced."""
    calls = [
        here.scene.caller.raw(request(here, name, part).encode()) for name, part in PARTS.items()
    ]
    noticed(here)
    for call in calls:
        call.hang_up(reset=reset)

    assert here.scene.send("whole", 1).status == 201
    assert here.gateway.stop() == 0
    assert here.scene.mark() == 1
    assert [name for name in PARTS if here.scene.row(name) is not None] == []
    assert here.upstream.count == 1


def request(here: Rig, key: str, part: str) -> str:
    return HEAD.format(account=here.scene.account, key=here.scene.key(key)) + part


@contextmanager
def before_admit_reached_the_database(here: Rig) -> Iterator[Exchange]:
    held = here.proxy.hold_statement(ADMIT)
    sent = here.scene.open()
    held.wait_hit()
    yield sent
    held.release()


@contextmanager
def between_admit_commit_and_send(here: Rig) -> Iterator[Exchange]:
    held = here.proxy.hold_answer(ADMIT)
    sent = here.scene.open()
    held.wait_hit()
    yield sent
    held.release()


@contextmanager
def while_the_upstream_works(here: Rig) -> Iterator[Exchange]:
    gate = Gate()
    here.upstream.next(gated(gate))
    sent = here.scene.open()
    here.upstream.wait_for_effects(1)
    yield sent
    gate.release()


@contextmanager
def before_settle_reached_the_database(here: Rig) -> Iterator[Exchange]:
    held = here.proxy.hold_statement(SETTLE)
    sent = here.scene.open()
    held.wait_hit()
    yield sent
    held.release()


@contextmanager
def between_settle_commit_and_answer(here: Rig) -> Iterator[Exchange]:
    held = here.proxy.hold_answer(SETTLE)
    sent = here.scene.open()
    held.wait_hit()
    yield sent
    held.release()


@pytest.mark.parametrize(
    "window",
    [
        before_admit_reached_the_database,
        between_admit_commit_and_send,
        while_the_upstream_works,
        before_settle_reached_the_database,
        between_settle_commit_and_answer,
    ],
    ids=lambda window: window.__name__,
)
def test_after_the_last_byte(
    here: Rig, window: Callable[[Rig], AbstractContextManager[Exchange]]
) -> None:
    """It is settled all the same, a retry is a replay, and the log says that nobody heard."""
    with window(here) as sent:
        sent.hang_up()
        noticed(here)

    here.gateway.wait_for_log(event="answer_not_delivered")
    here.scene.wait_for_state("settled")
    again = here.scene.send()
    assert (again.status, again.json(), again.replayed) == (201, {"effect": 1}, True)
    assert here.upstream.count == 1
    assert_nothing_leaks(here)


def test_while_waiting_for_its_key(here: Rig) -> None:
    with while_the_upstream_works(here) as first:
        waiters = [here.scene.waiter("k") for _ in range(3)]
        for waiter in waiters:
            waiter.hang_up()
        here.stack.wait_for_waiters(0)
        assert here.stack.gauge("attempts_in_flight") == 1

    assert first.reply().json() == {"effect": 1}
    assert_nothing_leaks(here)


def test_while_waiting_for_its_entity(here: Rig) -> None:
    """It is never admitted, and who waits behind it takes its turn."""
    with while_the_upstream_works(here) as first:
        gone = here.scene.waiter("gone", 2)
        patient = here.scene.waiter("patient", 2)
        gone.hang_up()
        here.stack.wait_for_waiters(1)

    assert first.reply().json() == {"effect": 1}
    assert patient.reply().json() == {"effect": 2}
    assert here.scene.row("gone") is None
    assert_nothing_leaks(here)


def test_while_waiting_for_its_entity_just_as_it_comes_free(here: Rig) -> None:
    """The wake-up that reaches one who is gone is passed on to the next."""
    for number in range(5):
        key = f"first{number}"
        gate = Gate()
        here.upstream.next(gated(gate))
        first = here.scene.open(key)
        here.upstream.wait_for_effects(3 * number + 1)
        gone = here.scene.waiter(f"gone{number}")
        patient = here.scene.waiter(f"patient{number}")
        gone.hang_up()
        gate.release()
        assert first.reply().status == 201
        assert patient.reply(5).status == 201
        here.scene.send(f"gone{number}")
    assert_nothing_leaks(here)


def noticed(here: Rig) -> None:
    """A round trip: what the gateway's kernel had heard before it, its loop has seen behind it."""
    assert here.scene.caller.call("GET", "/healthz").status == 200


def assert_nothing_leaks(here: Rig) -> None:
    here.stack.wait_for_waiters(0)
    here.stack.wait_for_gauge("attempts_in_flight", 0)
