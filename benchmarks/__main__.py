"""``python3 dev.py bench [--quick] [--json FILE] [--write [FILE]]``"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks import nginx
from benchmarks.cases import Bench, of_pgbench
from benchmarks.jobs import JobBench
from benchmarks.kit import Results, play, stage
from benchmarks.load import generator
from benchmarks.plan import FULL, QUICK, Plan
from benchmarks.report import Document, last_line, read, replaced, svg, text, write, written
from benchmarks.report.document import taken
from gateway.crew import CrewError, Interrupted

_PAGE = Path(__file__).resolve().parents[1] / "docs" / "benchmarks.md"
_PLOT = "benchmarks.svg"

_BROKE, _UNABLE = 1, 2


def main(argv: Sequence[str]) -> int:
    """0: everything held. 1: some run did not, or it did not end. 2: only a part can run here."""
    options = _parser().parse_args(argv)
    if isinstance(options.write, Path):
        _write(read(options.write))
        return 0
    plan = QUICK if options.quick else FULL
    document = Document({}, Results())
    ended = _run(plan, options.quick, document)
    if ended is not None:
        print(f"bench: {ended}", file=sys.stderr)
    if options.json is not None:
        write(document, options.json)
    if options.write is not None:
        _write(document)
    print(f"\n{text(document)}\n")
    print(last_line(document))
    if document.broken or ended is not None:
        return _BROKE
    return 0 if nginx.installed() else _UNABLE


def _run(plan: Plan, quick: bool, document: Document) -> str | None:
    """Fill the document; what ended it before its end."""
    began = time.monotonic()

    def say(line: str) -> None:
        print(f"{time.monotonic() - began:6.1f} s  {line}", flush=True)

    def behind(seconds: int | None) -> float | None:
        return None if seconds is None else began + seconds

    try:
        with stage(plan.limit_s) as on:
            say(f"starting servers; the load is made by {generator()}")
            document.taken.update(taken(plan, quick))
            if nginx.installed():
                bench = Bench(on, plan, say, document.absent)
                cases = bench.cases()
            else:
                document.absent["all else"] = nginx.MISSING
                cases = of_pgbench(on, plan)
            play(cases, plan.rounds, say, until=behind(plan.rounds_s), into=document.results)
            if plan.growth_s is not None and time.monotonic() > began + plan.growth_s:
                document.absent["growth"] = "there was no time left"
            elif nginx.installed():
                bench.growth(document.growth)
            until = behind(plan.jobs_s)
            if until is not None and time.monotonic() > until:
                document.absent["jobs"] = "there was no time left"
            else:
                play(JobBench(on).cases(), plan.fewer, say, until=until, into=document.jobs)
    except CrewError as error:
        return str(error)
    except Interrupted as interrupted:
        return f"ended by {interrupted} after {time.monotonic() - began:.0f} s"
    return None


def _write(document: Document) -> None:
    page = replaced(_PAGE.read_text(encoding="utf-8"), written(document, _PLOT))
    _PAGE.write_text(page, encoding="utf-8")
    _PAGE.with_name(_PLOT).write_text(svg(document), encoding="utf-8")
    print(f"written: docs/{_PAGE.name} and docs/{_PLOT}")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="dev.py bench",
        description="Speed, side by side with what the gateway stands between; docs/benchmarks.md.",
    )
    parser.add_argument(
        "--quick", action="store_true", help="fewer cases and shorter loads: within 550 s"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="every figure of every round")
    parser.add_argument(
        "--write",
        nargs="?",
        const=True,
        type=Path,
        metavar="FILE",
        help="write docs/benchmarks.md: of this run, or of the FILE that --json made",
    )
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
