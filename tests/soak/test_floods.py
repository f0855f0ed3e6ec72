"""1,000 slow senders, 1,000 waiting duplicates and an upstream that drips, beside 1,000 healthy
commands."""

from __future__ import annotations

from tests.faults.test_floods import assert_holds
from tests.kit.db import Server
from tests.kit.floods import Sizes, flood


def test_healthy_commands_go_on_beside_three_great_floods(postgres: Server) -> None:
    sizes = Sizes(slow=1000, keys=2, duplicates=500, drips=100, healthy=1000)
    assert_holds(flood(postgres, sizes), sizes, 160)
