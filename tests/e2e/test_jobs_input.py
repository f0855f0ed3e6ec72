"""What ``/v1/jobs…`` refuses, and what it says then; who may see and touch which jobs."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from gateway.api import jobs as api
from gateway.api.door import Route
from gateway.api.openapi_jobs import REFUSALS
from gateway.core.jobs import PAYLOAD_LIMIT
from gateway.core.problems import TYPES, ProblemType
from tests.kit.client import Caller, Reply, assert_problem
from tests.kit.db import Server
from tests.kit.desk import JSON, Desk
from tests.kit.gateway import CAPTURE, Stack, gateway, policy, rows, stack
from tests.kit.operating import fencegate

TOOLS = '[[tools]]\nname = "t"\n[[tools]]\nname = "charge"\n'
ROUTES = {route.name: route for route in api.ROUTES}
JOB = "00000000-0000-4000-8000-000000000007"
LEASE: dict[str, Any] = {
    "job": JOB,
    "entity": f"job:{JOB}",
    "fence": 7,
    "tool": "t",
    "attempt": 1,
    "model": None,
    "provider": None,
}
END: dict[str, Any] = {"lease": LEASE, "how": "completed"}
CLAIM: dict[str, Any] = {"worker": "w", "claim": JOB, "limit": 1, "tools": ["t"]}

GOOD: dict[str, Any] = {
    "enqueue": {"jobs": [{"tool": "t", "id": JOB}]},
    "show": None,
    "claim": CLAIM,
    "heartbeat": {"worker": "w", "leases": [LEASE]},
    "end": {"worker": "w", "ends": [END]},
    "cancel": {"reason": "r"},
    "retry": {"reason": "r"},
    "approve": {"reason": "r"},
    "cancel-session": {"session": "s", "reason": "r"},
}


@pytest.fixture(scope="module")
def served(postgres: Server) -> Iterator[Stack]:
    with stack(postgres, lambda url: [policy(url, CAPTURE)], tools=TOOLS) as running:
        yield running


def ask(caller: Caller, route: Route, document: Any, method: str | None = None) -> Reply:
    body = b"" if document is None else json.dumps(document).encode()
    target = route.path.replace("{id}", JOB)
    return caller.call(method or route.method, target, [JSON], body)


def test_every_route_has_a_good_question_here() -> None:
    assert set(GOOD) == set(ROUTES)


@pytest.mark.parametrize("name", ROUTES)
@pytest.mark.parametrize("method", ["GET", "HEAD", "OPTIONS", "PUT", "PATCH", "DELETE", "POST"])
def test_another_method_is_told_which_one_to_send(served: Stack, name: str, method: str) -> None:
    route = ROUTES[name]
    if method == route.method:
        return
    reply = ask(served.caller(), route, None, method)
    assert (reply.status, reply.one("Allow")) == (405, route.method)
    if method != "HEAD":
        assert_problem(reply, "method-not-allowed")


@pytest.mark.parametrize("name", [name for name in ROUTES if GOOD[name] is not None])
@pytest.mark.parametrize(
    ("body", "fields", "problem"),
    [
        (b"{}", [JSON], "request-invalid"),
        (b"[]", [JSON], "request-invalid"),
        (b'{"zzz":1}', [JSON], "request-invalid"),
        (b"{", [JSON], "body-unreadable"),
        (b"", [JSON], "body-unreadable"),
        (b'{"worker":"a","worker":"a"}', [JSON], "body-unreadable"),
        (b'{"worker":NaN}', [JSON], "body-unreadable"),
        (b"[" * 200 + b"]" * 200, [JSON], "body-unreadable"),
        (b"{}", [("Content-Type", "text/plain")], "body-unreadable"),
        (b"{}", [], "body-unreadable"),
    ],
)
def test_a_body_that_is_no_question_is_refused_by_every_route(
    served: Stack, name: str, body: bytes, fields: list[tuple[str, str]], problem: ProblemType
) -> None:
    target = ROUTES[name].path.replace("{id}", JOB)
    reply = served.caller().call("POST", target, fields, body)
    assert_problem(reply, problem)
    assert reply.one("Cache-Control") == "no-store"


def job(**more: Any) -> dict[str, Any]:
    return {"jobs": [{"tool": "t", **more}]}


def end(**more: Any) -> dict[str, Any]:
    return {"worker": "w", "ends": [{**END, **more}]}


def beat(**more: Any) -> dict[str, Any]:
    return {"worker": "w", "leases": [{**LEASE, **more}]}


BAD: list[tuple[str, Any, str]] = [
    ("enqueue", {"jobs": []}, "jobs: 0 elements are not within 1 to 100"),
    ("enqueue", {"jobs": [{"tool": "t"}] * 101}, "jobs: 101 elements"),
    ("enqueue", {"jobs": [{}]}, "jobs[0].tool: is missing"),
    ("enqueue", job(tool="x" * 65), "jobs[0].tool: 65 characters are not within 1 to 64"),
    ("enqueue", job(key=""), "jobs[0].key: 0 characters are not within 1 to 255"),
    ("enqueue", job(key="\0"), "jobs[0].key: take out U+0000"),
    ("enqueue", job(entity="é"), "jobs[0].entity: it holds a control or non-ASCII character"),
    ("enqueue", job(entity=" a"), "jobs[0].entity: it begins or ends with a blank"),
    ("enqueue", job(entity="a" * 256), "jobs[0].entity: 256 characters"),
    ("enqueue", job(session=1), "jobs[0].session: send a string"),
    ("enqueue", job(model="m" * 129), "jobs[0].model: 129 characters are not within 0 to 128"),
    ("enqueue", job(stage=""), "jobs[0].stage: 0 characters"),
    ("enqueue", job(priority=0), "jobs[0].priority: 0 is not within 1 to 9"),
    ("enqueue", job(priority=True), "jobs[0].priority: send a plain integer"),
    ("enqueue", job(run_at="tomorrow"), "jobs[0].run_at: send a time with its zone"),
    ("enqueue", job(run_at="1969-12-31T00:00:00Z"), "jobs[0].run_at: give a time"),
    ("enqueue", job(give_up_at="9999-01-01T00:00:00Z"), "jobs[0].give_up_at: give a time"),
    ("enqueue", job(run_at="0001-01-01T00:00:00+23:59"), "jobs[0].run_at: give a time"),
    ("enqueue", job(give_up_at="9999-12-31T23:59:59-23:59"), "jobs[0].give_up_at: give a time"),
    ("enqueue", job(id="7"), "jobs[0].id: send a uuid"),
    ("enqueue", job(attempts=3), "jobs[0].attempts: is not a member; remove it"),
    ("enqueue", job(payload="x" * PAYLOAD_LIMIT), f"are more than {PAYLOAD_LIMIT}; send a ref"),
    ("enqueue", {"jobs": [{"tool": "t", "id": JOB}] * 2}, "jobs[1].id: another of this batch"),
    ("enqueue", {"jobs": [{"tool": "t", "key": "k"}] * 2}, "jobs[1].key: another of this batch"),
    ("claim", {**CLAIM, "limit": 0}, "limit: 0 is not within 1 to 100"),
    ("claim", {**CLAIM, "limit": 101}, "limit: 101 is not within 1 to 100"),
    ("claim", {**CLAIM, "limit": 1.5}, "limit: send a plain integer"),
    ("claim", {**CLAIM, "tools": []}, "tools: 0 elements"),
    ("claim", {**CLAIM, "tools": [1]}, "tools[0]: send a string"),
    ("claim", {**CLAIM, "worker": "w" * 256}, "worker: 256 characters"),
    ("claim", {**CLAIM, "claim": None}, "claim: is missing"),
    ("heartbeat", {"worker": "w", "leases": [LEASE] * 1_001}, "leases: 1001 elements"),
    ("heartbeat", {"worker": "w", "leases": [LEASE] * 2}, "leases[1].entity: another of this"),
    ("heartbeat", beat(fence=2**63), f"leases[0].fence: {2**63} is not within 1 to {2**63 - 1}"),
    ("heartbeat", beat(fence=0), "leases[0].fence: 0 is not within"),
    ("heartbeat", beat(fence="7"), "leases[0].fence: send a plain integer"),
    ("heartbeat", beat(fence=10**400), "leases[0].fence: send a plain integer"),
    ("heartbeat", beat(attempt=2**31), "leases[0].attempt: 2147483648 is not within"),
    ("heartbeat", beat(remaining_ms=1), "leases[0].remaining_ms: is not a member"),
    ("heartbeat", beat(entity="\ud800"), "leases[0].entity: take out U+0000 and lone surrogates"),
    ("end", {"worker": "w", "ends": [END] * 101}, "ends: 101 elements"),
    ("end", {"worker": "w", "ends": [END, END]}, "ends[1].lease.job: another of this batch"),
    ("end", end(lease=None), "ends[0].lease: is missing"),
    ("end", end(lease={**LEASE, "job": "x"}), "ends[0].lease.job: send a uuid"),
    ("end", end(how="done"), 'ends[0].how: send "completed", "failed" or "handed-back"'),
    ("end", end(how=7), 'ends[0].how: send "completed", "failed" or "handed-back"'),
    ("end", end(how="f" * 65), 'ends[0].how: send "completed", "failed" or "handed-back"'),
    ("end", end(error="e"), "ends[0].error: is not a member"),
    ("end", end(how="failed"), "ends[0].error: is missing"),
    ("end", end(how="failed", error="e", result=1), "ends[0].result: is not a member"),
    ("end", end(how="failed", error="e", delay_s=-1), "ends[0].delay_s: it is not within 0 to"),
    ("end", end(how="failed", error="e", delay_s=604_801), "ends[0].delay_s: it is not within"),
    ("end", end(how="failed", error="e", retry=0), "ends[0].retry: send true or false"),
    ("end", end(how="handed-back", error="e"), "ends[0].error: is not a member"),
    ("end", end(result="x" * PAYLOAD_LIMIT), "ends[0].result: 262146 bytes are more than 262144"),
    ("end", end(next={}), "ends[0].next.name: is missing"),
    ("end", end(next={"name": ""}), "ends[0].next.name: 0 characters are not within 1 to 64"),
    ("end", end(next={"name": "n", "entity": "é"}), "ends[0].next.entity: it holds"),
    ("end", end(next={"name": "n", "wait": "yes"}), "ends[0].next.wait: send true or false"),
    ("cancel", {"reason": ""}, "reason: 0 characters"),
    ("retry", {"reason": "r" * 4_001}, "reason: 4001 characters are not within 1 to 4000"),
    ("approve", {"reason": "\0"}, "reason: take out U+0000"),
    ("cancel-session", {"session": "s"}, "reason: is missing"),
]


@pytest.mark.parametrize(("name", "document", "says"), BAD, ids=lambda v: str(v)[:60])
def test_a_bad_member_is_named_by_its_path(
    served: Stack, name: str, document: Any, says: str
) -> None:
    found = assert_problem(ask(served.caller(), ROUTES[name], document), "request-invalid")
    assert found["detail"].startswith("Correct the body: ")
    assert found["detail"].count(says) == 1
    places = re.findall(r"(?:body|;) ?:? ?([a-z_.0-9\[\]]+): ", found["detail"])
    assert len(places) == len(set(places)), found["detail"]
    assert rows(served.database, "select 1 from gateway.jobs") == []


def test_all_mistakes_of_a_batch_come_at_once_and_nothing_of_it_is_kept(served: Stack) -> None:
    jobs = [{"tool": "t"}, {"tool": 1}, {"tool": "t", "priority": 10, "x": 1}, 7]
    reply = ask(served.caller(), ROUTES["enqueue"], {"jobs": jobs, "y": 1})
    assert assert_problem(reply, "request-invalid")["detail"] == (
        "Correct the body: jobs[1].tool: send a string; jobs[2].priority: 10 is not within 1 to 9;"
        " jobs[2].x: is not a member; remove it; jobs[3]: send an object;"
        " y: is not a member; remove it."
    )
    assert rows(served.database, "select 1 from gateway.jobs") == []


def test_the_largest_legal_documents_and_numbers_are_taken(served: Stack) -> None:
    desk = Desk(served.caller())
    largest = "x" * (PAYLOAD_LIMIT - 2)
    made = desk.one(payload=largest, key="k" * 255, entity="e" * 255)
    lease = desk.claimed()
    assert desk.complete(lease, largest)["state"] == "succeeded"
    assert desk.show(made)["result"] == largest
    assert desk.beat({**LEASE, "fence": 2**63 - 1, "attempt": 2**31 - 1}) == [
        {"job": JOB, "lost": "expired"}
    ]
    assert desk.end({**END, "how": "failed", "error": "e", "delay_s": 604_800}) == [
        {"job": JOB, "rejected": "expired"}
    ]


@pytest.mark.parametrize("where", ["enqueue", "claim"])
def test_a_tool_that_is_not_listed_is_refused_with_its_mend(served: Stack, where: str) -> None:
    documents: dict[str, Callable[[str], Any]] = {
        "enqueue": lambda tool: {"jobs": [{"tool": "t"}, {"tool": tool}]},
        "claim": lambda tool: {**CLAIM, "tools": ["t", tool]},
    }
    for tool, says in (
        ("chrage", "There is no tool 'chrage'; did you mean 'charge'? Correct it."),
        ("ship", "There is no tool 'ship'; add it to tools.toml."),
    ):
        reply = ask(served.caller(), ROUTES[where], documents[where](tool))
        assert assert_problem(reply, "tool-unknown")["detail"] == says
    assert rows(served.database, "select 1 from gateway.jobs") == []


@pytest.mark.parametrize("name", ["show", "cancel", "retry", "approve"])
@pytest.mark.parametrize("ident", [JOB, "claim2", "x", JOB[:-1], "heartbeat."])
def test_a_job_that_is_not_there_is_unknown(served: Stack, name: str, ident: str) -> None:
    route = ROUTES[name]
    target = route.path.replace("{id}", ident)
    body = b"" if GOOD[name] is None else b'{"reason":"r"}'
    assert_problem(served.caller().call(route.method, target, [JSON], body), "job-unknown")


@pytest.mark.parametrize(
    ("target", "problem"),
    [
        ("/v1/job%73", "no-policy"),
        ("/v1/jobs/%63laim", "no-policy"),
        ("/v1/jobs/clai%6D", "no-policy"),
        ("/v1/jobs/claim/", "no-policy"),
        ("/v1/jobs/claim/x", "no-policy"),
        ("/v1/jobs/", "no-policy"),
        (f"/v1/jobs/%30{JOB[1:]}/cancel", "no-policy"),
        (f"/v1/jobs/{JOB}/cance%6c", "no-policy"),
        (f"/v1/jobs/{JOB}/cancel/", "no-policy"),
        (f"/v1/jobs/{JOB}%2Fcancel", "request-invalid"),
        ("/v1%2Fjobs", "request-invalid"),
        ("//v1/jobs", "request-invalid"),
        ("/V1/jobs", "no-policy"),
        ("/v1/Jobs", "no-policy"),
    ],
)
def test_neighbours_and_encoded_twins_are_not_there(
    served: Stack, target: str, problem: ProblemType
) -> None:
    assert_problem(served.caller().call("POST", target, [JSON], b'{"reason":"r"}'), problem)


def test_a_query_changes_nothing(served: Stack) -> None:
    reply = served.caller().call("POST", "/v1/jobs?x=1", [JSON], b"{}")
    assert_problem(reply, "request-invalid")


# --- sizes ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ROUTES)
def test_a_body_at_its_limit_is_read_and_one_over_it_is_not(served: Stack, name: str) -> None:
    route, caller = ROUTES[name], served.caller()
    body = json.dumps(GOOD[name]).encode() if GOOD[name] is not None else b""
    target = route.path.replace("{id}", JOB)
    at = caller.call(route.method, target, [JSON], body.ljust(route.limit))
    assert at.status != 413, at.body
    over = caller.call(route.method, target, [JSON], body.ljust(route.limit + 1))
    assert_problem(over, "body-too-large", limit=route.limit)
    if route.method == "POST":
        chunked = caller.open("POST", target, [JSON, ("Transfer-Encoding", "chunked")], None)
        chunked.send(b"%x\r\n%b\r\n0\r\n\r\n" % (route.limit + 1, b" " * (route.limit + 1)))
        assert_problem(chunked.reply(), "body-too-large", limit=route.limit)
    if name == "enqueue":
        assert Desk(caller).operate(JOB, "cancel").status == 200


def test_a_full_batch_of_leases_with_the_longest_names_fits_into_a_heartbeat() -> None:
    longest = {
        **LEASE,
        "entity": "e" * 255,
        "fence": 2**63 - 1,
        "tool": "t" * 64,
        "attempt": 2**31 - 1,
        "model": "m" * 128,
        "provider": "p" * 128,
    }
    body = json.dumps({"worker": "w" * 255, "leases": [longest] * 1_000})
    assert len(body) < ROUTES["heartbeat"].limit


# --- who ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def shared(postgres: Server) -> Iterator[tuple[str, Caller, Caller, Caller]]:
    """Two tenants' callers and nobody, on one gateway."""
    with postgres.database() as dsn:
        scopes = [f"--scope={scope}" for scope in ("enqueue", "work", "operate")]
        made = [
            fencegate("keys", "add", "--tenant", t, "--name", t, *scopes, dsn=dsn)
            for t in ("a", "b")
        ]
        a, b = [each.out.strip() for each in made]
        with gateway(dsn, policy("http://127.0.0.1:9", CAPTURE), tools=TOOLS) as process:
            callers = (Caller(process.url, token=a), Caller(process.url, token=b))
            yield dsn, *callers, Caller(process.url)


@pytest.mark.parametrize("name", ROUTES)
def test_every_route_asks_for_a_key_before_anything_else(
    shared: tuple[str, Caller, Caller, Caller], name: str
) -> None:
    nobody = shared[3]
    for method in (ROUTES[name].method, "PUT"):
        assert_problem(ask(nobody, ROUTES[name], {"zzz": 1}, method), "unauthenticated")


def test_tenants_share_no_job_on_any_route(shared: tuple[str, Caller, Caller, Caller]) -> None:
    dsn, one, two, _ = shared
    mine, theirs = Desk(one), Desk(two)
    job = mine.one(key="k", entity="account:1", session="s", payload={"a": 1})
    assert theirs.claim() == []
    lease = mine.claimed()
    assert theirs.beat(lease) == [{"job": job, "lost": "expired"}]
    assert theirs.complete(lease, 1) == {"job": job, "rejected": "expired"}
    assert theirs.fail(lease) == {"job": job, "rejected": "expired"}
    handed_back = theirs.end({"lease": lease, "how": "handed-back"})
    assert handed_back == [{"job": job, "rejected": "expired"}]
    assert_problem(two.call("GET", f"/v1/jobs/{job}"), "job-unknown")
    for what in ("cancel", "retry", "approve"):
        assert_problem(theirs.operate(job, what), "job-unknown")
    gone = theirs.post("/cancel", {"session": "s", "reason": "r"}).json()
    assert gone == {"cancelled": [], "left": 0}
    # The same key, id and entity are another job there, with a counter of its own.
    (other,) = theirs.enqueue({"tool": "t", "key": "k", "id": job, "entity": "account:1"})
    assert other == {"job": job, "created": True, "same": True, "state": "queued"}
    again = theirs.claimed()
    assert again["fence"] == lease["fence"]
    assert theirs.complete(again, "theirs")["state"] == "succeeded"
    assert mine.beat(lease)[0]["remaining_ms"] > 0
    assert mine.show(job)["state"] == "running"
    assert mine.complete(lease, "mine")["state"] == "succeeded"
    assert (mine.show(job)["result"], theirs.show(job)["result"]) == ("mine", "theirs")
    # What was made up about a job that the tenant did not have has left no row; now it has one.
    audited = "select principal from gateway.audit where job = $1"
    assert rows(dsn, audited, job) == []
    assert theirs.fail(again) == {"job": job, "rejected": "ended"}
    assert rows(dsn, audited, job) == [{"principal": "b"}]


# --- without its database -------------------------------------------------------------------------


def test_without_its_database_every_route_says_so_and_what_to_do(postgres: Server) -> None:
    dsn = postgres.create()
    with gateway(dsn, policy("http://127.0.0.1:9", CAPTURE), tools=TOOLS) as process:
        caller = Caller(process.url)
        Desk(caller).one()
        postgres.drop(dsn)
        for name, route in ROUTES.items():
            reply = ask(caller, route, GOOD[name])
            assert_problem(reply, "store-unavailable", waits=True, retry="wait")
        process.wait_for_log(event="reaper_failed")
        assert caller.call("GET", "/metrics").status == 200
        assert caller.call("GET", "/healthz").status == 200


# --- /openapi.json --------------------------------------------------------------------------------


def described(served: Stack) -> dict[str, Any]:
    return dict(served.caller().call("GET", "/openapi.json").json())


def operation(document: dict[str, Any], route: Route) -> dict[str, Any]:
    return dict(document["paths"][route.path][route.method.lower()])


def valid(document: dict[str, Any], schema: dict[str, Any], value: Any) -> bool:
    whole = {**schema, "components": document["components"]}
    return Draft202012Validator(whole).is_valid(value)


def test_every_route_is_described_and_no_other(served: Stack) -> None:
    document = described(served)
    found = {
        (path, method)
        for path, methods in document["paths"].items()
        for method in methods
        if path.startswith("/v1/jobs") and method != "parameters"
    }
    assert found == {(route.path, route.method.lower()) for route in api.ROUTES}


@pytest.mark.parametrize(("name", "document", "says"), BAD, ids=lambda v: str(v)[:60])
def test_the_description_refuses_what_the_route_refuses(
    served: Stack, name: str, document: Any, says: str
) -> None:
    """But for what a schema cannot say: years, bytes, surrogates, and who else is in the batch."""
    body = operation(described(served), ROUTES[name])["requestBody"]
    schema = body["content"]["application/json"]["schema"]
    unsaid = ("another of this batch", "give a time", "bytes are", "are more than", "take out")
    beyond = any(each in says for each in unsaid) or "leases[1].entity" in says
    assert valid(described(served), schema, document) is beyond, says


def test_good_questions_and_their_answers_are_as_described(served: Stack) -> None:
    document, desk = described(served), Desk(served.caller())
    made = desk.one(payload={"a": 1}, session="s", give_up_at="2031-01-01T00:00:00Z")
    questions = {**GOOD, "enqueue": {"jobs": [{"tool": "t", "id": made}]}}
    answers = {name: ask(desk.caller, ROUTES[name], questions[name]) for name in questions}
    lease = answers["claim"].json()["leases"][0]["lease"]
    more = [
        ("heartbeat", {"worker": "w", "leases": [lease]}),
        ("end", {"worker": "w", "ends": [{"lease": lease, "how": "failed", "error": "e"}]}),
    ]
    pairs = [(name, questions[name], answers[name]) for name in questions]
    pairs += [(name, asked, ask(desk.caller, ROUTES[name], asked)) for name, asked in more]
    pairs += [
        ("show", None, desk.caller.call("GET", f"/v1/jobs/{made}")),
        ("cancel", {"reason": "r"}, desk.operate(made, "cancel")),
        ("enqueue", {"jobs": [{"tool": "nope"}]}, desk.post("", {"jobs": [{"tool": "nope"}]})),
        ("approve", {"reason": "r"}, desk.operate(made, "approve")),
    ]
    for name, asked, reply in pairs:
        about = operation(document, ROUTES[name])
        if asked is not None:
            schema = about["requestBody"]["content"]["application/json"]["schema"]
            assert valid(document, schema, asked), (name, asked)
        (kind,) = reply.all("Content-Type")
        schema = about["responses"][str(reply.status)]["content"][kind]["schema"]
        assert valid(document, schema, reply.json()), (name, reply.body)


def test_every_refusal_of_a_route_is_described(served: Stack) -> None:
    document = described(served)
    for route in api.ROUTES:
        responses = operation(document, route)["responses"]
        refused = {status: about["description"] for status, about in responses.items()}
        for kind in REFUSALS[route.name]:
            assert f"`{kind}`" in refused[str(TYPES[kind].status)], route.name
