"""``/v1/jobs…`` as workers, their callers and operators use it, against the process that ships."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from uuid import UUID, uuid4

import pytest

from tests.kit.client import Caller, assert_problem
from tests.kit.db import Server, execute
from tests.kit.desk import Desk
from tests.kit.gateway import CAPTURE, GatewayProcess, Stack, gateway, policy, rows, stack
from tests.kit.operating import fencegate, move_clock

TOOLS = """
models = ["m-1"]
providers = ["p-1"]

[[tools]]
name = "t"
backoff_s = 5

[[tools]]
name = "once"
attempts = 1

[[tools]]
name = "soon"
backoff_s = 0
backoff_max_s = 0
"""
HERE = CAPTURE + 'issuer = "here"\n'


@pytest.fixture(scope="module")
def served(postgres: Server) -> Iterator[Stack]:
    env = {"FENCEGATE_LOG_LEVEL": "debug"}
    with stack(postgres, lambda url: [policy(url, HERE)], env=env, tools=TOOLS) as running:
        yield running


@pytest.fixture
def desk(served: Stack) -> Iterator[Desk]:
    made = Desk(served.caller())
    yield made
    for (job,) in [row.values() for row in rows(served.database, "select id from gateway.jobs")]:
        assert made.operate(str(job), "cancel", "the test is over").status in (200, 409)


# --- enqueue --------------------------------------------------------------------------------------


def test_a_job_is_made_once_for_its_key(served: Stack, desk: Desk) -> None:
    key = uuid4().hex
    first = desk.post("", {"jobs": [{"tool": "t", "payload": {"a": 1}, "key": key}]})
    (made,) = first.json()["jobs"]
    assert first.status == 201
    assert made == {"job": made["job"], "created": True, "same": True, "state": "queued"}
    again = desk.post("", {"jobs": [{"tool": "t", "payload": {"a": 1}, "key": key}]})
    assert again.status == 200
    assert again.json()["jobs"] == [{**made, "created": False}]
    other = desk.post("", {"jobs": [{"tool": "t", "payload": {"a": 2}, "key": key}]})
    assert other.json()["jobs"] == [{**made, "created": False, "same": False}]
    found = rows(served.database, "select id from gateway.jobs where key = $1", key)
    assert [str(row["id"]) for row in found] == [made["job"]]


def test_a_repeated_enqueue_with_its_ids_hears_that_it_made_them(desk: Desk) -> None:
    jobs = [{"tool": "t", "id": str(uuid4())} for _ in range(3)]
    first, again = desk.enqueue(*jobs), desk.enqueue(*jobs)
    assert first == again
    assert [each["created"] for each in again] == [True] * 3
    assert [each["job"] for each in again] == [each["id"] for each in jobs]
    assert [desk.show(each["job"])["key"] for each in again] == [each["id"] for each in jobs]


def test_a_known_key_tells_what_became_of_its_job(desk: Desk) -> None:
    keys = [uuid4().hex for _ in range(2)]
    made = desk.enqueue(*({"tool": "once", "key": key} for key in keys))
    leases = {each["lease"]["job"]: each["lease"] for each in desk.claim(2, ("once",))}
    desk.complete(leases[made[0]["job"]], {"n": 1.50})
    desk.fail(leases[made[1]["job"]], "no such customer")
    answers = desk.enqueue(*({"tool": "once", "key": key} for key in keys))
    assert [each.pop("job") for each in answers] == [each["job"] for each in made]
    known = {"created": False, "same": True}
    assert answers == [
        {**known, "state": "succeeded", "result": {"n": 1.5}},
        {**known, "state": "failed", "error": "no such customer"},
    ]


def test_a_key_whose_job_is_forgotten_says_so(served: Stack, desk: Desk) -> None:
    wish = {"tool": "t", "key": uuid4().hex}
    (made,) = desk.enqueue(wish)
    desk.operate(made["job"], "cancel", "the order was withdrawn")
    execute(served.database, f"delete from gateway.job_history where id = '{made['job']}'")
    reply = desk.post("", {"jobs": [wish]})
    assert reply.status == 200
    forgotten = {"job": made["job"], "created": False, "same": False, "state": "forgotten"}
    assert reply.json()["jobs"] == [forgotten]


def test_every_field_of_a_job_is_kept(desk: Desk) -> None:
    sent = {
        "key": uuid4().hex,
        "entity": f"account:{uuid4().hex} x",
        "session": "chat 17 é",
        "on_behalf": "user:1",
        "model": "m-1",
        "provider": "",
        "stage": "first",
        "priority": 1,
        "give_up_at": "2031-01-01T00:00:00+01:00",
    }
    job = desk.one(payload=[1], run_at="2030-01-01T00:00:00Z", **sent)
    shown = desk.show(job)
    assert {name: shown[name] for name in sent} == {
        **sent,
        "give_up_at": "2030-12-31T23:00:00Z",
    }
    assert shown["run_at"] == "2030-01-01T00:00:00Z"
    assert (shown["id"], shown["state"], shown["payload"]) == (job, "queued", [1])
    assert desk.claim() == []  # not before its time


def test_an_id_of_a_job_with_another_key_is_refused_also_when_that_one_is_finished(
    served: Stack, desk: Desk
) -> None:
    """Else the second could never be moved to the history."""
    running, finished = desk.one(), desk.one("once")
    desk.complete(desk.claimed("once"))
    for job in (running, finished):
        other = {"tool": "t", "id": job, "key": uuid4().hex}
        reply = desk.post("", {"jobs": [{"tool": "t", "key": "beside"}, other]})
        assert "another key" in assert_problem(reply, "request-invalid")["detail"]
    assert rows(served.database, "select 1 from gateway.job_keys where key = 'beside'") == []
    assert desk.enqueue({"tool": "once", "id": finished})[0]["state"] == "succeeded"


# --- documents stay as they were sent -------------------------------------------------------------


AWKWARD = [
    b'{ "a" : 1.0,"b":[ 1e2 , -0 ],\t"c":"\\u00e9\\/\\ud83d\\ude00", "\\u0064":"\xc3\xa9"}',
    b"123456789012345678901234567890.000",
    b'"\\u0000\\ud800"',
    b"null",
    b"[" * 100 + b"]" * 100,
]


@pytest.mark.parametrize("payload", AWKWARD)
def test_payload_and_result_go_through_all_routes_byte_for_byte(
    served: Stack, desk: Desk, payload: bytes
) -> None:
    made = desk.post("", b'{"jobs":[{"payload":  %b  ,"tool":"t"}]}' % payload)
    (job,) = [each["job"] for each in made.json()["jobs"]]
    wish = {"worker": "w1", "claim": str(uuid4()), "limit": 1, "tools": ["t"]}
    claimed = desk.post("/claim", wish)
    assert b'"payload":%b,"previous":null,' % payload in claimed.body
    lease = json.dumps(claimed.json()["leases"][0]["lease"]).encode()
    ending = b'{"worker":"w1","ends":[{"how":"completed","lease":%b,"result": %b%b}]}'
    first = desk.post("/end", ending % (lease, payload, b' ,"next":{"name":"charge"}'))
    assert first.json()["ends"] == [{"job": job, "state": "queued", "again": False}]
    claimed = desk.post("/claim", {**wish, "claim": str(uuid4())})
    assert b'"payload":%b,"previous":%b,' % (payload, payload) in claimed.body
    lease = json.dumps(claimed.json()["leases"][0]["lease"]).encode()
    desk.post("/end", ending % (lease, b"[ %b ]" % payload, b""))
    shown = desk.caller.call("GET", f"/v1/jobs/{job}")
    assert b'"payload":%b,"result":[ %b ]}}' % (payload, payload) in shown.body
    (kept,) = rows(
        served.database, "select payload, result from gateway.job_history where id = $1", UUID(job)
    )
    assert (kept["payload"], kept["result"]) == (payload, b"[ %b ]" % payload)


def test_without_documents_they_are_an_empty_object_and_null(desk: Desk) -> None:
    job = desk.one()
    lease = desk.claimed()
    desk.end({"lease": lease, "how": "completed"})
    shown = desk.show(job)
    assert (shown["payload"], shown["result"], shown["state"]) == ({}, None, "succeeded")


# --- claim, heartbeat, end ------------------------------------------------------------------------


def test_a_claim_says_all_that_a_worker_needs(desk: Desk) -> None:
    entity = f"account:{uuid4().hex}"
    job = desk.one(entity=entity, session="s", on_behalf="u", model="m-1", stage="first")
    (found,) = desk.claim()
    lease = found.pop("lease")
    assert {k: v for k, v in lease.items() if k != "fence"} == {
        "job": job,
        "entity": entity,
        "tool": "t",
        "attempt": 1,
        "model": "m-1",
        "provider": None,
    }
    assert lease["fence"] > 2**20
    assert 0 < found.pop("remaining_ms") <= 60_000
    assert 0 < found.pop("total_remaining_ms") <= 3_600_000
    assert found == {
        "key": job,
        "session": "s",
        "on_behalf": "u",
        "stage": "first",
        "stage_no": 1,
        "max_attempts": 5,
        "payload": {},
        "previous": None,
        "last_error": None,
        "give_up_ms": None,
        "terms": {
            "lease_s": 60,
            "heartbeat_s": 15,
            "jitter_s": 2,
            "misses": 3,
            "stage_limit_s": 600,
        },
    }


def test_a_claim_repeated_after_a_lost_answer_gives_the_same_leases(
    served: Stack, desk: Desk
) -> None:
    jobs = {desk.one() for _ in range(3)}
    claim = str(uuid4())
    wish = {"worker": "w1", "claim": claim, "limit": 2, "tools": ["t"]}
    lost = desk.open("/claim", wish, [("X-Request-Id", "lost-claim")])
    served.gateway.wait_for_log(event="job_claimed", request_id="lost-claim")
    lost.hang_up(reset=True)
    first, again = desk.claim(2, claim=claim), desk.claim(2, claim=claim)
    assert [each["lease"] for each in first] == [each["lease"] for each in again]
    assert len(first) == 2
    (other,) = desk.claim(2)
    assert {each["lease"]["job"] for each in [*first, other]} == jobs


def test_the_same_uuid_of_another_worker_is_another_wish(desk: Desk) -> None:
    """One lease in two hands has one fence, and nothing could tell them apart."""
    jobs = {desk.one() for _ in range(2)}
    wish = {"claim": str(uuid4()), "limit": 1, "tools": ["t"]}
    first, second = (
        desk.post("/claim", {**wish, "worker": worker}).json()["leases"][0]["lease"]
        for worker in ("w1", "w2")
    )
    assert {first["job"], second["job"]} == jobs


def test_the_fence_of_a_lease_is_the_one_that_the_gateway_admits(served: Stack, desk: Desk) -> None:
    scene = served.scene()
    desk.one(entity=scene.entity)
    lease = desk.claimed()
    assert scene.send("first", fence=lease["fence"]).status == 201
    assert_problem(desk.post("/end", b""), "body-unreadable")
    desk.complete(lease)
    assert_problem(scene.send("second", fence=lease["fence"]), "fence-stale")
    assert len(scene.upstream.effects) == 1


def test_a_heartbeat_answers_for_each_lease_in_the_order_asked(desk: Desk) -> None:
    jobs = [desk.one() for _ in range(4)]
    by_job = {each["lease"]["job"]: each["lease"] for each in desk.claim(4)}
    leases = [by_job[job] for job in jobs]
    desk.operate(jobs[0], "cancel")
    desk.complete(leases[2])
    never = {**leases[3], "fence": leases[3]["fence"] + 1}
    found = desk.beat(leases[0], leases[1], leases[2], never)
    assert [each["job"] for each in found] == jobs
    assert [each.get("lost") for each in found] == ["cancelled", None, "ended", "expired"]
    assert 59_000 < found[1]["remaining_ms"] <= 60_000
    assert found[1]["total_remaining_ms"] <= 3_600_000


def test_a_thousand_leases_beat_at_once(served: Stack, desk: Desk) -> None:
    for _ in range(10):
        desk.enqueue(*({"tool": "soon"} for _ in range(100)))
    leases = [each["lease"] for _ in range(10) for each in desk.claim(100, ("soon",))]
    found = desk.beat(*leases)
    assert [each["job"] for each in found] == [each["job"] for each in leases]
    assert all(each["remaining_ms"] > 0 for each in found)
    assert len({each["job"] for each in found}) == 1_000
    for batch in range(0, 1_000, 100):
        done = desk.end(
            *({"lease": each, "how": "completed"} for each in leases[batch : batch + 100])
        )
        assert [each["state"] for each in done] == ["succeeded"] * 100


def test_a_repeated_end_hears_what_the_first_did_and_another_is_rejected(desk: Desk) -> None:
    job = desk.one()
    lease = desk.claimed()
    assert desk.complete(lease, {"n": 1}) == {"job": job, "state": "succeeded", "again": False}
    assert desk.complete(lease, {"n": 1}) == {"job": job, "state": "succeeded", "again": True}
    assert desk.complete(lease, {"n": 2}) == {"job": job, "rejected": "ended"}
    assert desk.fail(lease) == {"job": job, "rejected": "ended"}
    assert desk.show(job)["result"] == {"n": 1}


def test_a_failure_waits_as_its_class_says_and_longer_only_if_asked(
    served: Stack, desk: Desk
) -> None:
    asked = {"own": {}, "longer": {"delay_s": 90.5}, "shorter": {"delay_s": 0.1}}
    jobs = {name: desk.one(key=f"{name}-{uuid4()}") for name in asked}
    leases = {each["lease"]["job"]: each["lease"] for each in desk.claim()}
    for name, more in asked.items():
        assert desk.fail(leases[jobs[name]], **more)["state"] == "queued"
    delays = {
        row["id"]: row["delay"]
        for row in rows(
            served.database,
            "select j.id::text, extract(epoch from j.run_at - r.ended_at)::float8 as delay"
            " from gateway.jobs j join gateway.job_runs r on r.job = j.id where j.id = any ($1)",
            [UUID(job) for job in jobs.values()],
        )
    }
    assert 2.5 <= delays[jobs["own"]] <= 5
    assert 2.5 <= delays[jobs["shorter"]] <= 5
    assert delays[jobs["longer"]] == pytest.approx(90.5)


def test_a_lie_about_attempt_and_tool_changes_the_delay_and_nothing_else(
    served: Stack, desk: Desk
) -> None:
    job = desk.one()
    lease = {**desk.claimed(), "attempt": 31, "tool": "no-such", "model": "m-9"}
    assert desk.fail(lease)["state"] == "queued"
    shown = desk.show(job)
    assert (shown["attempts"], shown["tool"], shown["model"]) == (1, "t", None)


def test_no_retry_and_the_last_attempt_are_the_end(desk: Desk) -> None:
    jobs = [desk.one(), desk.one("once")]
    leases = [desk.claimed(), desk.claimed("once")]
    assert desk.fail(leases[0], retry=False)["state"] == "failed"
    assert desk.fail(leases[1])["state"] == "failed"
    assert [desk.show(job)["error"] for job in jobs] == ["it broke"] * 2


def test_a_lease_that_is_handed_back_costs_no_attempt(desk: Desk) -> None:
    job = desk.one("once")
    assert desk.end({"lease": desk.claimed("once"), "how": "handed-back"})[0]["state"] == "queued"
    (again,) = desk.claim(1, ("once",))
    assert (again["lease"]["job"], again["lease"]["attempt"]) == (job, 1)


def test_an_error_of_any_length_and_content_is_kept_by_its_end(desk: Desk) -> None:
    job = desk.one("once")
    desk.fail(desk.claimed("once"), "x" * 10_000 + "\0\ud800")
    assert desk.show(job)["error"] == "x" * 4_094 + "\ufffd?"


def test_a_late_end_is_rejected_audited_logged_and_counted(served: Stack, desk: Desk) -> None:
    job = desk.one(model="m-1", provider="elsewhere", entity=f"late:{uuid4().hex}")
    lease = desk.claimed()
    label = 'model="m-1",provider="other",tool="t"'
    before = metric(served, "results_rejected_total", label)
    move_clock(served.database, 61)
    try:
        assert desk.beat(lease) == [{"job": job, "lost": "expired"}]
        assert desk.complete(lease, {"n": 1}) == {"job": job, "rejected": "expired"}
    finally:
        move_clock(served.database, 0)
    (row,) = rows(
        served.database,
        "select * from gateway.audit where event = 'result_rejected' and job = $1",
        job,
    )
    assert (row["fence"], row["entity"]) == (lease["fence"], lease["entity"])
    line = served.gateway.wait_for_log(event="result_rejected", job=job)
    assert (line["fence"], line["reason"], line["worker"]) == (lease["fence"], "expired", "w1")
    line = served.gateway.wait_for_log(event="heartbeat_lost", job=job)
    assert line["reason"] == "expired"
    assert metric(served, "results_rejected_total", label) == before + 1
    refused = 'model="m-1",provider="other",reason="expired",tool="t"'
    assert metric(served, "renewals_failed_total", refused) == 1


def metric(served: Stack, name: str, labels: str) -> float:
    text = served.caller().call("GET", "/metrics").body.decode()
    wanted = f"fencegate_{name}{{{labels}}} "
    values = [line.removeprefix(wanted) for line in text.splitlines() if line.startswith(wanted)]
    return float(values[0]) if values else 0.0


# --- stages and operators -------------------------------------------------------------------------


def test_stages_follow_each_other_and_one_may_wait_for_approval(desk: Desk) -> None:
    job = desk.one(payload={"a": 1})
    account = f"account:{uuid4().hex}"
    following = {"name": "charge", "entity": account, "wait": True}
    assert desk.complete(desk.claimed(), {"case": 7}, next=following)["state"] == "waiting"
    assert desk.claim() == []
    assert desk.operate(job, "approve").json() == {"job": job, "state": "queued"}
    again = assert_problem(desk.operate(job, "approve"), "job-state", state="queued")
    assert "Only a waiting stage" in again["detail"]
    (found,) = desk.claim()
    assert (found["lease"]["entity"], found["stage"], found["stage_no"]) == (account, "charge", 2)
    assert (found["payload"], found["previous"]) == ({"a": 1}, {"case": 7})
    assert desk.complete(found["lease"], next={"name": "tell"})["state"] == "queued"
    (last,) = desk.claim()
    assert last["lease"]["entity"] == f"job:{job}"


def test_operators_cancel_and_run_again_with_a_reason_on_record(served: Stack, desk: Desk) -> None:
    job = desk.one("once")
    assert desk.operate(job, "cancel", "withdrawn").json() == {"job": job, "state": "cancelled"}
    assert desk.operate(job, "cancel").json() == {"job": job, "state": "cancelled"}
    assert desk.operate(job, "retry", "after all").json() == {"job": job, "state": "queued"}
    assert_problem(desk.operate(job, "retry"), "job-state", state="queued")
    desk.complete(desk.claimed("once"))
    for what in ("cancel", "retry", "approve"):
        assert_problem(desk.operate(job, what), "job-state", state="succeeded")
    reasons = rows(
        served.database,
        "select reason, principal from gateway.audit where job = $1 and event = 'operator'"
        " order by at",
        job,
    )
    assert [row["reason"] for row in reasons] == [
        "job cancelled: withdrawn",
        "cancelled job queued again: after all",
    ]
    assert {row["principal"] for row in reasons} == {"anonymous"}


def test_a_session_is_cancelled_as_a_whole_and_its_locked_jobs_are_left(
    served: Stack, desk: Desk
) -> None:
    session = uuid4().hex
    made = [desk.one(session=session) for _ in range(3)]
    finished = desk.one("once", session=session)
    desk.complete(desk.claimed("once"))
    other = desk.one(session="another")
    wish = {"session": session, "reason": "the chat was closed"}
    reply = desk.post("/cancel", wish).json()
    assert (sorted(reply["cancelled"]), reply["left"]) == (sorted(made), 0)
    assert desk.post("/cancel", wish).json() == {"cancelled": [], "left": 0}
    assert desk.show(finished)["state"] == "succeeded"
    assert desk.show(other)["state"] == "queued"


def test_what_happens_is_logged_without_what_jobs_carry(served: Stack, desk: Desk) -> None:
    job = desk.one(payload={"secret": "hush-1"}, model="m-1")
    lease = desk.claimed()
    desk.beat(lease)
    desk.complete(lease, {"secret": "hush-2"})
    about = {"job": job, "fence": lease["fence"], "tool": "t", "attempt": 1, "worker": "w1"}
    served.gateway.wait_for_log(event="job_enqueued", job=job)
    claimed = served.gateway.wait_for_log(event="job_claimed", **about)
    assert 0 < claimed["lease_ms_left"] <= 60_000
    assert served.gateway.wait_for_log(event="heartbeat_ok", **about)["level"] == "debug"
    served.gateway.wait_for_log(event="job_finished", state="succeeded", **about)
    assert "hush" not in json.dumps(served.gateway.log)


def test_claims_and_leases_are_counted_by_closed_labels(served: Stack, desk: Desk) -> None:
    labels = 'model="m-1",provider="p-1",tool="soon"'
    counters = ("jobs_claimed_total", "jobs_reclaimed_total")
    before = [metric(served, name, labels) for name in counters]
    desk.one("soon", model="m-1", provider="p-1")
    desk.fail(desk.claimed("soon"))
    lease = desk.claimed("soon")
    assert lease["attempt"] == 2
    after = [metric(served, name, labels) for name in counters]
    assert [b - a for a, b in zip(before, after, strict=True)] == [2, 1]
    text = served.caller().call("GET", "/metrics").body.decode()
    assert 'fencegate_jobs_claimed_total{model="none",provider="none",tool="once"}' in text
    assert "account:" not in text


def test_gauges_tell_of_leases(served: Stack, desk: Desk) -> None:
    """Read at most every 5 s, so a fresh process is asked."""
    desk.one(model="m-1")
    desk.claimed()
    label = '{model="m-1",provider="none",tool="t"}'
    with gateway(served.database, policy(served.upstream.url, HERE), tools=TOOLS) as fresh:
        text = Caller(fresh.url).call("GET", "/metrics").body.decode()
    values = dict(line.rsplit(" ", 1) for line in text.splitlines() if label in line)
    assert values[f"fencegate_leases_live{label}"] == "1.0"
    assert 0 <= float(values[f"fencegate_heartbeat_age_seconds{label}"]) < 60
    assert 0 < float(values[f"fencegate_lease_remaining_seconds{label}"]) <= 60
    assert 'fencegate_leases_live{model="none",provider="none",tool="once"} 0.0' in text


# --- start ----------------------------------------------------------------------------------------


def test_a_mistake_in_the_tools_stops_the_start_beside_those_of_the_policies(
    database: str,
) -> None:
    files = {"pay.toml": 'name = "pay"\n', "tools.toml": '[[tools]]\nname = "t"\nlease_s = 40\n'}
    process = GatewayProcess(database, files)
    try:
        ended = process.refuses_to_start()
    finally:
        process.close()
    assert ended.code != 0
    assert "tools.toml: tools[0].lease_s: 40 does not outlast 3 missed heartbeats" in ended.err
    assert "pay.toml: mount: is missing" in ended.err


def test_check_shows_the_tools_and_reports_their_mistakes(tmp_path: Path) -> None:
    (tmp_path / "pay.toml").write_text(policy("http://127.0.0.1:9", CAPTURE), encoding="utf-8")
    tools = tmp_path / "tools.toml"
    tools.write_text(TOOLS, encoding="utf-8")
    shown = fencegate("check", "--policies", str(tmp_path))
    assert shown.code == 0
    found = [line.split() for line in shown.out.splitlines()]
    assert ["once", "60", "s", "15", "+", "2", "s"] in [line[:7] for line in found]
    assert "3 tools" in shown.out
    assert "models in metrics: m-1" in shown.out
    tools.write_text("[[tools]]\nname = 't'\nattempts = 0\n", encoding="utf-8")
    refused = fencegate("check", "--policies", str(tmp_path))
    assert refused.code == 1
    assert "fencegate: tools.toml: tools[0].attempts: " in refused.err
