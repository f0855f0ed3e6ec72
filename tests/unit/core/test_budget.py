"""The shares of a pool: nobody else can take the commands' last connection."""

from __future__ import annotations

import re
from dataclasses import astuple
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.budget import BESIDE, LEAST_POOL, USUAL_POOL, Shares
from gateway.settings import Settings

ROOT = Path(__file__).resolve().parents[3]


@given(st.integers(LEAST_POOL, 100_000))
def test_all_together_are_the_pool_and_each_has_one(size: int) -> None:
    shares = astuple(Shares.of(size))
    assert sum(shares) + len(BESIDE) == size
    assert min(shares) >= 1


@given(st.integers(-1, LEAST_POOL - 1))
def test_a_pool_that_is_too_small_is_refused_with_its_mend(size: int) -> None:
    with pytest.raises(ValueError, match=f"take {LEAST_POOL} or more, or the usual {USUAL_POOL}"):
        Shares.of(size)


def test_the_usual_pool_gives_two_to_what_waits_for_locks() -> None:
    assert Settings.model_fields["pool_size"].default == USUAL_POOL
    shares = Shares.of(USUAL_POOL)
    assert (shares.ends, shares.others, shares.fences) == (2, 2, 2)
    before = Shares.of(USUAL_POOL - 1)
    assert (before.ends, before.others, before.fences) == (1, 1, 1)


def test_its_table_is_true() -> None:
    """That of docs/architecture.md."""
    text = (ROOT / "docs/architecture.md").read_text("utf-8")
    section = text.split("\n## Connections\n")[1].split("\n## ")[0]
    rows = [line for line in section.splitlines() if re.match(r"\| [0-9]", line)]
    assert len(rows) == 4
    for row in rows:
        size, *told = (int(number) for number in re.findall(r"\| ([0-9]+)", row))
        *shares, commands = astuple(Shares.of(size))
        assert told == [*shares, len(BESIDE), commands]
