"""Fair shares of something bounded: memory for bodies and answers, attempts in flight.

Nothing waits here: what does not fit is refused, whose tenant has the most first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from gateway.core.problems import Problem
from gateway.limits import ANSWERS_PART, SMALL_BODY, SMALL_PART, WEIGHT

__all__ = ["Flight", "Flights", "Held", "Memory", "Several", "Share", "Untaken", "alone"]

Several = Callable[[], bool]
"""Whether there is more than one tenant to be fair between."""


def alone() -> bool:
    """There is one."""
    return False


class Share:
    """Up to ``capacity`` of something, by tenant.

    Where there are several tenants, one gets more only while it then holds at most ``WEIGHT`` times
    what is left free. So while few flood, something is free, and one that holds nothing gets it.
    """

    def __init__(self, capacity: int, several: Several = alone) -> None:
        self.capacity = capacity
        self.used = 0
        self._several = several
        self._of: dict[int, int] = {}

    def fits(self, tenant: int, size: int = 1) -> bool:
        """Whether ``tenant`` would get ``size`` more."""
        left = self.capacity - self.used - size
        if left < 0:
            return False
        own = self._of.get(tenant, 0)
        # Last of all, since nearly always there is much left.
        return not own or own + size <= WEIGHT * left or not self._several()

    def take(self, tenant: int, size: int = 1) -> bool:
        """``size`` more, to be given back; false where it does not fit."""
        if not self.fits(tenant, size):
            return False
        self.charge(tenant, size)
        return True

    def over(self, tenant: int) -> bool:
        """Whether ``tenant`` holds more than it would get; who holds nothing never does, however
        much others were charged."""
        own, left = self._of.get(tenant, 0), self.capacity - self.used
        return own > 0 and (left < 0 or (own > WEIGHT * left and self._several()))

    def taken(self, tenant: int) -> str:
        """What keeps ``tenant`` out: as many as there are, or its own."""
        whole = self.used >= self.capacity
        return f"{self.capacity}" if whole else f"{self._of.get(tenant, 0)} of this tenant's"

    def charge(self, tenant: int, size: int = 1) -> None:
        """``size`` more, whether it fits or not: it is there already."""
        self.used += size
        self._of[tenant] = self._of.get(tenant, 0) + size

    def give_back(self, tenant: int, size: int = 1) -> None:
        self.used -= size
        left = self._of.get(tenant, 0) - size
        if left:
            self._of[tenant] = left
        else:
            self._of.pop(tenant, None)


class Memory:
    """The bytes of bodies and answers in one process. ``total``: what all of them may take."""

    def __init__(self, total: int, several: Several = alone) -> None:
        small, answers = total // SMALL_PART, total // ANSWERS_PART
        self.small = Share(small, several)
        self.large = Share(total - small - answers, several)
        self.answers = Share(answers, several)

    @property
    def largest(self) -> int:
        """Bytes of a body that always fits while nothing else is there."""
        return self.large.capacity

    def full(self, tenant: int, announced: int) -> Problem | None:
        """Why a body of so many bytes would not be read now, if it would not."""
        if self.answers.over(tenant):
            return _UNTAKEN
        return None if self._place(tenant, announced) is not None else _NO_MEMORY

    def hold(self, tenant: int) -> Held:
        """A body that is about to be read."""
        return Held(self, tenant)

    def account(self, scope: Mapping[str, Any], tenant: int) -> None:
        """Let the server charge to ``tenant`` what its caller does not take of the answer."""
        if "state" in scope:
            scope["state"]["untaken"] = Untaken(self.answers, tenant)

    def _place(self, tenant: int, size: int) -> Share | None:
        if size <= SMALL_BODY and self.small.fits(tenant, size):
            return self.small
        return self.large if self.large.fits(tenant, size) else None


class Held:
    """What is held of one body. It counts as it is read, not as it is announced: else whoever
    announces much and sends nothing would keep others out."""

    def __init__(self, memory: Memory | None = None, tenant: int = 0) -> None:
        self._memory = memory
        self._tenant = tenant
        self._share: Share | None = None
        self._size = 0

    @property
    def full(self) -> Problem:
        return _NO_MEMORY

    def grow(self, size: int) -> bool:
        """The body has ``size`` bytes by now; false where there is no memory for that."""
        memory, more = self._memory, size - self._size
        if memory is None or more <= 0:
            return True
        if self._share is memory.small and size > SMALL_BODY:
            self.close()
            more = size
        if self._share is None:
            self._share = memory._place(self._tenant, size)
            if self._share is None:
                return False
            self._share.charge(self._tenant, more)
        elif not self._share.take(self._tenant, more):
            return False
        self._size = size
        return True

    def close(self) -> None:
        """Nobody needs the body any more. May be repeated."""
        if self._share is not None:
            self._share.give_back(self._tenant, self._size)
            self._share, self._size = None, 0


class Untaken:
    """What has been written for one caller and waits in this process. It is there already, so it
    always counts; what it keeps out are further requests of its tenant."""

    def __init__(self, share: Share, tenant: int) -> None:
        self._share = share
        self._tenant = tenant
        self._size = 0

    def waits(self, size: int) -> None:
        self._share.charge(self._tenant, size - self._size)
        self._size = size


class Flights:
    """The attempts in flight in this process, of all and of each command's policy."""

    def __init__(self, limit: int, several: Several = alone) -> None:
        self._all = Share(limit, several)
        self._several = several
        self._policies: dict[str, Share] = {}

    def full(self, tenant: int, policy: str, limit: int) -> Problem | None:
        """Why ``tenant`` can have no further attempt now; ``limit``: the policy's own."""
        if not self._all.fits(tenant):
            return _FULL
        if not self._of(policy, limit).fits(tenant):
            return _policy_full(policy)
        return None

    def take(self, tenant: int, policy: str, limit: int) -> Flight | Problem:
        """A place, to be ended."""
        full = self.full(tenant, policy, limit)
        return full or Flight(tenant, (self._all, self._of(policy, limit)))

    def _of(self, policy: str, limit: int) -> Share:
        share = self._policies.get(policy)
        if share is None:
            share = self._policies[policy] = Share(limit, self._several)
        return share


class Flight:
    """One attempt's place. Whoever waits for an earlier command has none meanwhile; it gets one
    back whatever is free then, for what it waited for is over."""

    def __init__(self, tenant: int = 0, shares: tuple[Share, ...] = ()) -> None:
        self._tenant = tenant
        self._shares = shares
        self._counts = False
        self.go_on()

    def go_on(self) -> None:
        if not self._counts:
            self._counts = True
            for share in self._shares:
                share.charge(self._tenant)

    def rest(self) -> None:
        """Leave the place; ``go_on`` takes it again. May be repeated."""
        if self._counts:
            self._counts = False
            for share in self._shares:
                share.give_back(self._tenant)


def _policy_full(policy: str) -> Problem:
    return Problem(
        "overloaded",
        "Repeat the same request later: too many attempts of this command are in flight in this "
        f"gateway process (max_in_flight of {policy}).",
        retry_after_s=1,
    )


_FULL = Problem(
    "overloaded",
    "Repeat the same request later: too many attempts are in flight in this gateway process.",
    retry_after_s=1,
)
_NO_MEMORY = Problem(
    "overloaded",
    "Repeat the same request later: too many bodies are in this gateway process's memory.",
    retry_after_s=1,
)
_UNTAKEN = Problem(
    "overloaded",
    "Repeat the same request later, and read the answers: too many that nobody has taken are in "
    "this gateway process's memory.",
    retry_after_s=1,
)
