"""Two workers of entity 0, their leases and what they believe of them."""

from __future__ import annotations

from collections.abc import Iterator

from tests.model.bounds import Bounds, Event, Step
from tests.model.judging import trust_after
from tests.model.state import NOBODY, Beat, Store, Terms, Worker, World
from tests.model.store import Rules, replaced

__all__ = ["Workers", "worker_later"]


class Workers:
    """The part of ``Steps`` that is theirs."""

    bounds: Bounds
    terms: Terms
    rules: Rules

    def trust(self, beat: Beat) -> int:
        """Counted from before the heartbeat left."""
        return trust_after(beat.age, beat.remaining)

    def _workers(self, world: World) -> Iterator[Step]:
        store, rules = world.store, self.rules
        for at, worker in enumerate(world.workers):
            who = "AB"[at]
            claimed, fence = rules.claim(store, 0)
            if fence is not None:
                trust = trust_after(0, self.terms.lease) if self.bounds.beats else 0
                got = Worker(fence, trust)
                after = self._leased(world, claimed, at, got, fence)
                yield f"{who} gets a lease, fence {fence}", after, Event("lease", fence=fence)
            if not worker.fence:
                continue
            if not self.bounds.beats:
                pass
            elif worker.beat is None:
                yield (
                    f"{who} sends a heartbeat",
                    _work(world, at, worker._replace(beat=Beat())),
                    None,
                )
            elif worker.beat.remaining == NOBODY:
                yield from self._renew(world, at, worker, worker.beat)
            else:
                trust = max(worker.trust, self.trust(worker.beat))
                heard = worker._replace(beat=None, trust=trust)
                yield f"{who} hears that it was renewed", _work(world, at, heard), None
            ended, done = rules.end(store, 0, worker.fence)
            if done:
                gone = worker._replace(trust=0, beat=None)
                event = Event("end", fence=worker.fence)
                yield f"{who} completes", _work(world._replace(store=ended), at, gone), event
        if world.workers:
            reaped, done = rules.reap(store, 0)
            if done:
                yield "the lease is reaped", world._replace(store=reaped), Event("reap")

    def _renew(self, world: World, at: int, worker: Worker, beat: Beat) -> Iterator[Step]:
        who = "AB"[at]
        store, remaining = self.rules.renew(world.store, 0, worker.fence)
        if remaining is None:
            yield f"{who} is refused", _work(world, at, worker._replace(beat=None, trust=0)), None
            return
        told = worker._replace(beat=beat._replace(remaining=remaining))
        event = Event("renew", fence=worker.fence)
        yield f"{who} is renewed", _work(world._replace(store=store), at, told), event
        yield (
            f"the heartbeat of {who} gets lost",
            _work(world, at, worker._replace(beat=None)),
            None,
        )

    def _leased(self, world: World, store: Store, at: int, got: Worker, fence: int) -> World:
        highest = replaced(world.truth.highest, 0, max(world.truth.highest[0], fence))
        truth = world.truth._replace(highest=highest)
        return _work(world._replace(store=store, truth=truth), at, got)


def worker_later(worker: Worker, terms: Terms) -> Worker:
    beat = worker.beat
    if beat is not None:
        beat = beat._replace(age=min(beat.age + 1, terms.lease))
    return worker._replace(trust=max(worker.trust - 1, 0), beat=beat)


def _work(world: World, at: int, worker: Worker) -> World:
    return world._replace(workers=replaced(world.workers, at, worker))
