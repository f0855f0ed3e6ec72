"""One guarded request after intake: read whole, authenticated, derived, ready to be admitted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field
from uuid import uuid4

from gateway.core.auth import Principal
from gateway.core.command import Command
from gateway.core.headers import handed_on
from gateway.core.model import Rules
from gateway.core.problems import Problem
from gateway.core.value import altered, value
from gateway.proxy.shares import Flight, Held
from gateway.upstream import Client, Deadlines, Request

__all__ = ["ADMIT_WINDOW_S", "GRACE_S", "Call", "Plan", "first_byte_s", "plan"]

GRACE_S = 5
"""Seconds that a command's deadline lies behind its ``timeout_s``: time to record the outcome."""

ADMIT_WINDOW_S = 2
"""Seconds that an admit may take on top of connecting before the first byte must have left."""

_CONNECT_S = 5
"""Seconds that connecting may take at most: a SYN is sent a third time after 3 s."""

_STOP_BEFORE_S = 1
"""The attempt stops this much before the database calls it unknown, against clocks that drift."""


_NO_PLACE = Flight()
"""Of a call that has none yet: it counts nowhere, so one stands for all."""


@value(frozen=False, slots=True)
class Call:
    """``command`` carries the attempt of the current round; each round is an attempt of its own,
    so that a try which may still commit is never mistaken for a later one. ``barred``: why its
    caller may not send it any more. ``key_field``: the field of ``request`` that holds the
    upstream's key. ``resent``: it took over from another attempt. ``held``: the memory of its body;
    ``flight``: its place among the attempts in flight, which it gets last. ``principal``: who sent
    it; without one it has nothing to do with the cache."""

    command: Command
    rules: Rules
    client: Client
    request: Request
    wait_s: float
    tenant_name: str
    barred: Callable[[], Problem | None]
    key_field: bytes | None = None
    resent: bool = False
    held: Held = field(default_factory=Held, repr=False)
    flight: Flight = field(default=_NO_PLACE, repr=False)
    principal: Principal | None = None

    @property
    def hop(self) -> bytes | None:
        """How whoever refuses the request as a loop names it."""
        sent = self.request
        return handed_on(sent.headers, sent.method, sent.target)

    def resend(self, key: str) -> Call:
        """The same under a new attempt and the key that is recorded: a release may derive another,
        and the upstream knows the first by none but that."""
        headers = tuple(
            (name, key.encode("ascii") if name == self.key_field else value)
            for name, value in self.request.headers
        )
        return altered(
            self.next_round(), request=altered(self.request, headers=headers, head=b""), resent=True
        )

    def bare(self) -> Call:
        """Without the body, for what goes on behind the call's end."""
        return altered(self, request=altered(self.request, body=b"", head=b""))

    def next_round(self) -> Call:
        return altered(self, command=altered(self.command, attempt=uuid4()))


@value(frozen=True, slots=True)
class Plan:
    """An attempt's own limits, counted from before its admit left; readings of the clock."""

    started: float
    first_byte: float
    last: float
    settled: float
    """Until here a caller waits for its outcome to be recorded: the database's deadline."""
    _connect_s: float
    _timeout_s: float

    def deadlines(self, now: float) -> Deadlines:
        """What the send must keep to, once the admit has been answered at ``now``."""
        return Deadlines(
            connect=min(now + self._connect_s, self.first_byte),
            first_byte=self.first_byte,
            last=min(now + self._timeout_s, self.last),
        )


def first_byte_s(timeout_s: float) -> float:
    """Longest from the start of an admit to the first byte that it lets out."""
    return min(_CONNECT_S, timeout_s) + ADMIT_WINDOW_S


def plan(started: float, rules: Rules) -> Plan:
    """The limits of an attempt whose admit leaves at ``started``."""
    return Plan(
        started=started,
        first_byte=started + first_byte_s(rules.timeout_s),
        last=started + rules.timeout_s + GRACE_S - _STOP_BEFORE_S,
        settled=started + rules.timeout_s + GRACE_S,
        _connect_s=min(_CONNECT_S, rules.timeout_s),
        _timeout_s=rules.timeout_s,
    )
