"""Figures of benchmarks: medians of ratios inside a round, and nothing of a run that broke."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.kit import Broken, Case, Results, markdown_table, median, number, percentile, play
from benchmarks.kit import text_table as table
from benchmarks.others import logged

FAST, SLOW = ("fast", "work"), ("slow", "work")
rates = st.floats(0.01, 1e6)


def _running(figures: list[float]) -> Callable[[], dict[str, float]]:
    left = iter(figures)
    return lambda: {"rate": next(left)}


@given(st.lists(st.tuples(rates, rates, st.floats(0.1, 10)), min_size=1, max_size=9))
def test_a_machine_that_drifts_between_rounds_moves_no_ratio(
    drawn: list[tuple[float, float, float]],
) -> None:
    def ratio(drifted: bool) -> float | None:
        results = Results()
        for round_, (fast, slow, drift) in enumerate(drawn):
            factor = drift if drifted else 1.0
            results.add(FAST, round_, {"rate": fast * factor})
            results.add(SLOW, round_, {"rate": slow * factor})
        return results.ratio(FAST, SLOW)

    assert ratio(True) == pytest.approx(ratio(False))


def test_rounds_are_interleaved_and_every_second_one_runs_backwards() -> None:
    order: list[str] = []

    def noting(name: str) -> Case:
        def run() -> dict[str, float]:
            order.append(name)
            return {"rate": 1.0}

        return Case(name, "work", run)

    play([noting("a"), noting("b"), noting("c")], 3, lambda _: None)
    assert "".join(order) == "abccbaabc"


def test_of_a_case_that_broke_once_nothing_is_shown() -> None:
    calls = iter([None, Broken("three rows for two answers")])

    def breaks() -> dict[str, float]:
        if (reason := next(calls)) is not None:
            raise reason
        return {"rate": 1e9}

    said: list[str] = []
    cases = [Case(*FAST, breaks), Case(*SLOW, _running([1.0, 2.0, 3.0]))]
    results = play(cases, 3, said.append)
    assert results.median(FAST, "rate") is None
    assert results.ratio(FAST, SLOW) is None
    assert results.broken == {FAST: "three rows for two answers"}
    assert results.median(SLOW, "rate") == 2.0
    assert any("BROKEN: three rows for two answers" in line for line in said)


def test_a_case_of_fewer_rounds_is_compared_with_the_same_rounds_of_others() -> None:
    cases = [Case(*FAST, _running([8.0]), rounds=1), Case(*SLOW, _running([2.0, 100.0, 100.0]))]
    assert play(cases, 3, lambda _: None).ratio(FAST, SLOW) == 4.0


def test_without_time_only_the_first_round_is_played() -> None:
    said: list[str] = []
    results = play([Case(*SLOW, _running([5.0, 6.0]))], 2, said.append, until=0.0)
    assert results.values(SLOW, "rate") == [5.0]
    assert "no time for round 2 of 2" in said[-1]


def test_medians_and_percentiles() -> None:
    assert median([]) is None
    assert median([3.0, 1.0, 2.0]) == 2.0
    assert median([4.0, 1.0, 2.0, 3.0]) == 2.5
    assert percentile([5.0, 1.0, 3.0], 0.5) == 3.0
    assert percentile(list(range(1, 101)), 0.99) == 99
    with pytest.raises(ValueError, match="needs values"):
        percentile([], 0.5)


def test_tables() -> None:
    assert [number(each) for each in (None, 0.0, 0.012, 0.22, 3.14159, 47.26, 48_123.4)] == [
        "-", "0.00", "0.012", "0.22", "3.14", "47.3", "48,123",
    ]  # fmt: skip
    assert table(("what", "n"), [("longer", "1"), ("x", "1,000")]) == (
        "what        n\nlonger      1\nx       1,000"
    )
    assert markdown_table(("a", "b"), [("1", "2")]) == "| a | b |\n|---|---:|\n| 1 | 2 |"


def test_pgbenchs_log_is_read_from_the_first_begin_to_the_last_end() -> None:
    # client, transaction, microseconds, script, second and microsecond of its end
    times, span_s = logged(["0 0 2000 0 100 500000", "1 0 1000 0 101 250000"])
    assert times == [2.0, 1.0]
    assert span_s == pytest.approx(0.752)
