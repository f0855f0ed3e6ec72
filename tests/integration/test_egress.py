"""A name that is turned: each answer is judged when a connection is made, and one bad address is
enough."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence
from typing import Any

import pytest
import uvloop

from gateway.core.egress import Network, network
from gateway.core.model import Exchange, Stage
from gateway.upstream import Client, Origin
from tests.kit.upstream import RecordingUpstream
from tests.unit.upstream.calls import LOOPBACK, request, within

PROHIBITED = Exchange(Stage.CONNECTING, None, "prohibited")
BASES = {"asyncio": asyncio.SelectorEventLoop, "uvloop": uvloop.Loop}


class Resolver:
    """Answers for every name, another way each time; the last answer stays."""

    def __init__(self, port: int, *answers: Sequence[str]) -> None:
        self.port = port
        self.left = list(answers)
        self.asked = 0

    def loop(self, base: str) -> Any:
        resolver = self

        class Loop(BASES[base]):  # type: ignore[name-defined, misc]
            async def getaddrinfo(self, host: Any, *rest: Any, **more: Any) -> Any:
                if host not in ("upstream.test", b"upstream.test"):
                    return await super().getaddrinfo(host, *rest, **more)
                return resolver.answer()

        return Loop

    def answer(self) -> list[Any]:
        self.asked += 1
        found = self.left.pop(0) if len(self.left) > 1 else self.left[0]
        return [
            (socket.AF_INET6, socket.SOCK_STREAM, 6, "", (each, self.port, 0, 0))
            if ":" in each
            else (socket.AF_INET, socket.SOCK_STREAM, 6, "", (each, self.port))
            for each in found
        ]


@pytest.fixture(params=sorted(BASES))
def base(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def sent(
    base: str,
    resolver: Resolver,
    times: int = 1,
    *,
    idle_s: float = 0,
    networks: tuple[Network, ...] = (),
) -> list[Exchange]:
    async def main() -> list[Exchange]:
        origin = Origin.parse(f"http://upstream.test:{resolver.port}")
        client = Client(origin, idle_s=idle_s, networks=networks)
        seen = [
            (await client.send(request(), within(), keep_limit=1000)).exchange for _ in range(times)
        ]
        await client.close()
        return seen

    with asyncio.Runner(loop_factory=resolver.loop(base)) as runner:
        return runner.run(asyncio.wait_for(main(), 30))


@pytest.mark.parametrize(
    "answer",
    [
        ["127.0.0.1"],
        ["::ffff:127.0.0.1"],
        ["169.254.169.254"],
        ["10.0.0.1", "1.1.1.1"],
        ["1.1.1.1", "2606:4700::1111", "fe80::1%1"],
        ["0.0.0.0"],
    ],
)
def test_a_name_that_leads_inside_is_not_connected_to(base: str, answer: list[str]) -> None:
    with RecordingUpstream() as upstream:
        assert sent(base, Resolver(upstream.port, answer)) == [PROHIBITED]
        assert upstream.connections == 0


def test_one_address_that_is_not_listed_is_enough(base: str) -> None:
    with RecordingUpstream() as upstream:
        answer = ["127.0.0.1", "10.0.0.1"]
        assert sent(base, Resolver(upstream.port, answer), networks=LOOPBACK) == [PROHIBITED]
        assert upstream.connections == 0
        both = (*LOOPBACK, network("10.0.0.0/8"))
        (seen,) = sent(base, Resolver(upstream.port, answer), networks=both)
        assert seen.stage is Stage.BODY_COMPLETE


def test_a_name_that_answers_something_else_the_next_time_is_judged_again(base: str) -> None:
    with RecordingUpstream() as upstream:
        resolver = Resolver(upstream.port, ["127.0.0.1"], ["169.254.169.254"], ["127.0.0.1"])
        first, second, third = sent(base, resolver, 3, networks=LOOPBACK)
        assert second == PROHIBITED
        assert first.stage is third.stage is Stage.BODY_COMPLETE
        assert upstream.connections == 2


def test_what_was_judged_is_what_is_connected_to(base: str) -> None:
    """No second look-up between the two, which could answer something else."""
    with RecordingUpstream() as upstream:
        resolver = Resolver(upstream.port, ["127.0.0.1"], ["169.254.169.254"])
        (seen,) = sent(base, resolver, networks=LOOPBACK)
        assert seen.stage is Stage.BODY_COMPLETE
        assert resolver.asked == 1


def test_a_connection_that_is_used_again_is_not_looked_up_again(base: str) -> None:
    with RecordingUpstream() as upstream:
        resolver = Resolver(upstream.port, ["127.0.0.1"], ["169.254.169.254"])
        seen = sent(base, resolver, 5, idle_s=30, networks=LOOPBACK)
        assert [each.stage for each in seen] == [Stage.BODY_COMPLETE] * 5
        assert (resolver.asked, upstream.connections) == (1, 1)
