"""Settings that touch a guarantee are called so, whatever else is found."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.diagnosis import GUARANTEES, Observed, Standby, awaited, diagnose

SETTINGS = {
    "fsync": "on",
    "full_page_writes": "on",
    "data_checksums": "on",
    "synchronous_commit": "on",
    "synchronous_standby_names": "",
    "wal_level": "replica",
    "default_transaction_isolation": "read committed",
    "default_transaction_read_only": "off",
    "statement_timeout": "2000",
    "lock_timeout": "0",
    "idle_session_timeout": "0",
    "autovacuum": "on",
}
GOOD = Observed(
    version=180_006,
    schema=None,
    in_recovery=False,
    session=SETTINGS,
    defaults=SETTINGS,
    standbys=(),
    pooling="none",
    statement_cache_size=100,
    offset_s=0.01,
    offset_error_s=0.001,
    pool_size=10,
    free_connections=90,
    usable_connections=97,
    tables_without_autovacuum=(),
)


SYNC = Standby("b", "streaming", "sync")
QUORUM = Standby("b", "streaming", "quorum")


def session(**changed: str) -> Observed:
    return replace(GOOD, session={**SETTINGS, **changed})


def standbys(*found: Standby, names: str = "") -> Observed:
    return replace(session(synchronous_standby_names=names), standbys=found)


WRONG: dict[str, tuple[Observed, str, str]] = {
    "old": (replace(GOOD, version=140_010), "version", "fails"),
    "behind": (replace(GOOD, schema="run: fencegate migrate"), "schema", "fails"),
    "standby": (replace(GOOD, in_recovery=True), "writable", "fails"),
    "read-only": (session(default_transaction_read_only="on"), "writable", "fails"),
    "fsync": (session(fsync="off"), "fsync", "fails"),
    "torn": (session(full_page_writes="off"), "full_page_writes", "warning"),
    "unchecked": (session(data_checksums="off"), "data_checksums", "warning"),
    "asynchronous": (session(synchronous_commit="off"), "synchronous_commit", "fails"),
    "local": (session(synchronous_commit="local"), "synchronous_commit", "fails"),
    "others": (
        replace(GOOD, defaults={**SETTINGS, "synchronous_commit": "off"}),
        "synchronous_commit",
        "warning",
    ),
    "lagging": (standbys(Standby("b", "streaming", "async")), "standbys", "warning"),
    "absent": (standbys(names="b"), "standbys", "fails"),
    "only async": (standbys(Standby("c", "streaming", "async"), names="b"), "standbys", "fails"),
    "too few of FIRST": (
        standbys(SYNC, Standby("c", "catchup", "potential"), names="FIRST 2 (b, c)"),
        "standbys",
        "fails",
    ),
    "too few of ANY": (standbys(QUORUM, names="ANY 2 (b, c, d)"), "standbys", "fails"),
    "any of more": (
        standbys(QUORUM, Standby("c", "streaming", "quorum"), names="any 1 (b, c)"),
        "standbys",
        "warning",
    ),
    "not shown": (standbys(Standby("b", None, None), names="b"), "standbys", "warning"),
    "minimal": (session(wal_level="minimal"), "wal_level", "warning"),
    "isolation": (session(default_transaction_isolation="serializable"), "isolation", "fails"),
    "endless": (session(statement_timeout="0"), "timeouts", "fails"),
    "longer": (session(statement_timeout="60000"), "timeouts", "fails"),
    "locks": (session(lock_timeout="100"), "timeouts", "warning"),
    "transactions": (session(transaction_timeout="500"), "timeouts", "warning"),
    "idle": (session(idle_session_timeout="60000"), "timeouts", "warning"),
    "pooler": (replace(GOOD, pooling="transaction-without-prepared"), "pooler", "fails"),
    "ahead": (replace(GOOD, offset_s=7.0), "clock", "warning"),
    "behindhand": (replace(GOOD, offset_s=-7.0), "clock", "warning"),
    "dead rows": (session(autovacuum="off"), "autovacuum", "warning"),
    "one table": (replace(GOOD, tables_without_autovacuum=("commands",)), "autovacuum", "warning"),
    "too few": (replace(GOOD, usable_connections=5, free_connections=5), "connections", "fails"),
    "taken": (replace(GOOD, free_connections=3), "connections", "warning"),
}


@pytest.mark.parametrize("name", WRONG)
def test_one_thing_that_is_wrong_is_the_one_that_is_named(name: str) -> None:
    observed, check, verdict = WRONG[name]
    wrong = [finding for finding in diagnose(observed) if finding.verdict != "ok"]
    assert [(finding.check, finding.verdict) for finding in wrong] == [(check, verdict)]


@pytest.mark.parametrize(
    "observed",
    [
        GOOD,
        standbys(Standby("b", "streaming", "sync"), names="b"),
        standbys(Standby("b", "streaming", "quorum"), names="ANY 1 (b, c)"),
        standbys(SYNC, Standby("c", "streaming", "sync"), names="2 (b, c)"),
        standbys(SYNC, Standby("c", "streaming", "potential"), names="b, c"),
        standbys(QUORUM, Standby("c", "streaming", "quorum"), names="ANY 2 (b, c)"),
        session(synchronous_commit="remote_apply"),
        replace(GOOD, pooling="session"),
        replace(GOOD, pooling="transaction"),
        replace(GOOD, pooling="transaction", statement_cache_size=0),
        replace(GOOD, pooling="transaction-without-prepared", statement_cache_size=0),
        replace(GOOD, offset_s=3.0, offset_error_s=2.5),  # it may as well be nothing
        session(lock_timeout="5000"),
    ],
)
def test_what_is_right_is_left_alone(observed: Observed) -> None:
    assert {finding.verdict for finding in diagnose(observed)} == {"ok"}


@given(st.sampled_from(sorted(WRONG)))
def test_every_check_has_one_line_and_says_what_it_means(name: str) -> None:
    found = list(diagnose(WRONG[name][0]))
    assert len({finding.check for finding in found}) == len(found) == 15
    assert all(finding.found and finding.means for finding in found)


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        ("*", (False, 1)),
        ("b", (False, 1)),
        ("2, b", (False, 1)),  # a standby that is called so
        ("any_of_them, b", (False, 1)),
        ('"ANY 2 (b)"', (False, 1)),
        ("2(b, c, d)", (False, 2)),
        ("FIRST 3 (*)", (False, 3)),
        (" first  2 ( b )", (False, 2)),
        ("ANY 2 (b, c, d)", (True, 2)),
        ("aNy 10(*)", (True, 10)),
    ],
)
def test_how_many_a_commit_waits_for(names: str, expected: tuple[bool, int]) -> None:
    assert awaited(names) == expected


def test_a_failover_is_said_to_lose_nothing_only_where_it_does() -> None:
    potential = Standby("c", "streaming", "potential")
    found = {f.check: f for f in diagnose(standbys(SYNC, potential, names="FIRST 1 (b, c)"))}
    assert found["standbys"].means.endswith("a failover to b loses nothing")


def test_the_guarantees_are_called_what_they_are_called_elsewhere() -> None:
    text = (Path(__file__).resolve().parents[3] / "docs" / "guarantees.md").read_text("utf-8")
    assert dict(re.findall(r"^## (G\d): (.+)$", text, re.MULTILINE)) == GUARANTEES
    said = " ".join(finding.means for finding in diagnose(GOOD))
    assert set(re.findall(r"\bG\d\b", said)) <= set(GUARANTEES)


@pytest.mark.parametrize(
    "observed",
    [
        GOOD,
        session(statement_timeout="0"),
        session(lock_timeout="100"),
        session(idle_session_timeout="60000"),
    ],
)
def test_every_time_has_its_unit(observed: Observed) -> None:
    (found,) = [each.found for each in diagnose(observed) if each.check == "timeouts"]
    assert re.search(r"= \d+ ms\b", found)
