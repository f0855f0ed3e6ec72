"""The verdict of the drill: each claim fails where its fact does, and only it."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from io import StringIO

import pytest

from gateway.drill.claims import CLAIMS, LATE_EFFECTS, Answer, AuditRow, Facts, judge
from gateway.drill.policy import LATE, late_ids
from gateway.drill.report import Report
from gateway.drill.scene import parsed

IDS = late_ids("r", "killed")
STALE = {"type": "urn:fencegate:problem:fence-stale"}
WANTED = {"by": "W2"}
AT = datetime(2026, 1, 1, tzinfo=UTC)
REJECTED = AuditRow(AT, "result_rejected", 7, 9, None, None)
REFUSED = [AuditRow(AT, "fence_stale", 7, 9, IDS[name], None) for name in LATE_EFFECTS]
ANSWERS = {
    "renewal": Answer(200, {"leases": [{"job": "j", "lost": "taken"}]}),
    "result": Answer(200, {"ends": [{"job": "j", "rejected": "taken"}]}),
    **{name: Answer(412, STALE) for name in LATE_EFFECTS},
}
GOOD = Facts(
    first=7,
    second=9,
    answers=ANSWERS,
    request_ids=IDS,
    effects=[("capture", "W1"), ("notify", "W2")],
    audit=[REJECTED, *REFUSED],
    state="succeeded",
    result=WANTED,
    wanted=WANTED,
    alive=True,
    library="LeaseLost",
)


def answered(name: str, answer: Answer) -> Facts:
    return replace(GOOD, answers={**ANSWERS, name: answer})


def failed(facts: Facts) -> set[str]:
    return {each.name for each in judge(facts) if not each.holds}


def test_all_claims_hold_where_all_is_well() -> None:
    assert failed(GOOD) == set()
    assert [each.name for each in judge(GOOD)] == list(CLAIMS)


def test_of_a_dead_worker_s_library_nothing_is_claimed() -> None:
    names = [each.name for each in judge(replace(GOOD, alive=False, library=None))]
    assert names == [name for name in CLAIMS if name != "library-refused"]


RENEWED = Answer(200, {"leases": [{"job": "j", "remaining_ms": 6500}]})
ENDED = Answer(200, {"ends": [{"job": "j", "state": "succeeded", "again": False}]})
BROKEN = [
    (answered("renewal", RENEWED), "renewal-refused"),
    (answered("renewal", Answer(0)), "renewal-refused"),
    (answered("renewal", Answer(503)), "renewal-refused"),
    (answered("result", ENDED), "result-refused"),
    (answered("result", Answer(0)), "result-refused"),
    (replace(GOOD, audit=REFUSED), "result-refused"),
    (replace(GOOD, audit=[replace(REJECTED, fence=9), *REFUSED]), "result-refused"),
    (answered("effect", Answer(201)), "effect-refused"),
    (answered("own-key", Answer(201)), "effect-refused"),
    (answered("own-key", Answer(412)), "effect-refused"),  # of an upstream, not of the gateway
    (answered("own-key", Answer(0)), "effect-refused"),
    (replace(GOOD, effects=GOOD.effects[:1]), "one-effect"),
    (replace(GOOD, effects=[*GOOD.effects, ("notify", "W1 late")]), "one-effect"),
    (replace(GOOD, effects=[]), "one-effect"),
    (replace(GOOD, audit=[REJECTED, REFUSED[0]]), "fences-named"),
    (replace(GOOD, audit=[REJECTED, *(replace(r, mark=8) for r in REFUSED)]), "fences-named"),
    (replace(GOOD, audit=[REJECTED, *(replace(r, fence=6) for r in REFUSED)]), "fences-named"),
    (replace(GOOD, state="running", result=None), "result-published"),
    (replace(GOOD, result={"by": "W1"}), "result-published"),
    (replace(GOOD, library=None), "library-refused"),
]


@pytest.mark.parametrize(("facts", "name"), BROKEN)
def test_a_claim_fails_where_its_fact_does(facts: Facts, name: str) -> None:
    assert failed(facts) == {name}


def test_every_claim_has_a_way_to_fail() -> None:
    assert {name for _, name in BROKEN} == set(CLAIMS)


def test_a_second_fence_that_is_no_higher_is_found_out() -> None:
    rows = [REJECTED, *(replace(r, mark=7) for r in REFUSED)]
    assert failed(replace(GOOD, second=7, audit=rows)) == {"fences-named"}


def test_the_verdict_is_good_only_if_every_claim_holds() -> None:
    report = Report(StringIO(), "text")
    assert report.verdict({"killed": judge(GOOD)})
    assert not report.verdict({"stopped": judge(GOOD), "killed": judge(BROKEN[0][0])})
    assert not report.verdict({})


def test_an_answer_counts_once_it_is_whole() -> None:
    raw = b'HTTP/1.1 412 Precondition Failed\r\nContent-Length: 13\r\n\r\n{"type": "x"}'
    assert parsed(raw) == Answer(412, {"type": "x"})
    assert all(parsed(raw[:cut]) is None for cut in range(len(raw)))


def test_request_ids_are_such_as_the_gateway_keeps() -> None:
    assert set(IDS) == set(LATE)
    assert all(
        len(each) <= 64 and each.isascii()
        for each in late_ids("0" * 8, "database-restart").values()
    )
