"""``python -m benchmarks.jobs [--rounds N] [--only PATTERN]``: this comparison alone."""

from __future__ import annotations

import argparse
import re

from benchmarks.jobs import JobBench, tables, wanted
from benchmarks.kit import number, play, stage, text_table

parser = argparse.ArgumentParser(prog="python -m benchmarks.jobs")
parser.add_argument("--rounds", type=int, default=5)
parser.add_argument("--only", default="", help="of cases, e.g. 'single'")
asked = parser.parse_args()

with stage(1_800) as on:
    cases = [
        case
        for case in JobBench(on).cases()
        if re.search(asked.only, f"{case.subject}: {case.what}")
    ]
    results = play(cases, asked.rounds, lambda line: print(line, flush=True))
for title, head, rows in tables(results):
    print(f"\n{title}\n{text_table(head, rows)}")
print()
for name, found, bound in wanted(results):
    if found is not None:
        print(f"{name}: {number(found)} (at least {bound:g})")
