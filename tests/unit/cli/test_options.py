"""What is typed, read once and the same everywhere."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from gateway.cli import options
from gateway.cli.main import main

FENCEGATE = (sys.executable, "-m", "gateway.cli")


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("15m", timedelta(minutes=15)),
        ("2h ago", timedelta(hours=2)),
        ("1d", timedelta(days=1)),
        ("30s", timedelta(seconds=30)),
        ("2026-01-31T12:00:00Z", datetime(2026, 1, 31, 12, tzinfo=UTC)),
        ("2026-01-31T14:00:00+02:00", datetime(2026, 1, 31, 12, tzinfo=UTC)),
    ],
)
def test_times(typed: str, meant: object) -> None:
    assert options.moment(typed) == meant


@pytest.mark.parametrize(
    "typed", ["", "yesterday", "15", "-1h", "2026-01-31T12:00:00", "2026-01-31", "٣h"]
)
def test_what_is_no_time_is_told_so(typed: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError):
        options.moment(typed)


@pytest.mark.parametrize("typed", ["", "  ", "\udcff"])
def test_texts_have_something_in_them(typed: str) -> None:
    for kind in (options.text, options.exact, options.name):
        with pytest.raises(argparse.ArgumentTypeError):
            kind(typed)


def test_what_is_looked_for_is_taken_as_it_was_typed() -> None:
    assert options.text(" a ") == "a"
    assert options.exact(" a ") == " a "
    assert options.name("a b") == "a b"


def test_a_closed_output_is_said_before_anything_is_done() -> None:
    done = subprocess.run(
        [*FENCEGATE, "check", "--schema"],
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: os.close(1),
    )
    assert done.returncode == 2
    assert done.stderr == "fencegate: standard output is closed; send it somewhere\n"


@pytest.mark.parametrize(
    "argv", [["explain", "POST", "/x", "--body", "-"], ["jobs", "enqueue", "charge", "-"]]
)
def test_a_closed_input_is_one_line(argv: list[str], tmp_path: Path) -> None:
    (tmp_path / "tools.toml").write_text('[[tools]]\nname = "charge"\n')
    done = subprocess.run(
        [*FENCEGATE, *argv, "--policies", str(tmp_path)],
        capture_output=True,
        text=True,
        preexec_fn=lambda: os.close(0),
    )
    assert done.returncode == 2
    assert done.stderr == "fencegate: standard input is closed; name a file, or send it there\n"


@pytest.mark.parametrize(
    "argv",
    [
        ["nonsense"],
        ["help", "nonsense"],
        ["audit", "--since", "yesterday"],
        ["audit", "--since", "0001-01-01T00:00:00+23:59"],
        ["audit", "--event", "nonsense"],
        ["audit", "--event", "heartbeat_lost"],
        ["audit", "--limit", "-1"],
        ["audit", "--key", "caf\u00e9"],
        ["commands", "show"],
        ["commands", "show", "k", "--digest", "00112233"],
        ["commands", "show", "--digest", "0011"],
        ["commands", "resolve", "k", "--reason", "x"],
        ["commands", "resolve", "k", "--executed"],
        ["commands", "resolve", "k", "--executed", "--reason", "  "],
        ["commands", "resolve", "k", "--executed", "--reason", "…"],
        ["commands", "resolve", "k", "--executed", "--reason", "..."],
        ["commands", "resolve", "k", "--executed", "--reason", "REASON"],
        ["commands", "resolve", "k", "--executed", "--not-executed", "--reason", "x"],
        ["commands", "resolve", "k", "--exec", "--reason", "x"],
        ["commands", "resolve", "k", "--executed", "--reason", "x", "--attempt", "7"],
        ["keys"],
        ["keys", "add", "--tenant", "t"],
        ["keys", "add", "--tenant", "t", "--name", "n", "--scope", "everything"],
        ["keys", "grant", "k"],
        ["keys", "withdraw", "k", "--scope", "policy:"],
        ["jobs"],
        ["jobs", "enqueue"],
        ["jobs", "enqueue", "charge", "--run-at", "15m ago"],
        ["jobs", "enqueue", "charge", "--run-at", "2026-01-31T12:00:00"],
        ["jobs", "enqueue", "charge", "--run-at", "0001-01-01T00:00:00+23:59"],
        ["jobs", "enqueue", "charge", "--give-up-at", "9999-12-31T23:59:59-23:59"],
        ["jobs", "enqueue", "charge", "--entity", " x"],
        ["jobs", "enqueue", "charge", "--key", "k\t"],
        ["jobs", "enqueue", "charge", "--session", " s"],
        ["jobs", "enqueue", "charge", "--on-behalf", "u "],
        ["jobs", "enqueue", "charge", "--priority", "high"],
        ["jobs", "list", "--state", "ready"],
        ["jobs", "show"],
        ["jobs", "show", "order-17"],
        ["jobs", "cancel", "--reason", "x"],
        ["jobs", "cancel", "00000000-0000-4000-8000-000000000000"],
        ["jobs", "cancel", "00000000-0000-4000-8000-000000000000", "--reason", "…"],
        ["jobs", "retry", "--reason", "x"],
        *(
            ["jobs", what, "00000000-0000-4000-8000-000000000000", "--reason", "r" * 4_001]
            for what in ("retry", "cancel", "approve")
        ),
        ["jobs", "approve", "00000000-0000-4000-8000-000000000000"],
        ["serve", "--port", "65536"],
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(
    argv: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(argv)
    assert ended.value.code == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("fencegate")
    assert said.err.count("\n") == 1
    assert "--help" in said.err


@pytest.mark.parametrize(
    "argv",
    [
        [],
        ["serve"],
        ["check"],
        ["migrate"],
        ["keys"],
        ["keys", "add"],
        ["keys", "list"],
        ["keys", "revoke"],
        ["keys", "grant"],
        ["keys", "withdraw"],
        ["audit"],
        ["commands"],
        ["commands", "list"],
        ["commands", "show"],
        ["commands", "resolve"],
        ["jobs"],
        ["jobs", "enqueue"],
        ["jobs", "list"],
        ["jobs", "show"],
        ["jobs", "cancel"],
        ["jobs", "retry"],
        ["jobs", "approve"],
    ],
)
def test_every_help_has_an_example(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([*argv, "--help"])
    assert ended.value.code == 0
    said = capsys.readouterr().out
    assert (
        f"example:\n  {'FENCEGATE_DATABASE_URL=' if argv == ['migrate'] else 'fencegate '}" in said
    )


def test_help_is_a_command_and_what_nothing_shows(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    bare = capsys.readouterr()
    assert bare.out == ""
    for argv in (["help"], ["--help"]):
        with pytest.raises(SystemExit) as ended:
            main(argv)
        assert ended.value.code == 0
        assert capsys.readouterr().out == bare.err
    with pytest.raises(SystemExit):
        main(["help", "keys", "add"])
    assert "--apart" in capsys.readouterr().out


def test_the_audits_help_names_what_this_release_writes(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["audit", "--help"])
    said = capsys.readouterr().out
    for written in ("fence_stale", "fence_refused", "lease_expired", "result_rejected"):
        assert written in said
    assert "heartbeat_lost" not in said


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out.startswith("fencegate 0.")
