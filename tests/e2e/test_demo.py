"""`fencegate demo` as a user starts it: its verdict, its numbers, and that nothing stays behind."""

import io
import json
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from gateway.crew import Crew, Interrupts, environment
from gateway.demo import story
from gateway.demo.ledger import Command, Effect, differences, read
from gateway.demo.render import Narrator
from gateway.demo.stage import Stage
from gateway.demo.world import start_api
from tests.kit import show
from tests.kit.db import open_folder
from tests.kit.show import Show

PROMPT = "Press Ctrl-C here"

linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks into /proc")


def start(folder: Path, *arguments: str, **env: str) -> Show:
    return show.start(folder, "demo", *arguments, **env)


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """Where a demo keeps its files: as root, its PostgreSQL must be able to pass into it."""
    with open_folder() as folder:
        yield folder


@pytest.fixture
def started() -> Iterator[list[Show]]:
    """Demos to be ended if the test does not."""
    demos: list[Show] = []
    yield demos
    for demo in demos:
        demo.process.kill()
        demo.process.wait()
        assert demo.process.stdout is not None
        demo.process.stdout.close()


def rows(output: str) -> dict[str, tuple[int, ...]]:
    """The final table: intended, without and with the gateway."""
    found = re.findall(r"(?m)^(\S.*?) {2,}(\d+) +(\d+) +(\d+)$", output)
    return {title: tuple(map(int, counts)) for title, *counts in found}


@linux
def test_the_demo_shows_duplicates_without_and_none_with_the_gateway(
    tmp_path: Path, started: list[Show]
) -> None:
    # Somebody's own settings must not lead the demo to their database.
    foreign = {"FENCEGATE_DATABASE_URL": "postgresql://x@127.0.0.1:1/x", "FENCEGATE_DRAIN_S": "no"}
    demo = start(tmp_path, **foreign)
    started.append(demo)
    code, output = demo.finish()
    assert code == 0, output
    assert rows(output) == {
        "answered, then retried": (1, 2, 1),
        "answer lost, then retried": (2, 3, 2),
        "paused worker wakes up late": (1, 2, 1),
        "key used again for another amount": (1, 2, 1),
        "20 identical requests at once": (1, 20, 1),
        "all effects in the ledger": (6, 29, 6),
    }
    assert "\n  NOT" not in output
    assert "\x1b" not in output
    for shown in ("idempotent-replayed: true", "fence_stale", "commands list --state unknown"):
        assert shown in output
    demo.assert_nothing_left()


@linux
@pytest.mark.skipif(shutil.which("curl") is None, reason="pastes lines for curl")
def test_keep_leaves_it_running_with_lines_that_can_be_pasted(
    tmp_path: Path, started: list[Show]
) -> None:
    demo = start(tmp_path, "--keep")
    started.append(demo)
    lines = demo.read_until(PROMPT).splitlines()
    pasted = [line for line in lines if line.startswith(("curl ", str(tmp_path)))]
    said = [
        subprocess.run(line, shell=True, capture_output=True, text=True, check=True).stdout
        for line in pasted
    ]
    assert len(said) == 7
    new, replay, stale, audit, late, other, ledger = said
    assert "HTTP/1.1 201" in new
    assert "gateway-outcome: applied" in new.lower()
    assert "HTTP/1.1 201" in replay
    assert "idempotent-replayed: true" in replay.lower()
    assert "HTTP/1.1 412" in stale
    assert "my-late-key" in audit
    assert "412 fence-stale" in late
    assert "differs in   body /amount\n" in other
    assert ledger.count('"capture_') == 1
    demo.process.send_signal(signal.SIGINT)
    code, output = demo.finish()
    assert code == 0, output
    demo.assert_nothing_left()


@linux
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_in_the_middle_stops_everything(
    tmp_path: Path, started: list[Show], number: signal.Signals
) -> None:
    demo = start(tmp_path)
    started.append(demo)
    demo.read_until("Its process is stopped right there")
    demo.process.send_signal(number)
    code, output = demo.finish()
    assert code == 128 + number
    assert number.name in output
    demo.assert_nothing_left()


@linux
def test_a_killed_demo_leaves_nothing_behind(tmp_path: Path, started: list[Show]) -> None:
    demo = start(tmp_path)
    started.append(demo)
    demo.read_until("Its process is stopped right there")
    assert len(demo.left()) > 5
    (state,) = tmp_path.glob("*/database/server.json")
    socket_dir = Path(json.loads(state.read_text())["socket_dir"])
    assert socket_dir.is_dir()
    demo.process.kill()
    demo.process.wait()
    demo.assert_nothing_left(within_s=20)
    assert not socket_dir.exists()


@linux
def test_what_cannot_be_started_is_said_and_the_rest_is_stopped(
    tmp_path: Path, started: list[Show]
) -> None:
    demo = start(tmp_path, FENCEGATE_POSTGRES_BIN="/nowhere")
    started.append(demo)
    code, output = demo.finish()
    assert code == 1
    assert "/nowhere" in output
    assert "Traceback" not in output
    demo.assert_nothing_left()


@linux
def test_a_reader_that_leaves_early_ends_it(tmp_path: Path, started: list[Show]) -> None:
    demo = start(tmp_path)
    started.append(demo)
    demo.read_until("Act 1")
    assert demo.process.stdout is not None
    demo.process.stdout.close()
    assert demo.process.wait(timeout=60) == 1
    demo.assert_nothing_left()


def test_a_gateway_that_only_passed_through_would_be_found_out(tmp_path: Path) -> None:
    """The real script against the bare API, held up as the side with the gateway."""
    interrupts = Interrupts()
    out = io.StringIO()
    with interrupts.caught(120):
        crew = Crew(tmp_path, interrupts)
        try:
            api = start_api("api", tmp_path, crew)
            stage = Stage(
                title="bare",
                base_url=api.url,
                guarded=False,
                api=api,
                crew=crew,
                out=Narrator(out),
                caller_env=environment(CALLER_TOKEN=api.token),
            )
            story.play(stage)
            effects = read(api.ledger)
        finally:
            crew.stop()
    assert stage.differences == [], out.getvalue()
    assert len(effects) == 29
    found = differences(story.SCENARIOS, effects, effects)
    for subject in ("inv-100", "inv-200", "inv-300", "inv-400", "customer:c-7"):
        assert any(subject in each for each in found)


INTENDED = [command for scenario in story.SCENARIOS for command in scenario.intended]


def effect(command: Command) -> Effect:
    return Effect(command.kind, command.subject, command.body)


GOOD = [effect(command) for command in INTENDED]
DOUBLED = GOOD * 2


def test_the_verdict_is_good_where_each_command_has_its_one_effect() -> None:
    assert differences(story.SCENARIOS, DOUBLED, GOOD) == []
    assert differences(story.SCENARIOS, DOUBLED, GOOD[::-1]) == []


@pytest.mark.parametrize(
    "effects",
    [
        pytest.param(GOOD[1:], id="one is missing"),
        pytest.param([*GOOD, GOOD[0]], id="one is doubled"),
        pytest.param([*GOOD, Effect("capture", "invoice:inv-9", "{}")], id="nobody meant it"),
        pytest.param([replace(GOOD[0], body='{"amount": 1}'), *GOOD[1:]], id="another amount"),
        pytest.param([], id="nothing happened"),
    ],
)
def test_the_verdict_names_what_differs_with_the_gateway(effects: list[Effect]) -> None:
    found = differences(story.SCENARIOS, DOUBLED, effects)
    assert found
    assert all(each.startswith("with the gateway") for each in found)


def test_the_verdict_is_bad_where_there_was_no_problem_to_begin_with() -> None:
    found = differences(story.SCENARIOS, GOOD, GOOD)
    assert len(found) == len(story.SCENARIOS)
    assert all(each.startswith("without the gateway") for each in found)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("out", "no_color", "coloured"),
    [(Terminal(), "", True), (Terminal(), "1", False), (io.StringIO(), "", False)],
)
def test_colours_only_on_a_terminal_whose_owner_wants_them(
    monkeypatch: pytest.MonkeyPatch, out: io.StringIO, no_color: str, coloured: bool
) -> None:
    monkeypatch.setenv("NO_COLOR", no_color)
    monkeypatch.setenv("TERM", "xterm")
    Narrator(out).verdict([])
    assert ("\x1b[" in out.getvalue()) is coloured
    assert "VERDICT" in out.getvalue()
