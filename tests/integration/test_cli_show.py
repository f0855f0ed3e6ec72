"""What `commands show` says of a command: what its key answers, or what its outcome waits for."""

from __future__ import annotations

import json
import re
from pathlib import Path

from gateway.core.evidence import Judged
from gateway.store.database import Database
from gateway.store.unknowns import Report, UnknownStore
from tests.kit.db import execute
from tests.kit.operating import (
    fencegate,
    in_flight,
    move_clock,
    on,
    released,
    settled,
    unknown,
)


def shown(dsn: str, key: str, *more: str) -> str:
    done = fencegate("commands", "show", key, *more, dsn=dsn)
    assert (done.code, done.err) == (0, "")
    return done.out


def test_show_says_what_a_settled_key_really_answers(database: str) -> None:
    settled(database, "kept", entity="invoice:1")
    assert "is answered by the recorded response (201)" in shown(database, "kept")
    settled(database, "gone", entity="invoice:2")
    erased = fencegate("commands", "erase", "gone", "--reason", "asked", dsn=database)
    assert erased.code == 0
    said = shown(database, "gone")
    assert "answered 201, and that response is not kept" in said
    assert "410 response-not-retained" in said
    made = unknown(database, "told", entity="invoice:3")
    report = Report(1, made.command.key_digest, "told", None, True, "seen", "w", "r", None)
    on(database, lambda opened: UnknownStore(opened).report(report))
    said = shown(database, "told")
    assert "it was reported. No response is recorded, so its key answers 410" in said
    one = fencegate("commands", "erase", "--entity", "invoice:1", "--reason", "x", dsn=database)
    assert "\n1 answer of invoice:1 erased" in one.out


def test_show_says_how_long_an_outcome_is_open(database: str) -> None:
    in_flight(database, "k")
    said = shown(database, "k")
    assert re.search(r"In flight: its outcome is known, or unknown, in at most \d+ s\.", said)


ASKED = """
name = "payments"
mount = "/pay"
upstream = "https://payments.example/base"

[upstream_headers]
Authorization = "Bearer ${NOT_SET_HERE}"

[[commands]]
name = "capture"
match = "POST /v1/capture"
entity = "invoice:{body./invoice}"
unknown = "MODE"
send_key = "X-Ref"
"""


def test_show_of_what_is_asked_about_has_the_last_look_and_the_next(
    database: str, tmp_path: Path
) -> None:
    execute(database, "update gateway.sweeps set lag = '0 s'")
    made = unknown(database, "k", unknown="probe", probe_target=b"/base/v1/found?ref=u")
    said = shown(database, "k")
    assert "No query about it has been answered yet." in said
    assert "GET /base/v1/found?ref=u at its upstream" in said

    async def look(opened: Database) -> None:
        unknowns = UnknownStore(opened)
        await unknowns.sweep("near", 10)
        asks = {made.command.policy: made.command.upstream_digest}
        (due,) = await unknowns.take_due(asks, 10, 10, 1_000)
        judged = Judged("nothing", "a probe was answered 404, which proves nothing")
        assert await unknowns.probed(due, judged, 60, None) == "asked"

    on(database, look)
    said = shown(database, "k")
    assert "(1 query): a probe was answered 404, which proves nothing." in said
    assert re.search(r"Next query in (59|60) s\.", said)
    (tmp_path / "p.toml").write_text(
        ASKED.replace("MODE", "probe")
        + '[commands.probe]\nrequest = "GET /v1/found?ref={upstream_key}"\n'
        'applied = { status = [200], where = "/d", items = "some" }\n'
    )
    said = shown(database, "k", "--policies", str(tmp_path))
    assert "GET https://payments.example/base/v1/found?ref=u, with the credentials" in said
    move_clock(database, 300)
    assert "no gateway that serves now may ask" in shown(database, "k")
    document = json.loads(shown(database, "k", "--format", "json"))
    assert (document["looks"], document["next_look_s"] < -60) == (1, True)


def test_show_of_what_may_be_sent_again_says_until_when(database: str, tmp_path: Path) -> None:
    unknown(database, "k", unknown="resend", upstream_key="u")
    assert "while resend_within_s of its policy lasts" in shown(database, "k")
    text = ASKED.replace("MODE", "resend") + "resend_within_s = 600\n"
    (tmp_path / "p.toml").write_text(text)
    said = shown(database, "k", "--policies", str(tmp_path))
    assert "repeat sends it again until 20" in said
    assert "at most 16 times more" in said
    move_clock(database, 600)
    said = shown(database, "k", "--policies", str(tmp_path))
    assert "is sent again no more" in said


def test_a_list_without_its_key_points_to_the_audit(database: str) -> None:
    released(database, "k-1")
    done = fencegate("commands", "list", "--key", "k-1", dsn=database)
    assert "fencegate audit --key k-1" in done.out
