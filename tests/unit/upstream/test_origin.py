import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic_core import PydanticCustomError

from gateway.policy.fields import address
from gateway.upstream import Origin


@pytest.mark.parametrize(
    ("url", "host", "port", "base", "header"),
    [
        ("http://Api.Example.com", "api.example.com", 80, b"", b"api.example.com"),
        ("https://api.example.com/", "api.example.com", 443, b"", b"api.example.com"),
        ("HTTPS://a.b:8443/v1/x/", "a.b", 8443, b"/v1/x", b"a.b:8443"),
        ("http://my_service:80/%7Ea", "my_service", 80, b"/%7Ea", b"my_service"),
        ("http://127.0.0.1:9", "127.0.0.1", 9, b"", b"127.0.0.1:9"),
        ("https://[0:0::1]:8443", "::1", 8443, b"", b"[::1]:8443"),
        ("http://[::1]", "::1", 80, b"", b"[::1]"),
    ],
)
def test_parses(url: str, host: str, port: int, base: bytes, header: bytes) -> None:
    origin = Origin.parse(url)
    assert (origin.host, origin.port) == (host, port)
    assert (origin.base_path, origin.host_header) == (base, header)
    assert origin.tls == url.lower().startswith("https")
    assert Origin.parse(str(origin)) == origin


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("ftp://a", "http://"),
        ("a.example.com", "http://"),
        ("http://u:p@a", "credentials"),
        ("http://a?x=1", "query"),
        ("http://a/#x", "fragment"),
        ("http://", "names a host"),
        ("http://:80", "names a host"),
        ("http://a:0", "port"),
        ("http://a:65536", "port"),
        ("http://a:", "port"),
        ("http://a:8x", "port"),
        ("http://a:٣", "port"),
        ("http://ä.example", "xn--"),
        ("http://a..b", "host name"),
        ("http://.a", "host name"),
        ("http://a b", "host name"),
        ("http://a\n", "host name"),
        ("http://a\\b", "host name"),
        ("http://::1", "brackets"),
        ("http://[::1", "brackets"),
        ("http://[::1]x", "brackets"),
        ("http://[::g]", "IPv6"),
        ("http://[fe80::1%eth0]", "zone"),
        ("http://a/b c", "percent-encoded"),
        ("http://a/%zz", "percent-encoded"),
        ("http://a/b/../c", "segments"),
    ],
)
def test_refuses_with_a_sentence_that_names_the_mend(url: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        Origin.parse(url)


_PIECES = ["a", "Api", ".", "-", "_", ":", "[", "]", "::1", "%25", "%41", "/", "@", "8", "080", "é"]


@given(st.sampled_from(["http://", "https://"]), st.lists(st.sampled_from(_PIECES), max_size=7))
def test_whatever_a_policy_may_say_is_an_origin(scheme: str, pieces: list[str]) -> None:
    """So that `check` finds what `serve` would die of."""
    url = scheme + "".join(pieces)
    try:
        place = address(url)
    except PydanticCustomError:
        return
    origin = Origin.parse(url)
    assert (origin.scheme, origin.port) == (place.scheme, place.port)
    assert origin.base_path == place.base.encode()
    if ":" in place.host:
        assert ipaddress.ip_address(origin.host) == ipaddress.ip_address(place.host)
    else:
        assert (origin.host, origin.host_header) == (place.host, place.authority.encode())
