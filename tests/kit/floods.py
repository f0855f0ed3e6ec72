"""Everything that costs a gateway and does nothing, at once: slow senders, waiting duplicates, an
upstream that drips; and healthy commands beside them."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.kit.client import Exchange
from tests.kit.db import Server
from tests.kit.gateway import Scene, policy, rows, stack
from tests.kit.upstream import Gate, gated

__all__ = ["Sizes", "Told", "flood"]

_CHARGE = """
name = "charge"
match = "POST /v1/accounts/{account}/charges"
entity = "account:{path.account}"
send_fence = "X-Fence"
timeout_s = 300
"""

_DRIP = """
name = "drip"
match = "POST /v1/drips/{drip}"
entity = "drip:{path.drip}"
fence = "off"
timeout_s = 4
"""

_DRIPS = b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n"
_PAUSE_S = 0.5
"""Between two bytes of whoever drips."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """How many of each. ``keys``: the duplicates' commands, each with as many."""

    slow: int
    keys: int
    duplicates: int
    drips: int
    healthy: int


@dataclass
class Told:
    """What was seen. ``rss``, ``peak``: bytes of the gateway before it all, and its most."""

    healthy: Counter[int] = field(default_factory=Counter)
    duplicates: Counter[str] = field(default_factory=Counter)
    drips: Counter[int] = field(default_factory=Counter)
    effects: int = 0
    expected: int = 0
    waiting: float = 0
    slow: int = 0
    rss: int = 0
    peak: int = 0
    health: list[int] = field(default_factory=list)
    unsettled: list[str] = field(default_factory=list)


def flood(postgres: Server, sizes: Sizes) -> Told:
    """All of it at once; returns when every healthy command and every duplicate is answered."""
    told = Told()
    with contextlib.ExitStack() as held:
        dripping = held.enter_context(_dripping())
        made = held.enter_context(
            stack(
                postgres,
                lambda url: [
                    policy(url, _CHARGE),
                    policy(dripping, _DRIP, name="slow", mount="/slow"),
                ],
            )
        )
        scene = made.scene()
        process = made.gateway.process
        assert process is not None
        assert scene.send("warm", 1).status == 201
        told.rss = _memory(process.pid, "VmRSS")
        gate = Gate()
        held.callback(gate.release)
        scene.upstream.script = lambda request: gated(gate) if b"/held-" in request.target else None
        senders = held.enter_context(contextlib.closing(Senders(made.gateway.url, sizes.slow)))
        waiting = _duplicates(scene, sizes)
        told.waiting = made.gauge("waiting_callers")
        drips = [_drip(scene, number) for number in range(sizes.drips)]
        _healthy(scene, sizes.healthy, told)
        told.slow = senders.there
        gate.release()
        told.duplicates.update(exchange.reply(60).outcome or "" for exchange in waiting)
        told.drips.update(exchange.reply(60).status for exchange in drips)
        told.peak = _memory(process.pid, "VmHWM")
        told.effects = len(scene.upstream.effects)
        told.expected = 1 + sizes.healthy + sizes.keys
        told.unsettled = [
            row["key"]
            for row in rows(
                made.database,
                "select key from gateway.commands where settled_at is null and policy = $1",
                "pay/charge",
            )
        ]
    return told


def _drip(scene: Scene, number: int) -> Exchange:
    key = [("Idempotency-Key", f"drip-{number}")]
    return scene.caller.open("POST", f"/slow/v1/drips/{number}", key)


def _memory(pid: int, name: str) -> int:
    lines = Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines()
    (line,) = (line for line in lines if line.startswith(f"{name}:"))
    return int(line.split()[1]) * 1024


def _healthy(scene: Scene, count: int, told: Told) -> None:
    """Commands by four callers, each as soon as the one before it is answered, and questions of who
    looks after the process."""

    def send(number: int) -> int:
        if number % 10 == 0:
            told.health.append(scene.caller.call("GET", "/healthz").status)
        account = f"{scene.account}-{number % 20}"
        return scene.send(f"healthy-{number}", 1, account=account).status

    with ThreadPoolExecutor(4) as pool:
        told.healthy.update(pool.map(send, range(count)))


def _duplicates(scene: Scene, sizes: Sizes) -> list[Exchange]:
    """As many as there may be wait for each key; returns once they do."""
    sent: list[Exchange] = []
    for key in range(sizes.keys):
        account = f"held-{scene.account}-{key}"
        for _ in range(sizes.duplicates + 1):
            fields = [("Prefer", "wait=60")]
            sent.append(scene.open(f"held-{key}", 1, account=account, fields=fields))
    scene.stack.wait_for_gauge("waiting_callers", sizes.keys * sizes.duplicates, 60)
    return sent


# -- slow senders


class Senders:
    """The process of slow senders."""

    def __init__(self, url: str, count: int) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.kit.slow_senders", url, str(count)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._changed = threading.Condition()
        self._there = 0
        threading.Thread(target=self._read, daemon=True).start()
        with self._changed:
            enough = count * 9 // 10
            came = self._changed.wait_for(lambda: self._there >= enough, 60)
        assert came, f"only {self._there} slow senders came in"

    @property
    def there(self) -> int:
        return self._there

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            with self._changed:
                self._there = int(line)
                self._changed.notify_all()

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()


# -- an upstream that drips


@contextlib.contextmanager
def _dripping() -> Iterator[str]:
    """Takes every request, and answers a byte at a time that never come to their end."""
    address: list[Any] = []
    ready = threading.Event()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(_DRIPS)
            while not writer.is_closing():
                writer.write(b"a")
                await writer.drain()
                await asyncio.sleep(_PAUSE_S)
        writer.close()

    async def serve() -> None:
        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        address.extend(server.sockets[0].getsockname())
        ready.set()
        await server.serve_forever()

    with _beside(serve):
        assert ready.wait(10)
        yield f"http://127.0.0.1:{address[1]}"


@contextlib.contextmanager
def _beside(work: Callable[[], Coroutine[Any, Any, None]]) -> Iterator[None]:
    """``work`` on an event loop of its own, cancelled at the end."""
    loop = asyncio.new_event_loop()
    task = loop.create_task(work())

    def run() -> None:
        with contextlib.suppress(asyncio.CancelledError):
            loop.run_until_complete(task)
        loop.run_until_complete(_end_all())
        loop.close()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield
    finally:
        loop.call_soon_threadsafe(task.cancel)
        thread.join(30)


async def _end_all() -> None:
    others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
