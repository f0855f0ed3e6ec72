"""Admit, settle, release and hold, for batches; one round trip and one commit each.

A batch holds at most one command per key and per entity. N = 1 is the ordinary case.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import Any, cast
from uuid import UUID

import asyncpg

from gateway import faults
from gateway.core.command import Command, Hold, Release, Settle, SettleResult
from gateway.core.decide import Facts, Known, Open
from gateway.core.headers import decode_lines
from gateway.core.model import Response, UnknownMode
from gateway.store.database import Database
from gateway.store.doubts import Doubts
from gateway.store.queries import load
from gateway.store.witness import Witness

__all__ = ["CommandStore"]

_SQL = load("commands")

_ELSEWHERE = "elsewhere"
"""In place of a state: somebody else has locked the entity."""


_PARAMETERS = attrgetter(
    *("tenant", "key_digest", "key", "policy", "entity", "fingerprint", "rules", "fence"),
    *("attempt", "principal", "request_id", "serial", "unknown", "upstream_key"),
    *("upstream_digest", "deadline_ms", "settle_delay_s", "response_days", "key_days", "outline"),
    *("issuer_here", "probe_target"),
)
"""Of admit, in its order."""


class CommandStore:
    """The port between the proxy and the database. Every method raises ``StoreUnavailable`` or
    ``AnswerLost`` as ``Database.fetch`` does, for the whole batch."""

    def __init__(self, database: Database, witness: Witness | None = None) -> None:
        """``witness``: looks whether the database still has what it acknowledged, before each
        admit, and remembers what it acknowledges. Operators' commands have none."""
        self._database = database
        self._witness = witness
        self._doubts = Doubts()

    async def admit(self, commands: Sequence[Command]) -> list[Facts]:
        """Admit a batch; facts come back in the order of ``commands``. Raises ``RowsLost``."""
        found = await self._admit(commands, wait=True)
        answered = [facts for facts in found if facts is not None]
        assert len(answered) == len(commands), "who waits is answered"
        return answered

    async def admit_free(self, commands: Sequence[Command]) -> list[Facts | None]:
        """As ``admit``, but waits for nobody: ``None`` where somebody else has locked the entity,
        and nothing was done. Another's insert that it meets cuts it off: ``LOCKED``."""
        return await self._admit(commands, wait=False)

    async def _admit(self, commands: Sequence[Command], *, wait: bool) -> list[Facts | None]:
        _check_batch(commands)
        ask = self._database if self._witness is None else self._witness
        with self._doubts.about([c.attempt for c in commands]) as doubt:
            faults.reach("admit.before")
            rows = await doubt.fetch(ask, _SQL["admit"], *_columns(commands), wait)
            faults.reach("admit.committed")
        found = _found(commands, rows)
        if self._witness is not None:
            for command, facts in zip(commands, found, strict=True):
                if facts is not None:
                    _remember(self._witness, command, facts)
        return found

    async def rehearse(self, command: Command) -> Facts:
        """What an admit of ``command`` would find and do now. It is that very statement, rolled
        back; nothing is written. Raises ``StoreUnavailable``."""
        rows = await self._database.rehearse(_SQL["admit"], *_columns([command]), True)
        (facts,) = _found([command], rows)
        assert facts is not None, "who waits is answered"
        return facts

    async def settle(self, settles: Sequence[Settle]) -> list[SettleResult]:
        """Record final responses. A response whose attempt has no unsettled row is recorded where
        its key is free, and goes to the audit where it is not."""
        return await self._settle(settles, wait=True)

    async def settle_free(self, settles: Sequence[Settle]) -> list[SettleResult]:
        """As ``settle``, but waits for nobody: where somebody else has locked one of the entities
        or commands it is cut off, and nothing was done: ``LOCKED``."""
        return await self._settle(settles, wait=False)

    async def _settle(self, settles: Sequence[Settle], *, wait: bool) -> list[SettleResult]:
        with self._doubts.about([s.command.attempt for s in settles]) as doubt:
            faults.reach("settle.before")
            rows = await doubt.fetch(
                self._database,
                _SQL["settle"],
                [s.command.tenant for s in settles],
                [s.command.key_digest for s in settles],
                [s.command.entity for s in settles],
                [s.command.attempt for s in settles],
                [s.response.status for s in settles],
                [s.head for s in settles],
                [_body(s) for s in settles],
                wait,
            )
            faults.reach("settle.committed")
        results: list[SettleResult] = ["settled"] * len(settles)
        for row in rows:
            at, result = row["ord"] - 1, row["result"]
            unmatched = result == "unmatched"
            results[at] = await self._settle_unmatched(settles[at]) if unmatched else result
        if self._witness is not None:
            for settle, result in zip(settles, results, strict=True):
                if result == "duplicate":  # a newer attempt has the row
                    self._witness.gone(settle.command)
                else:
                    self._witness.settled(settle.command, settle.response.status)
        return results

    async def _settle_unmatched(self, settle: Settle) -> SettleResult:
        c = settle.command
        with self._doubts.about([c.attempt]) as doubt:
            rows = await doubt.fetch(
                self._database,
                _SQL["settle_unmatched"],
                *(c.tenant, c.key_digest, c.key, c.policy, c.entity, c.fingerprint, c.rules),
                *(c.fence, c.attempt, c.principal, c.request_id, c.serial, c.unknown),
                *(c.upstream_key, c.upstream_digest, c.settle_delay_s, c.response_days),
                *(c.key_days, settle.response.status, settle.head, _body(settle)),
            )
        result: str = rows[0][0]
        if result == "retry":
            (again,) = await self.settle([settle])
            return again
        return result  # type: ignore[return-value]

    async def release(self, releases: Sequence[Release]) -> list[bool]:
        """Give keys back. False: no unsettled row of that attempt was there, which is done too."""
        with self._doubts.about([r.command.attempt for r in releases]) as doubt:
            faults.reach("release.before")
            rows = await doubt.fetch(
                self._database,
                _SQL["release"],
                [r.command.tenant for r in releases],
                [r.command.key_digest for r in releases],
                [r.command.entity if r.command.has_entity_row else None for r in releases],
                [r.command.attempt for r in releases],
                [r.reason for r in releases],
                [r.heard for r in releases],
            )
            faults.reach("release.committed")
        if self._witness is not None:
            for release in releases:
                self._witness.gone(release.command)
        return [row["released"] for row in rows]

    async def hold(self, holds: Sequence[Hold]) -> list[bool]:
        """Record unknown outcomes. False: already held, settled or released."""
        with self._doubts.about([h.command.attempt for h in holds]) as doubt:
            faults.reach("hold.before")
            rows = await doubt.fetch(
                self._database,
                _SQL["hold"],
                [h.command.tenant for h in holds],
                [h.command.key_digest for h in holds],
                [h.command.entity for h in holds],
                [h.command.attempt for h in holds],
                [h.reason for h in holds],
                [h.evidence.status if h.evidence else None for h in holds],
                [h.evidence.body if h.evidence else None for h in holds],
            )
            faults.reach("hold.committed")
        return [row["held"] for row in rows]

    async def pseudonym(self) -> bytes:
        """The name in ``Via`` that all processes on this database share."""
        rows = await self._database.fetch(_SQL["deployment"])
        return b"fencegate-" + UUID(str(rows[0]["id"])).hex[:12].encode("ascii")

    async def open_parallel(self, serial_policies: Sequence[str]) -> list[str]:
        """Unsettled commands that hold no slot though their policy is serial now, described; at
        most 20."""
        rows = await self._database.fetch(_SQL["open_parallel"], list(serial_policies))
        return [
            f"tenant {row['tenant']}, {row['policy']}, key {row['key']}, entity {row['entity']}"
            for row in rows
        ]

    async def ready(
        self, keys: Sequence[tuple[int, bytes]], entities: Sequence[tuple[int, str]]
    ) -> tuple[list[int], list[int]]:
        """Which waited-for keys and entities are worth another admit, by their index."""
        rows = await self._database.fetch(
            _SQL["ready"],
            [tenant for tenant, _ in keys],
            [digest for _, digest in keys],
            [tenant for tenant, _ in entities],
            [entity for _, entity in entities],
        )
        return (
            [row["ord"] - 1 for row in rows if row["kind"] == "key"],
            [row["ord"] - 1 for row in rows if row["kind"] == "entity"],
        )


def _remember(witness: Witness, command: Command, facts: Facts) -> None:
    if facts.known is not None and facts.known.attempt == command.attempt:
        witness.admitted(command)
    if facts.mark is not None:
        witness.mark(command.tenant, command.entity, facts.mark, issued=facts.held is not None)


def _check_batch(commands: Sequence[Command]) -> None:
    keys = {(c.tenant, c.key_digest) for c in commands}
    entities = [(c.tenant, c.entity) for c in commands if c.has_entity_row]
    if len(keys) != len(commands) or len(set(entities)) != len(entities):
        raise ValueError("a batch holds at most one command per key and per entity")


def _columns(commands: Sequence[Command]) -> tuple[tuple[Any, ...], ...]:
    """The parameters of admit, in its order."""
    return tuple(zip(*map(_PARAMETERS, commands), strict=True))


def _body(settle: Settle) -> bytes | None:
    return settle.response.body if settle.keep_body else None


def _found(commands: Sequence[Command], rows: Sequence[asyncpg.Record]) -> list[Facts | None]:
    """The facts of each: those of its row, and without one, of a command that was admitted."""
    found: list[Facts | None] = [_fresh(command) for command in commands]
    for row in rows:
        at = row[0] - 1
        found[at] = None if row[4] == _ELSEWHERE else _facts(commands[at], row)
    return found


def _fresh(command: Command) -> Facts:
    mark = 0 if command.serial and command.fence is None else command.fence
    attempt, unknown = command.attempt, cast(UnknownMode, command.unknown)
    # By position: each is made for every command, and names cost a dictionary.
    known = Known(
        attempt, "in-flight", True, command.deadline_ms, None, None, None, None, unknown, 0,
        command.upstream_key, True,
    )  # fmt: skip
    probes = command.probe_target is not None
    return Facts(
        attempt, command.fence, mark, known, None, None, command.issuer_here,
        command.resend_within_ms, probes,
    )  # fmt: skip


def _facts(command: Command, row: asyncpg.Record) -> Facts:
    # By position: one record is read for every command, and names cost a look-up each.
    (
        _, mark, held, attempt, state, same, remaining_ms, status, headers, body, settled_by,
        evidence_status, open_key, open_state, open_remaining_ms, unknown, age_ms, upstream_key,
        account_same, expired,
    ) = row  # fmt: skip
    known = None
    if attempt is not None:
        response = None if body is None else Response(status, decode_lines(headers), body)
        known = Known(
            *(attempt, state, same, remaining_ms, status, response, settled_by, evidence_status),
            *(unknown, age_ms, upstream_key, account_same),
        )
    opened = None if open_key is None else Open(open_key, open_state, open_remaining_ms)
    return Facts(
        *(command.attempt, command.fence, mark, known, opened, held, command.issuer_here),
        resend_within_ms=command.resend_within_ms,
        probes=command.probe_target is not None,
        expired=expired,
    )
