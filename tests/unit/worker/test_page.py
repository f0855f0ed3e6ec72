"""docs/worker.md says what the code says."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import get_args

from gateway.worker import Job
from gateway.worker.actions import ACTIONS, Action
from gateway.worker.endings import BY_ERROR
from gateway.worker.metrics import Done, Metrics
from tests.worker.page import rows, section, words


def test_the_table_of_actions_is_the_code() -> None:
    text = section("## What does an answer mean?")
    first, _, second = text.partition("\n| action |")
    listed = {name: row[1] for row in rows(first) for name in words(row[0])}
    assert listed == dict(ACTIONS)
    told = [each for row in rows("| action |" + second) for each in row[0].split(", ")]
    assert told == list(get_args(Action))


def test_the_table_of_ends_is_the_code() -> None:
    table = rows(section("## What may a handler do, and what follows?"))
    for kind, how in BY_ERROR.items():
        (row,) = [row for row in table if f"`{kind.__name__}" in row[0]]
        assert row[1].startswith("nothing" if how == "nothing" else how), row


def test_what_a_job_has_is_listed() -> None:
    table = rows(section("## What does `job` have?"))
    listed = {name.partition("(")[0] for row in table for name in words(row[0])}
    source = inspect.getsource(Job)
    public = set(re.findall(r"self\.([a-z]\w*): ", source)) | {
        name for name in vars(Job) if not name.startswith("_")
    }
    assert listed == public


def test_the_events_are_listed() -> None:
    text, _, _ = section("## What does it log and measure?").partition("With `--metrics-port`")
    listed = {name for row in rows(text) for name in words(row[0])}
    folder = Path(inspect.getfile(Job)).parent
    source = "".join(each.read_text(encoding="utf-8") for each in folder.glob("*.py"))
    written = set(re.findall(r"""(?:event|tell|_tell)\(\s*"([a-z_]+)\"""", source))
    assert listed == written | {"handlers_blocked", "handlers_go_on"}


def test_the_metrics_are_listed() -> None:
    _, _, text = section("## What does it log and measure?").partition("With `--metrics-port`")
    table = rows(text)
    metrics = Metrics(lambda: (0, 0.0, 0.0))
    made = {family.name for family in metrics.registry.collect()}
    assert {words(row[0])[0].removesuffix("_total") for row in table} == made
    (how,) = [row[2] for row in table if words(row[1]) == ["how"]]
    assert words(how) == list(get_args(Done))
