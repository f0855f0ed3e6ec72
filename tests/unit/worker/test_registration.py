"""Mistakes in a worker are told before anything is claimed."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import pytest

from gateway.errors import ConfigurationError
from gateway.store.jobs import CLAIM_LIMIT as STORES_LIMIT
from gateway.worker import Job, Worker
from gateway.worker.client import where
from gateway.worker.running import CLAIM_LIMIT, is_coroutine_function
from gateway.worker.worker import importing


async def later(job: Job) -> None: ...


def at_once(job: Job) -> None: ...


def yielding(job: Job) -> Iterator[int]:
    yield 1


class Called:
    async def __call__(self, job: Job) -> None: ...


def test_one_stage_has_one_handler() -> None:
    worker = Worker()
    worker.tool("order")(at_once)
    worker.tool("order", stage="charge")(at_once)
    with pytest.raises(ConfigurationError, match="tool 'order' has a handler already"):
        worker.tool("order")(later)
    with pytest.raises(ConfigurationError, match="stage 'charge' of tool 'order' has a handler"):
        worker.tool("order", stage="charge")(later)
    assert worker.tools == ["order"]


@pytest.mark.parametrize("handler", [lambda: None, lambda a, b: None, "text"])
def test_a_handler_takes_the_job(handler: object) -> None:
    with pytest.raises(ConfigurationError, match=r"argument|no function"):
        Worker().tool("order")(handler)  # type: ignore[type-var]


def test_a_handler_that_does_not_is_found() -> None:
    def wrong() -> None: ...

    line = wrong.__code__.co_firstlineno
    with pytest.raises(ConfigurationError, match=rf"wrong \(.*test_registration.py:{line}\)"):
        Worker().tool("order")(wrong)  # type: ignore[type-var]


def test_a_worker_does_not_run_inside_an_import() -> None:
    worker = Worker()
    worker.tool("order")(at_once)
    with importing(), pytest.raises(ConfigurationError, match='if __name__ == "__main__"'):
        worker.run()


@pytest.mark.parametrize("name", ["", "x" * 65])
def test_names_have_their_length(name: str) -> None:
    with pytest.raises(ConfigurationError, match="1 to 64 characters"):
        Worker().tool(name)


def test_a_worker_without_tools_does_not_run() -> None:
    with pytest.raises(ConfigurationError, match="no tools"):
        Worker().run()


@pytest.mark.parametrize(
    "options",
    [
        {"concurrency": 0},
        {"concurrency": 1001},
        {"drain_s": -1},
        {"drain_s": float("nan")},
        {"metrics_port": 70000},
        {"metrics_port": -5},
    ],
)
def test_options_have_bounds(options: dict[str, Any]) -> None:
    worker = Worker()
    worker.tool("order")(at_once)
    with pytest.raises(ConfigurationError, match="is not within"):
        worker.run(**options)


def test_what_is_to_be_awaited_is_known() -> None:
    assert is_coroutine_function(later)
    assert is_coroutine_function(functools.partial(later))
    assert is_coroutine_function(Called())
    assert not is_coroutine_function(at_once)
    assert not is_coroutine_function(functools.partial(at_once))


def test_a_claim_takes_as_many_as_the_store_allows() -> None:
    assert CLAIM_LIMIT == STORES_LIMIT


@pytest.mark.parametrize(
    "url",
    [
        "ftp://h",
        "h:8080",
        "http://",
        "http://u:p@h",
        "http://h?x=1",
        "http://h:port",
        "http://h:99999",
        "http://h:0",
    ],
)
def test_an_address_that_is_none_is_told(url: str) -> None:
    with pytest.raises(ConfigurationError, match="FENCEGATE_URL"):
        where(url, None)


def test_address_and_key_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FENCEGATE_URL", "https://gate.example/at")
    monkeypatch.setenv("FENCEGATE_KEY", "fg_x")
    url, key = where(None, None)
    assert (str(url), key) == ("https://gate.example/at", "fg_x")
    url, key = where("http://h", "fg_y")
    assert (str(url), key) == ("http://h", "fg_y")
    monkeypatch.setenv("FENCEGATE_KEY", "fg x")
    with pytest.raises(ConfigurationError, match="FENCEGATE_KEY"):
        where(None, None)
