"""The caller's side of what streams through, and what it hears where there is no response."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from gateway.core.model import Exchange, Fault, Headers, Response, Stage
from gateway.proxy import body
from gateway.proxy.answer import Answer
from gateway.proxy.body import Inflow
from gateway.proxy.intake import Identity, Passage
from gateway.proxy.passage import pass_through
from gateway.proxy.streams import Place, Places
from gateway.upstream import Deadlines, Request

TEN: Headers = ((b"content-length", b"10"),)
CHUNKED: Headers = ((b"transfer-encoding", b"chunked"),)
GONE = {"type": "http.disconnect"}


def part(data: bytes, *, more: bool = True) -> dict[str, Any]:
    return {"type": "http.request", "body": data, "more_body": more}


class Caller:
    """The server's ``receive``: what comes, in turn, and then silence."""

    def __init__(self, *messages: Any) -> None:
        self._messages = list(messages)
        self.asked = 0

    async def receive(self) -> Any:
        self.asked += 1
        if self._messages:
            return self._messages.pop(0)
        return await asyncio.get_running_loop().create_future()


async def ends(inflow: Inflow) -> bool:
    """Whether the hang-up has been seen by now."""
    watching = asyncio.ensure_future(inflow.hung_up())
    for _ in range(5):
        await asyncio.sleep(0)
    seen = watching.done()
    watching.cancel()
    return seen


def test_pieces_come_in_order_and_end_with_an_empty_one() -> None:
    async def main() -> None:
        caller = Caller(part(b"hello"), part(b""), part(b"world", more=False))
        inflow = Inflow(caller.receive, CHUNKED)
        assert inflow.length is None
        assert [await inflow.pull() for _ in range(4)] == [b"hello", b"world", b"", b""]
        assert not inflow.unread
        assert caller.asked == 3

    asyncio.run(main())


def test_a_body_is_whole_with_its_last_byte_whatever_is_said_of_more() -> None:
    async def main() -> None:
        inflow = Inflow(Caller(part(b"0123456789")).receive, TEN)
        assert inflow.length == 10
        assert await inflow.pull() == b"0123456789"
        assert not inflow.unread
        assert await inflow.pull() == b""

    asyncio.run(main())


def test_nothing_is_asked_for_before_the_first_pull() -> None:
    async def main() -> None:
        caller = Caller(part(b"hello"))
        inflow = Inflow(caller.receive, TEN)
        assert not await ends(inflow)
        assert caller.asked == 0

    asyncio.run(main())


@pytest.mark.parametrize("headers", [(), ((b"content-length", b"0"),)])
def test_without_a_body_the_end_is_watched_at_once(headers: Headers) -> None:
    async def main() -> None:
        inflow = Inflow(Caller(part(b"", more=False), GONE).receive, headers)
        assert not inflow.unread
        assert await ends(inflow)
        assert inflow.gone

    asyncio.run(main())


def test_a_caller_that_hangs_up_within_its_body_breaks_it_off() -> None:
    async def main() -> None:
        inflow = Inflow(Caller(part(b"hello"), GONE).receive, TEN)
        assert [await inflow.pull(), await inflow.pull()] == [b"hello", None]
        assert (inflow.gone, inflow.unread) == (True, True)
        assert await ends(inflow)

    asyncio.run(main())


def test_a_caller_that_pauses_for_too_long_breaks_it_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(body, "BODY_S", 0.0)

    async def main() -> None:
        inflow = Inflow(Caller().receive, TEN)
        assert await inflow.pull() is None
        assert (inflow.slow, inflow.gone) == (True, False)

    asyncio.run(main())


def test_what_is_left_of_a_body_is_thrown_away_until_the_caller_is_gone() -> None:
    async def main() -> None:
        caller = Caller(part(b"hello"), part(b"rest"), part(b"!", more=False), GONE)
        inflow = Inflow(caller.receive, CHUNKED)
        assert await inflow.pull() == b"hello"
        inflow.leave()
        watching = asyncio.ensure_future(inflow.hung_up())
        await inflow.drained()
        assert not inflow.unread
        await watching

    asyncio.run(main())


def test_no_more_than_the_bound_is_thrown_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(body, "_DRAIN_BYTES", 8)

    async def main() -> None:
        caller = Caller(*[part(b"12345")] * 5)
        inflow = Inflow(caller.receive, CHUNKED)
        inflow.leave()
        watching = asyncio.ensure_future(inflow.hung_up())
        await inflow.drained()
        assert caller.asked == 2
        watching.cancel()

    asyncio.run(main())


def test_a_caller_that_waits_to_be_asked_is_not_waited_for() -> None:
    async def main() -> None:
        inflow = Inflow(Caller().receive, (*TEN, (b"expect", b"100-continue")))
        inflow.leave()
        await asyncio.wait_for(inflow.drained(), 1)
        assert inflow.unread

    asyncio.run(main())


# -- the answer


class Client:
    """Ends each exchange the same way."""

    def __init__(self, exchange: Exchange) -> None:
        self.exchange = exchange
        self.closed = False
        self.asked: tuple[Deadlines, int | None] | None = None

    async def send(self, _: Request, deadlines: Deadlines, *, keep_limit: int | None) -> Any:
        self.asked = (deadlines, keep_limit)
        return self

    def close(self) -> None:
        self.closed = True


def answer_to(client: Client, *, slow: bool = False) -> Answer:
    inflow = Inflow(Caller().receive, TEN)
    inflow.slow = slow
    made: Any = client
    passage = Passage(Identity("r-1"), made, Request(b"GET", b"/", ()), "pay", inflow)
    return asyncio.run(pass_through(passage, Place(Places(1), 1), lambda: 1000.0))


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("pool", "no connection to the upstream came free in time"),
        ("connect-timeout", "the upstream accepted no connection in time"),
        ("tls", "the TLS handshake with the upstream failed"),
        ("dns", "the upstream's name has no address"),
    ],
)
def test_what_was_not_sent_is_said(fault: Fault, said: str) -> None:
    client = Client(Exchange(Stage.CONNECTING, None, fault))
    answer = answer_to(client)
    assert (answer.status, answer.problem, answer.outcome) == (502, "not-sent", "unguarded")
    assert said.encode() in answer.body
    assert client.closed
    assert client.asked == (Deadlines(1005.0, 1007.0, 4600.0, 300.0), None)


@pytest.mark.parametrize(
    ("stage", "sent"), [(Stage.SENDING_BODY, b'"unknown"'), (Stage.SENT, b'"yes"')]
)
def test_no_answer_may_be_asked_again(stage: Stage, sent: bytes) -> None:
    answer = answer_to(Client(Exchange(stage, None, "timeout")))
    assert (answer.status, answer.problem) == (504, "outcome-unknown")
    assert b'"retry": "same-key"' in answer.body
    assert b'"sent": ' + sent in answer.body


def test_a_caller_that_paused_is_told_so() -> None:
    answer = answer_to(Client(Exchange(Stage.SENDING_BODY, None, "closed")), slow=True)
    assert (answer.status, answer.problem, answer.outcome) == (400, "request-invalid", "unguarded")
    assert b"without a pause of 60 s" in answer.body
    assert b'"sent": "unknown"' in answer.body


def test_a_response_is_passed_on_from_its_head() -> None:
    client = Client(Exchange(Stage.STATUS_SEEN, Response(200, (), b""), None, True))
    answer = answer_to(client)
    assert (answer.status, answer.stream) == (200, client)
    assert not client.closed
