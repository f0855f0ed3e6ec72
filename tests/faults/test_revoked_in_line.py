"""A key that is revoked while its caller stands in line for the database."""

from __future__ import annotations

from tests.e2e.test_keys_over_http import make_key
from tests.kit.client import Fields, assert_problem
from tests.kit.db import Server
from tests.kit.faults import CHARGE, entity_locked, until
from tests.kit.gateway import policy, rows, stack
from tests.kit.operating import fencegate


def test_whoever_has_its_turn_then_commands_nothing(postgres: Server) -> None:
    """Its entity is locked, and those before it wait for that; the lock ends when the gateway
    knows that the key is revoked. Not serial, so nothing else keeps it from being sent."""
    with postgres.database() as dsn:
        keeps, loses = (auth(make_key(dsn, "a", name)) for name in ("keeps", "loses"))
        command = f"{CHARGE}serial = false\n"
        with stack(postgres, lambda url: [policy(url, command)], database=dsn) as made:
            scene = made.scene()
            assert scene.send("first", fields=keeps).status == 201
            with entity_locked(dsn, scene.entity):
                # Each is given up after 2 s; the keys are read again within 5 s.
                before = [scene.open(f"before-{n}", fields=keeps) for n in range(5)]
                made.wait_for_gauge("attempts_in_flight", 5)
                last = scene.open("last", fields=[*loses, ("Prefer", "wait=30")])
                made.wait_for_gauge("attempts_in_flight", 6)
                key_id = loses[0][1].split("_")[2]
                assert fencegate("keys", "revoke", key_id, dsn=dsn).code == 0
                until(
                    lambda: scene.send("probe", account="else", fields=loses).status == 401,
                    "it is revoked",
                )
            assert_problem(last.reply(), "unauthenticated")
            for each in before:
                each.reply()
        assert rows(dsn, "select from gateway.commands where key = $1", scene.key("last")) == []


def auth(token: str) -> Fields:
    return [("Authorization", f"Bearer {token}")]
