"""Which documents SQL users may enqueue: those that every reader of JSON takes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import asyncpg
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.core.canonical import Document, Unreadable, read_json
from tests.kit.db import Server
from tests.kit.jobs import Yard, yard


@pytest.fixture(scope="module")
def jobs(postgres: Server) -> Iterator[Yard]:
    with yard(postgres) as made:
        yield made


def nested(levels: int, inside: str = "1") -> str:
    return "[" * levels + inside + "]" * levels


def objects(levels: int) -> str:
    return '{"[": ' * levels + '"["' + "}" * levels


@pytest.mark.parametrize(
    ("taken", "refused", "why"),
    [
        (nested(128), nested(129), "nested deeper than 128 levels"),
        (f"[{nested(127)}, {nested(127)}]", f'{{"a": {nested(64)}, "b": {nested(128)}}}', "nested"),
        (nested(100, objects(28)), nested(100, objects(29)), "nested"),
        (f'"{nested(200)}\\"{nested(200)}"', f'["\\\\", {nested(200)}]', "nested"),
        ("1" * 1000, "1" * 1001, "more than 1000 digits"),
        (f"[-1.{'0' * 999}e5, 1]", f"[0.{'0' * 999}1]", "more than 1000 digits"),
        (f'"{"1" * 2000}"', f'{{"a\\"": {"1" * 2000}}}', "more than 1000 digits"),
    ],
)
def test_enqueue_by_sql_takes_what_every_reader_of_json_takes(
    jobs: Yard, taken: str, refused: str, why: str
) -> None:
    """A worker that cannot read a payload could only fail the job, when its maker has gone."""
    name = "select gateway.enqueue('default', 'sql', $1::json)"
    assert isinstance(read_json(taken.encode()), Document)
    assert isinstance(read_json(refused.encode()), Unreadable)
    assert len(jobs.sql(name, taken)) == 1
    with pytest.raises(asyncpg.InvalidParameterValueError, match=why):
        jobs.sql(name, refused)


@given(
    st.recursive(
        st.integers()
        | st.text('a"[]{}\\', max_size=5)
        | st.floats(allow_nan=False, allow_infinity=False),
        lambda inner: (
            st.lists(inner, max_size=4)
            | st.dictionaries(st.text('"[{\\', max_size=3), inner, max_size=4)
        ),
        max_leaves=30,
    ),
    st.integers(110, 128),
)
@settings(max_examples=100, deadline=None)
def test_depth_in_sql_is_that_of_the_reader(jobs: Yard, value: Any, levels: int) -> None:
    document = nested(levels, json.dumps(value))
    (row,) = jobs.sql("select gateway.trouble_in_json($1) as trouble", document)
    assert (row["trouble"] is None) == isinstance(read_json(document.encode()), Document)
