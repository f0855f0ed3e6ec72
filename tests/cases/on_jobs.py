"""Workers, leases and queues: further inputs of the kinds that are about time and ownership.

The first fence that is issued on an entity is ``F``; each end of a lease, and each claim, is one
more.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tests.cases.driver import Case
from tests.cases.steps import CREATED, STALE, Step, applied, http, refused

F = 2**20 + 1

CASES_PATH = "/v1/cases"
CUSTOMER = "customer:c-1048"
BODY = '{"input":{"customer_id":"c-1048","summary":"x"}}'


def enqueue(job: str = "J1", label: str | None = None, **about: Any) -> Step:
    return {"enqueue": {"job": job, **about}} | ({} if label is None else {"label": label})


def worker(name: str, do: str, label: str, **more: Any) -> Step:
    return {"worker": name, "do": do, "label": label, **more}


def claim(name: str, label: str, **more: Any) -> Step:
    return worker(name, "claim", label, **more)


def operator(does: str, label: str, **more: Any) -> Step:
    return {"operator": does, "label": label, **more}


def reap(at_s: float) -> Step:
    return {"reap": True, "at_s": at_s}


def on_customer(label: str, key: str, claim_label: str, **more: Any) -> Step:
    return http(label, path=CASES_PATH, body=BODY, key=key, fence=f"fence of {claim_label}", **more)


def yard(of: str, name: str, steps: Sequence[Step], calls: int = 0, **expected: Any) -> Case:
    """``expected``: ``answers`` and ``states``, the commands' answers ``r1``, …, and the rest."""
    responses = {
        key: expected.pop(key) for key in list(expected) if key[0] == "r" and key[1:2] in "123"
    }
    return {
        "id": f"{of}/{name}",
        "input": {"yard": "tenant-A", "steps": list(steps)},
        "expected": {"responses": responses, "upstream_calls": calls, **expected},
    }


_CLAIMED = [enqueue(), claim("W1", "c1", lease_s=90)]
_TAKEN_OVER = [
    enqueue(entity=CUSTOMER),
    claim("W1", "c1", lease_s=2),
    reap(3),
    claim("W2", "c2", lease_s=2),
]

FENCES = [
    yard(
        "FENCE-07",
        "the-later-job-is-claimed-first",
        [
            enqueue("J1", entity=CUSTOMER, priority=9),
            enqueue("J2", entity=CUSTOMER, priority=1),
            claim("W2", "c2"),
            on_customer("r1", "J2", "c2"),
            CREATED,
            worker("W2", "complete", "e2"),
            claim("W1", "c1"),
            on_customer("r2", "J1", "c1"),
            CREATED,
            on_customer("r3", "J2b", "c2"),
        ],
        calls=2,
        r1=applied(),
        r2=applied(),
        r3=STALE,
        answers={"c2": f"J2 {F}", "e2": "succeeded", "c1": f"J1 {F + 2}"},
        states={"J1": "running", "J2": "succeeded"},
    ),
    yard(
        "FENCE-07",
        "a-job-that-failed-twice-does-not-outrun-the-others",
        [
            enqueue("J1", entity=CUSTOMER, priority=1),
            enqueue("J2", entity=CUSTOMER),
            claim("W1", "c1"),
            worker("W1", "fail", "e1"),
            claim("W1", "c2"),
            worker("W1", "fail", "e2", retry=False),
            claim("W2", "c3"),
            on_customer("r1", "J2", "c3"),
            CREATED,
        ],
        calls=1,
        r1=applied(),
        answers={
            "c1": f"J1 {F}",
            "e1": "queued",
            "c2": f"J1 {F + 2}",
            "e2": "failed",
            "c3": f"J2 {F + 4}",
        },
        states={"J1": "failed", "J2": "running"},
    ),
    yard(
        "FENCE-07",
        "a-fence-of-the-jobs-own-entity-on-the-customers",
        [
            enqueue("J1"),
            enqueue("J2", entity=CUSTOMER),
            claim("W1", "c1", jobs=1),
            claim("W2", "c2", jobs=1),
            worker("W2", "complete", "e2"),
            on_customer("r1", "J1", "c1"),
            on_customer("r2", "J1", "c1", fields=[("X-Execution-Entity", "job:1")]),
        ],
        r1=STALE,
        r2=refused(403, "entity-mismatch"),
        answers={"c1": f"J1 {F}", "c2": f"J2 {F}", "e2": "succeeded"},
        states={"J1": "running", "J2": "succeeded"},
    ),
]

TIME = [
    yard(
        "TIME-01",
        "the-heartbeat-of-a-host-that-is-behind-or-ahead",
        [
            *_CLAIMED,
            worker("W1", "heartbeat", "h1", at_s=60, clock_s=-7200),
            worker("W1", "heartbeat", "h2", at_s=120, clock_s=7200),
            worker("W1", "heartbeat", "h3", at_s=211, clock_s=-7200),
            reap(211),
        ],
        answers={"c1": f"J1 {F}", "h1": "held 90000", "h2": "held 90000", "h3": "lost: expired"},
        states={"J1": "queued"},
    ),
    yard(
        "TIME-01",
        "a-host-that-is-ahead-does-not-start-early-and-one-behind-not-late",
        [
            enqueue("J1", run_in_s=60),
            enqueue("J2", give_up_in_s=60, priority=9),
            claim("W1", "c1", at_s=59, clock_s=3600, jobs=1),
            worker("W1", "fail", "e1"),
            claim("W2", "c2", at_s=61, clock_s=-3600),
        ],
        answers={"c1": f"J2 {F}", "e1": "queued", "c2": f"J1 {F}"},
        states={"J1": "running", "J2": "failed"},
    ),
    yard(
        "TIME-01",
        "the-databases-own-clock-steps-back",
        [
            *_CLAIMED,
            reap(91),
            claim("W2", "c2", lease_s=90),
            claim("W3", "c3", at_s=-3600, lease_s=90),
            worker("W1", "heartbeat", "h1"),
            worker("W1", "complete", "e1", of="c1"),
            worker("W2", "complete", "e2"),
        ],
        answers={
            "c1": f"J1 {F}",
            "c2": f"J1 {F + 2}",
            "c3": "none",
            "h1": "lost: taken",
            "e1": "rejected: taken",
            "e2": "succeeded",
        },
        states={"J1": "succeeded"},
    ),
    yard(
        "TIME-01",
        "the-databases-own-clock-steps-ahead",
        [
            *_CLAIMED,
            worker("W1", "heartbeat", "h1", at_s=100_000),
            reap(100_000),
            claim("W2", "c2"),
            worker("W1", "complete", "e1", of="c1"),
        ],
        answers={
            "c1": f"J1 {F}",
            "h1": "lost: expired",
            "c2": f"J1 {F + 2}",
            "e1": "rejected: taken",
        },
        states={"J1": "running"},
    ),
    yard(
        "TIME-02",
        "a-heartbeat-that-waited-for-less-than-the-lease",
        [*_CLAIMED, worker("W1", "heartbeat", "h1", at_s=10, behind="lease", for_s=70)],
        answers={"c1": f"J1 {F}", "h1": "held 90000"},
        states={"J1": "running"},
    ),
    yard(
        "TIME-02",
        "a-completion-that-waited-until-the-lease-was-over",
        [*_CLAIMED, worker("W1", "complete", "e1", at_s=10, behind="entity", for_s=81), reap(91)],
        answers={"c1": f"J1 {F}", "e1": "rejected: expired"},
        states={"J1": "queued"},
    ),
    yard(
        "TIME-02",
        "a-completion-in-a-transaction-from-before",
        [*_CLAIMED, worker("W1", "complete", "e1", since_s=89, at_s=91), reap(91)],
        answers={"c1": f"J1 {F}", "e1": "rejected: expired"},
        states={"J1": "queued"},
    ),
    yard(
        "TIME-02",
        "a-heartbeat-in-a-transaction-from-before",
        [*_CLAIMED, worker("W1", "heartbeat", "h1", since_s=1, at_s=80)],
        answers={"c1": f"J1 {F}", "h1": "held 90000"},
        states={"J1": "running"},
    ),
]

LEASES = [
    yard(
        "LEASE-03",
        "while-the-other-is-still-at-it",
        [
            *_TAKEN_OVER,
            worker("W1", "heartbeat", "h1", of="c1"),
            worker("W1", "complete", "e1", of="c1", result='"W1"'),
            worker("W1", "fail", "e2", of="c1"),
            worker("W1", "hand back", "e3", of="c1"),
            worker("W2", "complete", "e4", result='"W2"'),
        ],
        answers={
            "c1": f"J1 {F}",
            "c2": f"J1 {F + 2}",
            "h1": "lost: taken",
            "e1": "rejected: taken",
            "e2": "rejected: taken",
            "e3": "rejected: taken",
            "e4": "succeeded",
        },
        states={"J1": "succeeded"},
        results={"J1": '"W2"'},
    ),
    yard(
        "LEASE-03",
        "with-the-very-result-that-was-accepted",
        [
            *_TAKEN_OVER,
            worker("W2", "complete", "e1", result='"same"'),
            worker("W2", "complete", "e2", result='"same"'),
            worker("W1", "complete", "e3", of="c1", result='"same"'),
        ],
        answers={
            "c1": f"J1 {F}",
            "c2": f"J1 {F + 2}",
            "e1": "succeeded",
            "e2": "succeeded again",
            "e3": "rejected: expired",
        },
        states={"J1": "succeeded"},
        runs={"J1": ["expired", "completed"]},
    ),
    yard(
        "LEASE-03",
        "before-anybody-noticed",
        [
            enqueue(),
            claim("W1", "c1", lease_s=2, at_s=0),
            worker("W1", "complete", "e1", at_s=2),
            reap(2),
        ],
        answers={"c1": f"J1 {F}", "e1": "rejected: expired"},
        states={"J1": "queued"},
    ),
    yard(
        "LEASE-03",
        "after-an-operator-queued-it-again",
        [
            *_TAKEN_OVER,
            worker("W2", "fail", "e1", retry=False),
            operator("retry", "o1", job="J1"),
            worker("W1", "complete", "e2", of="c1"),
            worker("W2", "complete", "e3"),
            claim("W3", "c3"),
        ],
        answers={
            "c1": f"J1 {F}",
            "c2": f"J1 {F + 2}",
            "e1": "failed",
            "o1": "queued",
            "e2": "rejected: expired",
            "e3": "rejected: ended",
            "c3": f"J1 {F + 4}",
        },
        states={"J1": "running"},
    ),
    yard(
        "LEASE-06",
        "the-new-one-guesses-the-fence",
        [
            enqueue(),
            claim("W1", "c1", lease_s=2, dies=True),
            worker("W1", "heartbeat", "h1", at_s=1, of="c1", fence_off_by=1),
            worker("W1", "complete", "e1", of="c1", fence_off_by=1),
            reap(3),
            claim("W1", "c2", lease_s=2),
            worker("W1", "heartbeat", "h2", of="c1"),
        ],
        answers={
            "c1": f"J1 {F}",
            "h1": "lost: expired",
            "e1": "rejected: expired",
            "c2": f"J1 {F + 2}",
            "h2": "lost: taken",
        },
        states={"J1": "running"},
    ),
    yard(
        "LEASE-08",
        "heartbeats-for-ever-end-at-the-longest-lease",
        [
            enqueue(),
            claim("W1", "c1", lease_s=3, total_s=5),
            worker("W1", "heartbeat", "h1", at_s=2),
            worker("W1", "heartbeat", "h2", at_s=4),
            worker("W1", "heartbeat", "h3", at_s=5),
            reap(5),
            claim("W2", "c2"),
        ],
        answers={
            "c1": f"J1 {F}",
            "h1": "held 3000",
            "h2": "held 1000",
            "h3": "lost: expired",
            "c2": f"J1 {F + 2}",
        },
        states={"J1": "running"},
    ),
    yard(
        "LEASE-11",
        "a-retry-that-is-to-wait",
        [
            enqueue(),
            claim("W1", "c1"),
            worker("W1", "fail", "e1", delay_s=3),
            reap(1),
            claim("W1", "c2"),
            claim("W1", "c3", at_s=4),
        ],
        answers={"c1": f"J1 {F}", "e1": "queued", "c2": "none", "c3": f"J1 {F + 2}"},
        states={"J1": "running"},
        runs={"J1": ["failed"]},
    ),
    yard(
        "LEASE-11",
        "a-long-lease-is-not-taken-for-a-date",
        [
            enqueue("J1", run_in_s=3),
            enqueue("J2"),
            claim("W1", "c1", lease_s=3000),
            reap(4),
            claim("W2", "c2", lease_s=3),
            reap(8),
            claim("W3", "c3"),
        ],
        answers={"c1": f"J2 {F}", "c2": f"J1 {F}", "c3": f"J1 {F + 2}"},
        states={"J1": "running", "J2": "running"},
    ),
]

QUEUES = [
    yard(
        "QUEUE-01",
        "a-lower-maximum-holds-for-what-has-begun",
        [
            enqueue(),
            claim("W1", "c1", lease_s=2, dies=True),
            reap(3),
            claim("W1", "c2", lease_s=2, dies=True),
            reap(6),
            claim("W1", "c3", attempts=2),
        ],
        answers={"c1": f"J1 {F}", "c2": f"J1 {F + 2}", "c3": "none"},
        states={"J1": "failed"},
        runs={"J1": ["expired", "expired"]},
    ),
    yard(
        "QUEUE-01",
        "handing-back-is-no-attempt",
        [
            enqueue(),
            claim("W1", "c1", attempts=1),
            worker("W1", "hand back", "e1"),
            claim("W1", "c2", attempts=1),
            worker("W1", "hand back", "e2"),
            claim("W1", "c3", attempts=1),
            worker("W1", "fail", "e3"),
        ],
        answers={
            "c1": f"J1 {F}",
            "e1": "queued",
            "c2": f"J1 {F + 2}",
            "e2": "queued",
            "c3": f"J1 {F + 4}",
            "e3": "failed",
        },
        states={"J1": "failed"},
    ),
    yard(
        "QUEUE-01",
        "who-waits-behind-it-is-not-taken-along",
        [
            enqueue("J1", entity=CUSTOMER, priority=1),
            enqueue("J2", entity=CUSTOMER),
            claim("W1", "c1", lease_s=2, attempts=1, dies=True),
            reap(3),
            claim("W2", "c2", attempts=1),
            worker("W2", "complete", "e2"),
        ],
        answers={"c1": f"J1 {F}", "c2": f"J2 {F + 2}", "e2": "succeeded"},
        states={"J1": "failed", "J2": "succeeded"},
    ),
    yard(
        "QUEUE-03",
        "cancelled-behind-the-completion",
        [
            enqueue(entity=CUSTOMER),
            claim("W1", "c1"),
            on_customer("r1", "k-1", "c1"),
            CREATED,
            worker("W1", "complete", "e1"),
            operator("cancel", "o1", job="J1"),
        ],
        calls=1,
        r1=applied(),
        answers={"c1": f"J1 {F}", "e1": "succeeded", "o1": "finished: succeeded"},
        states={"J1": "succeeded"},
    ),
    yard(
        "QUEUE-03",
        "a-sessions-running-and-waiting-jobs",
        [
            enqueue("J1", session="s", entity=CUSTOMER),
            enqueue("J2", session="s", entity=CUSTOMER),
            enqueue("J3", entity=CUSTOMER),
            claim("W1", "c1"),
            operator("cancel session", "o1", session="s"),
            on_customer("r1", "k-1", "c1"),
            worker("W1", "heartbeat", "h1"),
            worker("W1", "fail", "e1"),
            claim("W2", "c2"),
            on_customer("r2", "k-2", "c2"),
            CREATED,
        ],
        calls=1,
        r1=STALE,
        r2=applied(),
        answers={
            "c1": f"J1 {F}",
            "o1": "2 cancelled",
            "h1": "lost: cancelled",
            "e1": "rejected: cancelled",
            "c2": f"J3 {F + 2}",
        },
        states={"J1": "cancelled", "J2": "cancelled", "J3": "running"},
    ),
    yard(
        "QUEUE-03",
        "cancelled-before-it-began",
        [
            enqueue(),
            operator("cancel", "o1", job="J1"),
            claim("W1", "c1"),
            operator("cancel", "o2", job="J1"),
        ],
        answers={"o1": "cancelled", "c1": "none", "o2": "finished: cancelled"},
        states={"J1": "cancelled"},
        runs={"J1": []},
    ),
    yard(
        "QUEUE-06",
        "the-key-of-a-failed-and-of-a-cancelled-job",
        [
            enqueue("J1", key="a"),
            enqueue("J2", key="b"),
            claim("W1", "c1", jobs=1),
            worker("W1", "fail", "e1", retry=False),
            operator("cancel", "o1", job="J2"),
            enqueue("J3", "n1", key="a"),
            enqueue("J4", "n2", key="b"),
            claim("W1", "c2"),
        ],
        answers={
            "c1": f"J1 {F}",
            "e1": "failed",
            "o1": "cancelled",
            "n1": "known as J1",
            "n2": "known as J2",
            "c2": "none",
        },
        states={"J1": "failed", "J2": "cancelled"},
    ),
    yard(
        "QUEUE-06",
        "another-wish-under-the-old-key",
        [
            enqueue("J1", key="a", payload="1"),
            claim("W1", "c1"),
            worker("W1", "complete", "e1", result='"first"'),
            enqueue("J2", "n1", key="a", payload="2"),
            claim("W1", "c2"),
        ],
        answers={"c1": f"J1 {F}", "e1": "succeeded", "n1": "known as J1", "c2": "none"},
        states={"J1": "succeeded"},
        results={"J1": '"first"'},
    ),
]

CASES = [*FENCES, *TIME, *LEASES, *QUEUES]
