"""Playing cases in rounds, side by side."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from benchmarks.kit.figures import Broken, Case, Results

__all__ = ["play"]

_REASON_LIMIT = 300  # characters: a line or two of a table


def play(
    cases: Sequence[Case],
    rounds: int,
    say: Callable[[str], None],
    *,
    until: float | None = None,
    into: Results | None = None,
) -> Results:
    """Every round plays every case once; every second round in reverse, so that no case always
    follows the same one. A case that broke is not played again. ``until``: no round begins behind
    this time of the monotonic clock, but the first always does; ``say`` hears of it. ``into``: the
    results to fill, for whoever wants what there is when something ends it."""
    results = Results() if into is None else into
    for number in range(rounds):
        if number and until is not None and time.monotonic() > until:
            say(f"no time for round {number + 1} of {rounds}: what follows rests on {number}")
            break
        due = [each for each in cases if each.rounds is None or number < each.rounds]
        for case in due if number % 2 == 0 else reversed(due):
            if case.key not in results.broken:
                _play(case, number, rounds, results, say)
    return results


def _play(
    case: Case, number: int, rounds: int, results: Results, say: Callable[[str], None]
) -> None:
    try:
        figures = case.run()
    except Exception as error:  # noqa: BLE001 - whatever befell it, the others go on
        why = _last_line(str(error) if isinstance(error, Broken) else repr(error))
        results.broken[case.key] = why
        results.add(case.key, number, None)
        say(f"round {number + 1}/{rounds}  {case.subject}: {case.what}: BROKEN: {why}")
        return
    results.add(case.key, number, figures)
    rate = figures.get("rate")
    told = f"{rate:,.0f}/s" if rate is not None else "done"
    say(f"round {number + 1}/{rounds}  {case.subject}: {case.what}: {told}")


def _last_line(text: str) -> str:
    """Of a traceback what counts; the rest names places on this machine."""
    return (text.strip().splitlines() or ["no reason given"])[-1][:_REASON_LIMIT]
