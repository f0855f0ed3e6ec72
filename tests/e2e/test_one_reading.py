"""The upstream reads the entity that the gateway fences: what two readers could take for two
commands is refused, and what speaks to the gateway alone never reaches the upstream."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.kit.client import assert_problem
from tests.kit.db import Server
from tests.kit.gateway import CAPTURE, CASE, Scene, Stack, policy, stack

BY_JOB = """
name = "job"
match = "POST /v1/jobs"
entity = "job:{header.X-Job}"
send_key = "X-Key-Up"
fingerprint.headers = ["X-Version"]
"""

HEAD = """
[upstream_headers]
X-Account = "fixed"
"""


@pytest.fixture(scope="module")
def served(postgres: Server) -> Iterator[Stack]:
    with stack(postgres, lambda url: [policy(url, CAPTURE, CASE, BY_JOB, head=HEAD)]) as made:
        yield made


@pytest.fixture
def scene(served: Stack) -> Scene:
    return served.scene()


def control(scene: Scene) -> list[tuple[str, str]]:
    return [("Idempotency-Key", scene.key()), ("X-Execution-Fence", "1")]


def job(scene: Scene, *more: tuple[str, str]) -> list[tuple[str, str]]:
    return [*control(scene), ("X-Job", scene.account), *more]


def nothing_happened(scene: Scene) -> None:
    assert (scene.upstream.count, scene.row(), scene.mark()) == (0, None, None)


CHARSETS = [
    "charset=utf-7",
    "charset=utf-16le",
    'Charset="ISO-8859-1"',
    "charset=utf-8; charset=utf-16",
]


@pytest.mark.parametrize("parameter", CHARSETS)
@pytest.mark.parametrize("target", ["cases", "accounts/{}/charges"])
def test_json_in_another_charset(scene: Scene, target: str, parameter: str) -> None:
    fields = [*control(scene), ("Content-Type", f"application/json; {parameter}")]
    body = b'{"input":{"customer_id":"+AGE-"}}'
    reply = scene.caller.call("POST", "/pay/v1/" + target.format(scene.account), fields, body)
    assert "charset=utf-8" in assert_problem(reply, "body-unreadable")["detail"]
    nothing_happened(scene)


@pytest.mark.parametrize("parameter", ["charset=utf-8", 'Charset="UTF-8"', "charset=US-ASCII"])
def test_json_in_utf_8(scene: Scene, parameter: str) -> None:
    fields = [*control(scene), ("Content-Type", f"application/json; {parameter}")]
    target = f"/pay/v1/accounts/{scene.account}/charges"
    assert scene.caller.call("POST", target, fields, b"{}").status == 201
    assert scene.upstream.requests[0].one("Content-Type") == fields[-1][1].encode()


@pytest.mark.parametrize(
    "name",
    [
        *("Content-Type", "Content-Length", "Host", "Authorization", "Idempotency-Key"),
        *("X-Execution-Fence", "x-job", "X-VERSION", "X_Job"),
    ],
)
def test_a_decisive_field_cannot_be_left_at_this_hop(scene: Scene, name: str) -> None:
    fields = job(scene, ("Connection", f"close, {name}"), ("X-Version", "1"))
    reply = scene.caller.call("POST", "/pay/v1/jobs", fields, b"{}")
    assert name.lower() in assert_problem(reply, "request-invalid")["detail"]
    nothing_happened(scene)


@pytest.mark.parametrize(
    "name", ["X_Job", "x_version", "Content_Type", "Idempotency_Key", "X_Execution_Fence", "X.Job"]
)
def test_a_twin_of_a_decisive_field(scene: Scene, name: str) -> None:
    reply = scene.caller.call("POST", "/pay/v1/jobs", job(scene, (name, "2")), b"{}")
    assert name.lower() in assert_problem(reply, "request-invalid")["detail"]
    nothing_happened(scene)


def test_twins_of_what_is_ours_or_of_the_hop_are_dropped(scene: Scene) -> None:
    dropped = [
        *("X_Account", "x_key_up", "X.Key.Up", "Transfer_Encoding", "Content_Length"),
        *("Proxy_Authorization", "Keep_Alive", "X-Hop", "X_Hop"),
    ]
    more = [*((name, "mine") for name in dropped), ("X_Mine", "kept"), ("Connection", "X-Hop")]
    reply = scene.caller.call("POST", "/pay/v1/jobs", job(scene, *more), b"{}")
    assert reply.status == 201
    (request,) = scene.upstream.requests
    for name in dropped:
        assert request.all(name) == [], name
    assert request.one("X_Mine") == b"kept"
    assert request.one("X-Account") == b"fixed"
    assert (request.one("X-Key-Up") or b"").startswith(b"fg-")


def test_twins_of_control_fields_do_not_pass_unguarded_either(scene: Scene) -> None:
    names = ("Idempotency_Key", "X_Execution_Fence", "X_Execution_Entity", "X_Account")
    fields = [(name, "1") for name in names]
    assert scene.caller.call("GET", "/pay/v1/jobs/1", fields).outcome == "unguarded"
    (request,) = scene.upstream.requests
    assert [request.all(name) for name in names] == [[], [], [], []]


@pytest.mark.parametrize("name", ["X-Original-URL", "X_Original_URL", "x-rewrite-url"])
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_a_field_that_changes_the_path_is_refused(scene: Scene, method: str, name: str) -> None:
    target = "/v1/accounts/other/charges"
    reply = scene.send(method=method, fields=[(name, target)])
    assert name.lower() in assert_problem(reply, "request-invalid")["detail"]
    nothing_happened(scene)
