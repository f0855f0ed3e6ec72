"""Secrets planted in every place that a caller, an upstream or the operator's environment controls,
and looked for in every place that somebody else gets to read.

A *mark* is a word that nothing else makes. ``DATA`` are the places that the gateway keeps and shows
by design: they name the command, and an operator could not work without them. ``docs/security.md``
says the same to whoever chooses what to put there.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote

import pytest

from tests.kit.client import Caller, Fields, Reply
from tests.kit.db import Server, execute
from tests.kit.faults import until
from tests.kit.gateway import GatewayProcess, Stack, policy, rows
from tests.kit.operating import ROOT, fencegate
from tests.kit.upstream import RecordingUpstream, closed_port, cut, hang, raw, respond

CHARGE = """
name = "charge"
match = "POST /v1/accounts/{account}/charges"
entity = "account:{path.account}"
timeout_s = 1
settle_delay_s = 1
send_key = "Reference"
fingerprint.headers = ["X-Compared"]
"""

CASE = """
name = "case"
match = "POST /v1/cases"
entity = "customer:{body./customer}"
timeout_s = 1
"""

ASKED = """
name = "asked"
match = "POST /v1/asked/{account}"
entity = "asked:{path.account}"
timeout_s = 0.5
settle_delay_s = 1
unknown = "probe"
send_key = "Reference"

[commands.probe]
request = "GET /v1/asked?reference={upstream_key}"
headers = { X-Probe-Token = "${PROBE}" }
applied = { status = [200], where = "/data", items = "some" }
interval_s = 1
"""

# An exception whose message holds everything there is, at the place where a request is understood:
# nothing in the product makes one, and the next mistake might.
CRASH = """
import sys
if "serve" in sys.argv:
    import gateway.proxy.intake as intake
    usual = intake.derive
    def derive(match, method, path, query, headers, body):
        if any(name.lower() == b"x-crash" for name, _ in headers):
            try:
                raise KeyError(repr((headers, body)))
            except KeyError as error:
                raise ValueError(f"{path} {query} {headers} {body}") from error
        return usual(match, method, path, query, headers, body)
    intake.derive = derive
"""

DATA = frozenset({"entity", "key", "customer", "request-id", "named-entity", "key-name"})

RECORDED = {
    "commands": {"headers", "body", "evidence"},
}
"""Columns that hold what the upstream answered: the record itself, and the start of an answer that
says nothing."""


@dataclass
class Marks:
    """Marks by place; ``upstream`` ones are those that came with an answer."""

    made: dict[str, str] = field(default_factory=dict)

    def __call__(self, place: str) -> str:
        return self.made.setdefault(place, f"mark{len(self.made):03d}x" + place.replace("-", ""))

    def found(self, text: str, but: frozenset[str] | set[str] = frozenset()) -> list[str]:
        """Places whose mark stands in ``text``, in any of the forms in which bytes are written."""
        lower = text.lower()
        return [
            place
            for place, mark in self.made.items()
            if place not in but
            and any(
                form in lower
                for form in (mark, mark.encode().hex(), mark.encode("utf-16-le").hex(), mark[::-1])
            )
        ]

    @property
    def of_answers(self) -> set[str]:
        return {place for place in self.made if place.startswith("up-")}


@dataclass
class World:
    stack: Stack
    marks: Marks
    token: str
    other: str
    dsn: str
    policies: Path
    others: list[Reply] = field(default_factory=list)

    @property
    def process(self) -> GatewayProcess:
        return self.stack.gateway

    @property
    def caller(self) -> Caller:
        return self.stack.caller(self.token)


@pytest.fixture(scope="module")
def world(postgres: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    marks = Marks()
    folder = tmp_path_factory.mktemp("planted")
    (folder / "sitecustomize.py").write_text(CRASH)
    (folder / "token").write_text(f"Bearer {marks('env-file')}\n")
    with contextlib.ExitStack() as held:
        admin = held.enter_context(postgres.database())
        role = "planted"
        execute(
            admin,
            f"drop role if exists {role}; "
            f"create role {role} superuser login password '{marks('env-dsn')}'",
        )
        held.callback(execute, postgres.dsn, f"drop owned by {role}; drop role {role}")
        where = admin.rpartition("@")[2]
        dsn = f"postgresql://{role}:{marks('env-dsn')}@{where}"
        made = {}
        for tenant in ("default", "other"):
            done = fencegate("keys", "add", "--tenant", tenant, "--name", "w", dsn=admin)
            assert done.code == 0, done.err
            made[tenant] = done.out.strip()
        for tenant, token in made.items():
            marks.made[f"gateway-key-{tenant}"] = token.rpartition("_")[2].lower()
        upstream = held.enter_context(RecordingUpstream())
        head = (
            '[upstream_headers]\nAuthorization = "${TOKEN}"\nX-Api-Key = "${API}"\n'
            'Cookie = "s=${COOKIE}"'
        )
        files = {
            "pay.toml": policy(upstream.url, CHARGE, CASE, ASKED, head=head),
            "gone.toml": policy(
                f"http://127.0.0.1:{closed_port()}", CHARGE, name="gone", mount="/gone", head=head
            ),
        }
        env = {
            "TOKEN_FILE": str(folder / "token"),
            "API": marks("env-api"),
            "COOKIE": marks("env-cookie"),
            "PROBE": marks("env-probe"),
            "FENCEGATE_LOG_LEVEL": "debug",
            "PYTHONPATH": os.pathsep.join((str(folder), str(ROOT))),
            "PYTHONFAULTHANDLER": "1",
        }
        execute(admin, "update gateway.sweeps set lag = '0 s'")
        process = GatewayProcess(dsn, files, env=env)
        held.callback(process.close)
        process.start()
        policies = folder / "policies"
        policies.mkdir()
        for name, text in files.items():
            (policies / name).write_text(text)
        yield World(
            Stack(process, upstream, admin), marks, made["default"], made["other"], dsn, policies
        )


def planted(
    marks: Marks, *, key: str, fence: str = "7", more: Fields = ()
) -> list[tuple[str, str]]:
    """Every field that a caller can put something into."""
    return [
        ("Idempotency-Key", key),
        ("X-Execution-Fence", fence),
        ("Content-Type", f"application/json; note={marks('parameter')}"),
        ("Cookie", f"session={marks('cookie')}"),
        ("Proxy-Authorization", f"Basic {marks('proxy-authorization')}"),
        ("X-Api-Key", marks("api-key-of-caller")),
        ("X-Compared", marks("compared")),
        ("X-Note", marks("field")),
        ("User-Agent", marks("agent")),
        ("Referer", f"https://x.example/{marks('referer')}"),
        ("X-Forwarded-For", f"1.2.3.4, {marks('forwarded')}"),
        ("Prefer", f"wait=0, {marks('prefer')}"),
        ("Via", f"1.1 {marks('via')}"),
        (marks("field-name"), "x"),
        *more,
    ]


def body(marks: Marks, where: str = "body") -> bytes:
    document = {"amount": 1, "card": marks(where), "customer": marks("customer")}
    document[marks("member")] = "x"
    return json.dumps(document).encode()


def answer_fields(marks: Marks) -> list[tuple[str, str]]:
    return [
        ("Content-Type", "application/json"),
        ("Set-Cookie", f"session={marks('up-set-cookie')}"),
        ("WWW-Authenticate", f'Basic realm="{marks("up-challenge")}"'),
        ("X-Internal", marks("up-field")),
        ("Location", f"https://x.example/{marks('up-location')}"),
        (marks("up-field-name"), "x"),
    ]


class Drive:
    """All outcome classes, one after the other, on an account of each."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.marks = world.marks
        self.number = 0

    def send(
        self,
        *,
        mount: str = "/pay",
        new: bool = True,
        token: str | None = None,
        what: str = "charges",
        data: bytes | None = None,
        fence: str = "7",
        more: Fields = (),
        key: str | None = None,
    ) -> Reply:
        self.number += new
        marks = self.marks
        account = f"{marks('entity')}-{self.number}"
        path = f"/v1/accounts/{account}/charges" if what == "charges" else what.format(account)
        return self.world.stack.caller(self.world.token if token is None else token).call(
            "POST",
            f"{mount}{path}?q={marks('query')}",
            planted(marks, key=key or f"{marks('key')}-{self.number}", fence=fence, more=more),
            body(marks) if data is None else data,
        )

    def upstream(self, status: int, place: str = "up-body") -> None:
        text = json.dumps({"error": self.marks(place)}).encode()
        self.world.stack.upstream.next(respond(status, text, answer_fields(self.marks)))

    def outcomes(self) -> Iterator[tuple[str, Reply, str]]:
        """Each answer, its type, and the one that is due."""
        marks, upstream = self.marks, self.world.stack.upstream
        self.upstream(201)
        yield "", self.send(), "applied"
        yield "", self.send(new=False), "replayed"
        yield "key-reused", self.send(new=False, data=body(marks, "other-body")), "rejected"
        yield "fence-stale", self.send(new=False, fence="6"), "rejected"
        self.upstream(401)
        yield "", self.send(), "not-executed"
        self.upstream(500)
        yield "outcome-unknown", self.send(), "unknown"
        yield "outcome-unknown", self.send(new=False), "unknown"
        blocked = self.send(new=False, key=f"{marks('key')}-next")
        yield "entity-unresolved", blocked, "rejected"
        upstream.next(hang())
        yield "outcome-unknown", self.send(), "unknown"
        upstream.next(cut("reset"))
        yield "outcome-unknown", self.send(), "unknown"
        short = f"HTTP/1.1 200 {marks('up-reason')}\r\nX: {marks('up-cut')}\r\n"
        short += f"Content-Length: 999\r\n\r\n{marks('up-part')}"
        upstream.next(raw(short.encode(), then="close"))
        yield "response-incomplete", self.send(), "applied"
        upstream.next(raw(f"{marks('up-garbage')}\r\n\r\n".encode(), then="close"))
        yield "outcome-unknown", self.send(), "unknown"
        early = f"HTTP/1.1 103 Early\r\nLink: {marks('up-early')}\r\n\r\nHTTP/1.1 201 X\r\n"
        early += "Transfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n"
        upstream.next(raw(f"{early}X-Trailer: {marks('up-trailer')}\r\n\r\n".encode()))
        yield "", self.send(), "applied"
        yield "not-sent", self.send(mount="/gone"), "not-sent"
        yield from self.refusals()
        yield from self.asked()

    def refusals(self) -> Iterator[tuple[str, Reply, str]]:
        marks, rejected = self.marks, "rejected"
        named = [("X-Execution-Entity", f"account:{marks('named-entity')}")]
        yield "entity-mismatch", self.send(more=named), rejected
        yield "fence-invalid", self.send(fence=marks("fence")), rejected
        yield "key-invalid", self.send(key=f"ü{marks('bad-key')}"), rejected
        yield "no-policy", self.send(what=f"/v1/{marks('path')}/x"), rejected
        unread = b'{"customer": "' + marks("unreadable").encode()
        yield "body-unreadable", self.send(what="/v1/cases", data=unread), rejected
        yield "unauthenticated", self.send(token=f"fg_1_a_{marks('wrong-token')}"), rejected
        override = [("X-HTTP-Method-Override", marks("override"))]
        yield "request-invalid", self.send(more=override), rejected
        twin = [("X-Execution_Fence", marks("twin"))]
        yield "request-invalid", self.send(more=twin), rejected
        about = [("X-Request-Id", marks("request-id"))]
        yield "key-invalid", self.send(key="x" * 300 + marks("long-key"), more=about), rejected
        escape = [("X-Note", f"\x1b[2J{marks('escape')}")]
        yield "request-invalid", self.send(more=escape), rejected

    def asked(self) -> Iterator[tuple[str, Reply, str]]:
        """Unknown, and asked about: the answer to the query is no evidence."""
        upstream = self.world.stack.upstream
        upstream.next(hang())
        yield "outcome-unknown", self.send(what="/v1/asked/{}"), "unknown"
        upstream.script = lambda _: respond(
            200, f'{{"data": "{self.marks("up-probe")}"}}'.encode(), answer_fields(self.marks)
        )
        yield "outcome-unknown", self.send(what="/v1/asked/{}", new=False), "unknown"
        upstream.script = None

    def own_routes(self) -> None:
        """Our own routes with bodies that they refuse."""
        marks = self.marks
        for path in ("/v1/fences", "/v1/evidence", "/v1/jobs"):
            for data in (
                json.dumps({"entity": "e", marks("api-member"): marks("api-value")}).encode(),
                f'{{"entity": "{marks("api-broken")}'.encode(),
                json.dumps({"entity": {"x": marks("api-nested")}}).encode(),
            ):
                reply = self.world.caller.call("POST", path, planted(marks, key="k"), data)
                assert 400 <= reply.status < 500
        job = f"/v1/jobs/{marks('job-id')}"
        assert self.world.caller.call("GET", job).status == 404

    def passages(self) -> None:
        marks = self.marks
        self.upstream(200, "up-passed")
        target = f"/pay/v1/{marks('passed-path')}?q={marks('passed-query')}"
        assert self.world.caller.call("GET", target, planted(marks, key="k")).status == 200
        gone = self.world.caller.call("GET", f"/gone{target}", planted(marks, key="k"))
        assert gone.problem == "not-sent"

    def malformed(self) -> None:
        marks = self.marks
        for text in (
            f"POST /{marks('raw-path')} HTTP/1.1\r\nHost: x\r\n{marks('raw-line')}\r\n\r\n",
            f"{marks('raw-method')} / HTTP/9.9\r\nHost: x\r\n\r\n",
            f"GET /pay/ HTTP/1.1\r\nHost: {marks('raw-host')}\r\nHost: b\r\n\r\n",
            f"\x16\x03\x01{marks('raw-tls')}\r\n\r\n",
        ):
            sent = self.world.caller.raw(text.encode("latin-1"))
            sent.read_all()

    def crash(self) -> None:
        """A mistake of ours while a request is handled."""
        port = self.world.process.port
        marks = self.marks
        fields = planted(marks, key=f"{marks('key')}-crash", more=[("X-Crash", marks("crash"))])
        data = body(marks, "crash-body")
        fields += [
            *(("Host", "x"), ("Content-Length", str(len(data)))),
            ("Authorization", f"Bearer {self.world.token}"),
        ]
        lines = "".join(f"{name}: {value}\r\n" for name, value in fields)
        with socket.create_connection(("127.0.0.1", port), 10) as sock:
            path = f"/pay/v1/accounts/{marks('crash-account')}/charges?q={marks('crash-query')}"
            sock.sendall(f"POST {path} HTTP/1.1\r\n{lines}\r\n".encode() + data)
            said = sock.recv(65536)
        assert said.startswith(b"HTTP/1.1 500")
        assert self.marks.found(said.decode("latin-1")) == []
        line = self.world.process.wait_for_log(level="error", logger="uvicorn.error")
        assert "ValueError" in line["exception"]
        assert "KeyError" in line["exception"]  # what led to it, and where
        assert "sitecustomize.py" in line["exception"]

    def without_a_database(self) -> None:
        dsn = self.world.stack.database
        name = dsn.rpartition("/")[2]
        admin = dsn.rpartition("/")[0] + "/postgres"
        execute(admin, f"alter database {name} allow_connections false")
        try:
            execute(
                admin,
                f"select pg_terminate_backend(pid) from pg_stat_activity where datname = '{name}'",
            )
            reply = self.send()
            assert reply.problem == "store-unavailable"
            self.world.others.append(reply)
            self.world.others.append(self.world.caller.call("GET", "/readyz"))
        finally:
            execute(admin, f"alter database {name} allow_connections true")

    def of_others(self) -> None:
        """The same keys and entities, asked for by another tenant."""
        marks = self.marks
        caller = self.world.stack.caller(self.world.other)
        for number in range(1, self.number + 1):
            self.upstream(201, "up-for-other")
            reply = caller.call(
                "POST",
                f"/gone/v1/accounts/{marks('entity')}-{number}/charges",
                [("Idempotency-Key", f"{marks('key')}-{number}"), ("X-Execution-Fence", "1")],
                b"{}",
            )
            assert reply.problem == "not-sent"  # it is a command of its own
            self.world.others.append(reply)
        self.world.stack.upstream.clear()
        for path in ("/healthz", "/readyz", "/openapi.json", "/metrics"):
            self.world.others.append(self.world.stack.caller().call("GET", path))


@pytest.fixture(scope="module")
def driven(world: World) -> World:
    """Everything has happened once."""
    drive = Drive(world)
    for number, (kind, reply, outcome) in enumerate(drive.outcomes()):
        told = (number, reply.status, reply.problem, reply.outcome, reply.body)
        assert (reply.problem or "", reply.outcome) == (kind, outcome), told
        # What was sent up may come back in the answer's own bytes; a problem is ours.
        if reply.problem is not None:
            leaked = world.marks.found(
                repr((reply.headers, reply.body)), DATA | {"up-body", "bad-key", "fence"}
            )
            leaked = [place for place in leaked if place not in OF_ITS_OWN_SENDER]
            assert leaked == [], told
    drive.own_routes()
    drive.passages()
    drive.malformed()
    drive.crash()
    drive.of_others()
    drive.without_a_database()
    return world


OF_ITS_OWN_SENDER = {"override", "twin", "parameter", "unreadable"}
"""What a refusal may repeat to whoever sent it, and to nobody else: the value to correct."""


def test_everything_was_planted_and_reached_the_upstream(driven: World) -> None:
    """Else the search would find nothing because there was nothing."""
    marks, seen = driven.marks, driven.stack.upstream
    seen.clear()
    Drive(driven).passages()
    sent = repr([(each.target, each.headers) for each in seen.requests])
    assert {"passed-path", "passed-query", "field", "cookie", "agent"} & set(marks.found(sent)) >= {
        "passed-path",
        "passed-query",
        "field",
        "agent",
    }
    assert {"env-file", "env-api", "env-cookie"} <= set(marks.found(sent))
    assert len(marks.made) >= 60


def test_no_log_line_and_no_standard_output_holds_one(driven: World) -> None:
    shown = {"entity", "request-id", "customer"}  # the log names entities and requests
    lines = [*driven.process.written, *driven.process.printed]
    assert len(lines) > 40
    assert [
        (line, driven.marks.found(line, shown)) for line in lines if driven.marks.found(line, shown)
    ] == []
    for line in driven.process.written:
        json.loads(line)  # one event, one physical line
        assert line.isascii()
        assert line.rstrip("\n").isprintable()


def test_no_metric_and_no_page_of_ours_holds_one(driven: World) -> None:
    # It was without its database, and looks for it again in its own time.
    caller = driven.stack.caller()
    until(lambda: caller.call("GET", "/readyz").status == 200, "ready again")
    for path in ("/metrics", "/openapi.json", "/readyz", "/healthz"):
        reply = driven.stack.caller().call("GET", path)
        assert reply.status == 200
        assert driven.marks.found(repr((reply.headers, reply.body))) == []


def test_no_row_holds_one_but_the_recorded_answer(driven: World) -> None:
    dsn = driven.stack.database
    tables = rows(
        dsn,
        "select table_name from information_schema.tables"
        " where table_schema = 'gateway' and table_type = 'BASE TABLE'",
    )
    looked_at = 0
    for (table,) in (each.values() for each in tables):
        for row in rows(dsn, f"select * from gateway.{table}"):
            looked_at += 1
            for column, value in row.items():
                text = value.hex() if isinstance(value, bytes) else repr(value)
                but = set(DATA)
                if column in RECORDED.get(table, ()):
                    but |= driven.marks.of_answers
                assert driven.marks.found(text, but) == [], (table, column)
                if column in ("headers",):
                    kept = driven.marks.found(text)
                    assert "up-set-cookie" not in kept
                    assert "up-challenge" not in kept
    assert looked_at > 20


def test_no_audit_row_holds_more_than_the_data_that_it_is_about(driven: World) -> None:
    found = rows(driven.stack.database, "select * from gateway.audit")
    assert {"fence_stale", "key_reused", "entity_mismatch", "outcome_unknown", "released"} <= {
        row["event"] for row in found
    }
    for row in found:
        assert driven.marks.found(repr(row), DATA) == []


def test_nobody_else_hears_of_one(driven: World) -> None:
    assert len(driven.others) > 20
    for reply in driven.others:
        marks = driven.marks.found(repr((reply.headers, reply.body)))
        assert marks == [], reply
        assert driven.dsn.rpartition("@")[2].partition("/")[0] not in reply.body.decode("latin-1")


LONG = "x" * 6000


@pytest.mark.parametrize(
    ("fields", "data"),
    [
        ([("X-Execution-Entity", f"account:{LONG}")], b"{}"),
        ([("X-Execution-Fence", LONG)], b"{}"),
        ([("X-Execution_Fence", LONG)], b"{}"),
        ([("X-HTTP-Method", LONG)], b"{}"),
        ([(f"X-{LONG}", "x"), ("Connection", f"X-Execution-Fence, X-{LONG}")], b"{}"),
        ([("Content-Type", f"application/json; charset={LONG}")], b"{}"),
        ([("X-Request-Id", LONG)], b"{"),
        ([], json.dumps({LONG: 1, "customer": {LONG: 1}}).encode()),
        ([], json.dumps({"customer": LONG}).encode()),
    ],
)
def test_no_refusal_repeats_more_than_a_line_of_what_was_sent(
    world: World, fields: list[tuple[str, str]], data: bytes
) -> None:
    names = {name.lower() for name, _ in fields}
    usual = [
        ("Idempotency-Key", "k-long"),
        ("X-Execution-Fence", "1"),
        ("Content-Type", "application/json"),
    ]
    sent = [*fields, *(pair for pair in usual if pair[0].lower() not in names)]
    for path in ("/pay/v1/cases", "/pay/v1/accounts/long/charges", "/v1/fences", "/v1/jobs"):
        if path == "/pay/v1/accounts/long/charges" and not fields:
            continue
        reply = world.caller.call("POST", path, sent, data)
        assert reply.problem is not None, reply
        assert len(reply.body) < 2048
        assert LONG[:1000] not in repr(reply.headers)
        written = world.process.wait_for_log(request_id=reply.json()["request_id"])
        assert len(json.dumps(written)) < 2048


@pytest.mark.parametrize(
    "arguments",
    [
        ("commands", "list", "--limit", "0"),
        ("audit", "--limit", "0", "--format", "jsonl"),
        ("audit", "--limit", "0"),
        ("keys", "list"),
        ("doctor",),
        ("losses",),
        ("jobs", "list"),
        ("retention", "--dry-run"),
    ],
)
def test_no_command_of_operators_shows_one(driven: World, arguments: tuple[str, ...]) -> None:
    done = fencegate(*arguments, dsn=driven.dsn)
    assert driven.marks.found(done.out + done.err, DATA) == []
    assert done.out


def test_commands_show_shows_the_recorded_answer_and_nothing_else(driven: World) -> None:
    sql = "select key from gateway.commands where tenant = 1 and %s limit 1"
    for state, form in (("settled_at is not null", "text"), ("evidence is not null", "json")):
        (row,) = rows(driven.stack.database, sql % state)
        done = fencegate("commands", "show", row["key"], "--format", form, dsn=driven.dsn)
        assert done.code == 0
        assert driven.marks.found(done.out + done.err, DATA | driven.marks.of_answers) == []


def test_check_and_explain_show_none(driven: World, tmp_path: Path) -> None:
    marks = driven.marks
    env = {
        "TOKEN": f"Bearer {marks('env-file')}",
        "API": marks("env-api"),
        "COOKIE": marks("env-cookie"),
        "PROBE": marks("env-probe"),
    }
    at = ("--policies", str(driven.policies))
    checked = fencegate("check", *at, env=env)
    assert checked.code == 0
    assert marks.found(checked.out + checked.err) == []
    broken = fencegate("check", *at, env={**env, "API": f"{marks('env-api')}\n"})
    assert broken.code == 1
    assert marks.found(broken.out + broken.err) == []
    target = f"/pay/v1/accounts/{quote(marks('entity'))}-1/charges"
    typed = [f"-H{name}: {value}" for name, value in planted(marks, key=f"{marks('key')}-1")]
    explained = fencegate("explain", "POST", target, *at, *typed, dsn=driven.dsn, env=env)
    assert explained.out
    # It repeats what was typed on this very command line, and of that no credential.
    shown = set(marks.found(explained.out + explained.err))
    hidden = {"cookie", "proxy-authorization"} | {
        place for place in marks.made if place.startswith(("env-", "gateway-key-", "up-"))
    }
    assert shown & hidden == set()


def test_a_start_that_fails_shows_none(world: World) -> None:
    wrong = world.dsn.replace(world.marks("env-dsn"), f"{world.marks('env-wrong')}")
    for dsn in (
        f"postgresql://planted:{world.marks('env-odd')}/x:y@127.0.0.1:1/x",
        f"postgresql://planted:{world.marks('env-refused')}@127.0.0.1:{closed_port()}/x",
        wrong,
    ):
        done = GatewayProcess(dsn, {"p.toml": policy("http://127.0.0.1:9")}).refuses_to_start()
        assert done.code != 0 or dsn == wrong
        assert world.marks.found(done.out + done.err) == []
