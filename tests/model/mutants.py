"""Ways to break one rule each, and the guarantee that must be seen to break."""

from __future__ import annotations

from dataclasses import dataclass, replace

from gateway.core.decide import Decision, Forward, Lapsed, WaitForKey
from gateway.core.settle import NotSent, Outcome, Unknown
from tests.model.judging import trust_after
from tests.model.state import NOBODY, Beat, Call, Entity, Lease, Mode, Phase, Row, Terms, Watched
from tests.model.steps import Steps
from tests.model.store import Rules

__all__ = ["MUTANTS", "Mutant"]


@dataclass(frozen=True)
class Mutant:
    """``breaks``: how the sentences begin of which at least one must come."""

    name: str
    scenario: str
    breaks: str
    steps: type[Steps] = Steps
    rules: type[Rules] = Rules


# The store.


class NoFence(Rules):
    def is_not_stale(self, fence: int, mark: int) -> bool:
        return True


class ForgetsRefused(Rules):
    def remembers(self, inserted: bool) -> bool:
        return inserted


class NoSlot(Rules):
    def slot_is_free(self, entity: Entity) -> bool:
        return True


class SettlesAny(Rules):
    def may_settle(self, row: Row, attempt: int) -> bool:
        return True


class ReleasesAny(Rules):
    def may_release(self, row: Row, attempt: int) -> bool:
        return not row.held and not row.earlier


class ReleasesTakenOver(Rules):
    def may_release(self, row: Row, attempt: int) -> bool:
        return attempt == row.attempt and not row.held


class TimerFrees(Rules):
    def later(self, row: Row) -> Row | None:
        after = super().later(row)
        if after is not None and after.by is None and after.deadline <= 0:
            return None
        return after


class NoSettleDelay(Rules):
    def has_passed_settle_delay(self, row: Row) -> bool:
        return True


class OneNegative(Rules):
    def is_second_absence(self, watched: Watched, age: int) -> bool:
        return True


class NegativesAtOnce(Rules):
    def is_second_absence(self, watched: Watched, age: int) -> bool:
        return watched.absent != NOBODY


class LongWindow(Rules):
    """In the policy, so that the core takes it for good too: longer than the upstream remembers."""

    def __init__(self, terms: Terms, entity_of: tuple[int, ...], mode: Mode) -> None:
        super().__init__(replace(terms, within=terms.memory + 3), entity_of, mode)


class WindowRestarts(Rules):
    def age_at_admission(self, given_back: int) -> int:
        return 0


class TakesAnyOver(Rules):
    """No compare-and-set, and no look at the deadline."""

    def judged_still_stands(self, row: Row, judged: int) -> bool:
        return True


class RenewsExpired(Rules):
    def lease_lasts(self, lease: Lease) -> bool:
        return True


class ReapsEarly(Rules):
    def lease_lasts(self, lease: Lease) -> bool:
        return lease.left > 1


class ClaimsLeased(Rules):
    def entity_is_leased(self, lease: Lease | None) -> bool:
        return False


class EndKeepsCounter(Rules):
    def mark_after_an_end(self, mark: int, held: int | None) -> tuple[int, int | None]:
        return mark, held


class NotHeldPasses(Rules):
    def is_held(self, fence: int, held: int | None) -> bool:
        return True


# The gateway.


class SendsFirst(Steps):
    def sends_in(self, phase: Phase) -> bool:
        return phase in ("admit", "admitted")


class NoLookAtTheClock(Steps):
    def may_begin(self, call: Call) -> bool:
        return True


class SendsLapsed(Steps):
    def may_begin(self, call: Call) -> bool:
        return True

    def sends(self, call: Call, decision: Decision) -> bool:
        return isinstance(decision, Forward | Lapsed)


class SendsAnothers(Steps):
    """Takes any row in flight for its own."""

    def sends(self, call: Call, decision: Decision) -> bool:
        return isinstance(decision, Forward | WaitForKey)


class ReleasesUnknown(Steps):
    def judged(self, call: Call, found: Outcome) -> Outcome:
        return NotSent("closed") if isinstance(found, Unknown) else found


class ResendProvesNothing(Steps):
    """An attempt that took over is judged like a first one, and the store lets it."""

    def judged(self, call: Call, found: Outcome) -> Outcome:
        return found


class TrustFromTheAnswer(Steps):
    def trust(self, beat: Beat) -> int:
        return trust_after(0, beat.remaining)


MUTANTS = (
    Mutant("drop the fence predicate", "one key", "G2", rules=NoFence),
    Mutant("remember only the fences that are admitted", "two keys", "G2", rules=ForgetsRefused),
    Mutant("do not look at the open slot", "two keys", "G3", rules=NoSlot),
    Mutant("settle without the attempt guard", "wrong verdict", "G5", rules=SettlesAny),
    Mutant("release without the attempt guard", "one key, answers lost", "G", rules=ReleasesAny),
    Mutant("a timer frees the unknown", "one key", "G1", rules=TimerFrees),
    Mutant("not executed without the settle delay", "one key", "G1", rules=NoSettleDelay),
    Mutant("one negative proves absence", "probe", "G1", rules=OneNegative),
    Mutant("two negatives at once prove absence", "probe", "G1", rules=NegativesAtOnce),
    Mutant("resend without the window", "resend", "G1", rules=LongWindow),
    Mutant("begin the window anew at a re-admission", "resend", "G1", rules=WindowRestarts),
    Mutant("take over without compare-and-set", "resend", "G", rules=TakesAnyOver),
    Mutant(
        "release an attempt that took over", "resend", "G1", ResendProvesNothing, ReleasesTakenOver
    ),
    Mutant("a key in use settles", "resend", "G5", ResendProvesNothing),
    Mutant("renew and end after expiry", "leases", "G7", rules=RenewsExpired),
    Mutant("reap before expiry", "leases", "G7", rules=ReapsEarly),
    Mutant("claim what is leased", "leases", "G7", rules=ClaimsLeased),
    Mutant("end without raising the counter", "leases and commands", "G7", rules=EndKeepsCounter),
    Mutant("any fence is the one held", "leases and commands", "G7", rules=NotHeldPasses),
    Mutant("trust counted from the answer", "leases", "G7", TrustFromTheAnswer),
    Mutant("send before the commit", "one key, answers lost", "G6", SendsFirst),
    Mutant("no look at the clock before the first byte", "one key", "G2", NoLookAtTheClock),
    Mutant("send what the database calls unknown", "one key, answers lost", "G", SendsLapsed),
    Mutant("take another's row for one's own", "one key", "G6", SendsAnothers),
    Mutant("release on unknown", "one key", "G1", ReleasesUnknown),
)
