"""A million inputs: 200,000 of them raw on sockets, at a gateway as it ships with a recording
upstream behind it, and 800,000 to the readers of what comes from outside, in this process. What
must hold is in ``tests/fuzz``; here it must hold for long, in the memory of the beginning.

``FENCEGATE_FUZZ_PART=0.1`` runs a tenth of it.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from tests.fuzz.range import Range, open_range, volleys
from tests.fuzz.raw import Input, corpus, generated, tokens
from tests.fuzz.values import READERS
from tests.kit.db import Server

PART = float(os.environ.get("FENCEGATE_FUZZ_PART", "1"))
RAW, VALUES = int(200_000 * PART), int(800_000 * PART)
SETTLED, GROWN_MIB = 10_000, 50
VOLLEY = 500
"""Connections at once; the gateway's backlog is 2,048."""

SEED = int(os.environ.get("FENCEGATE_FUZZ_SEED", secrets.randbelow(2**31)))

DEAR = {"policies": 0.002, "form": 0.05, "multipart": 0.05, "json": 0.05, "head": 0.1, "hops": 0.1}
"""The share of those that cost more, a policy most; the others have what is left."""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux's /proc")
def test_raw_inputs(postgres: Server) -> None:
    print(f"\nseed {SEED}")
    with open_range(postgres) as there:
        began, chance, made = time.monotonic(), Random(SEED), tokens("t")
        inputs = (generated(chance, made) for _ in range(RAW))
        settled = _shot(there, inputs, min(SETTLED, RAW))
        before = _resident_mib(there)
        _shot(there, inputs, RAW - settled)
        there.fire(corpus(made))
        there.finish()
        after, took = _resident_mib(there), time.monotonic() - began
        print(
            f"{there.inputs} raw inputs in {took:.0f} s,"
            f" {there.commands} commands and {there.passages} passages sent up,"
            f" {there.unanswered} whose caller never ended them;"
            f" {before:.0f} MiB after {settled}, {after:.0f} MiB at the end"
        )
        print(f"answers {dict(sorted(there.statuses.items()))}")
        print(f"refusals, each with its line in the log: {dict(there.refusals.most_common())}")
        assert after - before < GROWN_MIB


def test_values() -> None:
    cheap = (1 - sum(DEAR.values())) / (len(READERS) - len(DEAR))
    counts = {name: int(VALUES * DEAR.get(name, cheap)) for name in READERS}
    began = time.monotonic()
    for name, count in counts.items():
        chance = Random(f"{SEED} {name}")
        for number in range(count):
            try:
                READERS[name](chance)
            except Exception as error:
                raise AssertionError(f"{name}, input {number} of seed {SEED}") from error
    took = time.monotonic() - began
    print(f"\nseed {SEED}: {sum(counts.values())} values in {took:.0f} s: {counts}")


def _shot(there: Range, inputs: Iterator[Input], count: int) -> int:
    for volley in volleys((next(inputs) for _ in range(count)), VOLLEY):
        there.fire(volley)
    return count


def _resident_mib(there: Range) -> float:
    process = there.stack.gateway.process
    assert process is not None
    status = Path(f"/proc/{process.pid}/status").read_text(encoding="ascii")
    return int(status.partition("VmRSS:")[2].split()[0]) / 1024
