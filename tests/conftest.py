"""Fixtures that every kind of test may use. They are lazy: unit tests start no server."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from tests.kit.db import Server, server

settings.register_profile("ci", derandomize=False, deadline=None, print_blob=True)
settings.load_profile("ci")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What waits for minutes begins first, and unit tests fill the gaps at the end."""
    folders = [Path(__file__).parent / name for name in ("worker", "faults", "e2e", "cases")]

    def turn(item: pytest.Item) -> int:
        early = [number for number, each in enumerate(folders) if each in item.path.parents]
        if early:
            return early[0]
        return len(folders) + (Path(__file__).parent / "unit" in item.path.parents)

    items.sort(key=turn)


@pytest.fixture(scope="session")
def postgres() -> Iterator[Server]:
    """One PostgreSQL a test run. A test that restarts it does so through this object."""
    with server() as made:
        yield made


@pytest.fixture
def database(postgres: Server) -> Iterator[str]:
    """The DSN of a fresh database with the product's schema, dropped after the test."""
    with postgres.database() as dsn:
        yield dsn


@pytest.fixture
def empty_database(postgres: Server) -> Iterator[str]:
    """The DSN of a fresh database without the product's schema."""
    with postgres.database(migrated=False) as dsn:
        yield dsn
