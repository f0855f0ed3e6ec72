"""``fencegate jobs`` as it is typed, against a real database."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest

from gateway.core.jobs import Complete, End, Fail, HandBack, Lease, NextStage
from gateway.store.database import Database
from gateway.store.jobs import JobStore
from tests.kit.db import execute
from tests.kit.gateway import rows
from tests.kit.jobs import terms
from tests.kit.operating import (
    ROOT,
    Done,
    fencegate,
    in_flight,
    move_clock,
    on,
    settled,
    unknown,
)

TOOLS = '[[tools]]\nname = "charge"\n[[tools]]\nname = "open_case"\n'
WHY = ("--reason", "the ledger says so", "--by", "ann")


class Shop:
    """A database and a folder with ``tools.toml``; one word for each thing done."""

    def __init__(self, dsn: str, folder: Path) -> None:
        self.dsn = dsn
        self.folder = folder

    def jobs(self, *arguments: str, env: dict[str, str] | None = None) -> Done:
        return fencegate("jobs", *arguments, dsn=self.dsn, env=env)

    def enqueue(self, *arguments: str) -> Done:
        return self.jobs("enqueue", *arguments, "--policies", str(self.folder))

    def add(self, *arguments: str) -> str:
        """The id of a new job."""
        done = self.enqueue(*arguments)
        assert (done.code, done.err) == (0, ""), done
        return done.out.strip()

    def claim(self, tool: str = "charge", limit: int = 1) -> list[Lease]:
        return self._do(lambda store: store.claim(1, limit, "w\x1b1", uuid4(), [terms(tool)]))

    def one(self, tool: str = "charge") -> Lease:
        (lease,) = self.claim(tool)
        return lease

    def end(self, *ends: End) -> None:
        self._do(lambda store: store.end(1, "w1", ends))

    def reap(self) -> None:
        async def work(store: JobStore) -> None:
            found = await store.expired(10)
            await store.reap([(each, 0) for each in found])

        self._do(work)

    def listed(self, *arguments: str) -> list[dict[str, Any]]:
        done = self.jobs("list", "--format", "jsonl", *arguments)
        assert done.code == 0, done
        return [json.loads(line) for line in done.out.splitlines()]

    def story(self, job: str) -> dict[str, Any]:
        done = self.jobs("show", job, "--format", "json")
        assert done.code == 0, done
        return dict(json.loads(done.out))

    def audit(self) -> list[tuple[str, str, str]]:
        sql = (
            "select principal, job, reason from gateway.audit where event = 'operator' order by at"
        )
        return [(row["principal"], row["job"], row["reason"]) for row in rows(self.dsn, sql)]

    def _do(self, work: Callable[[JobStore], Any]) -> Any:
        async def run(database: Database) -> Any:
            return await work(JobStore(database))

        return on(self.dsn, run)


@pytest.fixture
def shop(database: str, tmp_path: Path) -> Shop:
    (tmp_path / "tools.toml").write_text(TOOLS)
    return Shop(database, tmp_path)


def refused(done: Done, code: int, *said: str) -> None:
    """One line that says it, and the exit code."""
    assert (done.code, done.out) == (code, ""), done
    assert done.err.startswith("fencegate: ")
    assert done.err.count("\n") == 1, done.err
    for words in said:
        assert words in done.err, done.err


# --- enqueue ---------------------------------------------------------------------------------


def test_enqueue_prints_the_id_and_keeps_the_payload_as_it_was_typed(shop: Shop) -> None:
    payload = '{"b" : 1.10,\n "a": 1e400, "é": "\\u0000"}'
    job = shop.add("charge", payload, "--key", "order-17", "--entity", "invoice:1")
    (row,) = rows(shop.dsn, "select * from gateway.jobs")
    assert (str(row["id"]), row["key"], row["entity"]) == (job, "order-17", "invoice:1")
    assert row["payload"] == payload.encode()
    assert row["priority"] == 5


def test_a_payload_comes_from_a_file_or_stdin(shop: Shop, tmp_path: Path) -> None:
    (tmp_path / "order.json").write_bytes(b"[1]\n")
    shop.add("charge", f"@{tmp_path / 'order.json'}")
    own = {**os.environ, "FENCEGATE_DATABASE_URL": shop.dsn}
    done = subprocess.run(
        [
            *(sys.executable, "-m", "gateway.cli", "jobs", "enqueue", "charge", "-"),
            *("--policies", str(shop.folder)),
        ],
        cwd=ROOT,
        env=own,
        input=b"[2]",
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    payloads = [row["payload"] for row in rows(shop.dsn, "select * from gateway.jobs order by seq")]
    assert payloads == [b"[1]\n", b"[2]"]


def test_all_that_a_job_has_can_be_said(shop: Shop) -> None:
    more = ("--session", "s", "--on-behalf", "u", "--priority", "1", "--stage", "open")
    who = ("--model", "m", "--provider", "p")
    shop.add("charge", *more, *who, "--run-at", "15m", "--give-up-at", "2030-01-31T14:00:00+02:00")
    (listed,) = shop.listed()
    wanted = {"session": "s", "on_behalf": "u", "priority": 1, "stage": "open", "model": "m"}
    assert wanted.items() <= listed.items()
    assert (listed["provider"], listed["place"]) == ("p", "scheduled")
    assert listed["give_up_at"] == "2030-01-31T12:00:00.000Z"
    ahead = rows(shop.dsn, "select extract(epoch from run_at - created_at) as s from gateway.jobs")
    assert 890 < float(ahead[0]["s"]) < 901
    assert shop.claim() == []


def test_a_known_key_says_so_and_whether_it_is_the_same_wish(shop: Shop) -> None:
    job = shop.add("charge", "[1]", "--key", "order-17")
    again = shop.enqueue("charge", "[1]", "--key", "order-17")
    assert (again.code, again.out) == (0, f"{job}\n")
    assert f"already names job {job}, which is queued; nothing was queued" in again.err
    for other in (("charge", "[2]"), ("open_case", "[1]")):
        done = shop.enqueue(*other, "--key", "order-17")
        assert (done.code, done.out) == (1, f"{job}\n")
        assert "another tool or payload" in done.err
    assert len(rows(shop.dsn, "select from gateway.jobs")) == 1
    shop.end(Complete(shop.one().held, b'"ok"'))
    finished = shop.enqueue("charge", "[1]", "--key", "order-17")
    assert (finished.code, finished.out) == (0, f"{job}\n")
    assert "which is succeeded" in finished.err


def test_a_key_whose_job_is_forgotten_says_so(shop: Shop) -> None:
    job = shop.add("charge", "[1]", "--key", "order-17")
    shop.end(Complete(shop.one().held, b"1"))
    execute(shop.dsn, "delete from gateway.job_history")
    done = shop.enqueue("charge", "[1]", "--key", "order-17")
    assert (done.code, done.out) == (1, f"{job}\n")
    assert f"named job {job}, which is forgotten; nothing was queued" in done.err
    refused(shop.jobs("show", "--key", "order-17"), 1, "has no job of key order-17")


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["chrage"], 1, ["There is no tool 'chrage'; did you mean 'charge'?"]),
        (["refund"], 1, ["There is no tool 'refund'; add it to tools.toml"]),
        (["charge", "{"], 2, ["the payload is not JSON"]),
        (["charge", '{"a":1,"a":2}'], 2, ["the payload"]),
        (["charge", "NaN"], 2, ["the payload"]),
        (["charge", "[" * 129 + "]" * 129], 2, ["nested deeper than 128 levels"]),
        (["charge", "1" * 1001], 2, ["the payload", "1000 digits"]),
        (["charge", "@nowhere.json"], 2, ["@nowhere.json cannot be read", "- for stdin"]),
        (["charge", "--entity", "invoice:é"], 2, ["--entity holds a control or non-ASCII"]),
        (["charge", "--key", "k" * 256], 2, ["--key: 256 characters"]),
        (["charge", "--on-behalf", "u" * 256], 2, ["--on-behalf: 256 characters"]),
        (["charge", "--priority", "10"], 2, ["--priority: 10 is not within 1 to 9"]),
        (["charge", "--run-at", "0001-01-01T00:00:00Z"], 2, ["--run-at: ", "1970 to 9998"]),
        (["charge", "--give-up-at", "9999-01-01T00:00:00Z"], 2, ["--give-up-at: ", "9998"]),
        (["charge", "--tenant", "nope"], 1, ["there is no tenant 'nope'", "--tenant"]),
    ],
)
def test_what_cannot_be_a_job_names_its_mend(
    shop: Shop, arguments: list[str], code: int, said: Sequence[str]
) -> None:
    refused(shop.enqueue(*arguments), code, *said)
    assert rows(shop.dsn, "select from gateway.jobs") == []


def test_a_payload_over_the_limit_is_no_job(shop: Shop, tmp_path: Path) -> None:
    file = tmp_path / "large.json"
    file.write_bytes(b'"' + b"x" * 262_142 + b'"')
    shop.add("charge", f"@{file}")
    file.write_bytes(b'"' + b"x" * 262_143 + b'"')
    refused(shop.enqueue("charge", f"@{file}"), 2, "more than 262144 bytes", "reference")


def test_mistakes_in_tools_toml_are_all_reported(shop: Shop) -> None:
    (shop.folder / "tools.toml").write_text('[[tools]]\nname = "a b"\nlease_s = 1\n')
    done = shop.enqueue("charge")
    assert (done.code, done.out) == (1, "")
    assert done.err.count("tools[0]") == 3, done.err
    (shop.folder / "tools.toml").unlink()
    refused(shop.enqueue("charge"), 1, "add it to tools.toml", str(shop.folder), "--policies")


def test_a_key_that_came_over_http_is_found_as_it_is(shop: Shop) -> None:
    made = shop.add("charge", "--key", "k")
    rows(shop.dsn, "update gateway.job_keys set key = ' k'")
    rows(shop.dsn, "update gateway.jobs set key = ' k'")
    assert made in shop.jobs("show", "--key", " k").out
    assert shop.jobs("show", "--key", "k").code == 1


# --- list ------------------------------------------------------------------------------------


def test_the_unfinished_come_first_and_each_part_the_latest_first(shop: Shop) -> None:
    done, failed, first, second = (
        shop.add("charge", "--entity", f"invoice:{n}", "--session", f"s{n % 2}") for n in range(4)
    )
    shop.end(Complete(shop.one().held, b"1"))
    shop.end(Fail(shop.one().held, "x" * 200 + " declined", retry=False))
    running = shop.one()
    assert [row["job"] for row in shop.listed()] == [second, first, failed, done]
    assert [row["job"] for row in shop.listed("--limit", "3")] == [second, first, failed]
    assert [row["job"] for row in shop.listed("--state", "failed")] == [failed]
    assert [row["job"] for row in shop.listed("--state", "queued")] == [second]
    assert [row["job"] for row in shop.listed("--session", "s0")] == [first, done]
    assert [row["job"] for row in shop.listed("--entity", "invoice:1")] == [failed]
    assert shop.listed("--tool", "open_case") == []
    (row,) = shop.listed("--state", "running")
    assert (row["job"], row["fence"], row["owner"]) == (first, running.fence, "w\x1b1")
    assert 0 < row["remaining_ms"] <= 60_000
    table = shop.jobs("list")
    assert "w\\x1b1" in table.out
    assert "\x1b" not in table.out
    assert table.out.count("\n") == 5
    assert "declined" in table.out
    short = shop.jobs("list", "--limit", "2")
    assert "stopped at 2 rows" in short.err
    assert shop.jobs("list", "--tool", "open_case").out == "no job matches\n"
    refused(shop.jobs("list", "--tenant", "nope"), 1, "there is no tenant 'nope'")


def test_a_list_of_more_than_a_page_has_each_job_once(shop: Shop) -> None:
    """Many have the same time: the place behind which a page begins must tell them apart."""
    execute(
        shop.dsn,
        "insert into gateway.tenants (name) values ('other');"
        "insert into gateway.jobs (tenant, id, key, tool, entity, payload, priority, run_at,"
        " created_at, state) select n % 2 + 1, gen_random_uuid(), n, 'charge', n, '1', 5,"
        " '2026-01-01Z', '2026-01-01Z'::timestamptz + n / 700 * interval '1 s', 'ready'"
        " from generate_series(1, 1200) n;"
        "insert into gateway.job_history (tenant, id, key, tool, entity, payload, priority,"
        " stage_no, created_at, attempts, finished_at, state) select n % 2 + 1,"
        " gen_random_uuid(), n, 'charge', n, '1', 5, 1, '2026-01-01Z', 1, '2026-01-01Z',"
        " 'succeeded' from generate_series(1, 1200) n",
    )
    every = shop.listed("--limit", "0")
    assert len(every) == 2400
    assert len({row["job"] for row in every}) == 2400
    assert [row["state"] for row in every] == ["queued"] * 1200 + ["succeeded"] * 1200
    assert len(shop.listed("--limit", "0", "--tenant", "other")) == 1200


# --- show ------------------------------------------------------------------------------------


def test_show_tells_the_whole_story(shop: Shop) -> None:
    job = shop.add("charge", '{"card": "\x9b2J"}', "--key", "order-17", "--entity", "invoice:1")
    first = shop.one()
    move_clock(shop.dsn, 61)
    shop.reap()
    second = shop.one()
    shop.end(Complete(first.held, b'"late"'))
    shop.end(Complete(second.held, b'{"case": 1}', NextStage("charge", "account:1", wait=True)))
    text = shop.jobs("show", job)
    assert text.code == 0
    assert "\x9b" not in text.out
    assert "w\x1b1" not in text.out
    for words in ("order-17", "waiting", "expired", "completed", "lease_expired", "Waiting: "):
        assert words in text.out, words
    assert f"fencegate jobs approve {job} --tenant default --reason" in text.out
    story = shop.story(job)
    leases = [(run["fence"], run["how"], run["owner"], run["state"]) for run in story["leases"]]
    assert leases == [
        (first.fence, "expired", "w\x1b1", "ready"),
        (second.fence, "completed", "w\x1b1", "waiting"),
    ]
    assert story["payload"] == '{"card": "\x9b2J"}'
    assert story["leases"][1]["result"] == '{"case": 1}'
    assert story["entity"] == "account:1"
    assert [(row["event"], row["fence"]) for row in story["audit"]] == [
        ("lease_expired", first.fence),
        ("result_rejected", first.fence),
    ]
    assert shop.jobs("show", "--key", "order-17").out == text.out


def test_show_has_what_the_gateway_refused_of_its_fences_and_of_no_other(shop: Shop) -> None:
    job = shop.add("charge", "--entity", "invoice:1")
    lease = shop.one()
    execute(
        shop.dsn,
        "insert into gateway.audit (tenant, id, at, event, entity, fence, reason) select 1,"
        " gen_random_uuid(), gateway.clock(), 'fence_stale', e, f, 'r'"
        f" from (values ('invoice:1', {lease.fence}), ('invoice:1', {lease.fence - 1}),"
        f" ('invoice:2', {lease.fence})) as v (e, f)",
    )
    seen = [(row["event"], row["entity"], row["fence"]) for row in shop.story(job)["audit"]]
    assert seen == [("fence_stale", "invoice:1", lease.fence)]


def test_show_says_what_a_queued_job_waits_for(shop: Shop) -> None:
    first = shop.add("charge", "--entity", "invoice:1")
    later = shop.add("charge", "--run-at", "1h")
    shop.one()
    second = shop.add("charge", "--entity", "invoice:1")
    assert shop.claim() == []
    assert (
        f"Queued: job {first} has its entity, with worker w\\x1b1." in shop.jobs("show", second).out
    )
    assert "Queued: not before 2" in shop.jobs("show", later).out
    assert "Running: w\\x1b1 has it for " in shop.jobs("show", first).out
    free = shop.add("open_case")
    assert "waits for a worker that claims open_case" in shop.jobs("show", free).out


TRACEBACK = """Traceback (most recent call last):
  File "worker.py", line 7, in pay
    raise ValueError("\x1b[31m no")
ValueError: \x1b[31m no
"""


def test_show_writes_an_error_once_and_line_by_line(shop: Shop) -> None:
    job = shop.add("charge")
    shop.end(Fail(shop.one().held, TRACEBACK))
    text = shop.jobs("show", job).out
    assert text.count("Traceback (most recent call last):") == 1
    assert (
        '\nlast error\n  Traceback (most recent call last):\n    File "worker.py", line 7' in text
    )
    assert "\n  ValueError: \\x1b[31m no\n" in text
    (ended,) = [line for line in text.splitlines() if line.startswith("1 ")]
    assert ended.endswith("  ValueError: \\x1b[31m no")
    assert "\x1b" not in text
    shop.end(Fail(shop.one().held, TRACEBACK, retry=False))
    assert "\nerror\n  Traceback" in shop.jobs("show", job).out
    assert shop.story(job)["error"] == TRACEBACK
    table = shop.jobs("list").out
    assert "Traceback" not in table
    assert table.rstrip().endswith("  ValueError: \\x1b[31m no")


def test_the_result_of_the_stage_before_is_not_called_the_jobs(shop: Shop) -> None:
    job = shop.add("charge")
    shop.end(Complete(shop.one().held, b'{"case": 1}', NextStage("pay")))
    text = shop.jobs("show", job).out
    assert re.search(r"^previous +11 bytes: \{", text, re.M), text
    assert not re.search(r"^result ", text, re.M)
    shop.end(Complete(shop.one().held, b"2"))
    assert re.search(r"^result +1 bytes: 2$", shop.jobs("show", job).out, re.M)


def test_show_says_which_command_holds_the_job_up(shop: Shop) -> None:
    job = shop.add("charge", "--entity", "invoice:1")
    key = f"tool-job:{job}:pay it"
    own = unknown(shop.dsn, key.replace(" ", "'"), entity="invoice:1")
    text = shop.jobs("show", job).out
    named = f"tool-job:{job}:pay'it"
    assert f"invoice:1 is held by its own command {named}, whose outcome is unknown" in text
    shown = next(line for line in text.splitlines() if line.startswith("  fencegate commands show"))
    program, *arguments = shlex.split(shown)
    assert program == "fencegate"
    assert fencegate(*arguments, dsn=shop.dsn).code == 0
    decide = next(line for line in text.splitlines() if line.endswith("--executed --reason '…'"))
    arguments = shlex.split(decide)[1:-1]
    assert str(own.attempt) in arguments
    assert fencegate(*arguments, "the ledger has it", dsn=shop.dsn).code == 0
    assert "is held by" not in shop.jobs("show", job).out

    in_flight(shop.dsn, "other", entity="invoice:1")
    text = shop.jobs("show", job).out
    assert "invoice:1 is held by another's command other, in flight for at most " in text
    shop.end(Complete(shop.one().held, b"1"))
    assert "is held by" not in shop.jobs("show", job).out


def test_show_names_an_unknown_command_of_a_stage_before(shop: Shop) -> None:
    job = shop.add("charge", "--entity", "invoice:1")
    lease = shop.one()
    unknown(shop.dsn, f"tool-job:{job}:pay", entity="invoice:1", fence=lease.fence)
    shop.end(Complete(lease.held, b"1", NextStage("tell", "customer:7")))
    assert f"invoice:1 is held by its own command tool-job:{job}:pay" in shop.jobs("show", job).out
    shop.end(Complete(shop.one().held, b"2"))  # its result may be wrong, so it is told all the same
    assert f"invoice:1 is held by its own command tool-job:{job}:pay" in shop.jobs("show", job).out
    (open_command,) = shop.story(job)["open_commands"]
    assert (open_command["entity"], open_command["is_unknown"]) == ("invoice:1", True)


def test_show_says_what_becomes_of_what_was_sent(shop: Shop) -> None:
    job, other = shop.add("charge"), shop.add("charge")
    settled(shop.dsn, f"tool-job:{job}:pay", entity="invoice:1")
    settled(shop.dsn, f"tool-job:{other}:pay", entity="invoice:2")
    settled(shop.dsn, "order-17", entity=f"job:{job}")
    lease = shop.one()
    shop.jobs("cancel", str(lease.job), *WHY)
    text = shop.jobs("show", job).out
    assert "What it sent before may have happened" in text
    line = next(line for line in text.splitlines() if line.startswith("  fencegate commands list"))
    done = fencegate(*shlex.split(line)[1:], "--format", "jsonl", dsn=shop.dsn)
    assert [json.loads(row)["key"] for row in done.out.splitlines()] == [f"tool-job:{job}:pay"]
    none = fencegate("commands", "list", "--job", str(uuid4()), dsn=shop.dsn)
    assert none.out == "no command matches\n"
    shop.end(Fail(shop.one().held, "402", retry=False))
    text = shop.jobs("show", other).out
    assert "replayed then, not sent" in text
    assert "A corrected wish is a new job with a new key." in text


def test_show_says_that_nobody_has_a_handler(shop: Shop) -> None:
    job = shop.add("charge")
    shop.end(Complete(shop.one().held, b"1", NextStage("pay")))
    for _ in range(2):
        shop.end(HandBack(shop.one().held))
    assert "handed back" not in shop.jobs("show", job).out
    shop.end(HandBack(shop.one().held))
    text = shop.jobs("show", job).out
    assert "It was handed back 3 times in a row, last by w\\x1b1" in text
    assert "no handler for stage pay of charge" in text


def test_a_job_that_is_not_there_is_looked_for_elsewhere(shop: Shop) -> None:
    execute(shop.dsn, "insert into gateway.tenants (name) values ('billing')")
    job = shop.add("charge", "--key", "order-17", "--tenant", "billing")
    for which in ([job], ["--key", "order-17"]):
        refused(shop.jobs("show", *which), 1, "there is one under billing", "--tenant billing")
        assert shop.jobs("show", *which, "--tenant", "billing").code == 0
    missing = str(uuid4())
    for done in (
        shop.jobs("show", missing),
        shop.jobs("cancel", missing, *WHY),
        shop.jobs("retry", missing, *WHY),
        shop.jobs("approve", missing, *WHY),
    ):
        refused(done, 1, f"tenant default has no job {missing}", "fencegate jobs list")
    refused(shop.jobs("show", job, "--tenant", "nope"), 1, "there is no tenant 'nope'")
    for verb in ("cancel", "retry", "approve"):
        refused(shop.jobs(verb, job, *WHY), 1, "--tenant billing")
        refused(shop.jobs(verb, "--key", "order-17", *WHY), 1, "key order-17", "--tenant billing")
        refused(shop.jobs(verb, "--key", "order-18", *WHY), 1, "key order-18", "jobs list")


# --- decisions -------------------------------------------------------------------------------


def test_cancel_ends_a_lease_and_is_audited(shop: Shop) -> None:
    job = shop.add("charge", "--entity", "invoice:1")
    lease = shop.one()
    done = shop.jobs("cancel", job, *WHY)
    assert (done.code, done.err) == (0, "")
    assert f"job {job} is cancelled" in done.out
    assert rows(shop.dsn, "select from gateway.job_leases") == []
    (entity,) = rows(shop.dsn, "select fence, held from gateway.entities")
    assert (entity["fence"], entity["held"]) == (lease.fence + 1, 0)
    assert shop.audit() == [("operator:ann", job, "job cancelled: the ledger says so")]
    refused(shop.jobs("cancel", job, *WHY), 1, "is cancelled, so there is nothing to cancel")


def test_a_sessions_unfinished_jobs_are_cancelled_together(shop: Shop) -> None:
    one, two, other = (
        shop.add("charge", "--session", session) for session in ("chat-7", "chat-7", "chat-8")
    )
    shop.one()
    done = shop.jobs("cancel", "--session", "chat-7", *WHY)
    assert done.code == 0
    assert sorted(done.out.splitlines()) == sorted(f"job {j} is cancelled" for j in (one, two))
    assert [row["job"] for row in shop.listed("--state", "queued")] == [other]
    refused(shop.jobs("cancel", "--session", "chat-7", *WHY), 1, "has no unfinished job")


def test_retry_keeps_id_key_and_stage(shop: Shop) -> None:
    job = shop.add("charge", "--key", "order-17")
    refused(shop.jobs("retry", job, *WHY), 1, "is queued; only a failed or cancelled one")
    shop.end(Complete(shop.one().held, b"1", NextStage("book")))
    shop.end(Fail(shop.one().held, "closed", retry=False))
    done = shop.jobs("retry", job, *WHY)
    assert (done.code, done.err) == (0, "")
    assert "queued again at stage book" in done.out
    lease = shop.one()
    assert (str(lease.job), lease.key, lease.stage, lease.attempt) == (job, "order-17", "book", 1)
    shop.end(Complete(lease.held, b"2"))
    refused(shop.jobs("retry", job, *WHY), 1, "is succeeded;")
    assert shop.audit() == [("operator:ann", job, "failed job queued again: the ledger says so")]


def test_a_stage_that_waits_runs_once_it_is_approved(shop: Shop) -> None:
    job = shop.add("charge")
    refused(shop.jobs("approve", job, *WHY), 1, "is queued and waits for no approval")
    shop.end(Complete(shop.one().held, b"1", NextStage("pay", wait=True)))
    assert shop.claim() == []
    done = shop.jobs("approve", job, *WHY)
    assert (done.code, done.err) == (0, "")
    assert "stage pay is approved" in done.out
    assert str(shop.one().job) == job
    assert shop.audit() == [("operator:ann", job, "stage pay approved: the ledger says so")]
    refused(shop.jobs("approve", job, *WHY), 1, "is running and waits for no approval")


def test_decisions_take_the_key_as_well(shop: Shop) -> None:
    job = shop.add("charge", "--key", "order-17")
    named = ("--key", "order-17", *WHY)
    refused(shop.jobs("approve", *named), 1, f"job {job} is queued and waits for no approval")
    shop.end(Complete(shop.one().held, b"1", NextStage("pay", wait=True)))
    assert f"job {job} may run on" in shop.jobs("approve", *named).out
    assert f"job {job} is cancelled" in shop.jobs("cancel", *named).out
    assert f"job {job} is queued again" in shop.jobs("retry", *named).out
    assert [row[1] for row in shop.audit()] == [job] * 3
    for verb in ("cancel", "retry", "approve"):
        assert shop.jobs(verb, job, *named).code == 2


@pytest.mark.parametrize(
    "argv",
    [
        ["list"],
        ["show", str(UUID(int=1))],
        ["cancel", str(UUID(int=1)), "--reason", "x"],
        ["retry", str(UUID(int=1)), "--reason", "x"],
        ["approve", str(UUID(int=1)), "--reason", "x"],
    ],
)
def test_the_databases_troubles_are_one_line(empty_database: str, argv: list[str]) -> None:
    down = fencegate("jobs", *argv, dsn="postgresql://u:hush@127.0.0.1:1/x")
    refused(down, 1, "the database cannot be reached", "FENCEGATE_DATABASE_URL")
    refused(fencegate("jobs", *argv, dsn=empty_database), 2, "run: fencegate migrate")
