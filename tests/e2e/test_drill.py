"""`fencegate drill` as a user starts it: its verdict, that the verdict can be bad, what it refuses,
and that nothing stays behind."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.drill import run
from gateway.drill.claims import CLAIMS
from gateway.drill.policy import policy_text, tools_text
from gateway.drill.scene import TITLES
from gateway.drill.upstream import Upstream
from tests.kit import show
from tests.kit.db import Server, open_folder
from tests.kit.faults import until
from tests.kit.gateway import GatewayProcess, gateway, rows
from tests.kit.show import Show
from tests.kit.upstream import closed_port

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "drill.md"

linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks into /proc")


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """Where a drill keeps its files: as root, its PostgreSQL must be able to pass into it."""
    with open_folder() as folder:
        yield folder


@pytest.fixture
def started() -> Iterator[list[Show]]:
    """Drills to be ended if the test does not."""
    shows: list[Show] = []
    yield shows
    for each in shows:
        each.process.kill()
        each.process.wait()
        assert each.process.stdout is not None
        each.process.stdout.close()


def drill(folder: Path, started: list[Show], *arguments: str, **env: str) -> Show:
    made = show.start(folder, "drill", *arguments, **env)
    started.append(made)
    return made


def documents(output: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in output.splitlines()]


def failed(output: str) -> set[tuple[str, str]]:
    claims = [each for each in documents(output) if "claim" in each]
    return {(each["variant"], each["claim"]) for each in claims if not each["holds"]}


# --- by itself ------------------------------------------------------------------------------------


@linux
def test_every_claim_holds_in_all_five_variants(tmp_path: Path, started: list[Show]) -> None:
    # Somebody's own settings must not lead the drill to their database.
    foreign = {"FENCEGATE_DATABASE_URL": "postgresql://x@127.0.0.1:1/x", "FENCEGATE_DRAIN_S": "no"}
    running = drill(tmp_path, started, "--format", "jsonl", **foreign)
    code, output = running.finish()
    assert code == 0, output
    claimed = [(each["variant"], each["claim"]) for each in documents(output) if "claim" in each]
    dead = ("killed", "library-refused")
    assert claimed == [(v, c) for v in TITLES for c in CLAIMS if (v, c) != dead]
    assert failed(output) == set()
    *_, verdict = documents(output)
    assert verdict["verdict"] == "holds"
    assert verdict["variants"] == list(TITLES)
    running.assert_nothing_left()


def shape(text: str) -> list[str]:
    """A report without times, fences and numbers that differ from run to run."""
    text = re.sub(r"\d\d:\d\d:\d\d\.\d{3}Z", "TIME", text)
    text = re.sub(r"(?m)^ *\d+\.\d s", "  0.0 s", text)
    text = re.sub(r"\b\d+ s$", "0 s", text, flags=re.MULTILINE)
    return text.splitlines()


@linux
def test_the_page_shows_what_it_prints(tmp_path: Path, started: list[Show]) -> None:
    page = PAGE.read_text(encoding="utf-8")
    (sample,) = re.findall(r"^```text\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    command, _, expected = sample.partition("\n")
    assert command.startswith("$ fencegate drill ")
    running = drill(tmp_path, started, *shlex.split(command)[3:])
    code, output = running.finish()
    assert code == 0, output
    assert shape(output) == shape(expected)


@linux
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_in_the_middle_stops_everything(
    tmp_path: Path, started: list[Show], number: signal.Signals
) -> None:
    running = drill(tmp_path, started, "--variant", "stopped")
    running.read_until("W1 is stopped")
    running.process.send_signal(number)
    code, output = running.finish()
    assert code == 128 + number
    assert number.name in output
    running.assert_nothing_left()


@linux
def test_a_killed_drill_leaves_nothing_behind(tmp_path: Path, started: list[Show]) -> None:
    running = drill(tmp_path, started, "--variant", "stopped")
    running.read_until("W1 is stopped")
    assert len(running.left()) > 5
    running.process.kill()
    running.process.wait()
    running.assert_nothing_left(within_s=20)


@linux
def test_what_cannot_be_started_is_said_and_the_rest_is_stopped(
    tmp_path: Path, started: list[Show]
) -> None:
    running = drill(tmp_path, started, FENCEGATE_POSTGRES_BIN="/nowhere")
    code, output = running.finish()
    assert code == 2
    assert "/nowhere" in output
    assert "Traceback" not in output
    running.assert_nothing_left()


# --- against a deployment -------------------------------------------------------------------------


@contextlib.contextmanager
def deployed(
    postgres: Server, port: int, *, policy: str | None = None, tools: str | None = None
) -> Iterator[GatewayProcess]:
    """A gateway of somebody's own, whose policies expect the drill's upstream on ``port``."""
    text = policy_text(f"http://127.0.0.1:{port}") if policy is None else policy
    with (
        postgres.database() as dsn,
        gateway(dsn, text, tools=tools_text() if tools is None else tools) as served,
    ):
        yield served


def against(
    served: GatewayProcess, port: int, folder: Path, started: list[Show], *more: str, **env: str
) -> tuple[int, str]:
    where = ("--url", served.url, "--listen", f"127.0.0.1:{port}", "--format", "jsonl")
    settings = {"FENCEGATE_DATABASE_URL": served.database, **env}
    return drill(folder, started, *where, *more, **settings).finish()


def test_a_gateway_whose_policy_has_no_fence_is_found_out(
    postgres: Server, tmp_path: Path, started: list[Show]
) -> None:
    """The negative control: the same drill, and a second effect that passes."""
    port = closed_port()
    text = policy_text(f"http://127.0.0.1:{port}")
    assert text.count('issuer = "here"') == 1
    unfenced = text.replace('issuer = "here"', 'fence = "off"')
    with deployed(postgres, port, policy=unfenced) as served:
        code, output = against(served, port, tmp_path, started, "--variant", "network-cut")
    assert code == 1, output
    wrong = {"effect-refused", "one-effect", "fences-named"}
    assert failed(output) == {("network-cut", name) for name in wrong}
    *_, verdict = documents(output)
    assert (verdict["verdict"], verdict["failed"]) == ("does not hold", 3)


def test_it_plays_against_somebody_s_own_deployment_with_a_key(
    postgres: Server, tmp_path: Path, started: list[Show]
) -> None:
    port = closed_port()
    mark = tmp_path / "restarted"
    with deployed(postgres, port) as served:
        # In this order: once the last one that was made is known, so is the other.
        lesser, key = add_key(served.database), add_key(served.database, "--scope=operate")
        wait_until_known(served, key)
        restart = f"echo done > {shlex.quote(str(mark))}"
        chosen = ("--variant", "killed", "--variant", "database-restart")
        code, output = against(
            served, port, tmp_path, started, *chosen, "--restart-database", restart, "--key", key
        )
        assert code == 0, output
        assert mark.read_text() == "done\n"
        assert rows(served.database, "select 1 from gateway.jobs") == []
        code, output = against(served, port, tmp_path, started, "--key", "fg_no.such")
        assert code == 2
        assert "keys add" in output
        code, output = against(served, port, tmp_path, started, "--key", lesser)
        assert code == 2
        assert re.search(r"fencegate keys grant \S+ --tenant default --scope operate", output)


@linux
def test_what_was_not_played_to_its_end_is_cancelled(
    postgres: Server, tmp_path: Path, started: list[Show]
) -> None:
    port = closed_port()
    with deployed(postgres, port) as served:
        where = ("--url", served.url, "--listen", f"127.0.0.1:{port}", "--variant", "stopped")
        running = drill(tmp_path, started, *where, FENCEGATE_DATABASE_URL=served.database)
        running.read_until("W1 is stopped")
        running.process.send_signal(signal.SIGINT)
        assert running.finish()[0] == 128 + signal.SIGINT
        running.assert_nothing_left()
        states = rows(served.database, "select state from gateway.job_history")
        assert states == [{"state": "cancelled"}]
        assert rows(served.database, "select 1 from gateway.jobs") == []


def add_key(dsn: str, *scopes: str) -> str:
    more = ("--scope=policy:*", "--scope=enqueue", "--scope=work", *scopes) if scopes else ()
    done = subprocess.run(
        [
            *(sys.executable, "-m", "gateway.cli"),
            *("keys", "add", "--tenant", "default", "--name", "d", *more),
        ],
        env={**os.environ, "FENCEGATE_DATABASE_URL": dsn},
        capture_output=True,
        text=True,
        check=True,
    )
    (token,) = re.findall(r"\bfg_\S+", done.stdout)
    return str(token)


def wait_until_known(served: GatewayProcess, key: str) -> None:
    """The gateway asks for a key, and takes this one."""
    url, own = f"{served.url}/v1/fences", {"Authorization": f"Bearer {key}"}
    until(lambda: httpx.get(url).status_code == 401, "a key is asked for", 20)
    until(lambda: httpx.get(url, headers=own).status_code == 405, "the key counts", 20)


REFUSALS = [
    pytest.param({"policy": ""}, [], "no policy for /fencegate-drill", id="no policy"),
    pytest.param({"tools": ""}, [], "no tool 'fencegate-drill'", id="no tool"),
    pytest.param(
        {},
        ["--variant", "database-restart"],
        "--restart-database",
        id="nobody can restart the database",
    ),
]


@pytest.mark.parametrize(("files", "more", "said"), REFUSALS)
def test_what_a_deployment_lacks_is_named_with_its_mend(
    postgres: Server,
    tmp_path: Path,
    started: list[Show],
    files: dict[str, str],
    more: list[str],
    said: str,
) -> None:
    port = closed_port()
    if "policy" in files:
        files = {"policy": policy_text("http://127.0.0.1:1").replace("fencegate-drill", "other")}
    with deployed(postgres, port, **files) as served:
        code, output = against(served, port, tmp_path, started, *more)
    assert code == 2, output
    assert said in output
    assert "Traceback" not in output


def test_an_upstream_that_the_gateway_cannot_reach_is_named(
    postgres: Server, tmp_path: Path, started: list[Show]
) -> None:
    port = closed_port()
    with deployed(postgres, closed_port()) as served:
        code, output = against(served, port, tmp_path, started)
    assert code == 2, output
    assert f"cannot reach the drill's upstream on 127.0.0.1:{port}" in output


def test_another_drill_behind_the_policy_is_named(
    postgres: Server, tmp_path: Path, started: list[Show]
) -> None:
    other = Upstream("another run").start()
    try:
        with deployed(postgres, other.port) as served:
            code, output = against(served, closed_port(), tmp_path, started)
    finally:
        other.stop()
    assert code == 2, output
    assert "somebody else answers" in output


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--url", "https://127.0.0.1:1"], "not an http:// address"),
        (["--url", "http://127.0.0.1:1"], "FENCEGATE_DATABASE_URL"),
        (["--url", "http://[::1"], "is no address of a gateway; write it like http://"),
        (["--url", "http://a\x1b[31m"], "http://a\\x1b[31m is no address of a gateway"),
        (["--url", "http://127.0.0.1:99999"], "is no address of a gateway"),
        (["--url", "http://"], "is no address of a gateway"),
        (["--url", "http://127.0.0.1:1", "--key", "fg_é"], "a character that no key has"),
        (["--restart-database", "true"], "goes with --url"),
        (["--listen", "nowhere"], "write HOST:PORT"),
        (["--variant", "flood"], "invalid choice"),
    ],
)
def test_mistakes_are_one_line(
    tmp_path: Path, started: list[Show], arguments: list[str], said: str
) -> None:
    empty = str(tmp_path / "empty")
    running = drill(tmp_path, started, *arguments, FENCEGATE_DATA_DIR=empty)
    code, output = running.finish()
    assert code == 2
    assert said in output
    assert "Traceback" not in output


@linux
def test_an_output_that_takes_nothing_is_no_verdict(tmp_path: Path) -> None:
    """1 says that a claim does not hold; here none was played."""
    command = [sys.executable, "-m", "gateway.cli", "drill", "--variant", "killed"]
    env = {**os.environ, "TMPDIR": str(tmp_path)}
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(command, env=env, stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 2
    assert "the output cannot be written (No space left on device); make room" in done.stderr
    closed = subprocess.run(
        command, env=env, stderr=subprocess.PIPE, text=True, preexec_fn=lambda: os.close(1)
    )
    assert closed.returncode == 2
    assert "standard output is closed" in closed.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_mistake_of_its_own_is_no_verdict(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError("a mistake")

    monkeypatch.setattr(run, "given_ground", broken)
    wish = {"url": "http://127.0.0.1:1", "key": None, "listen": ("127.0.0.1", 1)}
    assert run.drill(variants=(), form="text", restart_database=None, **wish) == 2
    assert "ZeroDivisionError" in capsys.readouterr().err


def test_what_it_prints_for_a_deployment_is_what_it_needs(
    tmp_path: Path, started: list[Show]
) -> None:
    running = drill(tmp_path, started, "--print-policy", "--listen", "127.0.0.1:9123")
    code, output = running.finish()
    assert code == 0
    assert policy_text("http://127.0.0.1:9123") in output
    assert tools_text() in output
