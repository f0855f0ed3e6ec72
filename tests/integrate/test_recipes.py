"""A worker is stopped in the middle of its job, its queue gives the job to another, and it goes on:
what reaches the API with the recipes of docs/integrate.md, and what does without the fence."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integrate.page import block
from tests.integrate.queues import PgQueuerKit, ProcrastinateKit, Queue, Worker
from tests.kit.db import Server
from tests.kit.faults import until
from tests.kit.gateway import Stack, rows, stack
from tests.kit.model import FIRST_ISSUED

TITLE = "I have a queue already. Where do fences come from?"
Kit = type[ProcrastinateKit] | type[PgQueuerKit]


def documented(url: str) -> str:
    text = block(TITLE, "toml")
    assert text.count("http://127.0.0.1:9001") == text.count('issuer = "here"\n') == 1
    return text.replace("http://127.0.0.1:9001", url)


def unfenced(url: str) -> str:
    return documented(url).replace('issuer = "here"', 'fence = "off"')


@contextlib.contextmanager
def taken_over(
    kit: Kit, served: Stack, folder: Path, **code: bool
) -> Iterator[tuple[Queue, Worker, Worker]]:
    """A queue and two workers, the first stopped in the middle of the job, the second in the middle
    of the same job."""
    queue = kit(folder, served.database, f"{served.gateway.url}/billing", **code)
    queue.install()
    queue.enqueue("inv-1")
    with contextlib.ExitStack() as closing:
        first = queue.worker()
        closing.callback(first.close)
        first.wait_until_begun()
        first.stop(served.database)
        queue.take_back()
        second = queue.worker()
        closing.callback(second.close)
        second.wait_until_begun()
        yield queue, first, second


def second_is_done(served: Stack, second: Worker) -> None:
    second.go_on()
    served.upstream.wait_for_effects(1)
    served.gateway.wait_for_log(event="decision", outcome="applied")


@pytest.mark.parametrize("key_per_attempt", [False, True])
@pytest.mark.parametrize("kit", [ProcrastinateKit, PgQueuerKit])
def test_a_worker_that_lost_its_job_captures_nothing(
    postgres: Server, tmp_path: Path, kit: Kit, key_per_attempt: bool
) -> None:
    with (
        stack(postgres, lambda url: [documented(url)]) as served,
        taken_over(kit, served, tmp_path, key_per_attempt=key_per_attempt) as (_, first, second),
    ):
        second_is_done(served, second)
        first.go_on()
        fence, mark = FIRST_ISSUED, FIRST_ISSUED + 1
        served.gateway.wait_for_log(event="decision", problem="fence-stale", fence=fence, mark=mark)
        (effect,) = served.upstream.effects
        assert effect.target == b"/v1/invoices/inv-1/capture"
        (evidence,) = rows(served.database, "select * from gateway.audit")
        assert (evidence["event"], evidence["entity"]) == ("fence_stale", "invoice:inv-1")
        assert (evidence["fence"], evidence["high_water_mark"]) == (fence, mark)


@pytest.mark.parametrize("kit", [ProcrastinateKit, PgQueuerKit])
def test_without_the_fence_it_captures_again(postgres: Server, tmp_path: Path, kit: Kit) -> None:
    with (
        stack(postgres, lambda url: [unfenced(url)]) as served,
        taken_over(kit, served, tmp_path, key_per_attempt=True) as (_, first, second),
    ):
        second_is_done(served, second)
        first.go_on()
        effects = served.upstream.wait_for_effects(2)
        assert [each.target for each in effects] == [b"/v1/invoices/inv-1/capture"] * 2


@pytest.mark.parametrize("kit", [ProcrastinateKit, PgQueuerKit])
def test_a_late_worker_that_fails_the_job_of_another_leads_to_one_capture_all_the_same(
    postgres: Server, tmp_path: Path, kit: Kit
) -> None:
    """The queue believes it and hands the job out once more, while the second worker has it."""
    with (
        stack(postgres, lambda url: [documented(url)]) as served,
        taken_over(kit, served, tmp_path) as (queue, first, second),
    ):
        first.go_on(jobs=9)
        served.gateway.wait_for_log(event="decision", problem="fence-stale", fence=FIRST_ISSUED)
        second.go_on(jobs=9)
        until(queue.succeeded, "the queue says that the job succeeded", timeout_s=30)
        assert len(served.upstream.effects) == 1
