"""``fencegate faults``: what is shipped breaks what it says, in front of and behind a gateway."""

from __future__ import annotations

import contextlib
import http.client
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gateway.faults import POINTS
from tests.kit.client import Caller, assert_problem
from tests.kit.db import Server
from tests.kit.gateway import CAPTURE, GatewayProcess, gateway, policy, rows
from tests.kit.operating import fencegate

KEYED = [("Idempotency-Key", "k"), ("X-Execution-Fence", "1"), ("Content-Type", "application/json")]


class Tool:
    """One ``fencegate faults …`` that listens."""

    def __init__(self, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "gateway.cli", "faults", *arguments],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        self.address = self._said(r"listening on (\S+)")
        control = self._said(r"control on (\S+)")
        self.control_at = control.removeprefix("http://")
        self.control = Caller(control)

    def _said(self, pattern: str) -> str:
        assert self.process.stdout is not None
        match = re.match(pattern, self.process.stdout.readline())
        assert match is not None
        return match[1]

    @property
    def url(self) -> str:
        return f"http://{self.address}"

    def ask(self, method: str, path: str, document: object = None) -> Any:
        body = b"" if document is None else json.dumps(document).encode()
        reply = self.control.call(method, path, (), body)
        assert reply.status == 200, reply.body
        return reply.json()


@contextlib.contextmanager
def tool(*arguments: str) -> Iterator[Tool]:
    made = Tool(*arguments)
    try:
        yield made
        made.process.terminate()
        assert made.process.wait(10) == 0
    finally:
        made.process.kill()
        made.process.wait()


@pytest.fixture
def upstream() -> Iterator[Tool]:
    with tool("upstream") as made:
        yield made


@pytest.fixture
def served(postgres: Server, upstream: Tool) -> Iterator[GatewayProcess]:
    with postgres.database() as dsn, gateway(dsn, policy(upstream.url, CAPTURE)) as process:
        yield process


def charge(url: str) -> Any:
    return Caller(url).call("POST", "/pay/v1/accounts/a/charges", KEYED, b"{}")


def test_an_answer_that_the_proxy_breaks_is_replayed(
    served: GatewayProcess, upstream: Tool
) -> None:
    to = served.url.removeprefix("http://")
    with tool("proxy", "--to", to) as proxy:
        proxy.ask("POST", "/rules", {"action": "cut", "match": "POST /pay/", "after": 5})
        with pytest.raises((http.client.HTTPException, OSError)):
            charge(proxy.url)
        again = charge(proxy.url)
        (rule,) = proxy.ask("GET", "/rules")
        proxy.ask("POST", "/refuse")
        with pytest.raises(ConnectionRefusedError):
            charge(proxy.url)
        proxy.ask("POST", "/accept")
        assert charge(proxy.url).replayed
    assert (again.json(), again.replayed, rule["hits"]) == ({"effect": 1}, True, 1)
    assert len(upstream.ask("GET", "/effects")) == 1


def test_an_answer_that_the_upstream_never_gives_is_unknown(
    served: GatewayProcess, upstream: Tool
) -> None:
    upstream.ask("POST", "/answers", {"match": "POST /v1/accounts/", "do": "cut"})
    assert_problem(charge(served.url), "outcome-unknown", outcome="unknown", sent="yes", waits=True)
    (seen,) = upstream.ask("GET", "/requests")
    assert seen["request"] == "POST /v1/accounts/a/charges"
    assert upstream.ask("GET", "/effects") == [seen]
    found = rows(served.database, "select settled_at from gateway.commands")
    assert found == [{"settled_at": None}]


def test_files_say_the_same(tmp_path: Path) -> None:
    answers = tmp_path / "answers.toml"
    answers.write_text('[[answers]]\nstatus = 503\nbody = "{}"\ntimes = 1\n')
    rules = tmp_path / "rules.toml"
    rules.write_text('[[rules]]\naction = "delay"\ndelay_ms = 1\ntimes = "always"\n')
    with tool("upstream", "--answers", str(answers)) as upstream:
        arguments = ("--to", upstream.address, "--rules", str(rules))
        with tool("proxy", *arguments) as proxy:
            replies = [Caller(proxy.url).call("POST", "/x") for _ in range(2)]
            (rule,) = proxy.ask("GET", "/rules")
            assert rule["times"] == "always"
    assert [reply.status for reply in replies] == [503, 201]
    assert rule["hits"] == 2


@pytest.mark.parametrize(
    ("file", "mend"),
    [
        ('[[rules]]\naction = "explode"\n', "write delay, cut, swallow, half-close, reset"),
        ('[[rules]]\naction = "cut"\nafer = 1\n', "a rule has no field afer"),
        ('[[rules]]\naction = "delay"\n', "delay_ms goes with the action delay"),
        ("rules = 1\n", "has to hold [[rules]]"),
        ("[[rules", "cannot be read"),
        ("rules = [3]\n", "rules.toml: rules[0] is 3; write a table"),
        ('[[rules]]\naction = "cut"\n[[rules]]\naction = "bite"\n', "rules.toml: rules[1]: action"),
    ],
)
def test_a_mistake_in_a_file_names_its_mend(tmp_path: Path, file: str, mend: str) -> None:
    path = tmp_path / "rules.toml"
    path.write_text(file)
    done = fencegate("faults", "proxy", "--to", "127.0.0.1:1", "--rules", str(path))
    assert done.code == 2
    assert mend in done.err


@pytest.mark.parametrize(
    ("file", "mend"),
    [
        ("answers = [3]\n", "answers.toml: answers[0] is 3; write a table"),
        ("[[answers]]\nstatus = 99\n", "answers.toml: answers[0]: status is 99"),
    ],
)
def test_a_mistake_in_answers_names_its_place(tmp_path: Path, file: str, mend: str) -> None:
    path = tmp_path / "answers.toml"
    path.write_text(file)
    done = fencegate("faults", "upstream", "--answers", str(path))
    assert done.code == 2
    assert mend in done.err
    assert "Traceback" not in done.err


def test_whatever_the_control_is_sent_it_answers_in_one_sentence(upstream: Tool) -> None:
    for raw in (b"[" * 100_000, b"\xff", b"5", b'{"match": "\\ud800"}', b'{"body": "\\ud800"}'):
        reply = upstream.control.call("POST", "/answers", (), raw)
        assert (reply.status, list(reply.json())) == (400, ["error"])
        assert re.search("send a JSON object|write a text", reply.json()["error"])
    with tool("proxy", "--to", upstream.address) as proxy:
        wrong = {"action": "cut", "match": "\ud800"}
        reply = proxy.control.call("POST", "/rules", (), json.dumps(wrong).encode())
        assert reply.status == 400
        assert "match is no text" in reply.json()["error"]


@pytest.mark.parametrize(
    ("length", "status"), [("abc", 400), ("-1", 400), ("\u00b2", 400), ("9" * 5000, 413)]
)
def test_a_length_that_is_none_is_answered_too(upstream: Tool, length: str, status: int) -> None:
    at = http.client.HTTPConnection(upstream.control_at, timeout=10)
    at.putrequest("POST", "/answers")
    at.putheader("Content-Length", length.encode("latin-1"))
    at.endheaders()
    reply = at.getresponse()
    assert reply.status == status
    assert list(json.loads(reply.read())) == ["error"]
    at.close()


def test_the_points_are_listed() -> None:
    done = fencegate("faults", "points")
    assert [line.split()[0] for line in done.out.splitlines()] == list(POINTS)


def test_failpoints_that_were_only_inherited_end_the_start(postgres: Server) -> None:
    with postgres.database() as dsn:
        env = {"FENCEGATE_FAILPOINTS": "send.before=kill"}
        process = GatewayProcess(dsn, {"p.toml": policy("http://127.0.0.1:1", CAPTURE)}, env=env)
        done = process.refuses_to_start()
        process.close()
    assert done.code == 2
    assert "--allow-failpoints" in done.err
