"""What can happen next: every step of every gateway, worker, prober and operator, and of time.

Nobody takes turns, so a pause of any length is a run of steps in which somebody takes none, and a
message that is slow is one that has not been taken yet. What looks at the clock and acts on it is
one step: a pause between the look and the write is not promised against.

A method that is named for one rule is one rule of the gateway, the worker or the operator. Mutants
override them, or those of ``Rules``.
"""

from __future__ import annotations

from collections.abc import Iterator

from gateway.core.decide import Decision, Forward, Lapsed, TakeOver
from gateway.core.model import Stage
from gateway.core.settle import NotExecuted, Outcome
from tests.model.bounds import Bounds, Event, Step
from tests.model.judging import decided, end_of, of_resent, outcome, read_probe
from tests.model.state import (
    NOBODY,
    Call,
    Ghost,
    Look,
    Phase,
    Request,
    Truth,
    Worker,
    World,
)
from tests.model.store import Rules, empty, replaced
from tests.model.workers import Workers, worker_later

__all__ = ["Steps"]


class Steps(Workers):
    """All steps of one scenario."""

    def __init__(self, bounds: Bounds, rules: type[Rules] = Rules) -> None:
        self.bounds = bounds
        self.terms = bounds.terms
        self.rules = rules(bounds.terms, bounds.entity_of, bounds.mode)

    # Rules of the gateway, the worker and the operator.

    def may_begin(self, call: Call) -> bool:
        """The look at the clock before the first byte."""
        return call.age < self.terms.first_byte

    def sends(self, call: Call, decision: Decision) -> bool:
        return isinstance(decision, Forward)

    def sends_in(self, phase: Phase) -> bool:
        """Nothing is sent before the commit was heard of."""
        return phase == "admitted"

    def judged(self, call: Call, found: Outcome) -> Outcome:
        """A late answer may be that of a first attempt whose command another has taken over."""
        return of_resent(found) if call.resent or call.phase == "late" else found

    # All of them.

    def first(self) -> World:
        bounds = self.bounds
        keys, entities = len(bounds.entity_of), bounds.entities
        truth = Truth(
            *((0,) * keys, (NOBODY,) * keys, (0,) * keys, (NOBODY,) * keys, (False,) * keys),
            *((0,) * entities, (0,) * entities),
        )
        store = empty(entities, keys)
        workers = (Worker(),) * bounds.workers
        return World(store, (None,) * bounds.gateways, (), None, (), workers, truth)

    def of(self, world: World) -> Iterator[Step]:
        done = set()
        for at, call in enumerate(world.calls):
            if call in done:  # gateways are alike
                continue
            done.add(call)
            if call is None:
                yield from self._requests(world, at)
            else:
                yield from self._call(world, at, call)
                yield f"the gateway of {_a(call.attempt)} dies", self._dead(world, at, call), None
        yield from self._upstream(world)
        yield from self._ghost(world)
        yield from self._operator(world)
        yield from self._prober(world)
        yield from self._workers(world)
        yield "a tick passes", self._tick(world), None

    # Gateways.

    def _requests(self, world: World, at: int) -> Iterator[Step]:
        asks = set(self.bounds.asks)
        if self.bounds.workers:
            fences = {worker.fence for worker in world.workers if worker.fence}
            fences |= {
                entity.mark + 1 for entity in world.store.entities if entity.held is not None
            }
            asks |= {(key, f) for key in range(len(world.store.rows)) for f in fences}
        attempt = _fresh(world)
        for key, fence in sorted(asks):
            call = Call("admit", key, fence, attempt)
            text = f"a request comes: key {key}, fence {fence}, as {_a(attempt)}"
            came = _put(world, at, call)
            if self.bounds.lost or self.sends_in("admit"):
                yield text, came, None
                continue
            for then, after, event in self._admit(came, at, call):
                yield f"{text}; {then}", after, event

    def _call(self, world: World, at: int, call: Call) -> Iterator[Step]:
        if self.sends_in(call.phase):
            yield from self._begin(world, at, call)
        match call.phase:
            case "admit":
                yield from self._admit(world, at, call)
            case "take":
                yield from self._take(world, at, call)
            case "admitted":
                stage = Stage.CONNECTING if self.may_begin(call) else Stage.CONNECTED
                end = self._end(call, outcome(stage, "refused", None))
                yield f"{_a(call.attempt)} does not connect", _put(world, at, end), None
            case "head" | "sent":
                yield from self._exchange(world, at, call)
            case "late":
                yield from self._answers(world, at, call)
                yield f"{_a(call.attempt)} stops reading", self._closed(world, at, None), None
            case _:
                yield from self._record(world, at, call)

    def _admit(self, world: World, at: int, call: Call) -> Iterator[Step]:
        name = _a(call.attempt)
        if call.age >= self.terms.first_byte:
            then = call._replace(phase="abandon") if call.doubt else None
            yield f"{name} gives its admit up", _put(world, at, then), None
            return
        ghost = Ghost("admit", call.key, call.fence, call.attempt)
        after, event = self._applied(world, ghost)
        decision = decided(self.rules, after.store, call.key, call.fence, call.attempt)
        then = self._decided(world, call, decision)
        text = f"{name} admits: {type(decision).__name__}"
        yield text, _put(after, at, then), event
        yield from self._lost(world, at, call._replace(doubt=True), ghost)

    def _decided(self, world: World, call: Call, decision: Decision) -> Call | None:
        if self.sends(call, decision):
            return call._replace(phase="admitted")
        match decision:
            case TakeOver(judged) if not call.doubt:
                attempt = _fresh(world)
                return call._replace(phase="take", attempt=attempt, judged=judged.int - 1)
            case Lapsed():
                return call._replace(phase="release")
            case _:
                return call._replace(phase="abandon") if call.doubt else None

    def _take(self, world: World, at: int, call: Call) -> Iterator[Step]:
        name = _a(call.attempt)
        if call.age >= self.terms.first_byte:
            then = call._replace(phase="abandon-take") if call.doubt else None
            yield f"{name} gives taking over up", _put(world, at, then), None
            return
        ghost = Ghost("take", call.key, call.fence, call.attempt, call.judged)
        after, event = self._applied(world, ghost)
        taken = self.rules.take_over(world.store, *_about(ghost))[1]
        then = call._replace(phase="admitted", resent=True) if taken == "taken" else None
        text = f"{name} takes over from {_a(call.judged)}: {taken}"
        yield text, _put(after, at, then), event
        yield from self._lost(world, at, call._replace(doubt=True), ghost)

    def _begin(self, world: World, at: int, call: Call) -> Iterator[Step]:
        """The first byte. From here on the upstream may act: some act on part of a request."""
        if not self.may_begin(call):
            return
        key, truth = call.key, world.truth
        entity = self.bounds.entity_of[key]
        if self.bounds.mode == "resend" and not self._knows(world, key):
            truth = truth._replace(
                epoch=replaced(truth.epoch, key, 1 - truth.epoch[key]),
                acted=replaced(truth.acted, key, False),
            )
        if self.bounds.mode == "resend" and truth.memory[key] == NOBODY:
            truth = truth._replace(memory=replaced(truth.memory, key, 0))
        arrived = max(truth.arrived[entity], call.fence)
        truth = truth._replace(arrived=replaced(truth.arrived, entity, arrived))
        request = Request(call.attempt, key, epoch=truth.epoch[key])
        after = world._replace(truth=truth, requests=(*world.requests, request))
        sent = "head" if call.phase == "admitted" else call.phase
        event = Event("byte", key, call.attempt, call.fence, call.age, call.resent)
        yield (
            f"{_a(call.attempt)} sends its first byte",
            _put(after, at, call._replace(phase=sent)),
            event,
        )

    def _knows(self, world: World, key: int) -> bool:
        """Whether the upstream takes a request of this key for one that it knows: it remembers that
        it heard of it, or is still at it."""
        return world.truth.memory[key] != NOBODY or any(
            each.key == key and not each.done and each.left != 0 for each in world.requests
        )

    def _exchange(self, world: World, at: int, call: Call) -> Iterator[Step]:
        name = _a(call.attempt)
        stage = Stage.SENT if call.phase == "sent" else Stage.SENDING_HEADERS
        end = self._end(call, outcome(stage, "reset", None))
        yield f"the connection of {name} breaks", self._closed(world, at, end), None
        if call.age >= self.terms.last:
            end = self._end(call, outcome(stage, "timeout", None))
            if end.phase == "hold" and stage is Stage.SENT:
                yield f"{name} times out", _put(world, at, end._replace(phase="hold-read")), None
            else:
                yield f"{name} times out", self._closed(world, at, end), None
        elif call.phase == "head":
            yield f"{name} sends the rest", _put(world, at, call._replace(phase="sent")), None
        else:
            yield from self._answers(world, at, call)

    def _answers(self, world: World, at: int, call: Call) -> Iterator[Step]:
        """What an honest upstream may answer."""
        mine = next((each for each in world.requests if each.attempt == call.attempt), None)
        if mine is None:
            return
        acted = mine.epoch == world.truth.epoch[call.key] and world.truth.acted[call.key]
        others = any(
            (e.key, e.epoch) == (mine.key, mine.epoch) for e in world.requests if e != mine
        )
        statuses = [503]
        if mine.done or (acted and self.bounds.mode == "resend"):
            statuses.append(200)
        elif self.bounds.mode != "resend" or not acted:
            statuses.append(429)
        later = call.resent or (self.bounds.conflict_to_all and call.phase == "late")
        if self.bounds.mode == "resend" and later and others and not acted:
            statuses.append(409)
        for status in statuses:
            found = outcome(Stage.BODY_COMPLETE, None, status)
            end: Call | None = self._end(call, found)
            if call.phase == "late" and end is not None and end.phase != "settle":
                end = None  # it stays unknown
            refused = status in (429, 409)
            after = self._closed(world, at, end, gone=refused)
            yield f"{_a(call.attempt)} is answered {status}", after, None

    def _end(self, call: Call, found: Outcome) -> Call:
        judged = self.judged(call, found)
        heard = self.bounds.mode == "resend" and isinstance(judged, NotExecuted)
        return call._replace(phase=end_of(judged), heard=heard)

    def _closed(self, world: World, at: int, then: Call | None, *, gone: bool = False) -> World:
        """Nobody reads any more; what has had its effect is over, else it may for a while.
        ``gone``: the upstream has refused it."""
        call = world.calls[at]
        assert call is not None
        left = []
        for each in world.requests:
            if each.attempt != call.attempt:
                left.append(each)
            elif not each.done and not gone and each.left != 0:
                delay = self.terms.settle_delay if each.left == NOBODY else each.left
                left.append(each._replace(left=delay))
        return _put(world._replace(requests=tuple(left)), at, then)

    def _record(self, world: World, at: int, call: Call) -> Iterator[Step]:
        """Settle, release, hold; repeated until the answer is heard."""
        kind = call.phase
        if kind == "hold-read":
            then: Call | None = call._replace(phase="late")
        elif kind in ("abandon", "abandon-take"):
            waits = world.ghost is not None and world.ghost.attempt == call.attempt
            then = call if waits else None
        else:
            then = call._replace(phase="abandon") if kind == "release" and call.doubt else None
        does = {"hold-read": "hold", "abandon": "release", "abandon-take": "hold"}.get(kind, kind)
        about = (call.key, call.fence, call.attempt, NOBODY, call.heard and does == "release")
        ghost = Ghost(does, *about)  # type: ignore[arg-type]
        after, event = self._applied(world, ghost)
        yield f"{_a(call.attempt)} records: {does}", _put(after, at, then), event
        if not kind.startswith("abandon"):
            yield from self._lost(world, at, call, ghost)

    def _lost(self, world: World, at: int, then: Call, ghost: Ghost) -> Iterator[Step]:
        """No answer: it was done, or it may still be."""
        if not self.bounds.lost or world.ghost is not None:
            return
        after, event = self._applied(world, ghost)
        text = f"{_a(ghost.attempt)} loses the answer to its {ghost.kind}"
        if after != world:
            yield f"{text}, which was done", _put(after, at, then), event
        yield f"{text}, which is not done yet", _put(world._replace(ghost=ghost), at, then), None

    def _ghost(self, world: World) -> Iterator[Step]:
        if world.ghost is not None:
            after, event = self._applied(world, world.ghost)
            text = f"the {world.ghost.kind} of {_a(world.ghost.attempt)} takes effect late"
            yield text, after._replace(ghost=None), event

    def _applied(self, world: World, ghost: Ghost) -> tuple[World, Event | None]:
        """What a statement does to the store."""
        store, key, attempt = world.store, ghost.key, ghost.attempt
        truth = world.truth
        event = Event(ghost.kind, key, attempt, ghost.fence)
        match ghost.kind:
            case "admit":
                store = self.rules.admit(store, key, ghost.fence, attempt)
                if not self.bounds.workers:  # else only what is issued counts
                    at = self.bounds.entity_of[key]
                    highest = max(truth.highest[at], ghost.fence)
                    truth = truth._replace(highest=replaced(truth.highest, at, highest))
            case "take":
                store = self.rules.take_over(store, *_about(ghost))[0]
            case "settle":
                store = self.rules.settle(store, key, attempt)[0]
            case "release":
                store = self.rules.release(store, key, attempt, ghost.heard)[0]
            case "hold":
                store = self.rules.hold(store, key, attempt)[0]
        return world._replace(store=store, truth=truth), event

    def _dead(self, world: World, at: int, call: Call) -> World:
        return self._closed(world, at, None)

    # The upstream.

    def _upstream(self, world: World) -> Iterator[Step]:
        for each in world.requests:
            if each.done or each.left == 0:
                continue
            truth, key = world.truth, each.key
            if self.bounds.wrong:  # whatever happens, nothing follows from it
                yield from self._did(world, each, truth)
                continue
            again = self.bounds.mode == "resend" and each.epoch == truth.epoch[key]
            if not (again and truth.acted[key]):
                truth = truth._replace(
                    effects=replaced(truth.effects, key, min(truth.effects[key] + 1, 2)),
                    shown=replaced(truth.shown, key, 0 if self.bounds.looks else NOBODY),
                    acted=replaced(truth.acted, key, self.bounds.mode == "resend"),
                    memory=replaced(truth.memory, key, self._remembered(truth, key)),
                )
            yield from self._did(world, each, truth)

    def _remembered(self, truth: Truth, key: int) -> int:
        """How long ago it heard of the key, or did what it asked: the latter is as long or longer
        remembered."""
        return 0 if self.bounds.remembers_acts else truth.memory[key]

    def _did(self, world: World, each: Request, truth: Truth) -> Iterator[Step]:
        read = any(c is not None and c.attempt == each.attempt for c in world.calls)
        rest = tuple(e for e in world.requests if e != each)
        done = (*rest, each._replace(done=True, left=0)) if read else rest
        after = world._replace(requests=done, truth=truth)
        yield f"the upstream does what {_a(each.attempt)} asked", after, None

    # Who finds unknown outcomes out.

    def _operator(self, world: World) -> Iterator[Step]:
        for key, row in enumerate(world.store.rows):
            if row is None or self.rules.state(row) != "unknown":
                continue
            truly = world.truth.effects[key] > 0
            for executed in (True, False) if self.bounds.wrong else (truly,):
                said = self.rules.conclude(world.store, key, row.attempt, executed, "resolved")
                if said[1] == "resolved":
                    text = f"an operator says of key {key}: {'' if executed else 'not '}executed"
                    yield text, world._replace(store=said[0]), Event("resolve", key, row.attempt)

    def _prober(self, world: World) -> Iterator[Step]:
        for number, look in enumerate(world.looks):
            left = (*world.looks[:number], *world.looks[number + 1 :])
            about = (look.key, look.attempt, look.verdict, look.age)
            store, result = self.rules.probed(world.store, *about)
            text = f"a look at key {look.key} is recorded ({look.verdict}): {result}"
            event = Event("probed", look.key, look.attempt)
            yield text, world._replace(store=store, looks=left), event
        if len(world.looks) >= self.bounds.looks:
            return
        for key, row in enumerate(world.store.rows):
            if row is None:
                continue
            store, taken = self.rules.ask(world.store, key, row.attempt)
            for status in self._shown(world, key) if taken else ():
                verdict = read_probe(status)
                look = Look(key, row.attempt, verdict)
                after = world._replace(store=store, looks=tuple(sorted((*world.looks, look))))
                yield f"a look at key {key} is answered {status}", after, None

    def _shown(self, world: World, key: int) -> set[int]:
        """Answers to a status query: an effect is shown when ``lag`` has passed, or sooner."""
        if not world.truth.effects[key]:
            return {404, 503}
        return {200, 503} if world.truth.shown[key] >= self.terms.lag else {200, 404, 503}

    # Time.

    def _tick(self, world: World) -> World:
        terms, truth = self.terms, world.truth
        calls = tuple(c and c._replace(age=min(c.age + 1, terms.last)) for c in world.calls)
        open_until = {c.attempt: c.age for c in calls if c is not None}
        requests = []
        for each in world.requests:
            if each.left > 0 and each.left - 1 == 0 and not each.done:
                if each.attempt not in open_until:
                    continue
                requests.append(each._replace(left=0))
            elif each.left > 0:
                requests.append(each._replace(left=each.left - 1))
            elif each.left == NOBODY and open_until[each.attempt] >= terms.last:
                requests.append(each._replace(left=terms.settle_delay))
            else:
                requests.append(each)
        memory = tuple(
            NOBODY if m == NOBODY or m + 1 >= terms.memory else m + 1 for m in truth.memory
        )
        shown = tuple(s if s == NOBODY else min(s + 1, terms.lag) for s in truth.shown)
        looks = tuple(e._replace(age=e.age + 1) for e in world.looks if e.age < terms.look)
        return World(
            self.rules.tick(world.store),
            calls,
            tuple(requests),
            None,
            looks,
            tuple(worker_later(worker, terms) for worker in world.workers),
            truth._replace(memory=memory, shown=shown),
        )


def _put(world: World, at: int, call: Call | None) -> World:
    return world._replace(calls=replaced(world.calls, at, call))


def _about(ghost: Ghost) -> tuple[int, int, int, int]:
    return ghost.key, ghost.fence, ghost.judged, ghost.attempt


def _a(attempt: int) -> str:
    return f"attempt {attempt}"


def _fresh(world: World) -> int:
    """A number that stands nowhere; ``explorer.canonical`` renames."""
    return 1 + max(_numbers(world), default=-1)


def _numbers(world: World) -> Iterator[int]:
    for row in world.store.rows:
        if row is not None:
            yield row.attempt
            yield from row.earlier
    for call in world.calls:
        if call is not None:
            yield call.attempt
            yield call.judged
    for request in world.requests:
        yield request.attempt
    if world.ghost is not None:
        yield world.ghost.attempt
        yield world.ghost.judged
    for look in world.looks:
        yield look.attempt
    for watched in world.store.watched:
        if watched is not None:
            yield watched.attempt
