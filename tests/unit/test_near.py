"""Who may read /metrics without a word from the operator: callers on this machine."""

from __future__ import annotations

import pytest
from starlette.requests import Request

from gateway.app import _is_near


def asked_from(client: tuple[str, int] | None) -> Request:
    headers = [(b"x-forwarded-for", b"127.0.0.1"), (b"forwarded", b"for=127.0.0.1")]
    return Request({"type": "http", "client": client, "headers": headers})


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.0.1", "::1", "::ffff:127.0.0.1"])
def test_loopback_addresses_are_near(host: str) -> None:
    assert _is_near(asked_from((host, 1)))


@pytest.mark.parametrize("host", ["10.0.0.1", "172.17.0.1", "::2", "::ffff:10.0.0.1", "", "unix"])
def test_others_are_not_whatever_fields_say(host: str) -> None:
    assert not _is_near(asked_from((host, 1)))


def test_who_has_no_address_is_not() -> None:
    assert not _is_near(asked_from(None))
