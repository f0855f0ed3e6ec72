"""The cases of unknown outcomes (UP-07, UP-10, CRASH-04, CRASH-05, IDEM-09), and more of a kind.

They kill gateways, race probes with answers, or let time pass, so they are written out here.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import trustme

from gateway.core.evidence import Judged, Verdict
from gateway.core.fingerprint import upstream_key
from gateway.policy import tlsfiles
from gateway.store.database import Database
from gateway.store.unknowns import Due, UnknownStore
from gateway.upstream import Client, Deadlines, Origin, Request, now_s
from tests.kit.client import Reply, assert_problem
from tests.kit.db import Server, execute
from tests.kit.gateway import Scene, Stack, gateway, policy, rows, stack
from tests.kit.operating import fencegate, on
from tests.kit.upstream import Answer, Gate, Recorded, RecordingUpstream, cut, gated, raw, respond

PROBED = """
name = "charge"
match = "POST /v1/accounts/{account}/charges"
entity = "account:{path.account}"
timeout_s = 20
settle_delay_s = 0
unknown = "probe"

[commands.probe]
request = "GET /v1/charges?ref={key}"
applied = { status = [200], where = "/data", items = "some" }
absent = { status = [404] }
interval_s = 1
replay = true
"""

AGAIN = """
name = "again"
match = "POST /v1/accounts/{account}/again"
entity = "account:{path.account}"
timeout_s = 20
send_key = "Idempotency-Key"
send_fence = "X-Fence"
unknown = "resend"
resend_within_s = 3600
"""

HELD = """
name = "held"
match = "POST /v1/accounts/{account}/held"
entity = "account:{path.account}"
timeout_s = 20
settle_delay_s = 0
"""

COMMANDS = (PROBED, AGAIN, HELD)
CREATED = respond(201, b'{"id":"ch_1"}', [("Content-Type", "application/json")])
FOUND = respond(200, b'{"data":[{"id":"ch_1"}]}', effect=False)
NOT_FOUND = respond(404, effect=False)
BUSY = respond(503, effect=False)


def answers(scene: Scene, *posts: Answer, asked: Callable[[], Answer] = lambda: BUSY) -> None:
    """What the upstream does with the scene's commands, in order, and with each question about
    them; the background may still be asking about what other tests left behind."""
    left = list(posts)

    def script(request: Recorded) -> Answer | None:
        if request.method == b"GET":
            own = request.target.endswith(scene.key().encode())
            return asked() if own else BUSY
        return left.pop(0) if left else None

    scene.upstream.script = script


def sent_up(scene: Scene) -> list[Recorded]:
    """The commands that reached the upstream."""
    return [each for each in scene.upstream.requests if each.method == b"POST"]


@pytest.fixture(scope="module")
def quiet(postgres: Server) -> Iterator[Stack]:
    """The background looks at nothing here (its lag is a day): the tests do what it would."""
    with postgres.database() as dsn:
        execute(dsn, "update gateway.sweeps set lag = '1 day'")
        with stack(postgres, lambda url: [policy(url, *COMMANDS)], database=dsn) as made:
            yield made


@pytest.fixture
def scene(quiet: Stack) -> Scene:
    return quiet.scene()


def pass_deadline(scene: Scene) -> None:
    """As if the window had closed an hour ago."""
    execute(
        scene.stack.database,
        "update gateway.commands set deadline = gateway.clock() - interval '1 h'"
        f" where key = '{scene.key()}';"
        "update gateway.entities set open_until = gateway.clock() - interval '1 h'"
        f" where entity = '{scene.entity}'",
    )


def pass_interval(scene: Scene) -> None:
    """As if the first negative had been recorded a minute ago."""
    execute(
        scene.stack.database,
        "update gateway.watched w set absent_at = absent_at - interval '1 min'"
        f" from gateway.commands c where c.key = '{scene.key()}' and c.key_digest = w.key_digest",
    )


@dataclass(frozen=True)
class Resolver:
    """A background look, taken apart: what it read, and when it writes."""

    scene: Scene
    due: Due

    @classmethod
    def of(cls, scene: Scene) -> Resolver:
        row = scene.row()
        assert row is not None
        (now,) = rows(scene.stack.database, "select gateway.clock() as at")
        about = (row["tenant"], row["key_digest"], row["attempt"], row["policy"], row["entity"])
        execute(
            scene.stack.database,
            "insert into gateway.watched (tenant, key_digest, attempt, policy, due_at)"
            f" select tenant, key_digest, attempt, policy, 'infinity' from gateway.commands"
            f" where key = '{scene.key()}' on conflict do nothing",
        )
        return cls(scene, Due(*about, b"/", now["at"]))

    def writes(self, verdict: Verdict) -> str:
        async def work(database: Database) -> str:
            judged = Judged(verdict, "a probe was answered")
            return await UnknownStore(database).probed(self.due, judged, 1, None)

        return on(self.scene.stack.database, work)


# -- UP-10: the provider's key is stable


def test_up_10_the_key_is_the_same_after_a_crash(postgres: Server) -> None:
    with postgres.database() as dsn, RecordingUpstream() as upstream:
        gate = Gate()
        upstream.next(gated(gate, CREATED))
        seen = []
        for fence in (42, 43):
            with gateway(dsn, policy(upstream.url, *COMMANDS)) as process:
                made = Stack(process, upstream, dsn)
                here = Scene(made, made.caller(), "acc-1")
                if fence == 42:
                    sent = here.open("k-1", fence, what="again")
                    upstream.wait_for_requests(1)
                    process.kill()
                    sent.hang_up()
                    execute(dsn, "update gateway.commands set deadline = gateway.clock()")
                    execute(dsn, "update gateway.entities set open_until = gateway.clock()")
                else:
                    assert here.send("k-1", fence, what="again").outcome == "applied"
                seen = [each.one("Idempotency-Key") for each in upstream.requests]
        gate.release()
        assert seen == [seen[0]] * 2
        assert seen[0] is not None


@pytest.mark.parametrize(
    "between",
    [
        "update gateway.commands set upstream_key = 'fg-of-an-older-release'",
        "update gateway.commands set principal = 'another worker'",
        "update gateway.commands set admitted_at = admitted_at - interval '50 min'",
    ],
    ids=["derived-otherwise-by-an-older-release", "another-worker", "much-later"],
)
def test_up_10_the_key_is_the_recorded_one(scene: Scene, between: str) -> None:
    answers(scene, cut())
    scene.send(what="again")
    execute(scene.stack.database, f"{between} where key = '{scene.key()}'")
    row = scene.row()
    assert row is not None
    assert scene.send(what="again", fence=9).outcome == "applied"
    assert sent_up(scene)[1].one("Idempotency-Key") == row["upstream_key"].encode()


def test_up_10_the_key_is_made_of_tenant_and_key_alone() -> None:
    one = upstream_key(bytes(16), "k-1")
    assert one == upstream_key(bytes(16), "k-1")
    assert len({one, upstream_key(bytes(15) + b"x", "k-1"), upstream_key(bytes(16), "k-2")}) == 3


# -- CRASH-04: a resolver that is late changes nothing


def test_crash_04_not_found_read_before_the_answer_and_written_after_it(scene: Scene) -> None:
    gate = Gate()
    answers(scene, gated(gate, CREATED))
    sent = scene.open()
    scene.upstream.wait_for_effects(1)
    pass_deadline(scene)
    first = Resolver.of(scene)
    assert first.writes("absent") == "absent-once"
    pass_interval(scene)
    second = Resolver.of(scene)
    gate.release()
    assert sent.reply().outcome == "applied"
    assert second.writes("absent") == "asked"
    replay = scene.send()
    assert (replay.status, replay.outcome) == (201, "replayed")
    assert len(sent_up(scene)) == 1
    assert scene.state() == "settled"


def test_crash_04_found_written_after_a_person_decided(scene: Scene) -> None:
    answers(scene, cut())
    scene.send(what="charges")
    resolver = Resolver.of(scene)
    assert _resolve(scene, "--not-executed") == 0
    assert resolver.writes("applied") == "missing"
    assert scene.state() is None


def test_crash_04_written_after_the_key_was_sent_again(scene: Scene) -> None:
    answers(scene, cut(), CREATED)
    scene.send()
    resolver = Resolver.of(scene)
    assert _resolve(scene, "--not-executed") == 0
    assert scene.send().outcome == "applied"
    for verdict in ("applied", "absent", "nothing"):
        assert resolver.writes(verdict) in ("asked", "changed")
    assert scene.send().outcome == "replayed"
    assert len(sent_up(scene)) == 2


@pytest.mark.parametrize("verdict", ["applied", "absent"])
def test_crash_04_two_resolvers_write_the_same(scene: Scene, verdict: Verdict) -> None:
    answers(scene, cut())
    scene.send()
    pass_deadline(scene)
    if verdict == "absent":
        assert Resolver.of(scene).writes("absent") == "absent-once"
        pass_interval(scene)
    one, other = Resolver.of(scene), Resolver.of(scene)
    assert one.writes(verdict) == "resolved"
    assert other.writes(verdict) in ("settled", "missing", "asked")
    decided = [row for row in scene.audit() if row["event"] == "resolved"]
    assert len(decided) == 1


def test_crash_04_not_found_twice_by_one_look_is_one(scene: Scene) -> None:
    """The second says what was seen before the first was recorded."""
    answers(scene, cut())
    scene.send()
    pass_deadline(scene)
    one, other = Resolver.of(scene), Resolver.of(scene)
    assert one.writes("absent") == "absent-once"
    assert other.writes("absent") == "asked"
    assert scene.state() == "unknown"


# -- CRASH-05: whatever heals an unknown leaves a trail


def test_crash_05_a_the_answer_comes_late(scene: Scene) -> None:
    gate = Gate()
    answers(scene, gated(gate, CREATED))
    sent = scene.open()
    scene.upstream.wait_for_effects(1)
    pass_deadline(scene)
    gate.release()
    assert sent.reply().status == 201
    assert_replayed(scene.send(), None)
    assert trail(scene)[-1] == ("late_evidence", "worker", "settled late by the response 201")


def test_crash_05_b_the_probe_finds_it(scene: Scene) -> None:
    answers(scene, cut(), asked=lambda: FOUND)
    assert_problem(scene.send(), "outcome-unknown", outcome="unknown", sent="yes", waits=True)
    replay = scene.send()
    assert (replay.status, replay.outcome) == (200, "replayed")
    assert replay.one("Gateway-Evidence") == "probe"
    assert trail(scene) == [
        ("outcome_unknown", "worker", "closed (sent: yes)"),
        ("resolved", "gateway:probe", "executed: a probe was answered 200"),
    ]
    assert len(sent_up(scene)) == 1


def test_crash_05_c_the_probe_says_that_it_never_was(scene: Scene) -> None:
    answers(scene, cut(), asked=lambda: NOT_FOUND)
    scene.send()
    assert scene.send().problem == "outcome-unknown"  # one "not found"
    until = time.monotonic() + 20
    while (reply := scene.send()).problem == "outcome-unknown":
        assert time.monotonic() < until
    assert (reply.status, reply.outcome) == (201, "applied")
    assert trail(scene)[1] == (
        "resolved",
        "gateway:probe",
        "not executed: a probe was answered 404",
    )


@pytest.mark.parametrize("verdict", ["--executed", "--not-executed"])
def test_crash_05_d_a_person_decides(scene: Scene, verdict: str) -> None:
    answers(scene, cut())
    scene.send(what="held")
    assert _resolve(scene, verdict) == 0
    event, who, said = trail(scene)[-1]
    assert (event, who) == ("resolved", "operator:ops")
    assert said == f"{verdict[2:].replace('-', ' ')}: asked the bank"
    again = scene.send(what="held")
    assert again.status == (410 if verdict == "--executed" else 201)


@pytest.mark.parametrize(
    "answer",
    [BUSY, respond(403, effect=False), respond(200, b"<html>", effect=False), cut(effect=False)],
    ids=["busy", "forbidden", "a-page", "cut"],
)
def test_crash_05_what_proves_nothing_never_hangs_the_command(scene: Scene, answer: Answer) -> None:
    """An error of the probe is no verdict, and it is asked again."""
    left = [answer]
    answers(scene, cut(), asked=lambda: left.pop() if left else FOUND)
    scene.send()
    assert scene.send().problem == "outcome-unknown"
    assert scene.send().outcome == "replayed"


def assert_replayed(reply: Reply, by: str | None) -> None:
    assert (reply.status, reply.outcome, reply.one("Gateway-Evidence")) == (201, "replayed", by)


def trail(scene: Scene) -> list[tuple[str, str, str]]:
    """What the audit says: event, who, and the reason up to what only details it."""
    return [
        (
            row["event"],
            row["principal"].replace("anonymous", "worker"),
            row["reason"].partition(",")[0].partition(" of ")[0],
        )
        for row in scene.audit()
    ]


def _resolve(scene: Scene, verdict: str) -> int:
    return fencegate(
        *("commands", "resolve", scene.key(), verdict),
        *("--reason", "asked the bank", "--by", "ops"),
        dsn=scene.stack.database,
    ).code


# -- IDEM-09: time alone ends nothing that is not settled


@pytest.mark.parametrize("days", [1, 401, 4_000])
def test_idem_09_an_unknown_command_never_expires(scene: Scene, days: int) -> None:
    answers(scene, cut())
    scene.send(what="held")
    _age(scene, days)
    scene.wait_for_state("unknown")
    row = scene.row()
    assert row is not None
    assert row["expires_at"] is None
    assert scene.send(what="held").problem == "outcome-unknown"
    assert scene.send("next", 2, what="held").problem == "entity-unresolved"
    assert len(sent_up(scene)) == 1


@pytest.mark.parametrize("days", [1, 401, 4_000])
def test_idem_09_what_is_in_flight_finds_its_row(scene: Scene, days: int) -> None:
    gate = Gate()
    answers(scene, gated(gate, CREATED))
    sent = scene.open(what="held")
    scene.upstream.wait_for_effects(1)
    _age(scene, days)
    assert scene.send(what="held", fields=[("Prefer", "wait=0")]).problem == "in-flight"
    gate.release()
    assert sent.reply().outcome == "applied"
    assert_replayed(scene.send(what="held"), None)


def _age(scene: Scene, days: int) -> None:
    """Admitted so long ago; then the sweep passes over everything that there is."""
    execute(
        scene.stack.database,
        f"update gateway.commands set admitted_at = admitted_at - interval '{days} days'"
        f" where key = '{scene.key()}';"
        "update gateway.sweeps set swept_to = '-infinity' where name = 'far'",
    )
    until = time.monotonic() + 20
    sql = "select exists (select from gateway.sweeps where name = 'far' and swept_to > '-infinity')"
    while not rows(scene.stack.database, sql)[0]["exists"]:
        assert time.monotonic() < until


# -- UP-07: HTTP/2 is not spoken, so none of its ambiguities can arise


@pytest.mark.parametrize("offers", [["h2", "http/1.1"], ["h2"], ["http/1.1"]], ids=str)
@pytest.mark.parametrize("own_files", [False, True])
def test_up_07_only_http_1_1_is_offered(tmp_path: Path, offers: list[str], own_files: bool) -> None:
    """An upstream that would rather speak HTTP/2 is spoken to in HTTP/1.1, or not at all."""
    authority = trustme.CA()
    (tmp_path / "ca.pem").write_bytes(authority.cert_pem.bytes())
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(server)
    server.set_alpn_protocols(offers)
    chosen: list[str | None] = []
    server.sni_callback = None
    with RecordingUpstream(tls=server) as upstream:
        trust = str(tmp_path / "ca.pem")
        context = tlsfiles.context(trust, None, None) if own_files else _default_with(trust)

        async def main() -> bytes | None:
            client = Client(Origin.parse(upstream.url), ssl_context=context)
            by = now_s() + 10
            request = Request(b"POST", b"/", ((b"Host", b"x"),), b"{}")
            transfer = await client.send(request, Deadlines(by, by, by), keep_limit=1024)
            transfer.close()
            await client.close()
            response = transfer.exchange.response
            return response.body if response is not None else None

        answer = asyncio.run(main())
        chosen += [each.head.split(b"\r\n")[0].decode() for each in upstream.requests]
    assert all(line.endswith(" HTTP/1.1") for line in chosen)
    # OpenSSL goes on without a common protocol; what is spoken is HTTP/1.1 all the same.
    assert (answer is not None) == bool(chosen)


def _default_with(trust: str) -> ssl.SSLContext | None:
    """What the client makes by itself, trusting the test's authority."""
    made = tlsfiles.verifying()
    made.load_verify_locations(trust)
    return made


def test_up_07_no_context_offers_h2(tmp_path: Path) -> None:
    authority = trustme.CA()
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(server)
    server.set_alpn_protocols(["h2", "http/1.1"])
    (tmp_path / "ca.pem").write_bytes(authority.cert_pem.bytes())
    for context in (
        tlsfiles.context(str(tmp_path / "ca.pem"), None, None),
        _default_with(str(tmp_path / "ca.pem")),
    ):
        assert context is not None
        assert _negotiated(context, server) == "http/1.1"


def _negotiated(client: ssl.SSLContext, server: ssl.SSLContext) -> str | None:
    """A handshake in memory."""
    ends = [ssl.MemoryBIO() for _ in range(4)]
    one = client.wrap_bio(ends[0], ends[1], server_hostname="127.0.0.1")
    other = server.wrap_bio(ends[2], ends[3], server_side=True)
    for _ in range(8):
        for side in (one, other):
            with contextlib.suppress(ssl.SSLWantReadError):
                side.do_handshake()
        ends[2].write(ends[1].read())
        ends[0].write(ends[3].read())
    return one.selected_alpn_protocol()


GOAWAY = bytes.fromhex("0000080700000000000000000100000000")
REFUSED = bytes.fromhex("00000403000000000300000007")
CANCEL = bytes.fromhex("00000403000000000100000008")


@pytest.mark.parametrize(
    "frames",
    [GOAWAY, REFUSED, CANCEL, bytes.fromhex("000000040000000000") + GOAWAY],
    ids=["goaway", "refused-stream", "cancel", "settings-goaway"],
)
def test_up_07_frames_of_http_2_prove_nothing(scene: Scene, frames: bytes) -> None:
    """From an upstream that speaks it unasked: no frame is taken for a proof that nothing ran."""
    answers(scene, raw(frames, then="close"))
    reply = scene.send(what="held")
    assert_problem(reply, "outcome-unknown", outcome="unknown", sent="yes", waits=True)
    assert scene.state() == "unknown"
    assert scene.send(what="held").problem == "outcome-unknown"
    assert len(sent_up(scene)) == 1


def test_the_due_of_another_attempt_is_no_one_elses(scene: Scene) -> None:
    """A look that was taken of one attempt never counts for the next."""
    answers(scene, cut(), cut())
    scene.send()
    pass_deadline(scene)
    old = Resolver.of(scene)
    assert old.writes("absent") == "absent-once"
    assert _resolve(scene, "--not-executed") == 0
    scene.send()
    pass_deadline(scene)
    fresh = Resolver.of(scene)
    moved: Any = replace(old.due, attempt=fresh.due.attempt)
    assert Resolver(scene, moved).writes("absent") == "absent-once"
    assert scene.state() == "unknown"
