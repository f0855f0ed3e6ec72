"""The store, written down as naively as possible: dicts, one clock that is moved by hand.

It is what the real store is compared with after every step, and, behind ``FakeStore``, what tests
without a database use in its place; ``tests/contract`` runs on both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from uuid import UUID

from gateway.core.command import Command, Hold, Release, Settle, SettleResult
from gateway.core.decide import Facts, Known, Open, SettledBy, State
from gateway.core.evidence import Probed, Verdict
from gateway.core.headers import recordable
from gateway.core.model import Response
from gateway.store.unknowns import ReportResult, TakenOver

__all__ = ["FIRST_ISSUED", "AuditRow", "Entity", "FakeStore", "Model", "Row"]

FIRST_ISSUED = 2**20 + 1
"""The first fence that is issued here to an entity of which none was seen."""

EntityKey = tuple[int, str]
CommandKey = tuple[int, bytes]


@dataclass
class Entity:
    """A high-water mark, the fence now held where fences are issued here (0: nobody's), and the
    command that holds the open slot."""

    mark: int = 0
    open: Command | None = None
    held: int | None = None


@dataclass
class Row:
    """One remembered command. Its state is derived, never stored."""

    command: Command
    admitted_ms: int
    deadline_ms: int
    held: bool = False
    evidence: Response | None = None
    settled_by: SettledBy | None = None
    settled_ms: int | None = None
    response: Response | None = None
    status: int | None = None
    earlier: tuple[UUID, ...] = ()

    def state(self, now_ms: int) -> State:
        if self.settled_by is not None:
            return "settled"
        return "unknown" if self.deadline_ms <= now_ms else "in-flight"


@dataclass(frozen=True)
class AuditRow:
    """One piece of evidence; an attempt has at most one of each event, but for verdicts."""

    tenant: int
    attempt: UUID | None
    event: str


@dataclass
class Watched:
    """What is known of an unknown command that is asked about."""

    attempt: UUID
    busy_until_ms: int
    absent_ms: int | None = None


@dataclass
class Model:
    """Everything that the database would remember."""

    now_ms: int = 0
    entities: dict[EntityKey, Entity] = field(default_factory=dict)
    rows: dict[CommandKey, Row] = field(default_factory=dict)
    audit: list[AuditRow] = field(default_factory=list)
    watched: dict[CommandKey, Watched] = field(default_factory=dict)
    given_back: dict[CommandKey, int] = field(default_factory=dict)
    """When a key was first sent that was given back though its upstream had heard of it; ms."""
    told: set[tuple[int, bytes, UUID | None, bool]] = field(default_factory=set)
    """What was reported and could not decide; a repeat of it leaves nothing."""

    def advance(self, by_ms: int) -> None:
        self.now_ms += by_ms

    # Admit.

    def admit(self, command: Command) -> Facts:
        """One command. Those of a batch share nothing, so a batch is one after the other."""
        entity = self._entity(command)
        row = self.rows.get(_key(command))
        own = row is not None and row.command.attempt == command.attempt
        refusal = self._check_fence(command, entity)
        if row is None and refusal is None and self._is_free(command, entity):
            row = self._insert(command, entity)
            own = True
        refused = refusal is not None and not own
        if refusal is not None and not own:
            self._note(command, refusal)
        elif row is not None and not own and _same(row.command, command) is False:
            self._note(command, "key_reused")
        return Facts(
            attempt=command.attempt,
            fence=command.fence,
            mark=None if entity is None else entity.mark,
            known=None if row is None else self._known(row, command, hide=refused),
            open=self._open(command, entity),
            held=None if entity is None else entity.held,
            issuer_here=command.issuer_here,
            resend_within_ms=command.resend_within_ms,
            probes=command.probe_target is not None,
        )

    def _check_fence(self, command: Command, entity: Entity | None) -> str | None:
        """The event of a refusal; a good fence is remembered."""
        if entity is None or command.fence is None:
            return None
        if command.fence < entity.mark:
            return "fence_stale"
        if command.issuer_here or entity.held is not None:
            return None if command.fence == entity.held else "fence_refused"
        entity.mark = command.fence
        return None

    def issue(self, tenant: int, entity: str) -> int:
        """A fence to somebody outside, on an entity without a lease."""
        found = self.entities.setdefault((tenant, entity), Entity())
        jump = FIRST_ISSUED if found.held is None else 1
        found.mark = found.held = found.mark + jump
        return found.mark

    def _entity(self, command: Command) -> Entity | None:
        if not command.has_entity_row:
            return None
        return self.entities.setdefault((command.tenant, command.entity), Entity())

    def _is_free(self, command: Command, entity: Entity | None) -> bool:
        return not command.serial or (entity is not None and entity.open is None)

    def _insert(self, command: Command, entity: Entity | None) -> Row:
        row = Row(command, self.now_ms, self.now_ms + command.deadline_ms)
        self.rows[_key(command)] = row
        if command.serial and entity is not None:
            entity.open = command
        return row

    def _known(self, row: Row, command: Command, *, hide: bool) -> Known:
        same = _same(row.command, command)
        state = row.state(self.now_ms)
        again = row.command.unknown == "resend" and state == "unknown"
        return Known(
            attempt=row.command.attempt,
            state=state,
            same=same,
            remaining_ms=row.deadline_ms - self.now_ms,
            status=row.status,
            response=None if hide or same is False else row.response,
            settled_by=row.settled_by,
            evidence_status=row.evidence.status if row.evidence else None,
            unknown=row.command.unknown,  # type: ignore[arg-type]
            age_ms=self.now_ms - (self._first_sent_ms(row) if again else row.admitted_ms),
            upstream_key=row.command.upstream_key,
            account_same=row.command.upstream_digest == command.upstream_digest,
        )

    def _open(self, command: Command, entity: Entity | None) -> Open | None:
        if entity is None or entity.open is None or not command.serial:
            return None
        if _key(entity.open) == _key(command):
            return None
        other = self.rows[_key(entity.open)]
        state = other.state(self.now_ms)
        assert state != "settled"
        return Open(other.command.key, state, other.deadline_ms - self.now_ms)

    # The three ends of an attempt, and the fourth that a person puts to it.

    def settle(self, settle: Settle) -> SettleResult:
        command = settle.command
        row = self._unsettled(command, also_earlier=True)
        if row is not None:
            own = row.command.attempt == command.attempt
            in_time = own and not row.held and row.deadline_ms > self.now_ms
            return self._record(row, settle, "answer" if in_time else "late")
        row = self.rows.get(_key(command))
        if row is None:
            row = Row(command, self.now_ms, self.now_ms)
            self.rows[_key(command)] = row
            self._record(row, settle, "late")
            return "contradicts"
        if command.attempt not in (row.command.attempt, *row.earlier):
            self._note(command, "duplicate_effect_suspected")
            return "duplicate"
        if row.settled_by in ("resolved", "probe", "report"):
            self._note(command, "late_evidence")
            return "resolved"
        return "already"

    def _record(self, row: Row, settle: Settle, by: SettledBy) -> SettleResult:
        response = settle.response
        row.settled_by, row.settled_ms, row.status = by, self.now_ms, response.status
        if settle.keep_body:
            row.response = Response(response.status, recordable(response.headers), response.body)
        self._free(row.command)
        if by == "late":
            self._note(row.command, "late_evidence")
            return "late"
        if row.earlier:
            self._note(row.command, "settled")
        return "settled"

    def release(self, release: Release) -> bool:
        row = self._unsettled(release.command)
        if row is None or row.held or row.earlier:
            return False
        if release.heard:
            self._give_back(row)
        self._forget(row.command)
        self._note(row.command, "released")
        return True

    def hold(self, hold: Hold) -> bool:
        row = self._unsettled(hold.command)
        if row is None or row.held:
            return False
        row.held, row.evidence = True, hold.evidence
        row.deadline_ms = min(row.deadline_ms, self.now_ms)
        self._note(row.command, "outcome_unknown")
        return True

    def resolve(self, command: Command, *, executed: bool, by: SettledBy = "resolved") -> str:
        row = self.rows.get(_key(command))
        if row is None:
            return "missing"
        if row.command.attempt != command.attempt:
            return "changed"
        state = row.state(self.now_ms)
        if state != "unknown":
            return state
        if not executed and self.now_ms < row.deadline_ms + row.command.settle_delay_s * 1000:
            return "too-early"
        if executed:
            row.settled_by, row.settled_ms = by, self.now_ms
            self._free(row.command)
        else:
            self._give_back(row)
            self._forget(row.command)
        self._note(row.command, "resolved")
        self.watched.pop(_key(command), None)
        return "resolved"

    def take_over(self, command: Command, judged: UUID) -> TakenOver:
        """The unknown attempt ``judged`` gives way to ``command.attempt`` if row 7 holds."""
        row = self.rows.get(_key(command))
        entity = self.entities.get((command.tenant, command.entity))
        if row is None:
            return "changed"
        state = row.state(self.now_ms)
        if row.command.attempt == command.attempt and state == "in-flight":
            return "taken"
        other = entity.open if entity is not None else None
        if (
            row.command.attempt != judged
            or state != "unknown"
            or not self._is_good(command, entity)
            or (row.command.serial and other is not None and _key(other) != _key(command))
        ):
            return "changed"
        first = row.command
        if (
            first.unknown != "resend"
            or first.upstream_key is None
            or not _same(first, command)
            or first.upstream_digest != command.upstream_digest
            or self.now_ms - self._first_sent_ms(row) >= (command.resend_within_ms or 0)
            or len(row.earlier) >= 16
        ):
            return "refused"
        row.earlier += (judged,)
        row.command = replace(
            first,
            attempt=command.attempt,
            fence=command.fence,
            principal=command.principal,
            request_id=command.request_id,
        )
        row.held, row.evidence = False, None
        row.deadline_ms = self.now_ms + command.deadline_ms
        if first.serial and entity is not None:
            entity.open = row.command
        self._note(row.command, "taken_over")
        return "taken"

    def _is_good(self, command: Command, entity: Entity | None) -> bool:
        if entity is None or command.fence is None:
            return True
        if command.issuer_here or entity.held is not None:
            return command.fence == entity.held
        return command.fence >= entity.mark

    def ask_now(self, command: Command, judged: UUID, busy_ms: int) -> bool:
        """Whether it may be asked about now; nobody else asks for ``busy_ms``."""
        row, key = self.rows.get(_key(command)), _key(command)
        if row is None or row.command.attempt != judged or row.state(self.now_ms) != "unknown":
            return False
        self._tell(row)
        asked, first = self.watched.get(key), row.command
        if (
            first.unknown != "probe"
            or first.probe_target is None
            or (first.policy, first.upstream_digest) != (command.policy, command.upstream_digest)
            or (asked is not None and asked.busy_until_ms > self.now_ms)
        ):
            return False
        absent = asked.absent_ms if asked is not None and asked.attempt == judged else None
        self.watched[key] = Watched(judged, self.now_ms + busy_ms, absent)
        return True

    def _tell(self, row: Row) -> None:
        """That nobody was left to say that it is unknown."""
        if not row.held:
            self._note(row.command, "outcome_unknown by time")

    def probed(
        self, command: Command, judged: UUID, verdict: Verdict, asked_ms: int, interval_s: int
    ) -> Probed:
        """Absence takes two who say so: late enough, and far enough apart."""
        row, asked = self.rows.get(_key(command)), self.watched.get(_key(command))
        if asked is not None and asked.attempt != judged:
            asked = None
        if verdict == "applied":
            return self._probe_says(command, judged, executed=True)
        counts = (
            row is not None
            and row.command.attempt == judged
            and row.settled_by is None
            and verdict == "absent"
            and asked_ms >= row.deadline_ms + row.command.settle_delay_s * 1000
        )
        first = asked.absent_ms if asked is not None else None
        if counts and first is not None and asked_ms >= first + interval_s * 1000:
            return self._probe_says(command, judged, executed=False)
        if asked is not None:
            asked.busy_until_ms = self.now_ms
            if counts and first is None:
                asked.absent_ms = self.now_ms
        return "absent-once" if counts and first is None else "asked"

    def _probe_says(self, command: Command, judged: UUID, *, executed: bool) -> Probed:
        judged_one = replace(command, attempt=judged)
        return self.resolve(judged_one, executed=executed, by="probe")  # type: ignore[return-value]

    def report(self, command: Command, attempt: UUID | None, *, executed: bool) -> ReportResult:
        """What somebody outside says; ``attempt`` ``None``: of whichever holds the key."""
        row = self.rows.get(_key(command))
        judged = attempt or (row.command.attempt if row is not None else command.attempt)
        if executed and row is not None and judged in row.earlier:
            judged = row.command.attempt
        said = self.resolve(replace(command, attempt=judged), executed=executed, by="report")
        if said == "settled" and not executed:
            said = "contradicts"
        elif said == "missing" and executed:
            said = "orphan"
        if said in ("contradicts", "orphan", "changed"):
            told = attempt or (row.command.attempt if row is not None else None)
            if (command.tenant, command.key_digest, told, executed) not in self.told:
                self.told.add((command.tenant, command.key_digest, told, executed))
                self.audit.append(AuditRow(command.tenant, told, "late_evidence reported"))
        return said  # type: ignore[return-value]

    def ready(
        self, keys: Sequence[CommandKey], entities: Sequence[EntityKey]
    ) -> tuple[list[int], list[int]]:
        free = [
            number
            for number, key in enumerate(keys)
            if key not in self.rows or self.rows[key].state(self.now_ms) != "in-flight"
        ]
        open_slots = {key: entity.open for key, entity in self.entities.items()}
        return free, [
            number
            for number, entity in enumerate(entities)
            if self._slot_ended(open_slots.get(entity))
        ]

    def _slot_ended(self, holder: Command | None) -> bool:
        return holder is None or self.rows[_key(holder)].state(self.now_ms) != "in-flight"

    def _unsettled(self, command: Command, *, also_earlier: bool = False) -> Row | None:
        """The row of exactly this attempt, while it is not settled; or of one that took over."""
        row = self.rows.get(_key(command))
        if row is None or row.settled_by is not None:
            return None
        known = (row.command.attempt, *(row.earlier if also_earlier else ()))
        return row if command.attempt in known else None

    def _give_back(self, row: Row) -> None:
        if row.command.upstream_key is not None:
            self.given_back[_key(row.command)] = self._first_sent_ms(row)

    def _first_sent_ms(self, row: Row) -> int:
        return min(row.admitted_ms, self.given_back.get(_key(row.command), row.admitted_ms))

    def _forget(self, command: Command) -> None:
        del self.rows[_key(command)]
        self._free(command)

    def _free(self, command: Command) -> None:
        entity = self.entities.get((command.tenant, command.entity))
        holder = None if entity is None else entity.open
        if entity is not None and holder is not None and holder.attempt == command.attempt:
            entity.open = None

    def _note(self, command: Command, event: str) -> None:
        row = AuditRow(command.tenant, command.attempt, event)
        if row not in self.audit or event == "resolved":
            self.audit.append(row)


class FakeStore:
    """The model behind the store's own port."""

    def __init__(self, model: Model | None = None) -> None:
        self.model = model or Model()

    async def admit(self, commands: Sequence[Command]) -> list[Facts]:
        keys = {_key(each) for each in commands}
        entities = [(each.tenant, each.entity) for each in commands if each.has_entity_row]
        if len(keys) < len(commands) or len(set(entities)) < len(entities):
            raise ValueError("a batch holds at most one command per key and per entity")
        return [self.model.admit(each) for each in commands]

    async def settle(self, settles: Sequence[Settle]) -> list[SettleResult]:
        return [self.model.settle(each) for each in settles]

    async def release(self, releases: Sequence[Release]) -> list[bool]:
        return [self.model.release(each) for each in releases]

    async def hold(self, holds: Sequence[Hold]) -> list[bool]:
        return [self.model.hold(each) for each in holds]

    async def take_over(self, command: Command, judged: UUID) -> TakenOver:
        return self.model.take_over(command, judged)

    async def ask(self, command: Command, judged: UUID) -> bool:
        """A prober that can reach no upstream."""
        return False

    async def due_s(self, command: Command) -> int | None:
        return None

    async def ready(
        self, keys: Sequence[CommandKey], entities: Sequence[EntityKey]
    ) -> tuple[list[int], list[int]]:
        return self.model.ready(keys, entities)


def _key(command: Command) -> CommandKey:
    return command.tenant, command.key_digest


def _same(first: Command, now: Command) -> bool | None:
    if (first.policy, first.entity) != (now.policy, now.entity):
        return False
    return first.fingerprint == now.fingerprint if first.rules == now.rules else None
