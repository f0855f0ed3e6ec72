"""What one request writes into the log is bounded; metrics count all of it."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from typing import Any
from uuid import UUID

import pytest
from prometheus_client import CollectorRegistry

from gateway.core.jobs import Complete, Ended, Held, Lost, LostReason, Rejected, Renewed
from gateway.jobs.journal import TOLD, Journal
from gateway.jobs.values import Asker, EndOf, Reference
from gateway.observe import log
from gateway.observe.jobmetrics import JobMetrics, Labels

ASKER = Asker(1, "default", "p", "r-1", "w")
REASONS: tuple[LostReason, ...] = ("expired", "taken", "expired")


class Book:
    def __init__(self, stream: io.StringIO) -> None:
        self._stream = stream
        self.registry = CollectorRegistry()
        self.journal = Journal(JobMetrics(self.registry, Labels(("t",))))

    def lines(self, event: str) -> list[dict[str, Any]]:
        lines = [json.loads(line) for line in self._stream.getvalue().splitlines()]
        return [line for line in lines if line["event"] == event]

    def count(self, name: str, **more: str) -> float | None:
        labels = {"tool": "t", "model": "none", "provider": "none", **more}
        return self.registry.get_sample_value(f"fencegate_{name}_total", labels)


@pytest.fixture
def book() -> Iterator[Book]:
    stream = io.StringIO()
    log.configure(stream=stream)
    yield Book(stream)
    log.configure()


def references(count: int) -> list[Reference]:
    held = [Held(f"e{n}", UUID(int=n), 1) for n in range(count)]
    return [Reference(each, "t", 1, None, None) for each in held]


def test_a_thousand_lost_leases_are_eleven_lines(book: Book) -> None:
    lost = [Lost(REASONS[n % 3]) for n in range(1_000)]
    book.journal.beaten(ASKER, references(1_000), lost)
    told = book.lines("heartbeat_lost")
    assert [line["entity"] for line in told] == [f"e{n}" for n in range(TOLD)]
    (rest,) = book.lines("heartbeats_lost")
    assert (rest["expired"], rest["taken"]) == (660, 330)
    assert (rest["tenant"], rest["worker"], rest["request_id"]) == ("default", "w", "r-1")
    assert book.count("renewals_failed", reason="expired") == 667
    assert book.count("renewals_failed", reason="taken") == 333


def test_a_hundred_rejected_ends_are_eleven_lines(book: Book) -> None:
    asked = [EndOf(each, Complete(each.held, b"1")) for each in references(100)]
    book.journal.ended(ASKER, asked, [Rejected("taken")] * 100)
    assert len(book.lines("result_rejected")) == TOLD
    (rest,) = book.lines("results_rejected")
    assert (rest["taken"], rest["level"]) == (90, "warning")
    assert book.count("results_rejected") == 100


def test_few_are_told_one_by_one_and_among_those_that_go_on(book: Book) -> None:
    answers: list[Renewed | Lost] = [Renewed(1, 2), *[Lost("taken")] * TOLD]
    book.journal.beaten(ASKER, references(TOLD + 1), answers)
    assert len(book.lines("heartbeat_lost")) == TOLD
    assert book.lines("heartbeats_lost") == []
    (each,) = references(1)
    book.journal.ended(ASKER, [EndOf(each, Complete(each.held, b"1"))], [Ended("succeeded", False)])
    assert [line["state"] for line in book.lines("job_finished")] == ["succeeded"]
