"""The database commits late: statement_timeout does not bound a commit that waits for a standby."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

from gateway.store.database import STATEMENT_TIMEOUT_S
from tests.kit.client import assert_problem
from tests.kit.db import Server, execute, with_connection
from tests.kit.faults import Rig, pass_s, until


@contextlib.contextmanager
def commits_stalled(postgres: Server) -> Iterator[None]:
    """Every commit waits for a standby that does not exist."""
    _standby(postgres, "'nobody'")
    try:
        yield
    finally:
        _standby(postgres, "''")


def _standby(postgres: Server, names: str) -> None:
    execute(postgres.dsn, f"alter system set synchronous_standby_names = {names}")
    execute(postgres.dsn, "select pg_reload_conf()")
    shown = "select current_setting('synchronous_standby_names')"
    until(
        lambda: f"'{with_connection(postgres.dsn, lambda c: c.fetchval(shown))}'" == names,
        "the setting is in force",
    )


def test_an_admit_given_up_while_its_commit_stalls_is_released(here: Rig, postgres: Server) -> None:
    with commits_stalled(postgres):
        first = here.scene.send(what="quick")
        assert_problem(first, "store-unavailable", sent="no", waits=True)
        # Longer than any statement may take: a release that does not wait would be done by now.
        pass_s(time.monotonic(), STATEMENT_TIMEOUT_S + 1.5)
    until(lambda: here.scene.audit("released"), "the late row is given back")
    assert here.upstream.count == 0
    again = here.scene.send(what="quick")
    assert (again.status, here.upstream.count) == (201, 1)


def test_a_settle_whose_commit_stalls_is_heard_once_it_is_recorded(
    here: Rig, postgres: Server
) -> None:
    assert here.scene.send("warm").status == 201
    with commits_stalled(postgres):
        sent = here.scene.open("stalled", account="other")
    reply = sent.reply()
    assert reply.status in (201, 503)
    assert here.upstream.count == 1 + (reply.status == 201)
