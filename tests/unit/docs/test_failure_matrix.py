"""The failure matrix has a row for each failpoint, and a test in each row."""

from __future__ import annotations

import re
from dataclasses import fields
from typing import get_args

from gateway.core.problems import TYPES
from gateway.faultkit.rules import Action, Rule
from gateway.faultkit.script import Do, Line
from gateway.faults import POINTS
from tests.unit.docs.test_docs import _TEST, ROOT, _functions, read, rows, section, words

PAGE = "docs/failure-matrix.md"
_HEADS = re.findall(r"^## ((?:A gateway|The|A worker) .+)$", read(PAGE), re.MULTILINE)
WINDOWS = [head for head in _HEADS if head != "The fault proxy and the upstream"]


def windows() -> list[list[str]]:
    found = [row for head in WINDOWS for row in rows(section(read(PAGE), f"## {head}"))]
    assert len(found) > len(POINTS) + 30
    return found


def test_every_failpoint_has_a_row() -> None:
    named = [match[1] for row in windows() if (match := re.match(r"`([a-z-]+\.[a-z]+)`", row[0]))]
    assert sorted(named) == sorted(POINTS)


def test_every_row_names_its_test() -> None:
    without = [row for row in windows() if row[-1] != "the sweep" and not _TEST.search(row[-1])]
    assert without == []
    only_swept = [row[0] for row in windows() if row[-1] == "the sweep"]
    assert all(re.match(r"`[a-z-]+\.[a-z]+`", each) for each in only_swept)


def test_tests_that_are_named_exist() -> None:
    missing = [
        f"{file}::{name}"
        for file, name in _TEST.findall(read(PAGE))
        if not (ROOT / file).is_file() or name not in _functions(ROOT / file)
    ]
    assert missing == []


def test_what_is_heard_is_a_problem_of_that_status() -> None:
    heard = [
        (int(status), name)
        for row in rows(section(read(PAGE), "## I see this. What do I do?"))
        for status, names in re.findall(r"(\d{3}) ((?:`[a-z-]+`(?:, )?)+)", row[0])
        for name in words(names)
    ]
    assert len(heard) > 15
    known = {(kind.status, name) for name, kind in TYPES.items()}
    assert [each for each in heard if each not in known] == []
    # What remains is a mistake in the request, which the answer itself says how to mend.
    untold = {name for name, kind in TYPES.items() if kind.status >= 500} - {n for _, n in heard}
    assert untold == set()


def test_rules_and_answers_are_explained() -> None:
    text = section(read(PAGE), "## The fault proxy and the upstream")
    named = [name for row in rows(text) for name in words(row[0])]
    assert sorted(named) == sorted(each.name for kind in (Rule, Line) for each in fields(kind))
    unnamed = [each for each in (*get_args(Action), *get_args(Do)) if f"`{each}`" not in text]
    assert unnamed == []
