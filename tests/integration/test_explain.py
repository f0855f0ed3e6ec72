"""``fencegate explain`` beside a real gateway: it foretells what the next request hears, and leaves
no trace."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from gateway.core.problems import PREFIX
from gateway.store.tenants import add_key
from tests.kit.client import Reply
from tests.kit.db import Server, execute
from tests.kit.faults import until
from tests.kit.gateway import Scene, Stack, policy, rows, stack
from tests.kit.operating import Done, fencegate, in_flight, on
from tests.kit.upstream import Gate, gated, respond

HEAD = """
[upstream_headers]
Authorization = "Bearer ${PAY_TOKEN}"
X-Account-Key = "${ACCOUNT}"
"""

CHARGE = """
name = "charge"
match = "POST /v1/accounts/{account}/charges"
entity = "account:{path.account}"
timeout_s = 20
request_limit = "64 B"
send_fence = "Job-Fence"

[commands.fingerprint]
headers = ["Pay-Version"]
ignore = ["/trace"]
"""

NOTE = """
name = "note"
match = "POST /v1/accounts/{account}/notes"
entity = "account:{path.account}"
timeout_s = 20
"""

OFF = """
name = "log"
match = "POST /v1/logs/{account}"
entity = "log:{path.account}"
fence = "off"
serial = false
"""

ASK = """
name = "ask"
match = "POST /v1/accounts/{account}/asks"
entity = "account:{path.account}"
timeout_s = 20
unknown = "probe"
send_key = "X-Reference"

[commands.probe]
request = "GET /v1/found?ref={upstream_key}&of={path.account}"
applied = { status = [200], where = "/data", items = "some" }
absent  = { status = [200], where = "/data", items = "none" }
interval_s = 3600
"""

SECRET = "s3cr3t-of-the-gateway"
JSON = ("Content-Type", "application/json")

TABLES = ("tenants", "caller_keys", "entities", "commands", "audit", "deployment", "migrations")


@dataclass(frozen=True)
class Desk:
    """Where one types ``explain``: the policies of a running gateway, and its database."""

    stack: Stack
    policies: Path

    def explain(self, *arguments: str, **env: str) -> Done:
        return fencegate(
            *("explain", *arguments, "--policies", str(self.policies)),
            dsn=self.stack.database,
            env=env,
        )

    def request(
        self,
        scene: Scene,
        key: str | None = "k",
        fence: int | str | None = 1,
        *,
        what: str = "charges",
        body: str = '{"amount":100}',
        fields: tuple[tuple[str, str], ...] = (),
        query: str = "",
        target: str | None = None,
    ) -> dict[str, Any]:
        """The object for the request that ``scene.send`` would make."""
        own = [JSON]
        if key is not None:
            own.append(("Idempotency-Key", scene.key(key)))
        if fence is not None:
            own.append(("X-Execution-Fence", str(fence)))
        typed = [part for name, value in (*own, *fields) for part in ("-H", f"{name}: {value}")]
        path = target or f"/pay/v1/accounts/{scene.account}/{what}{query}"
        done = self.explain("POST", path, *typed, "-d", body, "--format", "json")
        assert (done.code, done.err) == (0, ""), done
        document: dict[str, Any] = json.loads(done.out)
        return document


@pytest.fixture(scope="module")
def desk(postgres: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    folder = tmp_path_factory.mktemp("policies")

    def texts(url: str) -> list[str]:
        text = policy(f"{url}/base", CHARGE, NOTE, OFF, ASK, head=HEAD)
        (folder / "pay.toml").write_text(text)
        return [text]

    # What is foretold is what the store says; one of the cases changes a row behind the gateway.
    env = {"PAY_TOKEN": SECRET, "ACCOUNT": "acct-hush", "FENCEGATE_CACHE_MIB": "0"}
    with stack(postgres, texts, env=env) as made:
        yield Desk(made, folder)


@pytest.fixture
def scene(desk: Desk) -> Scene:
    return desk.stack.scene()


def everything(dsn: str) -> dict[str, Any]:
    return {name: rows(dsn, f"select t.* from gateway.{name} t order by t") for name in TABLES}


def foretold(document: dict[str, Any], reply: Reply) -> None:
    """The reply is the one that was foretold, in everything that both say."""
    now = document["now"]
    heard = reply.json()
    assert now["status"] == reply.status
    for name in ("type", "detail", "sent", "retry", *(heard.keys() & now.keys())):
        if name in heard:
            assert now[name] == heard[name], name
    extra = heard.keys() - now.keys() - {"title", "request_id"}
    assert reply.problem is None or extra == set()


# --- what would happen ----------------------------------------------------------------------------


def send_and_lose(scene: Scene, key: str = "k") -> None:
    scene.upstream.next(respond(502, b"bad gateway", effect=True))
    assert scene.send(key).status == 504


def nothing(scene: Scene) -> None:
    """As it comes."""


def answered(scene: Scene) -> None:
    assert scene.send().status == 201


def not_kept(scene: Scene) -> None:
    answered(scene)
    execute(scene.stack.database, f"update gateway.commands set body = null {of(scene)}")


def of(scene: Scene) -> str:
    return f"where key = '{scene.key()}'"


UPGRADE = (("Connection", "Upgrade, HTTP2-Settings"), ("Upgrade", "h2c"), ("HTTP2-Settings", "x"))

CASES: dict[str, tuple[Callable[[Scene], None], dict[str, Any], str, int | None]] = {
    "stale": (lambda s: s.send("new", 9), {}, "refuse", 1),
    "stale, of a known key": (lambda s: (s.send("k", 1), s.send("n", 9)), {}, "refuse", 1),
    "reused": (answered, {"body": '{"amount":7}'}, "refuse", 3),
    "replayed": (answered, {}, "replay", 4),
    "not kept": (not_kept, {}, "refuse", 5),
    "unknown": (send_and_lose, {}, "refuse", 9),
    "entity unknown": (lambda s: send_and_lose(s, "first"), {}, "refuse", 11),
    "no key": (nothing, {"key": None}, "refuse", None),
    "no fence": (nothing, {"fence": None}, "refuse", None),
    "bad fence": (nothing, {"fence": "+1"}, "refuse", None),
    "bad JSON": (nothing, {"body": "{"}, "refuse", None),
    "no command": (nothing, {"what": "refunds"}, "refuse", None),
    "look-alike": (nothing, {"what": "CHARGES"}, "refuse", None),
    "too large": (nothing, {"body": '{"amount":' + "1" * 64 + "}"}, "refuse", None),
    "mismatch": (nothing, {"fields": (("X-Execution-Entity", "account:x"),)}, "refuse", None),
    "twin": (nothing, {"fields": (("X_Execution_Fence", "9"),)}, "refuse", None),
    "fragment": (nothing, {"query": "#x"}, "refuse", None),
    "bad query": (nothing, {"query": "?a=<"}, "refuse", None),
    "upgrade": (nothing, {"fields": UPGRADE}, "refuse", None),
    "long head": (nothing, {"fields": (("X-Long", "y" * 65_536),)}, "refuse", None),
    "no length": (nothing, {"fields": (("Content-Length", "14x"),)}, "refuse", None),
}


@pytest.mark.parametrize("name", CASES)
def test_what_is_foretold_is_what_the_next_request_hears(
    desk: Desk, scene: Scene, name: str
) -> None:
    before, request, would, row = CASES[name]
    before(scene)
    received, remembered = scene.upstream.count, everything(desk.stack.database)
    document = desk.request(scene, **request)
    assert (document["now"]["would"], document["now"]["row"]) == (would, row)
    assert (scene.upstream.count, everything(desk.stack.database)) == (received, remembered)

    more = {k: v for k, v in request.items() if k not in ("key", "fence")}
    if "body" in more:
        more["body"] = more["body"].encode()
    reply = scene.send(request.get("key", "k"), request.get("fence", 1), **more)
    foretold(document, reply)
    assert scene.upstream.count == received


def test_a_fresh_command_would_be_sent_as_it_then_is(desk: Desk, scene: Scene) -> None:
    fields = (("Pay-Version", "2"), ("Cookie", "sid=hush"), ("X-Trace", "t-1"))
    typed = (("Host", "localhost"), ("Content-Length", "14"))
    remembered = everything(desk.stack.database)
    document = desk.request(scene, fence=7, fields=(*fields, *typed))
    assert everything(desk.stack.database) == remembered
    assert (document["now"]["would"], document["now"]["row"]) == ("send", 13)

    assert scene.send(fence=7, fields=fields).status == 201
    (sent,) = scene.upstream.requests
    assert document["upstream"]["url"] == f"{scene.upstream.url}{sent.target.decode()}"
    shown = {each["name"].lower(): each["value"] for each in document["fields"]}
    assert set(shown) == {name.decode().lower() for name, _ in sent.headers}
    hidden = {name for name, value in shown.items() if value is None}
    assert hidden == {"authorization", "x-account-key", "cookie"}
    for name in shown.keys() - hidden:
        assert sent.one(name) == shown[name].encode(), name

    row = scene.row()
    assert row is not None
    assert document["fingerprint"] == row["fingerprint"].hex()
    assert document["key_digest"] == row["key_digest"].hex()
    assert document["rules"] == row["rules"].hex()
    assert (document["entity"], document["key"], document["fence"]) == (
        (row["entity"], row["key"], row["fence"])
    )
    assert document["tenant"] == "default"
    assert scene.send(fence=7, fields=fields).replayed


def test_an_earlier_command_in_flight_is_waited_for_and_named(desk: Desk, scene: Scene) -> None:
    gate = Gate()
    scene.upstream.next(gated(gate, respond(201, b"{}")))
    first = scene.open()
    scene.upstream.wait_for_requests(1)
    same = desk.request(scene, fields=(("Prefer", "wait=3"),))
    other = desk.request(scene, "other", what="notes")
    gate.release()
    assert first.reply().status == 201
    assert (same["now"]["would"], same["now"]["row"], same["now"]["wait_s"]) == ("wait", 6, 3)
    assert same["now"]["type"] == f"{PREFIX}in-flight"
    assert same["earlier"]["state"] == "in-flight"
    assert (other["now"]["would"], other["now"]["row"]) == ("wait", 12)
    assert other["now"]["blocked_by"] == {"key": scene.key(), "state": "in-flight"}
    blocker = other["blocked_by"]
    assert (blocker["key"], blocker["policy"]) == (scene.key(), "pay/charge")
    assert scene.upstream.count == 1


def test_what_never_reaches_a_policy(desk: Desk) -> None:
    """The gateway's own paths, and what its server cannot read."""
    for path in ("/healthz", "/readyz?x=1", "/metrics"):
        text = desk.explain("GET", path).out
        assert "it would be answered by the gateway: the path is its own" in text
        document = json.loads(desk.explain("GET", path, "--format", "json").out)
        assert document["now"]["would"] == "own"
    for path in ("/healthz/x", "/%68ealthz"):
        assert "no-policy" in desk.explain("GET", path).out
    assert "request-invalid" in desk.explain("POST", "/v1%2Ffences").out
    for arguments, said in (
        (("A" * 33, "/pay"), "cannot be read"),
        (("POST", "/pay", "-d", "abc", "-H", "Content-Length: 5"), "that the body has, 3,"),
    ):
        document = json.loads(desk.explain(*arguments, "--format", "json").out)
        assert (document["now"]["would"], document["now"]["status"]) == ("refuse", 400)
        assert said in document["now"]["detail"]


def test_what_came_as_a_form_is_not_shown_as_a_name(desk: Desk, scene: Scene) -> None:
    """JSON without a type is to curl, and so to us, a form with one parameter."""
    form = ("Content-Type", "application/x-www-form-urlencoded")
    typed = ["-H", f"Idempotency-Key: {scene.key()}", "-H", "X-Execution-Fence: 1"]
    target = f"/pay/v1/accounts/{scene.account}/charges"
    fields = (form, ("Idempotency-Key", scene.key()), ("X-Execution-Fence", "1"))
    assert scene.caller.call("POST", target, fields, b"a=1").status == 201
    done = desk.explain("POST", target, *typed, "-d", '{"iban":"hush"}')
    assert "body (a parameter whose name is not plain) (only in this request)" in done.out
    assert "hush" not in done.out


def test_a_safe_request_streams_through(desk: Desk, scene: Scene) -> None:
    remembered = everything(desk.stack.database)
    done = desk.explain("GET", f"/pay/v1/accounts/{scene.account}?page=2")
    assert done.code == 0
    assert "none of policy pay" in done.out
    assert f"{scene.upstream.url}/base/v1/accounts/{scene.account}?page=2" in done.out
    assert "stream through" in done.out
    assert everything(desk.stack.database) == remembered
    body = desk.explain("GET", "/pay/v1/accounts", "-d", "x", "--format", "json")
    assert {"name": "Content-Length", "value": "1", "why": None} in json.loads(body.out)["fields"]


def test_what_is_only_compared_by_other_rules_is_told(desk: Desk, scene: Scene) -> None:
    answered(scene)
    execute(desk.stack.database, f"update gateway.commands set rules = '\\x00' {of(scene)}")
    document = desk.request(scene, body='{"amount":7}')
    assert (document["now"]["would"], document["now"]["compared"]) == ("replay", False)
    assert document["differences"] is None


# --- the paths that differ ------------------------------------------------------------------------


def differences(document: dict[str, Any]) -> dict[str, Any]:
    assert document["now"]["type"] == f"{PREFIX}key-reused"
    found: dict[str, Any] = document["differences"]
    return found


def test_the_paths_that_differ_are_named_and_no_value(desk: Desk, scene: Scene) -> None:
    first = b'{"amount":100,"to":{"iban":"x","bic":"y"},"trace":1,"old":1}'
    assert scene.send(body=first, fields=[("Pay-Version", "1")]).status == 201
    second = '{"amount":987654,"to":{"iban":"x","bic":"hush"},"new":"hush"}'
    document = desk.request(scene, body=second, fields=(("Pay-Version", "hush"),))
    assert differences(document) == {
        "changed": ["field Pay-Version", "body /amount", "body /to/bic"],
        "added": ["body /new"],
        "absent": 1,
    }
    earlier = document["earlier"]
    assert (earlier["policy"], earlier["state"], earlier["status"]) == (
        "pay/charge",
        "settled",
        201,
    )
    assert earlier["principal"] == "anonymous"
    assert earlier["admitted_at"].endswith("Z")
    del document["fields"]  # what is sent up is shown: the field is no credential
    assert "hush" not in json.dumps(document)
    assert "987654" not in json.dumps(document)


def test_another_path_and_entity_are_named(desk: Desk, scene: Scene) -> None:
    answered(scene)
    document = desk.request(scene, target=f"/pay/v1/accounts/{scene.account}x/charges?a=1")
    assert differences(document)["changed"] == ["path", "query", "entity"]


def test_a_record_without_an_outline_says_so(desk: Desk, scene: Scene) -> None:
    answered(scene)
    execute(desk.stack.database, f"update gateway.commands set outline = null {of(scene)}")
    document = desk.request(scene, body='{"amount":7}')
    assert document["now"]["type"] == f"{PREFIX}key-reused"
    assert document["differences"] is None
    text = desk.explain(
        *("POST", f"/pay/v1/accounts/{scene.account}/charges", "-H", ": ".join(JSON)),
        *("-H", f"Idempotency-Key: {scene.key()}", "-H", "X-Execution-Fence: 1", "-d", "{}"),
    )
    assert "differs in   not known: no outline" in text.out


# --- what is shown --------------------------------------------------------------------------------


def test_secrets_are_neither_needed_nor_shown(desk: Desk, scene: Scene) -> None:
    typed = ["-H", "X-Execution-Fence: 1", "-H", "Idempotency-Key: k", "-d", "hush-body"]
    for name in ("Cookie", "X-Api-Key", "X-Session", "Authorization"):
        typed += ["-H", f"{name}: hush"]
    target = f"/pay/v1/accounts/{scene.account}/charges"
    for form in ("text", "json"):
        for env in ({}, {"PAY_TOKEN": SECRET}):
            done = desk.explain("POST", target, *typed, "--format", form, **env)
            assert (done.code, done.err) == (0, "")
            for secret in (SECRET, "acct-hush", "hush"):
                assert secret not in done.out


def test_what_was_typed_cannot_draw_on_the_terminal(desk: Desk, scene: Scene) -> None:
    done = desk.explain(
        *("POST", f"/pay/v1/accounts/{scene.account}/charges?x=\x1b[2J", "-H", "X-Note: \u202e"),
        *("-H", "Idempotency-Key: k", "-H", "X-Execution-Fence: 1"),
    )
    assert done.code == 0
    assert "\x1b" not in done.out
    assert "\u202e" not in done.out


def test_a_whole_url_is_taken_for_its_path(desk: Desk, scene: Scene) -> None:
    path = f"/pay/v1/accounts/{scene.account}/charges?b=%20"
    shown = [
        json.loads(desk.explain("POST", target, "--format", "json").out)
        for target in (path, f"http://gateway.example:8080{path}", f"HTTPS://[::1]{path}#part")
    ]
    assert shown[0] == shown[1] == shown[2]
    assert (shown[0]["path"], shown[0]["query"]) == (path.partition("?")[0], "b=%20")
    bare = json.loads(desk.explain("GET", "http://gateway.example", "--format", "json").out)
    assert (bare["path"], bare["now"]["status"]) == ("/", 404)


def test_the_body_comes_from_a_file_too(desk: Desk, scene: Scene, tmp_path: Path) -> None:
    file = tmp_path / "body.json"
    file.write_text('{"amount":100}')
    fields = ["-H", ": ".join(JSON), "-H", "Idempotency-Key: k", "-H", "X-Execution-Fence: 1"]
    target = f"/pay/v1/accounts/{scene.account}/charges"
    by_file = desk.explain("POST", target, *fields, "--body", str(file))
    assert by_file.out == desk.explain("POST", target, *fields, "-d", '{"amount":100}').out
    assert "14 bytes, compared as json" in by_file.out


def test_bodies_are_made_as_curl_makes_them(desk: Desk, scene: Scene) -> None:
    fields = ["-H", "Idempotency-Key: k", "-H", "X-Execution-Fence: 1"]
    target = f"/pay/v1/accounts/{scene.account}/charges"

    def out(*more: str) -> str:
        return desk.explain("POST", target, *fields, *more).out

    assert out("-d", "a=1", "--data", "b=2") == out("--data-raw", "a=1&b=2")
    typed = ["-H", ": ".join(JSON), "-H", "Accept: application/json"]
    assert out("--json", '{"amount":100}') == out(*typed, "-d", '{"amount":100}')


# --- whose request --------------------------------------------------------------------------------


def test_a_gateway_key_tells_whose_request_it_is(database: str, tmp_path: Path) -> None:
    (tmp_path / "pay.toml").write_text(policy("http://127.0.0.1:9", OFF))
    token = on(database, lambda db: add_key(db, "billing", "worker", by="t", apart=True))
    target = ["POST", "/pay/v1/logs/x", "--policies", str(tmp_path), "-H", "Idempotency-Key: k"]

    def explain(*more: str) -> Done:
        return fencegate("explain", *target, *more, "--format", "json", dsn=database)

    mine = json.loads(explain("-H", f"Authorization: Bearer {token}").out)
    assert (mine["tenant"], mine["now"]["would"]) == ("billing", "send")
    forged = json.loads(explain("-H", f"Authorization: Bearer {token[:-1]}!").out)
    assert (forged["tenant"], forged["now"]["type"]) == (None, f"{PREFIX}unauthenticated")
    named = json.loads(explain("--tenant", "billing").out)
    assert named["key_digest"] == mine["key_digest"]
    assert (named["tenant_assumed"], mine["tenant_assumed"]) == (True, False)
    assert json.loads(explain().out)["tenant"] == "default"
    said = fencegate("explain", *target, dsn=database).out
    assert "(assumed, as no gateway key was given)" in said
    assert "; without a gateway key: 401 unauthenticated" in said
    other = explain("-H", f"Authorization: Bearer {token}", "--tenant", "default")
    assert (other.code, other.out) == (1, "")
    assert "is of tenant billing" in other.err
    scopes = ["policy:other", "operate"]
    lesser = on(database, lambda db: add_key(db, "billing", "w", by="t", scopes=scopes))
    barred = json.loads(explain("-H", f"Authorization: Bearer {lesser}").out)
    assert (barred["tenant"], barred["now"]["type"]) == ("billing", f"{PREFIX}forbidden")


# --- without a database, and bad input ------------------------------------------------------------


def test_without_a_database_the_policies_still_tell(desk: Desk, scene: Scene) -> None:
    typed = ["-H", "Idempotency-Key: k", "-H", "X-Execution-Fence: 1"]
    target = f"/pay/v1/accounts/{scene.account}/charges"
    for dsn, said in (
        ("postgresql://u:hush@127.0.0.1:1/x", "the database cannot be reached"),
        (None, "there is no database"),
    ):
        done = fencegate(
            *("explain", "POST", target, *typed, "--policies", str(desk.policies)),
            dsn=dsn,
            cwd=desk.policies,
            env={"PYTHONPATH": str(Path(__file__).parents[2])},
        )
        assert done.code == 1
        assert done.err.startswith("fencegate: ")
        assert said in done.err
        assert f"account:{scene.account}" in done.out
        assert "not known without the database" in done.out
        assert "now  " not in done.out


def test_without_a_database_no_key_is_made_up(tmp_path: Path) -> None:
    sends = OFF + 'send_key = "Pay-Key"\n'
    (tmp_path / "pay.toml").write_text(policy("http://127.0.0.1:9", sends))
    done = fencegate(
        *("explain", "POST", "/pay/v1/logs/x", "-H", "Idempotency-Key: k"),
        *("--policies", str(tmp_path)),
        dsn="postgresql://u@127.0.0.1:1/x",
    )
    assert "Pay-Key: (not known without the database)" in done.out
    assert "fg-" not in done.out


def test_a_read_only_database_is_told(database: str, desk: Desk) -> None:
    execute(
        database,
        "do $$ begin execute format('alter database %I set default_transaction_read_only = on',"
        " current_database()); end $$",
    )
    done = fencegate(
        *("explain", "POST", "/pay/v1/logs/x", "-H", "Idempotency-Key: k"),
        *("--policies", str(desk.policies)),
        dsn=database,
    )
    assert done.code == 1
    assert "log:x" in done.out
    assert "point FENCEGATE_DATABASE_URL at the primary" in done.err


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["post", "/pay/v1/x"], 2, "write POST"),
        (["P ST", "/pay/v1/x"], 2, "is no method"),
        (["POST", "pay/v1/x"], 2, "begin it with a slash"),
        (["POST", "ftp://h/pay"], 2, "begin it with a slash"),
        (["POST", "http://[::1/pay"], 2, "begin it with a slash"),
        (["POST", "/pay", "-H", "Idempotency-Key"], 2, "has no colon"),
        (["POST", "/pay", "-H", "Bad Name: x"], 2, "has no usable name"),
        (["POST", "/pay", "-H", ": x"], 2, "has no usable name"),
        (["POST", "/pay", "-H", "X: a\nY: b"], 2, "control character"),
        (["POST", "/pay", "-d", "@body.json"], 2, "write --body body.json"),
        (["POST", "/pay", "-d", "x", "--body", "f"], 2, "not allowed with"),
        (["POST", "/pay", "--body", "/"], 2, "is a folder"),
        (["POST", "/pay", "--body", "/no/such\x1bfile"], 2, "cannot be read"),
        (["POST", "/pay", "--tenant", "nobody"], 1, "there is no tenant 'nobody'"),
    ],
)
def test_bad_input_is_one_line_with_its_mend(
    desk: Desk, arguments: list[str], code: int, said: str
) -> None:
    done = desk.explain(*arguments)
    assert (done.code, done.out) == (code, "")
    assert done.err.count("\n") == 1, done.err
    assert said in done.err
    assert "\x1b" not in done.err


def test_mistakes_in_policies_are_all_told(tmp_path: Path, database: str) -> None:
    (tmp_path / "a.toml").write_text('name = "A"\nmount = "/v1"\n')
    done = fencegate("explain", "GET", "/x", "--policies", str(tmp_path), dsn=database)
    assert (done.code, done.out) == (1, "")
    assert done.err.count("fencegate: a.toml: ") == 3


def test_an_admit_is_held_up_no_longer_than_the_rehearsal(database: str, desk: Desk) -> None:
    """Its locks are gone once it has answered."""
    made = in_flight(database, entity="log:x", deadline_ms=60_000)
    for _ in range(2):
        done = fencegate(
            *("explain", "POST", "/pay/v1/logs/x", "-H", "Idempotency-Key: k"),
            *("--policies", str(desk.policies)),
            dsn=database,
        )
        assert "it would be sent" in done.out
    held = (
        "select 1 from pg_locks l join pg_class c on c.oid = l.relation"
        " join pg_stat_activity a on a.pid = l.pid and a.backend_type = 'client backend'"
        " where c.relnamespace = 'gateway'::regnamespace and l.pid <> pg_backend_pid()"
    )
    # A backend notices that its client has ended a moment later.
    until(lambda: not rows(database, held), "no locks")
    assert made.command.entity == "log:x"


# -- why an unknown command waits


def test_why_it_is_neither_sent_again_nor_asked_about(desk: Desk, scene: Scene) -> None:
    send_and_lose(scene)
    now = desk.request(scene)["now"]
    assert (now["row"], now["hindrance"]) == (9, "held")
    typed = ["-H", f"Idempotency-Key: {scene.key()}", "-H", "X-Execution-Fence: 1"]
    target = f"/pay/v1/accounts/{scene.account}/charges"
    done = desk.explain("POST", target, *typed, "--json", '{"amount":100}')
    assert "neither sent again (row 7) nor asked about (row 8): it was admitted with" in done.out


def test_how_an_unknown_outcome_would_be_found_out(desk: Desk, scene: Scene) -> None:
    scene.upstream.next(respond(502, effect=True), respond(404, effect=False))
    assert scene.send(what="asks").status == 504
    document = desk.request(scene, what="asks")
    # The account is told by the credentials, and explain need not have them.
    assert document["now"]["hindrance"] == "another-account"
    assert "ACCOUNT, PAY_TOKEN is not set here" in document["now"]["not_again"]
    assert document["unknown"]["mode"] == "probe"
    probe = document["unknown"]["probe"]
    row = scene.row()
    assert row is not None
    target = f"/base/v1/found?ref={row['upstream_key']}&of={scene.account}"
    assert probe["of_this_request"] == f"GET {target}"
    assert probe["applied"] == "status 200, /data is a list with an element"
    assert probe["interval_s"] == 3600
    typed = ["-H", f"Idempotency-Key: {scene.key()}", "-H", "X-Execution-Fence: 1"]
    path = f"/pay/v1/accounts/{scene.account}/asks"
    env = {"PAY_TOKEN": SECRET, "ACCOUNT": "acct-hush"}
    done = desk.explain("POST", path, *typed, "--json", '{"amount":100}', **env)
    assert (done.code, done.err) == (0, "")
    assert "row 8 of the decision table" in done.out
    assert f"asks GET {target}" in done.out
    assert "absent: status 200, /data is a list that is empty" in done.out
