"""The gateways that the cases share: one as usual, one whose environment wants to interfere, and
two whose database's clock stands still, for jobs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.cases.book import BOOK, FURTHER
from tests.cases.driver import MOUNT, Case, World, make_keys
from tests.kit.db import Server, execute
from tests.kit.gateway import policy, stack
from tests.kit.jobs import MANUAL_CLOCK
from tests.kit.upstream import RecordingUpstream

COMMANDS = (
    """
name = "charge"
match = "POST /v1/accounts/{account}/charges"
entity = "account:{path.account}"
timeout_s = 2
request_limit = "10 MiB"
""",
    """
name = "hasty"
match = "POST /v1/accounts/{account}/hasty"
entity = "account:{path.account}"
timeout_s = 0.4
""",
    """
name = "own-lists"
match = "POST /v1/accounts/{account}/lists"
entity = "account:{path.account}"
not_executed = [429, 503]
ambiguous = [502, 504]
""",
    """
name = "case"
match = "POST /v1/cases"
entity = "customer:{body./input/customer_id}"
""",
    """
name = "in-body"
match = "POST /v1/fenced"
entity = "fenced:{body./id}"
fence_from = "{body./fence}"
""",
    """
name = "free"
match = "POST /v1/accounts/{account}/free"
entity = "free:{path.account}"
serial = false
""",
    """
name = "by-query"
match = "POST /v1/by-query"
entity = "query:{query.id}"
""",
    """
name = "by-field"
match = "POST /v1/by-field"
entity = "field:{header.X-Account}"
""",
    """
name = "any-case"
match = "POST /v1/any-case/{id}"
entity = "any-case:{path.id}"
entity_case = "ignore"
""",
)


TOOLS = '[[tools]]\nname = "t"\nbackoff_s = 0\nbackoff_max_s = 0\n'


def world_of(case: Case) -> str:
    """The fixture in which a case runs."""
    given = case["input"]
    if "given" in given:
        return "ambient"
    return str(given.get("world", "yard" if "yard" in given else "plain"))


def cases(world: str) -> list[Case]:
    return [case for case in [*BOOK, *FURTHER] if world_of(case) == world]


@pytest.fixture(scope="session")
def plain(postgres: Server) -> Iterator[World]:
    with postgres.database() as dsn:
        tokens = make_keys(dsn, cases("plain"))
        with stack(postgres, lambda url: [policy(url, *COMMANDS)], database=dsn) as made:
            yield World(made, tokens)


@pytest.fixture(scope="session")
def ambient(postgres: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """A gateway whose environment names a proxy and credentials for the upstream."""
    netrc = tmp_path_factory.mktemp("home") / ".netrc"
    wanted = cases("ambient")
    head = '[upstream_headers]\nAuthorization = "Bearer ${CONFIGURED}"'
    with postgres.database() as dsn, RecordingUpstream() as proxy:
        tokens = make_keys(dsn, wanted)
        given = {"HOME": str(netrc.parent), "CONFIGURED": "as-configured"}
        for case in wanted:
            for name, value in case["input"]["given"]["env"].items():
                given[name] = value.replace("{proxy}", proxy.url)
        netrc.write_text(given["NETRC"] + "\n")
        netrc.chmod(0o600)
        given["NETRC"] = str(netrc)
        with stack(
            postgres,
            lambda url: [policy(url, *COMMANDS, mount=MOUNT, head=head)],
            env=given,
            database=dsn,
        ) as made:
            yield World(made, tokens, proxy)


@pytest.fixture(scope="session")
def yard(postgres: Server) -> Iterator[World]:
    with _yard(postgres, "yard", {}) as world:
        yield world


@pytest.fixture(scope="session")
def paris(postgres: Server) -> Iterator[World]:
    """The database is in Paris, gateway and workers are seven hours west of Greenwich."""
    with _yard(postgres, "paris", {"TZ": "UTC+7"}, zone="Europe/Paris") as world:
        yield world


@contextmanager
def _yard(postgres: Server, name: str, env: dict[str, str], zone: str = "UTC") -> Iterator[World]:
    """The database's clock stands still until a case moves it."""
    with postgres.database() as dsn:
        own = dsn.rpartition("/")[2]
        execute(dsn, f"alter database {own} set timezone to '{zone}';{MANUAL_CLOCK}")
        tokens = make_keys(dsn, cases(name))
        with stack(
            postgres,
            lambda url: [policy(url, *COMMANDS)],
            env=env,
            database=dsn,
            tools=TOOLS,
        ) as made:
            yield World(made, tokens, env=env)
