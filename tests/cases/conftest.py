"""The gateways that the cases share: one as usual, one whose environment wants to interfere."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.cases.book import BOOK, FURTHER
from tests.cases.driver import MOUNT, Case, World, make_keys
from tests.kit.db import Server
from tests.kit.gateway import policy, stack
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
)


def cases(*, ambient: bool) -> list[Case]:
    return [case for case in [*BOOK, *FURTHER] if ("given" in case["input"]) == ambient]


@pytest.fixture(scope="session")
def plain(postgres: Server) -> Iterator[World]:
    with postgres.database() as dsn:
        tokens = make_keys(dsn, cases(ambient=False))
        with stack(postgres, lambda url: [policy(url, *COMMANDS)], database=dsn) as made:
            yield World(made, tokens)


@pytest.fixture(scope="session")
def ambient(postgres: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """A gateway whose environment names a proxy and credentials for the upstream."""
    netrc = tmp_path_factory.mktemp("home") / ".netrc"
    wanted = cases(ambient=True)
    head = '[upstream_headers]\nAuthorization = "Bearer as-configured"'
    with postgres.database() as dsn, RecordingUpstream() as proxy:
        tokens = make_keys(dsn, wanted)
        given = {"HOME": str(netrc.parent)}
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
