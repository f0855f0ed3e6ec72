"""Bytes in, invariants out: at the gateway as it ships, with a recording upstream behind it. What
must hold is in ``range.py``."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.fuzz.range import Range, open_range, volleys
from tests.fuzz.raw import Input, corpus, generated, tokens
from tests.fuzz.reader import Unreadable, answers, requests
from tests.kit.db import Server
from tests.reference.inputs import INPUTS

SEED, COUNT, VOLLEY = 20_26, 2_000, 100


@pytest.fixture(scope="module")
def made() -> Iterator[bytes]:
    return tokens("t")


@pytest.fixture(scope="module")
def fired_at(postgres: Server) -> Iterator[Range]:
    with open_range(postgres) as there:
        yield there


def test_the_seeds(fired_at: Range, made: Iterator[bytes]) -> None:
    """Each alone, so that what breaks something is named; then all at the same time."""
    for each in corpus(made):
        fired_at.fire([each])
    fired_at.fire(corpus(made))
    fired_at.finish()


def test_what_is_sent_to_the_reference_proxy_too(fired_at: Range, made: Iterator[bytes]) -> None:
    for shape in ("command", "passage"):
        own = ((each.name, each.filled(shape, next(made))) for each in INPUTS)
        fired_at.fire([Input(name, (data,)) for name, data in own])
    fired_at.finish()


def test_what_is_generated(fired_at: Range, made: Iterator[bytes]) -> None:
    chance = Random(SEED)
    before = fired_at.commands
    for volley in volleys((generated(chance, made) for _ in range(COUNT)), VOLLEY):
        fired_at.fire(volley)
    fired_at.finish()
    print(
        f"{COUNT} raw inputs of seed {SEED}: {fired_at.commands - before} commands sent up;"
        f" so far {fired_at.passages} passages, {fired_at.unanswered} unanswered,"
        f" statuses {dict(fired_at.statuses)}, refusals {dict(fired_at.refusals)}"
    )
    # So that the test cannot go on passing because all of it is refused at once.
    assert fired_at.commands - before > COUNT // 20
    assert len(fired_at.refusals) >= 10
    assert min(fired_at.passages, fired_at.unanswered) > 10


@settings(
    max_examples=60,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(st.randoms(use_true_random=False), st.integers(1, 8))
def test_what_hypothesis_finds(
    fired_at: Range, made: Iterator[bytes], chance: Random, size: int
) -> None:
    fired_at.fire([generated(chance, made) for _ in range(size)])


# -- the judge is judged


GOOD = b"POST /a HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n{}"


@pytest.mark.parametrize(
    ("data", "bodies"),
    [
        (GOOD, [b"{}"]),
        (b"\r\n" + GOOD + GOOD, [b"{}", b"{}"]),
        (GOOD[:-1], []),
        (GOOD.replace(b"\r\n", b"\n"), []),
        (GOOD.replace(b"Host: a", b"Host: a\r\nHost: a"), []),
        (GOOD.replace(b"Host:", b"Host :"), []),
        (GOOD.replace(b"Host: a", b"Host: a\rX: b"), []),
        (GOOD.replace(b"Length: 2", b"Length: +2"), []),
        (GOOD.replace(b"Length: 2", b"Length: 2\r\nTransfer-Encoding: chunked"), []),
        (GOOD.replace(b"HTTP/1.1", b"HTTP/1.1 "), []),
        (
            b"PUT / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
            [b"{}"],
        ),
        (
            b"PUT / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n{}\r\n0\r\n\r\n",
            [],
        ),
    ],
)
def test_the_strict_reader_takes_what_is_well_formed_alone(
    data: bytes, bodies: list[bytes]
) -> None:
    assert [each.body for each in requests(data)] == bodies


@pytest.mark.parametrize(
    "data",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nab",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nab",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\na",
        b"HTTP/1.1 200 OK\nContent-Length: 1\r\n\r\na",
        b"garbage",
    ],
)
def test_the_strict_reader_reads_answers_to_their_last_byte(data: bytes) -> None:
    with pytest.raises(Unreadable):
        answers(data, [b"GET"])
