"""What is made of a run: as JSON and back, tables, targets, the page, the plot."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest

from benchmarks.kit import Results
from benchmarks.plan import CONNECTIONS, what
from benchmarks.report import (
    Document,
    last_line,
    read,
    replaced,
    svg,
    targets,
    text,
    write,
    written,
)
from benchmarks.report.page import BEGIN, END

PAGE = Path(__file__).parents[3] / "docs" / "benchmarks.md"


def document(ratio: float = 0.25, *, broken: bool = False) -> Document:
    """Three rounds on a machine that drifts; Fencegate always has this ratio to nginx."""
    results, growth = Results(), Results()
    for number, drift in enumerate((1.0, 0.5, 2.0)):
        for connections in CONNECTIONS:
            name = what("fresh", connections)
            results.add(("nginx", name), number, {"rate": 40_000 * drift, "p50_ms": 0.1})
            mine = {"rate": 40_000 * drift * ratio, "p50_ms": 1.0, "commits": 0.05}
            results.add(("fencegate", name), number, mine)
        results.add(("pgbench", what("commit", 1)), number, {"rate": 3_000, "p50_ms": 0.3})
        growth.add(("fencegate", "1000 keys"), number, {"rate": 9_000 * drift})
        growth.add(("fencegate", "1000000 keys"), number, {"rate": 8_100 * drift})
    if broken:
        results.broken["fencegate", what("fresh", 64)] = "upstream calls, stored commands: 2, 1"
    return Document({"date": "2026-11-30"}, results, growth, absent={"pgbench": "it is not there"})


def found(run: Document) -> dict[str, tuple[float | None, bool | None]]:
    return {each.name: (each.found, each.met) for each in targets(run)}


def test_targets_are_medians_of_ratios() -> None:
    each = found(document(0.19))
    assert each["fresh, by nginx at 64"] == (pytest.approx(0.19), True)
    assert each["fresh, by nginx at 256"] == (pytest.approx(0.19), False)
    assert each["p50 added at 1, in commit latencies"] == (pytest.approx(3.0), True)
    assert each["fresh at 1,000,000 remembered keys, by that at few"] == (pytest.approx(0.9), True)
    assert each["replayed, by nginx at 64"] == (None, None)


def test_the_last_line_states_the_ratio_at_64() -> None:
    assert last_line(document(0.2)).endswith("passing through: 0.200 (median of 3 rounds)")
    assert last_line(document(broken=True)).endswith("no figure")


def test_of_a_run_that_broke_only_the_reason_is_shown() -> None:
    run = document(broken=True)
    for shown in (text(run), written(run, "plot.svg")):
        assert "upstream calls, stored commands: 2, 1" in shown
        assert "pgbench: it is not there" in shown
    assert found(run)["fresh, by nginx at 64"] == (None, None)
    assert "0.250" not in next(line for line in text(run).splitlines() if "by nginx at 64" in line)


def test_json_and_back(tmp_path: Path) -> None:
    for run in (document(), document(broken=True)):
        write(run, tmp_path / "run.json")
        assert text(read(tmp_path / "run.json")) == text(run)
        assert read(tmp_path / "run.json").broken == run.broken


def test_the_page_keeps_what_stands_around() -> None:
    page = f"before\n{BEGIN}\nold\n{END}\nafter\n"
    assert replaced(page, f"{BEGIN}\nnew\n{END}") == f"before\n{BEGIN}\nnew\n{END}\nafter\n"
    with pytest.raises(ValueError, match="lacks its markers"):
        replaced("nothing here", "")


def test_the_page_has_its_markers() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert replaced(page, page[page.index(BEGIN) : page.index(END) + len(END)]) == page


def test_the_plot_is_a_picture_with_a_bar_for_each_ratio() -> None:
    space = "{http://www.w3.org/2000/svg}"
    picture = ElementTree.fromstring(svg(document()))
    bars = [each for each in picture.iter(f"{space}rect") if each.get("height") != "100%"]
    assert len(bars) == len(CONNECTIONS)
