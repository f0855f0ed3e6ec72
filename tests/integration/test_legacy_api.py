"""The example API: it must be honest in its ledger and dishonest on request."""

import os
import re
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.core.secret import revealed
from gateway.policy import Match, load
from gateway.resources import examples_dir, policies_dir

TOKEN = "only-the-gateway-knows"
CAPTURE = "/v1/invoices/inv-1/capture"
BODY = {"amount": 1200, "currency": "EUR"}


@dataclass
class Api:
    process: "subprocess.Popen[str]"
    client: httpx.Client
    ledger_file: Path

    def capture(self, **headers: str) -> httpx.Response:
        return self.client.post(CAPTURE, json=BODY, headers=headers)

    def switch(self, behaviour: str) -> httpx.Response:
        return self.client.post("/_switches", json={"behaviour": behaviour})

    def ledger(self) -> Any:
        return self.client.get("/v1/ledger").json()

    def effects(self) -> int:
        """Counted in the file."""
        with closing(sqlite3.connect(self.ledger_file)) as db:
            (count,) = db.execute("select count(*) from effects").fetchone()
        return int(count)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Api]]:
    started: list[Api] = []
    ledger = tmp_path / "ledger.sqlite3"

    def make(*command: str, cwd: Path | None = None, env: dict[str, str] | None = None) -> Api:
        argv = [sys.executable, *(command or (str(examples_dir() / "legacy_api"),))]
        process = subprocess.Popen(
            [*argv, "--port", "0", "--ledger", str(ledger)],
            cwd=cwd or tmp_path,
            env={**os.environ, "LEGACY_TOKEN": TOKEN, **(env or {})},
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        found = re.search(r"http://\S+", process.stdout.readline())
        assert found is not None
        client = httpx.Client(
            base_url=found[0], headers={"Authorization": f"Bearer {TOKEN}"}, trust_env=False
        )
        started.append(Api(process, client, ledger))
        return started[-1]

    yield make
    for api in started:
        api.client.close()
        api.process.kill()
        api.process.wait()
        assert api.process.stdout is not None
        api.process.stdout.close()


@pytest.fixture
def api(start: Callable[..., Api]) -> Api:
    return start()


def test_every_post_is_one_more_effect_whatever_its_key(api: Api) -> None:
    same = {"Idempotency-Key": "k", "X-Execution-Fence": "1"}
    answers = [api.capture(**same) for _ in range(2)]
    assert [answer.status_code for answer in answers] == [201, 201]
    assert [answer.json()["id"] for answer in answers] == ["capture_1", "capture_2"]
    case = api.client.post("/v1/cases", json={"customer_id": "c-7", "title": "Late"})
    assert case.status_code == 201
    ledger = api.ledger()
    assert ledger["counts"] == {"capture": 2, "case": 1}
    assert ledger["requests"] == 3
    assert [effect["subject"] for effect in ledger["effects"]] == [
        "invoice:inv-1",
        "invoice:inv-1",
        "customer:c-7",
    ]


def test_told_to_deduplicate_it_acts_once_for_a_reference(start: Callable[..., Api]) -> None:
    api = start(str(examples_dir() / "legacy_api"), "--deduplicate")
    named = {"Client-Reference": "r-1"}
    api.switch("lose-answer")
    with pytest.raises(httpx.RemoteProtocolError):
        api.capture(**named)
    again = [api.capture(**named) for _ in range(2)]
    assert [(each.status_code, each.json()["id"]) for each in again] == [(201, "capture_1")] * 2
    other = api.client.post(CAPTURE, json={**BODY, "amount": 1}, headers=named)
    assert other.status_code == 422
    assert api.effects() == 1
    assert api.capture(**{"Client-Reference": "r-2"}).json()["id"] == "capture_2"
    assert [api.capture().json()["id"] for _ in range(2)] == ["capture_3", "capture_4"]


def test_told_to_deduplicate_it_acts_once_for_many_at_once(start: Callable[..., Api]) -> None:
    api = start(str(examples_dir() / "legacy_api"), "--deduplicate")
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: api.capture(**{"Client-Reference": "r"}), range(8)))
    assert {each.json()["id"] for each in answers} == {"capture_1"}
    assert api.effects() == 1


def test_an_invoice_shows_what_was_captured(api: Api) -> None:
    api.capture()
    api.capture()
    invoice = api.client.get("/v1/invoices/inv-1").json()
    assert invoice["captured"] == 2400
    assert [each["id"] for each in invoice["captures"]] == ["capture_1", "capture_2"]
    assert api.client.get("/v1/invoices/other").json()["captures"] == []


@pytest.mark.parametrize("authorization", ["", "Bearer wrong", TOKEN])
@pytest.mark.parametrize(
    ("method", "path"), [("POST", CAPTURE), ("GET", "/v1/ledger"), ("POST", "/_switches")]
)
def test_nothing_without_the_token(api: Api, method: str, path: str, authorization: str) -> None:
    answer = api.client.request(method, path, json=BODY, headers={"Authorization": authorization})
    assert answer.status_code == 401
    assert api.ledger()["requests"] == 0


def test_a_lost_answer_is_an_effect_without_a_byte_in_return(api: Api) -> None:
    api.switch("lose-answer")
    with pytest.raises(httpx.RemoteProtocolError, match="without sending a response"):
        api.capture()
    assert api.effects() == 1
    assert api.capture().status_code == 201


def test_a_failure_after_the_effect(api: Api) -> None:
    api.switch("fail-after; status=503")
    assert api.capture().status_code == 503
    assert api.effects() == 1


def test_a_refusal_before_the_effect(api: Api) -> None:
    api.switch("refuse")
    answer = api.capture()
    assert (answer.status_code, answer.headers["Retry-After"]) == (429, "1")
    assert api.effects() == 0
    assert api.ledger()["requests"] == 1


def test_slowness_comes_after_the_effect(api: Api) -> None:
    with ThreadPoolExecutor(1) as pool:
        slow = pool.submit(lambda: api.capture(**{"Legacy-Behaviour": "slow; seconds=2"}))
        deadline = time.monotonic() + 10
        while api.ledger()["counts"] == {}:
            assert time.monotonic() < deadline
        assert not slow.done()
        assert slow.result().status_code == 201


def test_switches_take_turns_and_are_used_up(api: Api) -> None:
    api.switch("refuse; times=2; status=503")
    api.switch("fail-after")
    assert [api.capture().status_code for _ in range(4)] == [503, 503, 500, 201]


def test_switches_are_shown_and_cleared(api: Api) -> None:
    assert api.switch("slow; seconds=3; times=2").json() == {
        "waiting": [{"name": "slow", "seconds": 3.0, "times": 2, "status": 500}]
    }
    assert api.client.delete("/_switches").json() == {"waiting": []}
    assert api.capture().status_code == 201


def test_a_header_concerns_its_own_request_alone(api: Api) -> None:
    api.switch("refuse")
    assert api.capture(**{"Legacy-Behaviour": "fail-after"}).status_code == 500
    assert api.capture().status_code == 429


def test_behaviour_may_be_set_at_start(start: Callable[..., Api]) -> None:
    api = start(env={"LEGACY_BEHAVIOUR": "fail-after; times=2"})
    assert [api.capture().status_code for _ in range(3)] == [500, 500, 201]


@pytest.mark.parametrize(
    "behaviour",
    [
        "explode",
        "slow; seconds=soon",
        "slow; seconds=-1",
        "slow; seconds=nan",
        "ok; times=0",
        "refuse; status=99",
        "slow; colour=red",
        "",
    ],
)
def test_a_switch_outside_of_the_grammar_is_refused(api: Api, behaviour: str) -> None:
    answer = api.switch(behaviour)
    assert answer.status_code == 400
    assert answer.json()["error"]
    assert api.client.get("/_switches").json() == {"waiting": []}


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (CAPTURE, b""),
        (CAPTURE, b"[1]"),
        (CAPTURE, b"[" * 60_000),
        (CAPTURE, b'{"amount": 1}'),
        (CAPTURE, b'{"amount": "1", "currency": "EUR"}'),
        (CAPTURE, b'{"amount": true, "currency": "EUR"}'),
        (CAPTURE, b'{"amount": 0, "currency": "EUR"}'),
        (CAPTURE, b'{"amount": 1, "currency": "eur"}'),
        (CAPTURE, b'{"amount": 1, "currency": "EUR", "more": 1}'),
        (CAPTURE, b" " * 70_000),
        ("/v1/invoices/a%20b/capture", b'{"amount": 1, "currency": "EUR"}'),
        ("/v1/cases", b'{"customer_id": 7, "title": "Late"}'),
        ("/v1/cases", b'{"customer_id": "c-7", "title": ""}'),
    ],
)
def test_a_body_it_does_not_understand_has_no_effect(api: Api, path: str, body: bytes) -> None:
    answer = api.client.post(path, content=body)
    assert answer.status_code == 400
    assert answer.json()["error"]
    assert api.effects() == 0


def test_concurrent_requests_are_each_one_effect(api: Api) -> None:
    with ThreadPoolExecutor(20) as pool:
        answers = list(pool.map(lambda _: api.capture(), range(200)))
    assert {answer.status_code for answer in answers} == {201}
    assert len({answer.json()["id"] for answer in answers}) == 200
    assert api.effects() == 200


def test_an_answered_effect_outlives_the_process(start: Callable[..., Api]) -> None:
    first = start()
    assert first.capture().status_code == 201
    first.process.send_signal(signal.SIGKILL)
    first.process.wait()
    again = start()
    assert again.ledger()["counts"] == {"capture": 1}
    assert again.capture().json()["id"] == "capture_2"


def test_it_runs_as_a_module_of_the_checkout(start: Callable[..., Api]) -> None:
    root = examples_dir().parent
    api = start("-m", f"{examples_dir().name}.legacy_api", cwd=root)
    assert api.capture().status_code == 201


def test_it_does_not_start_without_a_token(tmp_path: Path) -> None:
    env = {name: value for name, value in os.environ.items() if name != "LEGACY_TOKEN"}
    done = subprocess.run(
        [sys.executable, examples_dir() / "legacy_api", "--port", "0"],
        cwd=tmp_path,
        env=env,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2
    assert "LEGACY_TOKEN" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_its_policy_loads_and_names_its_commands(tmp_path: Path) -> None:
    (tmp_path / "legacy.toml").write_bytes((policies_dir() / "legacy.toml").read_bytes())
    policies = load(tmp_path, {"LEGACY_TOKEN": TOKEN})
    assert policies.warnings == ()
    for path, name in ((CAPTURE, "capture"), ("/v1/cases", "open_case")):
        match = policies.match("POST", f"/legacy{path}".encode())
        assert isinstance(match, Match)
        assert match.command.name == name
        assert match.command.rules.fence == "required"
        assert match.target(b"") == path.encode()
        assert revealed(match.upstream.headers) == ((b"Authorization", f"Bearer {TOKEN}".encode()),)


def test_a_reference_is_kept_and_finds_its_effects(api: Api) -> None:
    def found(reference: str) -> list[str]:
        answer = api.client.get("/v1/effects", params={"reference": reference})
        assert answer.json()["reference"] == reference
        return [each["id"] for each in answer.json()["effects"]]

    assert found("r-1") == []
    for _ in range(2):  # it deduplicates nothing
        api.capture(**{"Client-Reference": "r-1"})
    api.capture()
    assert found("r-1") == ["capture_1", "capture_2"]
    assert found("r-2") == []
    refusing = api.client.get(
        "/v1/effects?reference=r-1", headers={"Legacy-Behaviour": "refuse; status=503"}
    )
    assert refusing.status_code == 503
    assert api.client.get("/v1/effects").status_code == 400
    assert api.capture(**{"Client-Reference": "a b"}).status_code == 400
    assert api.effects() == 3


def test_an_effect_may_follow_a_connection_that_is_gone(api: Api) -> None:
    api.switch("act-later; seconds=0.2")
    with pytest.raises(httpx.RemoteProtocolError, match="without sending a response"):
        api.capture(**{"Client-Reference": "r-1"})
    deadline = time.monotonic() + 10
    while api.effects() == 0:
        assert time.monotonic() < deadline
    (effect,) = api.ledger()["effects"]
    assert effect["reference"] == "r-1"


def test_a_ledger_of_an_older_copy_goes_on(start: Callable[..., Api], tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "ledger.sqlite3")) as db:
        db.execute(
            "create table effects (id integer primary key autoincrement, at text not null,"
            " kind text not null, subject text not null, body text not null, caller text not null)"
        )
        db.execute("insert into effects values (1, 'then', 'capture', 'invoice:inv-1', '{}', '')")
        db.commit()
    api = start()
    assert api.capture(**{"Client-Reference": "r-1"}).json()["id"] == "capture_2"
    assert api.effects() == 2
