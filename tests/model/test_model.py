"""Every state of every scenario keeps the guarantees, and each broken rule is caught.

The numbers of states stand in docs/model.md; one that changes says that the model did.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from tests.model.bounds import Bounds
from tests.model.explorer import explore
from tests.model.mutants import MUTANTS, Mutant
from tests.model.scenarios import DEEP, SCENARIOS

PAGE = Path(__file__).parents[2] / "docs" / "model.md"
ENOUGH = 30_000
"""States at most: a scenario that grows beyond that belongs into ``DEEP``."""


def documented() -> dict[str, tuple[int, int, int]]:
    """States, steps and depth, by scenario."""
    rows = re.findall(
        r"^\| ([^|]+) \| [^|]+ \| ([\d,]+) \| ([\d,]+) \| (\d+) \|$",
        PAGE.read_text("utf-8"),
        re.MULTILINE,
    )
    found = {}
    for name, *numbers in rows:
        states, steps, depth = (int(number.replace(",", "")) for number in numbers)
        found[name] = (states, steps, depth)
    return found


@pytest.mark.parametrize("bounds", SCENARIOS.values(), ids=SCENARIOS.keys())
def test_no_step_breaks_a_guarantee(bounds: Bounds) -> None:
    found = explore(bounds, at_most=ENOUGH)
    print(f"{bounds.name}: {found}")
    assert not found.violations, f"\n{found}"
    assert documented()[bounds.name] == (found.states, found.steps, found.depth)


def test_the_page_lists_every_scenario() -> None:
    assert set(documented()) == {*SCENARIOS, *DEEP}


def test_the_page_lists_every_mutant() -> None:
    page = PAGE.read_text("utf-8")
    missing = [
        mutant.name for mutant in MUTANTS if f"| {mutant.name} | {mutant.scenario} | " not in page
    ]
    assert missing == []


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_broken_rule_is_caught(mutant: Mutant) -> None:
    """With the shortest way to the violation, which is printed."""
    found = explore(SCENARIOS[mutant.scenario], mutant.steps, mutant.rules, at_most=ENOUGH)
    print(f"{mutant.name}:\n{found}")
    assert any(each.startswith(mutant.breaks) for each in found.violations), str(found)
    assert len(found.trace) == found.depth > 0


def test_a_key_in_use_settles_nothing_even_when_the_first_is_told() -> None:
    """An upstream may take up the later request first, and call the key in use to the first one,
    whose socket is still read."""
    found = explore(replace(SCENARIOS["resend"], conflict_to_all=True), at_most=ENOUGH)
    print(found)
    assert not found.violations, str(found)


def test_an_upstream_that_counts_from_when_it_acted_gets_no_second_effect_either() -> None:
    found = explore(replace(SCENARIOS["resend"], remembers_acts=True), at_most=ENOUGH)
    print(found)
    assert not found.violations, str(found)
