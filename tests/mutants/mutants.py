"""Three ways to break the gateway that its tests must notice. Nothing of the product is edited: one
lives in a database of its own, the others in subclasses."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import asyncpg

from gateway.core.command import Hold
from gateway.core.model import Exchange, Rules
from gateway.core.settle import NotSent, Outcome, Unknown, classify
from gateway.proxy.answer import Answer
from gateway.proxy.call import Call, plan
from gateway.proxy.execute import Executor
from gateway.proxy.trace import Trace
from gateway.upstream import Transfer

__all__ = ["ReleasesUnknown", "SendsFirst", "classify_unknown_as_not_sent", "drop_the_fence"]

_PREDICATES = {
    "admit": {
        "(i.fence is null or i.fence >= e.fence)": "true",
        "c.attempt is distinct from i.attempt and i.fence < e.fence as stale": "false as stale",
    },
    "admit_batch": {"when i.fence < e.fence then case": "when false then case"},
}


async def drop_the_fence(connection: asyncpg.Connection) -> None:
    """Admit compares no fences any more, neither to insert nor to judge."""
    for name, predicates in _PREDICATES.items():
        source: str = await connection.fetchval(
            "select pg_get_functiondef(p.oid) from pg_proc p"
            " where p.pronamespace = 'gateway'::regnamespace and p.proname = $1"
            " order by p.pronargs desc limit 1",
            name,
        )
        for predicate, nothing in predicates.items():
            assert source.count(predicate) == 1, f"the mutant has lost its place: {predicate}"
            source = source.replace(predicate, nothing)
        await connection.execute(source)


def classify_unknown_as_not_sent(
    exchange: Exchange, rules: Rules, hop: bytes | None = None
) -> Outcome:
    """As if no answer meant no effect."""
    outcome = classify(exchange, rules, hop)
    return NotSent(outcome.fault or "closed") if isinstance(outcome, Unknown) else outcome


class ReleasesUnknown(Executor):
    """Gives back the key of an unknown outcome, so that it can be tried again."""

    async def _hold(self, call: Call, hold: Hold) -> None:
        await self._release(call, hold.reason, None, heard=True)


class SendsFirst(Executor):
    """Saves the wait for the commit: sends, and admits afterwards."""

    async def run(self, call: Call, gone: asyncio.Event, trace: Trace) -> Answer | None:
        deadlines = plan(self.clock(), call.rules).deadlines(self.clock())
        transfer = await call.client.send(call.request, deadlines, keep_limit=call.rules.keep_limit)
        sent: Any = _Sent(transfer)
        return await super().run(replace(call, client=sent), gone, trace)


class _Sent:
    """A client that has sent already."""

    def __init__(self, transfer: Transfer) -> None:
        self._transfer = transfer

    async def send(self, *_: object, **__: object) -> Transfer:
        return self._transfer
