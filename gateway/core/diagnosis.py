"""What a database's settings mean for the guarantees: facts in, findings out."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

__all__ = [
    "GUARANTEES",
    "Finding",
    "Observed",
    "Pooling",
    "Standby",
    "Verdict",
    "awaited",
    "diagnose",
]

GUARANTEES: Mapping[str, str] = {
    "G1": "at most once per key",
    "G2": "no stale admission",
    "G3": "no overtaking",
    "G4": "nothing heard is forgotten",
    "G5": "unknown is never dressed up",
    "G6": "fail closed",
    "G7": "ownership",
}
"""What the findings refer to, by the titles of ``docs/guarantees.md``."""

Verdict = Literal["ok", "warning", "fails"]

Pooling = Literal["none", "session", "transaction", "transaction-without-prepared"]
"""``transaction``: connections are shared between transactions, and prepared statements were found
to work all the same; ``transaction-without-prepared``: they were not."""

_STATEMENT_TIMEOUT_MS = 2000
"""What the gateway asks for when it connects."""

_OFFSET_WARNS_S = 1.0
"""Log lines and audit rows of one event should fall into one second."""


@dataclass(frozen=True, slots=True)
class Standby:
    """``state`` and ``sync_state`` as in ``pg_stat_replication``; ``None`` where the role may not
    see them."""

    name: str
    state: str | None
    sync_state: str | None


@dataclass(frozen=True, slots=True)
class Observed:
    """What was found. ``session``: settings as the gateway's own connections have them.
    ``defaults``: as any other connection of the role has them. ``offset_s``: the database's clock
    ahead of this machine's, known to ``offset_error_s``. ``free_connections``: how many more this
    role could open now. ``tables_without_autovacuum``: of ours."""

    version: int
    schema: str | None
    in_recovery: bool
    session: Mapping[str, str]
    defaults: Mapping[str, str]
    standbys: tuple[Standby, ...]
    pooling: Pooling
    statement_cache_size: int
    offset_s: float
    offset_error_s: float
    pool_size: int
    free_connections: int
    usable_connections: int
    tables_without_autovacuum: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Finding:
    """One line: ``found`` is a fact, ``means`` what it does to which guarantee, and the mend."""

    check: str
    verdict: Verdict
    found: str
    means: str


_Result = tuple[Verdict, str, str]


def _result(verdict: Verdict, found: str, means: str) -> _Result:
    return verdict, found, means


def diagnose(observed: Observed) -> Iterator[Finding]:
    """Every check, in an order for reading."""
    for name, check in _CHECKS.items():
        verdict, found, means = check(observed)
        yield Finding(name, verdict, found, means)


def _version(o: Observed) -> _Result:
    found = f"PostgreSQL {o.version // 10_000}.{o.version % 10_000}"
    if o.version < 150_000:
        return "fails", found, "15 or newer is needed: nothing is tested on older ones"
    return "ok", found, "supported"


def _schema(o: Observed) -> _Result:
    if o.schema is None:
        return "ok", "the schema is this release's", "`serve` starts"
    return "fails", o.schema, "`serve` does not start"


def _writable(o: Observed) -> _Result:
    if o.in_recovery:
        return _result(
            "fails",
            "this is a standby",
            "G6: every guarded request is refused; point FENCEGATE_DATABASE_URL at the primary",
        )
    if o.session["default_transaction_read_only"] == "on":
        return _result(
            "fails",
            "default_transaction_read_only = on",
            "G6: every guarded request is refused; reset it for this role and database",
        )
    return "ok", "takes writes", "G6: guarded requests are admitted"


def _fsync(o: Observed) -> _Result:
    if o.session["fsync"] == "off":
        return _result(
            "fails",
            "fsync = off",
            "G1, G2, G4: a crash of the machine forgets keys and marks that were acknowledged; "
            "set fsync = on",
        )
    return "ok", "fsync = on", "G1, G2, G4: what is committed survives a crash"


def _full_page_writes(o: Observed) -> _Result:
    if o.session["full_page_writes"] == "off":
        return _result(
            "warning",
            "full_page_writes = off",
            "G1, G2, G4: a crash in the middle of writing a page leaves half of it, and its rows "
            "are lost, unless the file system writes pages whole; set it on",
        )
    found = "full_page_writes = on"
    return "ok", found, "G1, G2, G4: a page that a crash left half written is repaired"


def _checksums(o: Observed) -> _Result:
    if o.session["data_checksums"] != "on":
        return _result(
            "warning",
            f"data_checksums = {o.session['data_checksums']}",
            "G1, G2: a page that the disk changed is read as if it were right; enable them with "
            "pg_checksums",
        )
    return "ok", "data_checksums = on", "G1, G2: a page that the disk changed is noticed"


def _synchronous_commit(o: Observed) -> _Result:
    value, other = o.session["synchronous_commit"], o.defaults["synchronous_commit"]
    if value not in ("on", "remote_apply"):
        return _result(
            "fails",
            f"synchronous_commit = {value} on the gateway's own connections",
            "G1, G2, G4: an acknowledged commit may be lost; the gateway asks for `on`, so a "
            "pooler drops that: let it pass, or set it for the role",
        )
    if other not in ("on", "remote_apply"):
        return _result(
            "warning",
            f"synchronous_commit = {other} by default, {value} for the gateway",
            "G2: fences that others issue in SQL (gateway.issue_fence) may be lost and issued "
            "twice; set it on for whoever calls it",
        )
    return "ok", f"synchronous_commit = {value}", "G1, G2, G4: a commit is durable when it returns"


def _standbys(o: Observed) -> _Result:
    names = o.session["synchronous_standby_names"]
    listed = ", ".join(
        f"{s.name} ({s.state or 'state not shown'}, {s.sync_state or 'mode not shown'})"
        for s in o.standbys
    )
    if names and any(s.sync_state is None for s in o.standbys):
        return _result(
            "warning",
            f"synchronous_standby_names = {names}; standbys: {listed}",
            "G1, G2, G4: whether one is in step cannot be seen; grant this role pg_monitor",
        )
    if names:
        return _synchronous(
            names, o.standbys, f"synchronous_standby_names = {names}; standbys: {listed or 'none'}"
        )
    if o.standbys:
        return _result(
            "warning",
            f"no synchronous standby; standbys: {listed}",
            "G1, G2, G4: a failover to one of them loses the last commits; then guarded routes "
            "stop until somebody acknowledges. Set synchronous_standby_names",
        )
    return _result(
        "ok",
        "no other server has a copy",
        "G1, G2, G4: they hold while this server's disk does. If it dies, all is lost that came "
        "after the last backup, and what was sent since may be sent again; a synchronous standby "
        "(synchronous_standby_names) would have it",
    )


def _synchronous(names: str, standbys: tuple[Standby, ...], found: str) -> _Result:
    """The server shows ``quorum`` for every candidate of ``ANY`` that streams, and ``sync`` for
    those of ``FIRST`` that it waits for now."""
    in_step = [s.name for s in standbys if s.sync_state in ("sync", "quorum")]
    any_of, needed = awaited(names)
    if len(in_step) < needed:
        return _result(
            "fails",
            found,
            f"G6: every commit waits for {needed} in step, and there "
            f"{'is' if len(in_step) == 1 else 'are'} {len(in_step)}; commands are refused until "
            "they are back",
        )
    if any_of and len(in_step) > needed:
        return _result(
            "warning",
            found,
            f"G1, G2, G4: a commit is on {needed} of {len(in_step)}, so only the one furthest "
            f"ahead of at least {len(in_step) - needed + 1} has everything: see that a failover "
            "compares them, or write FIRST",
        )
    return "ok", found, f"G1, G2, G4: a failover to {' or '.join(in_step)} loses nothing"


def awaited(names: str) -> tuple[bool, int]:
    """Whether any of those that ``synchronous_standby_names`` lists do, and how many a commit
    waits for: ``ANY n (…)``, ``FIRST n (…)``, ``n (…)``, or a plain list, of which one."""
    counted = _COUNTED.match(names)
    if counted is None:
        return False, 1
    return (counted[1] or "").upper() == "ANY", int(counted[2])


_COUNTED = re.compile(r"\s*(?:(ANY|FIRST)\s+)?([0-9]+)\s*\(", re.IGNORECASE)


def _wal_level(o: Observed) -> _Result:
    level = o.session["wal_level"]
    if level == "minimal":
        return "warning", "wal_level = minimal", "no standby and no continuous backup is possible"
    return "ok", f"wal_level = {level}", "standbys and continuous backups are possible"


def _isolation(o: Observed) -> _Result:
    value = o.session["default_transaction_isolation"]
    if value != "read committed":
        return _result(
            "fails",
            f"default_transaction_isolation = {value} on the gateway's own connections",
            "G2, G7: a fence or a lease would be judged by data from before it was the gateway's "
            "turn, so commands are refused instead; the gateway asks for `read committed`, so a "
            "pooler drops that: set it for the role",
        )
    return _result(
        "ok",
        "default_transaction_isolation = read committed",
        "G2, G7: a fence or a lease is judged by what the database holds at that moment",
    )


def _timeouts(o: Observed) -> _Result:
    value = o.session["statement_timeout"]
    if milliseconds(value) != _STATEMENT_TIMEOUT_MS:
        return _result(
            "fails",
            f"statement_timeout = {value} ms on the gateway's own connections",
            "G2: an admit may commit after its attempt was given up for good; the gateway asks "
            f"for {_STATEMENT_TIMEOUT_MS} ms, so a pooler drops that: set it for the role",
        )
    shorter = [
        f"{name} = {o.session[name]} ms"
        for name in ("lock_timeout", "transaction_timeout")
        if 0 < milliseconds(o.session.get(name, "0")) < _STATEMENT_TIMEOUT_MS
    ]
    if shorter:
        return _result(
            "warning",
            ", ".join(shorter),
            "G6: commands of a busy entity are refused as store-unavailable sooner than need be;"
            " reset it for this role and database",
        )
    if milliseconds(o.session["idle_session_timeout"]) > 0:
        return _result(
            "warning",
            f"idle_session_timeout = {o.session['idle_session_timeout']} ms",
            "connections are cut while they idle, and every command behind that waits for a new "
            "one; reset it for this role",
        )
    found = f"statement_timeout = {value} ms"
    return "ok", found, "G2: an admit that is given up ends at the server"


def _pooler(o: Observed) -> _Result:
    match o.pooling:
        case "none":
            return "ok", "no pooler in between", "each connection is a session of the server"
        case "session":
            return "ok", "a pooler in session mode", "each connection is a session of the server"
        case "transaction" | "transaction-without-prepared" if o.statement_cache_size == 0:
            return "ok", "a pooler in transaction mode", "no statement is prepared; fine"
        case "transaction":
            return _result(
                "ok",
                "a pooler in transaction mode that keeps prepared statements",
                "fine; FENCEGATE_STATEMENT_CACHE_SIZE=0 would do without",
            )
        case "transaction-without-prepared":
            return _result(
                "fails",
                "a pooler in transaction mode that loses prepared statements",
                "G6: commands fail at random as store-unavailable; set "
                "FENCEGATE_STATEMENT_CACHE_SIZE=0",
            )


def _clock(o: Observed) -> _Result:
    found = (
        f"the database's clock is {o.offset_s:+.3f} s from this machine's "
        f"(known to ±{o.offset_error_s:.3f} s, half a round trip)"
    )
    if abs(o.offset_s) - o.offset_error_s > _OFFSET_WARNS_S:
        return _result(
            "warning",
            found,
            "no guarantee rests on it, since the database's clock alone decides; but log lines "
            "and audit rows do not match, and one of the clocks may step when it is set right "
            "(G3: see settle_delay_s)",
        )
    return "ok", found, "log lines and audit rows match"


def _autovacuum(o: Observed) -> _Result:
    if o.session["autovacuum"] == "off" or o.tables_without_autovacuum:
        where = ", ".join(o.tables_without_autovacuum) or "the whole server"
        return _result(
            "warning",
            f"autovacuum is off for {where}",
            "every command leaves a dead row version, so tables grow and commands slow down "
            "until they are refused (G6); turn it on",
        )
    return "ok", "autovacuum = on", "dead row versions are cleared away"


def _connections(o: Observed) -> _Result:
    found = (
        f"{o.free_connections} of {o.usable_connections} connections are free; a gateway takes up "
        f"to {o.pool_size} (FENCEGATE_POOL_SIZE)"
    )
    if o.usable_connections < o.pool_size:
        return _result(
            "fails",
            found,
            "G6: commands are refused as soon as the pool wants more than there are; lower the "
            "pool or raise max_connections",
        )
    if o.free_connections < o.pool_size:
        return _result(
            "warning",
            found,
            "G6: another process may find none, and refuses commands then; lower the pools or "
            "raise max_connections",
        )
    return "ok", found, f"room for {o.free_connections // o.pool_size} more processes"


_CHECKS: Mapping[str, Callable[[Observed], _Result]] = {
    "version": _version,
    "schema": _schema,
    "writable": _writable,
    "fsync": _fsync,
    "full_page_writes": _full_page_writes,
    "data_checksums": _checksums,
    "synchronous_commit": _synchronous_commit,
    "standbys": _standbys,
    "wal_level": _wal_level,
    "isolation": _isolation,
    "timeouts": _timeouts,
    "pooler": _pooler,
    "clock": _clock,
    "autovacuum": _autovacuum,
    "connections": _connections,
}


def milliseconds(value: str) -> int:
    """A time setting as ``pg_settings`` has it: a plain number is milliseconds."""
    return int(value)
