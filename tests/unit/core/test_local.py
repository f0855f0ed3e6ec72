"""What is addressed to this machine."""

from __future__ import annotations

import pytest

from gateway.core.local import foreign

HERE = [
    *("localhost", "LOCALHOST:8080", "localhost.", "api.localhost:1", "127.0.0.1", "127.9.9.9:80"),
    *("[::1]", "[::1]:8080", "localhost:", "[::ffff:127.0.0.1]", "[::FFFF:7f00:1]:80"),
]
ELSEWHERE = [
    *("evil.example", "evil.example:8080", "127.0.0.1.evil.example", "localhost.evil.example"),
    *("evillocalhost", "10.0.0.1", "[2001:db8::1]", "0.0.0.0", "[::]", "2130706433", "0x7f.1"),
    *("127.1", "169.254.169.254", "", "[::1", "::1", "localhost:1:2", "[::ffff:10.0.0.1]"),
]


@pytest.mark.parametrize("host", HERE)
def test_a_host_and_an_origin_of_this_machine_pass(host: str) -> None:
    assert foreign(((b"host", host.encode()),)) is None
    assert foreign(((b"host", b"localhost"), (b"Origin", b"http://" + host.encode()))) is None


@pytest.mark.parametrize("host", ELSEWHERE)
def test_any_other_host_or_origin_is_refused_with_the_mend(host: str) -> None:
    assert "fencegate keys add" in (foreign(((b"host", host.encode()),)) or "")
    origin = ((b"host", b"localhost"), (b"origin", b"https://" + host.encode()))
    assert "Origin" in (foreign(origin) or "")


@pytest.mark.parametrize("origin", [b"null", b"", b"localhost", b"file://", b"http://caf\xe9"])
def test_an_origin_that_names_no_host_of_this_machine_is_refused(origin: bytes) -> None:
    assert foreign(((b"origin", origin),)) is not None


def test_one_that_is_here_excuses_none_that_is_not() -> None:
    assert foreign(((b"origin", b"http://localhost"), (b"origin", b"http://a"))) is not None


def test_who_names_no_host_speaks_http_1_0_and_is_no_browser() -> None:
    assert foreign(()) is None


@pytest.mark.parametrize("site", [b"same-origin", b"none", b" None\t"])
def test_a_page_of_the_gateway_itself_and_a_typed_address_pass(site: bytes) -> None:
    assert foreign(((b"host", b"localhost"), (b"Sec-Fetch-Site", site))) is None


@pytest.mark.parametrize("site", [b"cross-site", b"same-site", b"", b"none, cross-site", b"?1"])
def test_what_a_page_of_another_site_or_port_asks_for_is_refused(site: bytes) -> None:
    """An image or a link sends no Origin."""
    fields = ((b"host", b"localhost"), (b"sec-fetch-site", b"none"), (b"Sec-Fetch-Site", site))
    said = foreign(fields) or ""
    assert "Sec-Fetch-Site" in said
    assert "fencegate keys add" in said
