"""Bodies as they are read: memory for what has come, time for what has not."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

import pytest

from gateway.core.problems import Problem
from gateway.limits import PACE
from gateway.proxy import body as module
from gateway.proxy.body import Gone, Inflow, TooLarge, TooSlow, read_body
from gateway.proxy.shares import Memory

MIB = 2**20


class Sender:
    """Sends pieces; ``None`` never comes."""

    def __init__(self, pieces: Iterable[bytes | None]) -> None:
        self._pieces = list(pieces)

    async def __call__(self) -> Any:
        if not self._pieces:
            return {"type": "http.disconnect"}
        piece = self._pieces.pop(0)
        if piece is None:
            await asyncio.get_running_loop().create_future()
        return {"type": "http.request", "body": piece, "more_body": bool(self._pieces)}


def read(memory: Memory, *pieces: bytes | None, limit: int = 8 * MIB) -> Any:
    held = memory.hold(1)
    return asyncio.run(read_body(Sender(pieces), limit, held)), held


def used(memory: Memory) -> int:
    return memory.small.used + memory.large.used


def test_a_body_that_was_read_is_held_until_it_is_let_go() -> None:
    memory = Memory(16 * MIB)
    body, held = read(memory, b"a" * MIB, b"b" * MIB, b"c")
    assert body == b"a" * MIB + b"b" * MIB + b"c"
    assert used(memory) == 2 * MIB + 1
    held.close()
    assert used(memory) == 0


def test_a_body_that_comes_byte_by_byte_is_the_same() -> None:
    memory = Memory(16 * MIB)
    body, _ = read(memory, *(bytes([n % 256]) for n in range(5_000)))
    assert body == bytes(n % 256 for n in range(5_000))
    assert used(memory) == 5_000


@pytest.mark.parametrize("end", ["large", "gone", "slow", "full", "broken"])
def test_a_body_that_does_not_come_whole_holds_nothing(
    end: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = Memory(16 * MIB)
    monkeypatch.setattr(module, "BODY_S", 0.05)
    if end == "broken":
        with pytest.raises(TypeError):
            read(memory, b"a" * 100, 7)  # type: ignore[arg-type]
    else:
        ends: dict[str, tuple[list[bytes | None], int, type]] = {
            "large": ([b"a" * 100, b"b"], 100, TooLarge),
            "gone": ([], 200, Gone),
            "slow": ([b"a" * 100, None], 200, TooSlow),
            "full": ([b"a" * MIB] * 12, 64 * MIB, Problem),
        }
        pieces, limit, kind = ends[end]
        receive = _then_gone(b"a" * 100) if end == "gone" else Sender(pieces)
        found = asyncio.run(read_body(receive, limit, memory.hold(1)))
        assert isinstance(found, kind)
        if isinstance(found, Problem):
            assert (found.type, found.retry_after_s) == ("overloaded", 1)
    assert used(memory) == 0


def _then_gone(piece: bytes) -> Any:
    messages = [
        {"type": "http.request", "body": piece, "more_body": True},
        {"type": "http.disconnect"},
    ]

    async def receive() -> Any:
        return messages.pop(0)

    return receive


# -- what streams through


class Trickle:
    """Each piece comes behind ``pause_s`` on the loop's clock, which this moves."""

    def __init__(self, piece: bytes, pause_s: float) -> None:
        self._piece = piece
        self._pause_s = pause_s

    async def __call__(self) -> Any:
        await asyncio.sleep(self._pause_s)
        return {"type": "http.request", "body": self._piece, "more_body": True}


CHUNKED = ((b"transfer-encoding", b"chunked"),)


def pulls(piece: bytes, pause_s: float, most: int) -> int:
    """How many pieces come before the patience is over."""

    async def main() -> int:
        inflow = Inflow(Trickle(piece, pause_s), CHUNKED)
        for count in range(most):
            if await inflow.pull() is None:
                assert inflow.slow
                return count
        return most

    return asyncio.run(main())


def test_a_stream_that_drips_ends_though_no_pause_is_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BODY_S", 0.2)
    assert pulls(b"x", 0.02, 1_000) < 12


def test_a_stream_that_keeps_its_pace_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BODY_S", 0.2)
    assert pulls(b"x" * PACE, 0.02, 40) == 40
