"""``python3 dev.py compare``: play everything (some two minutes) and write the table."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from gateway.crew import Interrupts, crew_in, environment, fencegate, open_folder, start_database
from tests.peers.play import PEERS, VARIANTS, Outcome, play, stage
from tests.peers.table import Row, replaced, written

_PAGE = Path(__file__).resolve().parents[2] / "docs" / "comparison.md"
_LIMIT_S = 900


def main() -> int:
    rows = []
    for row in _measured():
        print(f"{row.subject:24} {row.variant:18} {row.outcome}", flush=True)
        rows.append(row)
    part = written(rows, datetime.now(UTC).date())
    _PAGE.write_text(replaced(_PAGE.read_text(encoding="utf-8"), part), encoding="utf-8")
    print(f"written: {_PAGE.relative_to(Path.cwd())}")
    return 0


def _measured() -> Iterator[Row]:
    interrupts = Interrupts()
    with (
        interrupts.caught(_LIMIT_S),
        open_folder("fencegate-compare-") as folder,
        crew_in(folder, interrupts) as crew,
        stage(crew, folder, start_database(folder, crew)) as on,
    ):
        for peer in PEERS:
            for fenced in (False, True):
                subject = f"{peer}+recipe" if fenced else peer
                for variant in VARIANTS:
                    yield Row(subject, variant, play(on, peer, variant, fenced=fenced))
    yield from _of_the_drill()


def _of_the_drill() -> Iterator[Row]:
    """Of a drill whose claims hold; it fails otherwise."""
    said = subprocess.run(
        fencegate("drill", "--format", "jsonl"),
        env=environment(),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    ).stdout
    held = {
        (each["variant"], each["claim"])
        for each in map(json.loads, said.splitlines())
        if each.get("holds")
    }
    for variant in VARIANTS:
        accepted = (variant, "result-refused") not in held
        late = (variant, "effect-refused") not in held
        assert (variant, "one-effect") in held
        yield Row("fencegate", variant, Outcome(accepted, late, 2))


if __name__ == "__main__":
    sys.exit(main())
