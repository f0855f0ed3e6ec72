"""What goes out for an answer, whatever is recorded with it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from gateway.core.model import Response
from gateway.proxy.answer import Answer, relay, replay
from gateway.proxy.respond import Message, respond

LENGTH = (b"content-length", b"1")


class Stream:
    """The rest of a large body, which must be let go of."""

    def __init__(self) -> None:
        self.closed = False

    def close(self) -> None:
        self.closed = True


def sent(answer: Answer, *, head_only: bool = False) -> tuple[list[bytes], bytes]:
    """The lengths that the head says, and the whole body."""
    messages: list[Message] = []

    async def send(message: Message) -> None:
        messages.append(message)

    assert asyncio.run(respond(answer, send, head_only=head_only))
    start, *pieces = messages
    lengths = [value for name, value in start["headers"] if name == b"content-length"]
    return lengths, b"".join(piece["body"] for piece in pieces)


@pytest.mark.parametrize(("status", "lengths"), [(204, []), (205, [b"0"]), (304, [])])
def test_a_status_without_content_has_none_whatever_is_recorded(
    status: int, lengths: list[bytes]
) -> None:
    recorded = Response(status, (LENGTH,), b"x")
    assert sent(replay(recorded, "report", compared=True)) == (lengths, b"")
    rest: Any = Stream()
    assert sent(relay(recorded, "applied", rest)) == (lengths, b"")
    assert rest.closed


@pytest.mark.parametrize("status", [200, 206, 404])
def test_any_other_has_its_body_and_one_length(status: int) -> None:
    for fields in ((), (LENGTH,)):
        assert sent(relay(Response(status, fields, b"x"), "applied")) == ([b"1"], b"x")


def test_the_head_of_a_205_says_what_the_upstream_said() -> None:
    assert sent(relay(Response(205, (LENGTH,), b""), "applied"), head_only=True) == ([b"1"], b"")
