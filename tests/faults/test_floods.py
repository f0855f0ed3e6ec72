"""Slow senders, waiting duplicates and an upstream that drips, all at once, beside healthy traffic.
The large version is in `tests/soak`."""

from __future__ import annotations

from tests.kit.db import Server
from tests.kit.floods import Sizes, Told, flood

MIB = 2**20


def assert_holds(told: Told, sizes: Sizes, more_mib: int) -> None:
    """Everybody was answered as if alone, and the gateway took ``more_mib`` at most."""
    assert told.healthy == {201: sizes.healthy}
    assert set(told.health) == {200}
    assert told.waiting == sizes.keys * sizes.duplicates
    assert told.slow > sizes.slow // 2, "they were there until the end"
    replays = sizes.keys * sizes.duplicates
    assert told.duplicates == {"applied": sizes.keys, "replayed": replays}
    assert told.drips == {502: sizes.drips}, "a status came, and its body was given up"
    assert told.effects == told.expected
    assert told.unsettled == []
    assert told.peak - told.rss < more_mib * MIB, (told.peak - told.rss) / MIB


def test_healthy_commands_go_on_beside_three_floods(postgres: Server) -> None:
    sizes = Sizes(slow=200, keys=2, duplicates=100, drips=20, healthy=100)
    assert_holds(flood(postgres, sizes), sizes, 64)
