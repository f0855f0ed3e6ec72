"""The comparison can be run, and its table is of what is installed."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import date
from pathlib import Path

import pytest

from gateway.crew import Interrupts, crew_in, open_folder, start_database
from tests.peers.play import PEERS, VARIANTS, Outcome, Stage, play, stage
from tests.peers.table import BEGIN, END, Row, replaced, subjects, written

PAGE = Path(__file__).resolve().parents[2] / "docs" / "comparison.md"


@pytest.fixture(scope="module")
def on() -> Iterator[Stage]:
    interrupts = Interrupts()
    with (
        interrupts.caught(300),
        open_folder("fencegate-compare-") as folder,
        crew_in(folder, interrupts) as crew,
        stage(crew, folder, start_database(folder, crew)) as made,
    ):
        yield made


@pytest.mark.parametrize("peer", PEERS)
def test_a_queue_alone_takes_the_late_result_and_lets_the_second_effect_out(
    on: Stage, peer: str
) -> None:
    assert play(on, peer, "stopped", fenced=False) == Outcome(accepted=True, late=True, effects=4)


@pytest.mark.parametrize("peer", PEERS)
def test_with_the_recipe_there_are_two_effects(on: Stage, peer: str) -> None:
    assert play(on, peer, "killed", fenced=True) == Outcome(accepted=None, late=False, effects=2)


def test_the_table_is_of_what_is_installed() -> None:
    part = PAGE.read_text(encoding="utf-8").partition(BEGIN)[2].partition(END)[0]
    lines = [line for line in part.splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]
    assert [row[0] for row in cells] == [s for s in subjects().values() for _ in VARIANTS]
    columns = written([], date(2026, 1, 1)).splitlines()
    assert lines[:2] == [line for line in columns if line.startswith("|")]
    assert re.search(r"^Measured on 20\d\d-\d\d-\d\d\.$", part, re.MULTILINE)


def test_writing_the_table_touches_nothing_else() -> None:
    page = PAGE.read_text(encoding="utf-8")
    rows = [Row("pgqueuer", "killed", Outcome(None, True, 4))]
    changed = replaced(page, written(rows, date(2026, 1, 1)))
    assert changed.partition(BEGIN)[0] == page.partition(BEGIN)[0]
    assert changed.partition(END)[2] == page.partition(END)[2]
    assert "| none offered | **yes** | **4** |" in changed
    with pytest.raises(ValueError, match="markers"):
        replaced("no markers", "x")
