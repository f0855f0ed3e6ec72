"""One gateway for all clients, with gateway keys, in front of one recording upstream."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from tests.clients.curl import Curl
from tests.clients.node import Fetch
from tests.clients.python import Httpx, Requests
from tests.clients.wish import Client, Wish
from tests.kit.db import Server
from tests.kit.gateway import Stack, policy, stack
from tests.kit.operating import fencegate
from tests.kit.upstream import RecordingUpstream

SECRET = "Bearer the-upstreams-own"

HEAD = """
[upstream_headers]
Authorization = "${SECRET}"
"""

COMMANDS = tuple(
    f"""
name = "{name}"
match = "{match}"
entity = "account:{{path.account}}"
timeout_s = {timeout_s}
settle_delay_s = 1
"""
    for name, match, timeout_s in [
        ("charge", "POST /v1/accounts/{account}/charges", 30),
        ("hasty", "POST /v1/accounts/{account}/hasty", 1),
        ("put", "PUT /v1/accounts/{account}", 30),
        ("patch", "PATCH /v1/accounts/{account}", 30),
        ("delete", "DELETE /v1/accounts/{account}", 30),
    ]
)

STRIPE = (
    """
name = "capture"
match = "POST /v1/payment_intents/{intent}/capture"
entity = "intent:{path.intent}"

[commands.fingerprint]
headers = ["Stripe-Version", "Stripe-Account"]
""",
    """
name = "cancel"
match = "POST /v1/payment_intents/{intent}/cancel"
entity = "intent:{path.intent}"
timeout_s = 1
settle_delay_s = 1
""",
    """
name = "upload"
match = "POST /v1/files"
entity = "upload:{header.X-Upload}"
""",
    """
name = "delete-customer"
match = "DELETE /v1/customers/{customer}"
entity = "customer:{path.customer}"
fence = "optional"
""",
)


@dataclass
class Place:
    """Where clients meet the gateway. ``token``: their gateway key."""

    stack: Stack
    token: str
    numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    @property
    def upstream(self) -> RecordingUpstream:
        return self.stack.upstream

    @property
    def url(self) -> str:
        """The gateway, with the mount of the policy."""
        return f"{self.stack.gateway.url}/pay"

    @property
    def stripe_url(self) -> str:
        return f"{self.stack.gateway.url}/stripe"

    def word(self, kind: str) -> str:
        """A word that no other test has."""
        return f"{kind}-{next(self.numbers)}"

    def wish(self, **about: object) -> Wish:
        """A charge on an account of its own, under a key of its own."""
        fields = (
            ("Authorization", f"Bearer {self.token}"),
            ("Idempotency-Key", self.word("key")),
            ("X-Execution-Fence", "7"),
            ("X-Request-Id", self.word("request")),
        )
        url = f"{self.url}/v1/accounts/{self.word('account')}/charges"
        return Wish("POST", url, fields, **about)  # type: ignore[arg-type]

    def decisions(self, wish: Wish) -> list[str]:
        """What the gateway made of each try of a wish, in order."""
        (request_id,) = [value for name, value in wish.fields if name == "X-Request-Id"]
        return self.decisions_of(request_id)

    def decisions_of(self, request_id: str) -> list[str]:
        """What the gateway's log tells of all requests with this id."""
        # The log is read by a thread; a line of our own behind the others says that they are in.
        last = self.word("last")
        self.stack.caller().call("POST", "/pay/none", [("X-Request-Id", last)])
        self.stack.gateway.wait_for_log(request_id=last)
        return [
            line.get("problem") or line["outcome"]
            for line in self.stack.gateway.log
            if line.get("event") == "decision" and line.get("request_id") == request_id
        ]


@pytest.fixture(scope="package")
def served(postgres: Server) -> Iterator[Place]:
    def policies(url: str) -> list[str]:
        return [
            policy(url, *COMMANDS, head=HEAD),
            policy(url, *STRIPE, name="stripe", mount="/stripe", head=HEAD),
        ]

    with postgres.database() as dsn:
        made = fencegate("keys", "add", "--tenant", "default", "--name", "client", dsn=dsn)
        # Two attempts at once are the limit, so that clients meet "overloaded".
        limit = {"FENCEGATE_MAX_ATTEMPTS": "2", "SECRET": SECRET}
        with stack(postgres, policies, env=limit, database=dsn) as running:
            yield Place(running, made.out.strip())


@pytest.fixture
def place(served: Place) -> Place:
    served.upstream.clear()
    served.upstream.script = None
    return served


@pytest.fixture(params=[Curl, Requests, Httpx, Fetch], ids=lambda kind: kind.name)
def client(request: pytest.FixtureRequest) -> Client:
    if request.param is Curl and not Curl.installed():
        pytest.skip("curl is not installed")
    made: Client = request.param()
    return made
