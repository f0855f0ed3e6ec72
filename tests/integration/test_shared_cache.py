"""Redis away, slow, mangled, emptied, full or set back: a miss, and never a wrong answer.

Two processes' caches, on a real Valkey.
"""

from __future__ import annotations

import asyncio
import queue
import shutil
import socketserver
import ssl
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trustme

from gateway.cache import Cache, Local, Sent, Shared
from gateway.core.auth import Principal
from gateway.core.command import Command, Settle
from gateway.core.decide import Forward
from gateway.core.headers import recordable
from gateway.core.model import Response
from gateway.core.scopes import ALL
from gateway.proxy.admitting import Admitted
from gateway.proxy.call import Call
from gateway.proxy.recalling import Recalling
from gateway.upstream import Request
from tests.kit.commands import OK, attempt, command, rules
from tests.kit.upstream import closed_port
from tests.kit.valkey import Valkey, valkey

CACHE_S = 60
PATIENT_S = 10.0
"""An answer that is to come must not be too late on a busy machine."""
REPLAY = Response(OK.status, recordable(OK.headers), OK.body)


@pytest.fixture(scope="module")
def running() -> Iterator[Valkey]:
    with valkey() as made:
        yield made


@pytest.fixture
def redis(running: Valkey) -> Valkey:
    running.ask("FLUSHALL")
    return running


def holder(epoch: bytes = bytes(16), salt: bytes = bytes(16), tenant: int = 1) -> Principal:
    return Principal(tenant, "w", "default", salt, "abcdefgh22", scopes=ALL, epoch=epoch)


def wish(key: str = "k", **about: Any) -> Command:
    return command(key, by=attempt(0), **about)


class Process:
    """The cache of one gateway process, whose clocks stand still."""

    def __init__(
        self,
        url: str,
        *,
        prefix: bytes = b"here:",
        wall_s: float = 1e9,
        read_s: float = PATIENT_S,
    ) -> None:
        self.wrote: dict[str, int] = {"written": 0, "failed": 0, "dropped": 0}
        self.asked: list[tuple[str, str]] = []
        self.now_s = 0.0
        self.shared = Shared(url, prefix, self._note, read_s)
        self.cache = Cache(
            Local(2**20, CACHE_S),
            self.shared,
            clock=lambda: self.now_s,
            wall=lambda: wall_s,
            asked=lambda *about: self.asked.append(about),
        )

    def _note(self, what: str, count: int) -> None:
        self.wrote[what] += count

    def keep(self, made: Command, by: Principal | None = None, answer: Response = OK) -> None:
        self.cache.keep(Settle(made, answer, True), by or holder(), CACHE_S)

    def found_local(self, made: Command) -> Response | None:
        sent = Sent("POST", b"/", b"", (), made.key.encode())
        found = self.cache.find(made, holder(), sent)
        return None if found is None else found.response

    async def written(self, count: int = 1) -> None:
        """Until so many have been written or not."""
        await until(lambda: sum(self.wrote.values()) >= count)

    def ask(
        self, made: Command, by: Principal | None = None
    ) -> Coroutine[Any, Any, Response | None]:
        return self.cache.ask(made, by or holder(), CACHE_S)

    async def found(self, made: Command) -> None:
        """Until it is found: whatever was wrong is over."""
        await until(lambda: not self.shared.away)
        assert await self.ask(made) == REPLAY


async def until(reached: Callable[[], bool]) -> None:
    """Let others go on until it has come true."""
    for _ in range(5000):
        if reached():
            return
        await asyncio.sleep(0.004)
    raise AssertionError("it never came true")


def play(
    url: str,
    *scenes: Callable[[Process, Process], Awaitable[None]],
    read_s: float = PATIENT_S,
) -> None:
    """Two processes on one Redis."""

    async def run() -> None:
        one, two = Process(url, read_s=read_s), Process(url, read_s=read_s)
        try:
            for scene in scenes:
                await scene(one, two)
        finally:
            await one.cache.close()
            await two.cache.close()

    asyncio.run(run())


async def _known_to_both(one: Process, two: Process) -> None:
    one.keep(wish())
    await one.written()
    assert await two.ask(wish()) == REPLAY


def test_another_process_replays_it_and_then_knows_it_by_itself(redis: Valkey) -> None:
    async def scene(one: Process, two: Process) -> None:
        await _known_to_both(one, two)
        assert two.found_local(wish()) == REPLAY
        assert two.asked == [("redis", "hit"), ("local", "hit")]
        assert one.wrote == {"written": 1, "failed": 0, "dropped": 0}

    play(redis.url, scene)


def test_only_the_same_command_of_the_same_tenant_is_answered(redis: Valkey) -> None:
    async def scene(one: Process, two: Process) -> None:
        await _known_to_both(one, two)
        assert await two.ask(wish(body="other")) is None
        assert await two.ask(wish(fence=2)) is None
        assert await two.ask(wish(upstream="elsewhere")) is None
        assert await two.ask(wish(), holder(b"later" + bytes(11))) is None
        assert await two.ask(wish(), holder(salt=bytes(15) + b"x")) is None
        assert await two.ask(wish(fence=None)) == REPLAY
        there = Process(redis.url, prefix=b"another deployment:")
        assert await there.ask(wish()) is None
        await there.cache.close()

    play(redis.url, scene)


def test_while_the_store_is_away_it_is_asked_first(redis: Valkey) -> None:
    client: Any = None
    call = Call(
        *(wish(), replace(rules(), cache_s=CACHE_S), client, Request(b"POST", b"/", ())),
        wait_s=0,
        tenant_name="default",
        barred=lambda: None,
        principal=holder(),
    )

    async def scene(one: Process, two: Process) -> None:
        one.keep(wish())
        await one.written()
        recalling = Recalling(two.cache)
        assert not recalling.store_away  # so nobody asks it before
        assert two.asked == []
        assert await recalling.instead(call) == REPLAY
        assert recalling.store_away
        assert await recalling.before(call) == REPLAY
        recalling.learn(call, Admitted(Forward(attempt(1)), None))
        assert not recalling.store_away

    play(redis.url, scene)


def test_a_fence_that_this_process_has_seen_goes_before(redis: Valkey) -> None:
    async def scene(one: Process, two: Process) -> None:
        two.cache.saw(wish(fence=2), 2)
        one.keep(wish())
        await one.written()
        assert await two.ask(wish()) is None
        assert await two.ask(wish(fence=None)) == REPLAY

    play(redis.url, scene)


def test_many_that_ask_together_each_hear_their_own(redis: Valkey) -> None:
    async def scene(one: Process, two: Process) -> None:
        bodies = [b"%d" % number for number in range(300)]
        for body in bodies:
            one.keep(
                wish(body.decode(), entity=f"e:{body.decode()}"), answer=Response(200, (), body)
            )
        await one.written(300)
        asked = [two.ask(wish(body.decode(), entity=f"e:{body.decode()}")) for body in bodies]
        gone = asyncio.ensure_future(two.ask(wish("gone")))
        heard = asyncio.gather(*asked)
        await asyncio.sleep(0)
        gone.cancel()
        assert [found and found.body for found in await heard] == bodies

    play(redis.url, scene)


@pytest.mark.parametrize("how", ["flipped", "cut", "swapped", "list"])
def test_a_mangled_or_foreign_entry_is_a_miss(redis: Valkey, how: str) -> None:
    async def scene(one: Process, two: Process) -> None:
        one.keep(wish())
        one.keep(wish("l"))
        await one.written(2)
        name, other = (b"here:" + wish(key).key_digest for key in ("k", "l"))
        entry = redis.ask("GET", name)
        match how:
            case "flipped":
                redis.ask("SETRANGE", name, len(entry) - 1, b"!")
            case "cut":
                redis.ask("SET", name, entry[:20])
            case "swapped":
                redis.ask("SET", name, redis.ask("GET", other))
            case "list":
                redis.ask("DEL", name)
                redis.ask("LPUSH", name, b"x")
        assert await two.ask(wish()) is None
        assert await two.ask(wish("l")) == REPLAY

    play(redis.url, scene)


def test_emptied(redis: Valkey) -> None:
    async def scene(one: Process, two: Process) -> None:
        one.keep(wish())
        await one.written()
        redis.ask("FLUSHALL")
        assert await two.ask(wish()) is None
        assert await one.ask(wish()) is None
        assert one.found_local(wish()) == REPLAY

    play(redis.url, scene)


def test_full_and_evicting(redis: Valkey) -> None:
    async def scene(one: Process, two: Process) -> None:
        redis.ask("CONFIG", "SET", "maxmemory", "4mb")
        redis.ask("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
        for number in range(100):
            answer = Response(200, (), b"%03d" % number + bytes(50_000))
            one.keep(wish(f"k{number}", entity=f"e:{number}"), answer=answer)
            await one.written(number + 1)
        heard = [await two.ask(wish(f"k{number}", entity=f"e:{number}")) for number in range(100)]
        there = [(number, found) for number, found in enumerate(heard) if found is not None]
        assert 0 < len(there) < 100
        assert all(found.body[:3] == b"%03d" % number for number, found in there)

    try:
        play(redis.url, scene)
    finally:
        redis.ask("CONFIG", "SET", "maxmemory", "0")


def test_full_and_not_evicting(redis: Valkey) -> None:
    async def scene(one: Process, two: Process) -> None:
        await _known_to_both(one, two)
        redis.ask("CONFIG", "SET", "maxmemory-policy", "noeviction")
        redis.ask("CONFIG", "SET", "maxmemory", "1")
        one.keep(wish("l"))
        await one.written(2)
        one.keep(wish("m"))
        assert one.wrote == {"written": 1, "failed": 1, "dropped": 1}
        assert await two.ask(wish()) == REPLAY
        assert await two.ask(wish("l")) is None

    try:
        play(redis.url, scene)
    finally:
        redis.ask("CONFIG", "SET", "maxmemory", "0")


def test_a_replica_that_only_reads(redis: Valkey) -> None:
    async def scene(one: Process, two: Process) -> None:
        await _known_to_both(one, two)
        redis.ask("REPLICAOF", "127.0.0.1", closed_port())
        one.keep(wish("l"))
        await one.written(2)
        assert (one.wrote["written"], one.wrote["failed"]) == (1, 1)
        assert await two.ask(wish()) == REPLAY

    try:
        play(redis.url, scene)
    finally:
        redis.ask("REPLICAOF", "NO", "ONE")


def test_silent_then_back(redis: Valkey) -> None:
    async def scene(one: Process, two: Process) -> None:
        await _known_to_both(one, two)
        with redis.hung():
            assert await asyncio.gather(*(two.ask(wish()) for _ in range(100))) == [None] * 100
            assert two.shared.away
            # From here on nobody even asks, nor waits.
            with pytest.raises(StopIteration):
                two.ask(wish()).send(None)
            two.keep(wish("l"))
            assert two.wrote["dropped"] == 1
            assert two.found_local(wish("l")) == REPLAY
        await two.found(wish())
        assert not two.shared.away

    play(redis.url, scene, read_s=0.5)


def test_slow_is_as_if_away(redis: Valkey) -> None:
    async def scene(one: Process, two: Process) -> None:
        await _known_to_both(one, two)
        redis.ask("CLIENT", "PAUSE", 1500, "ALL")
        assert await two.ask(wish()) is None
        assert two.shared.away
        await two.found(wish())

    play(redis.url, scene, read_s=0.5)


def test_killed_and_started_again(running: Valkey, redis: Valkey) -> None:
    async def scene(one: Process, two: Process) -> None:
        await _known_to_both(one, two)
        redis.stop()
        assert await two.ask(wish()) is None
        one.keep(wish("l"))
        await one.written(2)
        redis.start()
        two.keep(wish("m"))
        await until(lambda: not two.shared.away)
        assert await two.ask(wish()) is None  # it came back empty

    play(redis.url, scene)


def test_not_there_at_all_and_a_wrong_password(redis: Valkey) -> None:
    async def scene(one: Process, two: Process) -> None:
        one.keep(wish())
        await one.written()
        assert await two.ask(wish()) is None
        assert two.asked == [("redis", "failed")]
        assert one.wrote["written"] == 0

    play(f"redis://127.0.0.1:{closed_port()}", scene)
    redis.ask("CONFIG", "SET", "requirepass", "right")
    try:
        play(redis.url.replace("//", "//:wrong@"), scene)
    finally:
        with_password(redis, "right", "CONFIG", "SET", "requirepass", "")


def with_password(redis: Valkey, password: str, *asked: str) -> None:
    from redis import Redis

    with Redis(port=redis.port, password=password) as client:
        client.execute_command(*asked)


def test_a_cluster_that_has_no_place_for_it() -> None:
    async def scene(one: Process, two: Process) -> None:
        one.keep(wish())
        await one.written()
        assert one.wrote["failed"] == 1
        assert await two.ask(wish()) is None
        assert two.shared.away

    bus = str(closed_port())
    with valkey("--cluster-enabled", "yes", "--cluster-port", bus) as cluster:
        play(cluster.url, scene)


@pytest.mark.parametrize(
    "said",
    [
        b"-MOVED 1234 127.0.0.1:1\r\n",
        b"-LOADING Valkey is loading the dataset in memory\r\n",
        b"-NOAUTH Authentication required.\r\n",
        b"+OK\r\n",
        b"*2\r\n$-1\r\n$-1\r\n",
        b"$3\r\nabc\r\n",
        b"\x16\x03\x01nonsense\r\n",
        b"",
    ],
    ids=["moved", "loading", "noauth", "ok", "too-many", "bulk", "nonsense", "closed"],
)
def test_whatever_else_is_said_is_a_miss(said: bytes) -> None:
    async def scene(one: Process, two: Process) -> None:
        one.keep(wish())
        await one.written()
        assert await two.ask(wish()) is None
        assert two.shared.away
        assert two.asked == [("redis", "failed")]
        assert one.found_local(wish()) == REPLAY

    with speaking(said) as port:
        play(f"redis://127.0.0.1:{port}", scene)


@contextmanager
def speaking(said: bytes) -> Iterator[int]:
    """A server that answers everything with this; with nothing: closes."""

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            while self.request.recv(65536) and said:
                self.request.sendall(said)

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()
            thread.join()


def test_set_back_to_yesterday() -> None:
    """What was erased or has ended meanwhile is in it again, and answers nobody."""
    later = holder(b"later" + bytes(11))

    async def keep(one: Process, two: Process) -> None:
        one.keep(wish())
        await one.written()

    async def ask(one: Process, two: Process) -> None:
        assert await one.ask(wish(), later) is None
        assert await one.ask(wish()) == REPLAY
        tomorrow = Process(redis.url, wall_s=1e9 + 86_400)
        assert await tomorrow.ask(wish()) is None
        await tomorrow.cache.close()

    with valkey() as redis:
        play(redis.url, keep)
        redis.ask("SAVE")
        shutil.copy(redis.folder / "dump.rdb", redis.folder / "yesterday")
        redis.ask("FLUSHALL")
        redis.stop()
        shutil.copy(redis.folder / "yesterday", redis.folder / "dump.rdb")
        redis.start()
        redis.wait_for_keys(1)
        play(redis.url, ask)


@pytest.mark.parametrize("ahead_s", [-86_400, -59, 59, 60, 86_400])
def test_clocks_that_differ(redis: Valkey, ahead_s: int) -> None:
    """By whichever clock, it answers for no longer than it would have where it was heard."""

    async def scene(one: Process, _: Process) -> None:
        one.keep(wish())
        await one.written()
        two = Process(redis.url, wall_s=1e9 + ahead_s)
        heard = await two.ask(wish())
        assert (heard == REPLAY) == (ahead_s < CACHE_S)
        two.now_s = CACHE_S
        assert two.found_local(wish()) is None
        await two.cache.close()
        assert 0 < redis.ask("PTTL", b"here:" + wish().key_digest) <= CACHE_S * 1000

    play(redis.url, scene)


def test_what_cannot_be_written_in_time_is_dropped(redis: Valkey) -> None:
    async def scene(one: Process, _: Process) -> None:
        with redis.hung():
            for number in range(100):
                one.keep(wish(f"k{number}"), answer=Response(200, (), bytes(200_000)))
            assert 0 < one.wrote["dropped"] < 100
        await one.written(100)

    play(redis.url, scene)


@contextmanager
def behind_tls(port: int, authority: trustme.CA) -> Iterator[int]:
    """A port that takes TLS and hands on what is in it."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    ports: queue.Queue[int] = queue.Queue()
    stop = threading.Event()

    async def pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while piece := await reader.read(65536):
            writer.write(piece)
        writer.close()

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection("127.0.0.1", port)
        await asyncio.gather(pipe(reader, back), pipe(there, writer), return_exceptions=True)

    async def serve() -> None:
        server = await asyncio.start_server(relay, "127.0.0.1", 0, ssl=context)
        ports.put(server.sockets[0].getsockname()[1])
        await asyncio.to_thread(stop.wait)

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    try:
        yield ports.get(timeout=10)
    finally:
        stop.set()
        thread.join()


def test_over_tls_its_certificate_is_checked(redis: Valkey, tmp_path: Path) -> None:
    async def trusted(one: Process, two: Process) -> None:
        two.shared.start()
        assert two.shared.away
        await until(lambda: not two.shared.away)
        await _known_to_both(one, two)

    async def not_trusted(one: Process, two: Process) -> None:
        one.keep(wish())
        await one.written()
        assert one.wrote["failed"] == 1
        assert await two.ask(wish()) is None
        assert two.asked == [("redis", "failed")]

    authority, other = trustme.CA(), trustme.CA()
    for name, each in (("own", authority), ("other", other)):
        each.cert_pem.write_to_path(str(tmp_path / name))
    with behind_tls(redis.port, authority) as port:
        url = f"rediss://127.0.0.1:{port}/0?ssl_ca_certs={tmp_path}"
        play(f"{url}/own", trusted)
        play(f"{url}/other", not_trusted)
        play(f"rediss://127.0.0.1:{port}/0", not_trusted)
