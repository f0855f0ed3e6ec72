"""The script: five scenes, played without the gateway and with it, and what each must show.

The callers do the same on both sides. What differs is the address they send to, who holds the
API's token, and that an operator is there to decide what nobody can know.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable

from gateway.demo.ledger import Command, Scenario
from gateway.demo.stage import Stage
from gateway.demo.wire import Answer

__all__ = ["COPIES", "SCENARIOS", "audit", "play"]

COPIES = 20


def _capture(invoice: str, cents: int, key: str) -> Command:
    return Command(
        kind="capture",
        subject=f"invoice:{invoice}",
        body=f'{{"amount": {cents}, "currency": "EUR"}}',
        path=f"/v1/invoices/{invoice}/capture",
        key=key,
    )


_RETRIED = _capture("inv-100", 1200, "capture-inv-100")
_LOST = _capture("inv-200", 1200, "capture-inv-200-part-1")
_NEXT = _capture("inv-200", 800, "capture-inv-200-part-2")
_FIRST_WORKER = _capture("inv-300", 1200, "capture-inv-300-by-w1")
_SECOND_WORKER = _capture("inv-300", 1200, "capture-inv-300-by-w2")
_REUSED = _capture("inv-400", 1200, "capture-inv-400")
_OTHER_BODY = '{"amount": 9900, "currency": "EUR"}'
_CASE = Command(
    kind="case",
    subject="customer:c-7",
    body='{"customer_id": "c-7", "title": "Parcel is late"}',
    path="/v1/cases",
    key="case-c-7-parcel",
)

SCENARIOS = (
    Scenario("answered, then retried", (_RETRIED,)),
    Scenario("answer lost, then retried", (_LOST, _NEXT)),
    Scenario("paused worker wakes up late", (_SECOND_WORKER,)),
    Scenario("key used again for another amount", (_REUSED,)),
    Scenario(f"{COPIES} identical requests at once", (_CASE,)),
)


def play(stage: Stage) -> None:
    """All scenes in order."""
    scenes: tuple[Callable[[Stage], None], ...] = (_retry, _lose, _zombie, _reuse, _burst)
    for number, (scenario, scene) in enumerate(zip(SCENARIOS, scenes, strict=True), start=1):
        stage.out.scene(number, scenario.title)
        scene(stage)


def _retry(stage: Stage) -> None:
    stage.out.say("A caller captures 12.00 EUR.")
    first = stage.send("billing", _RETRIED, fence=5)
    stage.expect(first.status == 201, "the first request is answered 201")
    stage.out.say("It crashes before it has noted the answer, starts again and sends the same.")
    again = stage.send("billing", _RETRIED, fence=5)
    if stage.guarded:
        same = again.status == 201 and again.body == first.body
        stage.expect(same and again.replayed, "the retry gets the recorded answer, replayed")
        stage.expect(not first.replayed, "the first one was no replay")
    else:
        other = again.status == 201 and again.body != first.body
        stage.expect(other, "the retry is a second capture with an id of its own")


def _lose(stage: Stage) -> None:
    stage.api.misbehave("lose-answer")
    stage.out.say(
        "A caller captures the first part of an invoice. The API does it, and the connection "
        "breaks before a byte of the answer."
    )
    first = stage.send("billing", _LOST, fence=7)
    if stage.guarded:
        _unknown(stage, first)
        return
    stage.expect(first.status is None, "the caller hears nothing and cannot know")
    stage.out.say(
        "So it tries again, as callers do, and then goes on to the second part of the invoice:"
    )
    stage.expect(stage.send("billing", _LOST, fence=7).status == 201, "the retry captures again")
    stage.expect(stage.send("billing", _NEXT, fence=7).status == 201, "the second part is taken")


def _unknown(stage: Stage, first: Answer) -> None:
    _expect_problem(stage, first, 504, "outcome-unknown", "the caller is told that nobody knows")
    reached = stage.api.requests()
    stage.out.say("It tries again, and then goes on to the second part of the invoice:")
    again = stage.send("billing", _LOST, fence=7)
    _expect_problem(stage, again, 504, "outcome-unknown", "the retry hears the same")
    after = stage.send("billing", _NEXT, fence=7)
    _expect_problem(stage, after, 409, "entity-unresolved", "the invoice is held until decided")
    stage.expect(stage.api.requests() == reached, "neither of the two reached the API")
    stage.out.say("An operator looks at what is open, and then at the API's own ledger:")
    listed = stage.operate("commands", "list", "--state", "unknown")
    stage.expect(_LOST.key in listed, "the command is listed")
    seen = stage.look("operator", "/v1/invoices/inv-200")
    captures = json.loads(seen.body)["captures"] if seen.status == 200 else []
    stage.expect(len(captures) == 1, "the API did capture it, one time")
    stage.out.say("So it did happen. The decision is on record, with its reason:")
    reason = f"ledger shows {captures[0]['id']}" if captures else "checked the ledger"
    stage.operate("commands", "resolve", _LOST.key, "--executed", "--reason", reason)
    decided = stage.send("billing", _LOST, fence=7)
    _expect_problem(stage, decided, 410, "response-not-retained", "a retry learns it was executed")
    stage.expect(decided.member("resolved") == "executed", "and that this was a person's decision")
    freed = stage.send("billing", _NEXT, fence=7)
    stage.expect(freed.status == 201, "the second part goes through with its own key")


def _zombie(stage: Stage) -> None:
    stage.out.say("Worker W1 claims the job for invoice inv-300. The queue gives it fence 41.")
    worker = stage.claim("W1", _FIRST_WORKER, fence=41)
    worker.pause()
    stage.out.say(
        "Its process is stopped right there (SIGSTOP). Its lease runs out; the queue gives the "
        "job to worker W2 with fence 42. Each makes a key of its own, so keys cannot help here."
    )
    second = stage.send("W2", _SECOND_WORKER, fence=42)
    stage.expect(second.status == 201, "W2 captures the invoice")
    reached = stage.api.requests()
    stage.out.say("W1 goes on (SIGCONT). For W1 no time has passed, so it writes:")
    late = worker.wake()
    if stage.guarded:
        _expect_problem(stage, late, 412, "fence-stale", "the late write is refused")
        stage.expect(stage.api.requests() == reached, "nothing of it reached the API")
    else:
        stage.expect(late.status == 201, "the API takes it: the customer pays twice")


def _reuse(stage: Stage) -> None:
    stage.out.say("A caller captures 12.00 EUR.")
    first = stage.send("billing", _REUSED, fence=3)
    stage.expect(first.status == 201, "the first request is answered 201")
    stage.out.say("By mistake its next job, 99.00 EUR, is sent under the same key:")
    other = stage.send("billing", _REUSED, fence=3, body=_OTHER_BODY)
    if stage.guarded:
        _expect_problem(stage, other, 422, "key-reused", "it is not taken for the first one")
    else:
        stage.expect(other.status == 201, "the API takes it")


def _burst(stage: Stage) -> None:
    stage.api.misbehave("slow; seconds=0.5")
    stage.out.say(f"A message is delivered {COPIES} times at the same moment; the API is slow:")
    exchange = stage.send_copies("support", _CASE, fence=9, copies=COPIES)
    answers = exchange.answers
    for answer in (answers[0], answers[-1]):
        stage.out.came_back(answer)
    ids = {answer.body for answer in answers if answer.status == 201}
    replays = sum(answer.replayed for answer in answers)
    stage.out.say(f"({len(answers)} answers, the first and the last are shown; {replays} replays)")
    if stage.guarded:
        one = len(ids) == 1 and all(answer.status == 201 for answer in answers)
        stage.expect(one, f"all {COPIES} callers hear of the same case")
        stage.expect(replays == COPIES - 1, f"{COPIES - 1} of them by replay")
    else:
        stage.expect(len(ids) == COPIES, f"{COPIES} cases are opened")


def audit(stage: Stage) -> None:
    """With the gateway only: what is on record about the refusal and the decision."""
    stage.out.scene(len(SCENARIOS) + 1, "what is on record")
    stage.out.say("Refusals and decisions are written in the transaction that makes them.")
    shown = stage.operate("audit")
    stale = [line for line in shown.splitlines() if "fence_stale" in line]
    told = len(stale) == 1 and all(
        re.search(rf"\b{word}\b", stale[0]) for word in ("invoice:inv-300", "41", "42")
    )
    stage.expect(told, "the refused stale write is there, with its fence 41 and the mark 42")
    stage.expect("key_reused" in shown, "so is the key that was used again")
    stage.expect("resolved" in shown, "and the operator's decision")


def _expect_problem(stage: Stage, answer: Answer, status: int, name: str, words: str) -> None:
    stage.expect(answer.status == status and answer.problem == name, f"{words}: {status} {name}")
