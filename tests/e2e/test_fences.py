"""Fences over HTTP: issued to whoever asks, from the counter that commands are compared with."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from typing import TypeVar

import asyncpg
import pytest
from jsonschema import Draft202012Validator
from openapi_spec_validator import OpenAPIV31SpecValidator

from gateway.api.fences import BODY_LIMIT
from gateway.api.openapi import ANSWERED
from gateway.core.problems import TYPES, ProblemType
from gateway.policy.fields import FIXED_PATHS
from tests.integration.test_issue import JOB, LEASE
from tests.kit.client import Caller, Exchange, Fields, Reply, assert_problem
from tests.kit.db import Server, execute, with_connection
from tests.kit.faults import until
from tests.kit.gateway import CAPTURE, Stack, gateway, policy, rows, stack
from tests.kit.model import FIRST_ISSUED as FIRST
from tests.kit.operating import fencegate

JSON = ("Content-Type", "application/json")
HERE = CAPTURE + 'issuer = "here"\n'
WAITING_FOR_A_LOCK = """
select 1 from pg_stat_activity
 where datname = current_database() and application_name = 'fencegate' and wait_event_type = 'Lock'
"""

Answer = TypeVar("Answer")


@pytest.fixture(scope="module")
def served(postgres: Server) -> Iterator[Stack]:
    with stack(postgres, lambda url: [policy(url, HERE)]) as running:
        yield running


def open_issue(caller: Caller, entity: str, fields: Fields = ()) -> Exchange:
    body = json.dumps({"entity": entity}).encode()
    return caller.open("POST", "/v1/fences", [JSON, *fields], body)


def issue(caller: Caller, entity: str, fields: Fields = ()) -> Reply:
    return open_issue(caller, entity, fields).reply()


def while_locked(served: Stack, entity: str, ask: Callable[[], Answer]) -> Answer:
    """What comes of it while somebody's transaction has the entity locked."""

    async def work(conn: asyncpg.Connection) -> Answer:
        async with conn.transaction():
            await conn.execute(
                "select 1 from gateway.entities where entity = $1 for update", entity
            )
            return await asyncio.to_thread(ask)

    return with_connection(served.database, work)


def issued(reply: Reply) -> int:
    assert reply.status == 201, reply.body
    return int(reply.json()["fence"])


def test_a_fence_that_was_issued_is_the_only_one_that_is_admitted(served: Stack) -> None:
    scene = served.scene()
    reply = issue(scene.caller, scene.entity)
    assert reply.json() == {"entity": scene.entity, "fence": FIRST}
    assert reply.one("Content-Type") == "application/json"
    assert reply.one("Cache-Control") == "no-store"
    assert reply.one("Date")
    assert scene.send("first", fence=FIRST).status == 201
    now = FIRST + 1
    assert issued(issue(scene.caller, scene.entity)) == now
    late = scene.send("second", fence=FIRST)
    assert_problem(late, "fence-stale", fence=FIRST, high_water_mark=now)
    ahead = scene.send("third", fence=now + 1)
    assert_problem(ahead, "fence-not-held", fence=now + 1, high_water_mark=now, held=now)
    assert scene.send("fourth", fence=now).status == 201
    assert len(scene.upstream.effects) == 2


def test_http_and_sql_count_on_one_counter(served: Stack) -> None:
    scene = served.scene()
    assert issued(issue(scene.caller, scene.entity)) == FIRST
    assert scene.issue() == FIRST + 1
    assert issued(issue(scene.caller, scene.entity)) == FIRST + 2
    assert scene.mark() == FIRST + 2


def test_a_repeated_question_issues_a_higher_one_and_the_unheard_one_does_no_harm(
    served: Stack,
) -> None:
    scene = served.scene()
    lost = open_issue(scene.caller, scene.entity, [("X-Request-Id", "lost")])
    served.gateway.wait_for_log(event="fence_issued", request_id="lost")
    lost.hang_up(reset=True)
    assert issued(issue(scene.caller, scene.entity)) == FIRST + 1
    assert scene.send(fence=FIRST + 1).status == 201


def test_many_at_once_get_rising_fences_without_gaps_in_the_order_of_commit(
    served: Stack,
) -> None:
    scene = served.scene()
    # The trigger runs under the entity's row lock, which lasts until the commit.
    execute(
        served.database,
        """
        create table issued_in_order (at bigserial, entity text, fence bigint);
        create function note_issue() returns trigger language plpgsql as $$ begin
            insert into issued_in_order (entity, fence) values (new.entity, new.fence);
            return null;
        end $$;
        create trigger note_issue after update on gateway.entities
            for each row execute function note_issue();
        """,
    )
    asked = [open_issue(scene.caller, scene.entity) for _ in range(50)]
    in_order = list(range(FIRST, FIRST + 50))
    assert sorted(issued(each.reply()) for each in asked) == in_order
    noted = rows(
        served.database,
        "select fence from issued_in_order where entity = $1 order by at",
        scene.entity,
    )
    assert [each["fence"] for each in noted] == in_order


def test_whoever_asks_after_an_answer_gets_a_higher_one_from_any_gateway(served: Stack) -> None:
    scene = served.scene()
    with gateway(served.database, policy(served.upstream.url, HERE)) as other:
        callers = [scene.caller, Caller(other.url)] * 3
        found = [issued(issue(each, scene.entity)) for each in callers]
    assert found == list(range(FIRST, FIRST + 6))


def test_an_entity_that_a_job_holds_is_not_issued(served: Stack) -> None:
    scene = served.scene()
    with_connection(served.database, lambda conn: conn.execute(LEASE, scene.entity, JOB))
    document = assert_problem(
        issue(scene.caller, scene.entity), "entity-leased", waits=True, job=str(JOB)
    )
    assert 0 < document["remaining_ms"] <= 5000
    assert scene.mark() == 0


def test_what_an_outside_issuer_counted_is_passed_by_a_million(served: Stack) -> None:
    scene = served.scene()
    insert = (
        "insert into gateway.entities (tenant, entity, fence, touched_at) values (1, $1, 7, now())"
    )
    with_connection(served.database, lambda conn: conn.execute(insert, scene.entity))
    assert issued(issue(scene.caller, scene.entity)) == 8 + 2**20


def test_an_outside_fence_that_was_not_seen_yet_is_not_taken_for_ours(served: Stack) -> None:
    """The entity was moved to fences issued here; somebody still has the outside issuer's 1."""
    scene = served.scene()
    ours = issued(issue(scene.caller, scene.entity))
    assert_problem(scene.send("late", fence=1), "fence-stale", fence=1, high_water_mark=ours)
    assert scene.send("rightful", fence=ours).status == 201
    assert len(scene.upstream.effects) == 1


@pytest.mark.parametrize(
    ("body", "fields", "problem"),
    [
        (b"{}", [JSON], "entity-missing"),
        (b'{"entity":"\\u00e9"}', [JSON], "request-invalid"),
        (b'{"entity":"a","entity":"b"}', [JSON], "body-unreadable"),
        (b'{"entity":"a"}', [], "body-unreadable"),
        (b'{"entity":"a"}', [("Content-Type", "text/plain")], "body-unreadable"),
        (b"", [JSON], "body-unreadable"),
    ],
)
def test_a_bad_question_raises_nothing_and_says_what_to_send(
    served: Stack, body: bytes, fields: list[tuple[str, str]], problem: str
) -> None:
    scene = served.scene()
    reply = scene.caller.call("POST", "/v1/fences", fields, body)
    assert_problem(reply, problem)  # type: ignore[arg-type]
    assert reply.one("Cache-Control") == "no-store"
    assert rows(served.database, "select 1 from gateway.entities where entity in ('a', 'b')") == []


def test_a_body_over_the_limit_is_not_read(served: Stack) -> None:
    caller = served.caller()
    padding = b" " * BODY_LIMIT
    announced = caller.call("POST", "/v1/fences", [JSON], b'{"entity":"a"}' + padding)
    assert_problem(announced, "body-too-large", limit=BODY_LIMIT)
    chunk = b"%x\r\n%b\r\n0\r\n\r\n" % (len(padding) + 1, b" " + padding)
    chunked = caller.open("POST", "/v1/fences", [JSON, ("Transfer-Encoding", "chunked")], None)
    chunked.send(chunk)
    assert_problem(chunked.reply(), "body-too-large", limit=BODY_LIMIT)


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "OPTIONS"])
def test_another_method_is_told_which_one_to_send(served: Stack, method: str) -> None:
    reply = served.caller().call(method, "/v1/fences")
    assert_problem(reply, "method-not-allowed")
    assert reply.one("Allow") == "POST"


@pytest.mark.parametrize(
    ("target", "problem"),
    [
        ("/v1/fences/", "no-policy"),
        ("/v1/", "no-policy"),
        ("/v1/fence", "no-policy"),
        ("/v1/%66ences", "no-policy"),
        ("/%761/fences", "no-policy"),
        ("/v1%2Ffences", "request-invalid"),
        ("/v1%2ffences", "request-invalid"),
    ],
)
def test_its_neighbours_and_encoded_twins_are_not_there(
    served: Stack, target: str, problem: ProblemType
) -> None:
    """A proxy in front that keeps callers off a path may know it by its plain name alone."""
    assert_problem(served.caller().call("POST", target, [JSON], b'{"entity":"a"}'), problem)


@pytest.mark.parametrize("path", sorted(FIXED_PATHS))
def test_every_path_of_its_own_is_answered_and_no_encoded_twin_of_it(
    served: Stack, path: str
) -> None:
    caller = served.caller()
    method = "POST" if path.startswith("/v1/") else "GET"
    assert caller.call(method, path).status in (200, 400)
    twin = f"{path[:-1]}%{ord(path[-1]):02x}"
    assert_problem(caller.call(method, twin), "no-policy")


def test_an_entity_that_somebody_has_locked_is_not_waited_for_without_end(served: Stack) -> None:
    scene = served.scene()
    held = scene.issue()

    def ask() -> Reply:
        return issue(scene.caller, scene.entity)

    reply = while_locked(served, scene.entity, ask)
    assert_problem(reply, "store-unavailable", waits=True, retry="wait")
    assert issued(issue(scene.caller, scene.entity)) == held + 1


def test_who_asks_for_a_locked_entity_keeps_no_turn_from_others(served: Stack) -> None:
    """More of them than may ask the database together, which is 5 with the usual pool."""
    locked, free = served.scene(), served.scene()
    locked.issue()

    def ask() -> list[Reply]:
        asked = [open_issue(locked.caller, locked.entity) for _ in range(40)]
        until(lambda: rows(served.database, WAITING_FOR_A_LOCK), "one waits for the lock")
        assert issued(issue(free.caller, free.entity)) == FIRST
        return [each.reply() for each in asked]

    replies = while_locked(served, locked.entity, ask)
    waited = [each for each in replies if each.problem == "store-unavailable"]
    # One after the other, for the statement's 2 s each, begun within the 5 s of waiting for a turn.
    assert 1 <= len(waited) <= 3
    for reply in replies:
        problem: ProblemType = "store-unavailable" if reply in waited else "overloaded"
        assert_problem(reply, problem, waits=True, retry="wait")
    assert issued(issue(locked.caller, locked.entity)) == FIRST + 1


def test_every_issue_is_one_log_line_and_counts(served: Stack) -> None:
    scene = served.scene()
    before = served.gauge("fences_issued_total")
    fence = issued(issue(scene.caller, scene.entity, [("X-Request-Id", "logged")]))
    line = served.gateway.wait_for_log(event="fence_issued", request_id="logged")
    assert {"tenant": "default", "entity": scene.entity, "fence": fence}.items() <= line.items()
    assert served.gauge("fences_issued_total") == before + 1
    scene.caller.call("POST", "/v1/fences", [JSON, ("X-Request-Id", "refused")], b"{}")
    line = served.gateway.wait_for_log(event="fence_not_issued", request_id="refused")
    assert line["problem"] == "entity-missing"
    assert scene.audit() == []


def test_a_key_is_asked_for_and_tenants_share_no_counter(postgres: Server) -> None:
    with postgres.database() as dsn:
        made = [fencegate("keys", "add", "--tenant", t, "--name", t, dsn=dsn) for t in ("a", "b")]
        tokens = [each.out.strip() for each in made]
        with gateway(dsn, policy("http://127.0.0.1:9", HERE)) as process:
            nobody = Caller(process.url)
            refused = issue(nobody, "account:1")
            assert_problem(refused, "unauthenticated")
            assert refused.one("WWW-Authenticate") == 'Bearer realm="fencegate"'
            assert_problem(nobody.call("GET", "/v1/fences"), "unauthenticated")
            a, b = (Caller(process.url, token=token) for token in tokens)
            found = [issued(issue(each, "account:1")) for each in (a, a, b, a)]
            assert found == [FIRST, FIRST + 1, FIRST, FIRST + 2]
            line = process.wait_for_log(event="fence_issued", tenant="b")
            assert line["principal"] == "b"
        assert rows(dsn, "select count(*) as found from gateway.entities") == [{"found": 2}]


def test_without_its_database_it_issues_nothing_and_says_so(postgres: Server) -> None:
    dsn = postgres.create()
    with gateway(dsn, policy("http://127.0.0.1:9", HERE)) as process:
        caller = Caller(process.url)
        assert issued(issue(caller, "account:1")) == FIRST
        postgres.drop(dsn)
        refused = issue(caller, "account:1")
        assert_problem(refused, "store-unavailable", waits=True, retry="wait")


# --- /openapi.json --------------------------------------------------------------------------------


def test_the_description_is_valid_and_needs_no_key(served: Stack) -> None:
    reply = served.caller().call("GET", "/openapi.json")
    assert (reply.status, reply.one("Content-Type")) == (200, "application/json")
    OpenAPIV31SpecValidator(reply.json()).validate()


def test_the_description_lists_every_refusal(served: Stack) -> None:
    described = served.caller().call("GET", "/openapi.json").json()
    responses = described["paths"]["/v1/fences"]["post"]["responses"]
    assert set(responses) == {"201", *(str(TYPES[name].status) for name in ANSWERED)}


def test_answers_are_as_described(served: Stack) -> None:
    scene = served.scene()
    described = served.caller().call("GET", "/openapi.json").json()
    operation = described["paths"]["/v1/fences"]["post"]
    for reply in (
        issue(scene.caller, scene.entity),
        scene.caller.call("POST", "/v1/fences", [JSON], b"{}"),
        scene.caller.call("GET", "/v1/fences"),
    ):
        (kind,) = reply.all("Content-Type")
        content = operation["responses"][str(reply.status)]["content"][kind]
        schema = {**content["schema"], "components": described["components"]}
        Draft202012Validator(schema).validate(reply.json())


@pytest.mark.parametrize(
    ("entity", "legal"),
    [
        ("a", True),
        ("a b", True),
        ("é", False),
        (" a", False),
        ("a" * 255, True),
        ("a" * 256, False),
    ],
)
def test_the_described_entity_is_the_one_that_is_taken(
    served: Stack, entity: str, legal: bool
) -> None:
    described = served.caller().call("GET", "/openapi.json").json()
    schema = {**described["components"]["schemas"]["Entity"]}
    assert Draft202012Validator(schema).is_valid(entity) is legal
    assert (issue(served.caller(), entity).status == 201) is legal
