"""A name with several addresses, of both families: one that works is found, whatever the others do;
and the path that an API starts at."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import uvloop

from gateway.core.model import Exchange, Stage
from gateway.upstream import Client, Deadlines, Origin, now_s
from tests.kit.db import Server
from tests.kit.gateway import CAPTURE, policy, stack
from tests.kit.upstream import RecordingUpstream
from tests.unit.upstream.calls import LOOPBACK, request

Found = Sequence[tuple[socket.AddressFamily, str, int]]
V4, V6 = socket.AF_INET, socket.AF_INET6
NAME = "upstream.test"


def _has_v6() -> bool:
    try:
        socket.create_server(("::1", 0), family=V6).close()
    except OSError:
        return False
    return True


pytestmark = pytest.mark.skipif(not _has_v6(), reason="no ::1 here")


def resolving(base: type[asyncio.AbstractEventLoop], found: Found) -> asyncio.AbstractEventLoop:
    """A loop whose resolver gives these addresses for the upstream's name."""

    class Loop(base):  # type: ignore[misc, valid-type]
        async def getaddrinfo(self, host: Any, *rest: Any, **more: Any) -> Any:
            if host != NAME:  # uvloop also asks it about addresses that it connects to
                return await super().getaddrinfo(host, *rest, **more)
            return [
                (family, socket.SOCK_STREAM, 6, "", (host, port, 0, 0)[: 4 if family == V6 else 2])
                for family, host, port in found
            ]

    made: asyncio.AbstractEventLoop = Loop()
    return made


@pytest.fixture(params=[asyncio.SelectorEventLoop, uvloop.Loop], ids=["asyncio", "uvloop"])
def send(request: pytest.FixtureRequest) -> Callable[..., Exchange]:
    return lambda found, within_s=10.0: sent(request.param, found, within_s)


def sent(base: Any, found: Found, within_s: float) -> Exchange:
    async def main() -> Exchange:
        client = Client(Origin.parse(f"http://{NAME}/base/"), networks=LOOPBACK)
        deadlines = Deadlines(now_s() + within_s, now_s() + 20, now_s() + 20)
        seen = (await client.send(request(), deadlines, keep_limit=1000)).exchange
        await client.close()
        return seen

    with asyncio.Runner(loop_factory=lambda: resolving(base, found)) as runner:
        return runner.run(asyncio.wait_for(main(), 30))


@dataclass(frozen=True, slots=True)
class Upstreams:
    """One server on both families, and addresses of each family where there is none."""

    working: dict[socket.AddressFamily, tuple[socket.AddressFamily, str, int]]
    refusing: dict[socket.AddressFamily, tuple[socket.AddressFamily, str, int]]
    dropping: dict[socket.AddressFamily, tuple[socket.AddressFamily, str, int]]


@contextlib.contextmanager
def black_hole(family: socket.AddressFamily, host: str) -> Iterator[int]:
    """A port whose queue is full, so that the kernel drops every further SYN."""
    with contextlib.ExitStack() as held:
        listener = held.enter_context(socket.socket(family, socket.SOCK_STREAM))
        listener.bind((host, 0))
        listener.listen(0)
        port = int(listener.getsockname()[1])
        for _ in range(4):
            filler = held.enter_context(socket.socket(family, socket.SOCK_STREAM))
            filler.setblocking(False)
            filler.connect_ex((host, port))
        yield port


@pytest.fixture(scope="module")
def there() -> Iterator[Upstreams]:
    hosts = {V4: "127.0.0.1", V6: "::1"}
    with contextlib.ExitStack() as held:
        working, refusing, dropping = {}, {}, {}
        for family, host in hosts.items():
            server = held.enter_context(RecordingUpstream(host=host))
            working[family] = (family, host, server.port)
            with socket.create_server((host, 0), family=family) as closing:
                refusing[family] = (family, host, int(closing.getsockname()[1]))
            dropping[family] = (family, host, held.enter_context(black_hole(family, host)))
        yield Upstreams(working, refusing, dropping)


@pytest.mark.parametrize("alive", [V4, V6])
@pytest.mark.parametrize("first", ["dead", "alive"])
@pytest.mark.parametrize("how", ["refusing", "dropping"])
def test_one_family_does_not_answer(
    there: Upstreams, send: Callable[..., Exchange], alive: Any, first: str, how: str
) -> None:
    dead = getattr(there, how)[V6 if alive == V4 else V4]
    found = [dead, there.working[alive]]
    seen = send(found if first == "dead" else found[::-1])
    assert seen.stage is Stage.BODY_COMPLETE


def test_only_one_address_of_many_answers(there: Upstreams, send: Callable[..., Exchange]) -> None:
    dead = [there.refusing[V6], there.dropping[V6], there.refusing[V4], there.dropping[V4]]
    assert send([*dead, there.working[V4]]).stage is Stage.BODY_COMPLETE


def test_all_refuse(there: Upstreams, send: Callable[..., Exchange]) -> None:
    found = list(there.refusing.values())
    assert send(found) == Exchange(Stage.CONNECTING, None, "refused")


@pytest.mark.parametrize("with_refusing", [False, True])
def test_none_answers_in_time(
    there: Upstreams, send: Callable[..., Exchange], with_refusing: bool
) -> None:
    found = [*there.dropping.values(), *(there.refusing.values() if with_refusing else ())]
    assert send(found, 0.6) == Exchange(Stage.CONNECTING, None, "connect-timeout")


@pytest.mark.parametrize(("name", "host"), [("localhost", "127.0.0.1"), ("[::1]", "::1")])
def test_a_gateway_reaches_either_family_and_keeps_the_base_path(
    postgres: Server, name: str, host: str
) -> None:
    with RecordingUpstream(host=host) as upstream:
        place = f"{name}:{upstream.port}"
        with stack(postgres, lambda _: [policy(f"http://{place}/base/v2/", CAPTURE)]) as made:
            scene = made.scene()
            assert scene.send(query="?q=%41").status == 201
            assert scene.caller.call("GET", "/pay").status == 201
        command, safe = upstream.requests
    target = f"/base/v2/v1/accounts/{scene.account}/charges?q=%41"
    assert (command.target, safe.target) == (target.encode(), b"/base/v2")
    assert command.one("Host") == safe.one("Host") == place.encode()
