"""An upstream whose name leads into the own network, with the resolver of this machine: it is sent
nothing until its policy lists that network."""

from __future__ import annotations

import socket
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from gateway.core.egress import Egress
from tests.kit.client import assert_problem
from tests.kit.db import Server, execute
from tests.kit.gateway import Scene, Stack, gateway, policy, stack
from tests.kit.operating import fencegate
from tests.kit.upstream import RecordingUpstream, hang

ASKED = """
name = "charge"
match = "POST /v1/accounts/{account}/charges"
entity = "account:{path.account}"
timeout_s = 0.5
settle_delay_s = 1
unknown = "probe"
send_key = "Reference"

[commands.probe]
request = "GET /v1/charges?reference={upstream_key}"
applied = { status = [200], where = "/data", items = "some" }
interval_s = 1
"""


@pytest.fixture(scope="module")
def own() -> tuple[str, str]:
    """This machine's name, and the address that it has inside."""
    name = socket.gethostname().lower()
    try:
        found = socket.getaddrinfo(name, 80, socket.AF_INET, socket.SOCK_STREAM)
    except OSError:
        pytest.skip("this machine's name has no address")
    address = str(found[0][4][0])
    if Egress(name).allows(address):
        pytest.skip("this machine's name has a public address")
    return name, address


def through(
    postgres: Server, upstream: RecordingUpstream, name: str, head: str = ""
) -> AbstractContextManager[Stack]:
    url = f"http://{name}:{upstream.port}"
    return stack(postgres, lambda _: [policy(url, head=head)])


def test_a_name_that_leads_inside_is_refused_and_nothing_is_sent(
    postgres: Server, own: tuple[str, str]
) -> None:
    name, address = own
    with RecordingUpstream(host=address) as upstream, through(postgres, upstream, name) as made:
        scene: Scene = made.scene()
        reply = scene.send()
        assert_problem(reply, "not-sent", outcome="not-sent", sent="no", waits=True)
        assert reply.one("Proxy-Status") == "fencegate; error=destination_ip_prohibited"
        assert "allow_networks" in reply.json()["detail"]
        assert address not in reply.body.decode()  # what the inside looks like is not told
        assert scene.state() is None  # the key is given back
        assert len(scene.audit("released")) == 1
        safe = scene.caller.call("GET", "/pay/v1/x")
        assert_problem(safe, "not-sent", outcome="unguarded", sent="no", waits=True)
        line = made.gateway.wait_for_log(event="egress_refused")
        assert (line["level"], line["upstream"], line["address"]) == ("warning", name, address)
        assert upstream.connections == 0


def test_a_network_that_is_listed_is_reached(postgres: Server, own: tuple[str, str]) -> None:
    name, address = own
    head = f'allow_networks = ["{address}"]'
    with RecordingUpstream(host=address) as upstream, through(postgres, upstream, name, head) as it:
        scene = it.scene()
        assert scene.send().status == 201
        assert scene.caller.call("GET", "/pay/v1/x").outcome == "unguarded"
        assert upstream.count == 2


def test_check_says_where_a_name_leads(tmp_path: Path, own: tuple[str, str]) -> None:
    name, address = own
    text = policy(f"http://{name}:9")
    (tmp_path / "pay.toml").write_text(text)
    done = fencegate("check", "--policies", str(tmp_path))
    assert done.code == 0
    if "." in name:
        assert f"has the address {address}" in done.out
    assert "allow_networks" in done.out
    (tmp_path / "pay.toml").write_text(f'allow_networks = ["{address}"]\n{text}')
    assert "0 warnings" in fencegate("check", "--policies", str(tmp_path)).out


def test_a_status_query_goes_through_the_same_door(postgres: Server, own: tuple[str, str]) -> None:
    name, address = own
    with postgres.database() as dsn, RecordingUpstream(host=address) as upstream:
        execute(dsn, "update gateway.sweeps set lag = '0 s'")
        url = f"http://{name}:{upstream.port}"
        with gateway(dsn, policy(url, ASKED, head=f'allow_networks = ["{address}"]')) as first:
            scene = Stack(first, upstream, dsn).scene()
            upstream.next(hang())
            assert scene.send().outcome == "unknown"
            first.kill()
        seen = upstream.connections
        with gateway(dsn, policy(url, ASKED)) as second:
            scene.caller = Stack(second, upstream, dsn).caller()
            assert scene.send().outcome == "unknown"  # it asks at once, and hears nothing
            second.wait_for_log(event="egress_refused", upstream=name, address=address)
        assert upstream.connections == seen
