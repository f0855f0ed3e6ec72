"""What benchmarks share: a stage with servers on it, interleaved rounds, medians of ratios, tables.

The shape of a benchmark::

    with stage(limit_s=550) as on:                    # a folder, processes, their certain end
        cluster = on.postgres()                       # our launcher, durable, as it ships
        dsn = on.database(cluster, "peer")            # a new database on it
        cases = [
            Case("fencegate", "claim", lambda: claim(dsn)),
            Case("peer", "claim", lambda: ...),       # -> {"rate": 8_100.0, "cpu_us": 118.0}
        ]
        results = play(cases, rounds=5, say=print)    # every round runs every case once
    results.median(("fencegate", "claim"), "rate")
    results.ratio(("fencegate", "claim"), ("peer", "claim"), "rate")   # median of rounds
    print(text_table(("what", "rate"), [...]))

A case's ``run`` does its whole measurement (2 to 4 s) and returns figures by name; it checks its
own effects and raises ``Broken`` where they do not hold. Of a case that broke once nothing is shown
but the reason: whoever asks for a median of it gets None.
The machine drifts by a factor of two while a run goes on, so only ratios inside a round count.

Units stand last in a figure's name; ``rate`` is per second.
"""

from benchmarks.kit.figures import Broken, Case, Key, Results, median, percentile
from benchmarks.kit.meters import Cpu, Writes, peak_rss_mib
from benchmarks.kit.rounds import play
from benchmarks.kit.stage import Gateway, Stage, stage
from benchmarks.kit.tables import markdown_table, number, text_table

__all__ = [
    "Broken",
    "Case",
    "Cpu",
    "Gateway",
    "Key",
    "Results",
    "Stage",
    "Writes",
    "markdown_table",
    "median",
    "number",
    "peak_rss_mib",
    "percentile",
    "play",
    "stage",
    "text_table",
]
