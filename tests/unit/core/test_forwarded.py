"""Where a request came from, by fields that anybody can write."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.forwarded import NOBODY, caller_of, is_forwarding, parse_trusted, passed_on
from gateway.core.model import Headers

TRUSTED = parse_trusted("10.0.0.0/8, 192.0.2.7,::1, 2001:db8::/32")
PROXY, CALLER = "10.1.2.3", "198.51.100.9"


def list_of(*lines: str) -> Headers:
    return tuple((b"X-Forwarded-For", line.encode("latin-1")) for line in lines)


def standard(*lines: str) -> Headers:
    return tuple((b"Forwarded", line.encode("latin-1")) for line in lines)


@pytest.mark.parametrize(
    "name",
    [
        *(b"Forwarded", b"X-Forwarded-For", b"x-forwarded-proto", b"X-Forwarded", b"X-Real-IP"),
        *(b"X_Forwarded_For", b"X-Forwarded_Host", b"x.real.ip", b"X-FORWARDED-ANYTHING"),
    ],
)
def test_they_cross_from_trusted_proxies_only(name: bytes) -> None:
    assert is_forwarding(name)
    headers = ((b"A", b"1"), (name, b"x"), (b"B", b"2"))
    for peer, trusted in ((CALLER, TRUSTED), (None, TRUSTED), (PROXY, NOBODY), ("odd", TRUSTED)):
        assert passed_on(headers, peer, trusted) == ((b"A", b"1"), (b"B", b"2"))
    twin = b"_" in name or b"." in name
    assert (name in dict(passed_on(headers, PROXY, TRUSTED))) is not twin


@pytest.mark.parametrize(
    "name", [b"Forward", b"X-Forwarder", b"XForwardedFor", b"X-Real-IPs", b"Via", b"X-Real"]
)
def test_other_fields_are_none_of_them(name: bytes) -> None:
    assert not is_forwarding(name)
    assert passed_on(((name, b"x"),), CALLER, TRUSTED) == ((name, b"x"),)


@pytest.mark.parametrize(
    ("peer", "came", "goes"),
    [
        (PROXY, list_of("1.1.1.1"), list_of("1.1.1.1, 10.1.2.3")),
        (PROXY, list_of("a", "b"), list_of("a", "b, 10.1.2.3")),
        (PROXY, list_of(""), list_of("10.1.2.3")),
        ("::1", list_of("1.1.1.1"), list_of("1.1.1.1, ::1")),
        ("::ffff:10.1.2.3", list_of("x"), list_of("x, 10.1.2.3")),
        (PROXY, standard("for=a;proto=https"), standard("for=a;proto=https, for=10.1.2.3")),
        ("2001:DB8::7", standard("for=a"), standard('for=a, for="[2001:db8::7]"')),
        (PROXY, ((b"X-Forwarded-Proto", b"https"),), ((b"X-Forwarded-Proto", b"https"),)),
        (PROXY, ((b"X-Real-IP", b"1"),), ((b"X-Real-IP", b"1"),)),
        (PROXY, ((b"A", b"b"),), ((b"A", b"b"),)),
    ],
)
def test_a_trusted_proxy_is_put_behind_what_it_says(
    peer: str, came: Headers, goes: Headers
) -> None:
    assert passed_on(came, peer, TRUSTED) == goes


@pytest.mark.parametrize(
    ("peer", "headers", "caller"),
    [
        (CALLER, list_of("1.1.1.1"), CALLER),
        (PROXY, (), PROXY),
        (PROXY, list_of("1.1.1.1"), "1.1.1.1"),
        (PROXY, list_of("6.6.6.6, 1.1.1.1, 10.9.9.9"), "1.1.1.1"),
        (PROXY, list_of("6.6.6.6", "1.1.1.1"), "1.1.1.1"),
        (PROXY, list_of("1.1.1.1:55"), "1.1.1.1"),
        (PROXY, list_of("[2001:db9::1]:55"), "2001:db9::1"),
        (PROXY, list_of("2001:DB9::1"), "2001:db9::1"),
        (PROXY, list_of("10.7.7.7, 10.8.8.8"), "10.7.7.7"),
        (PROXY, list_of("1.1.1.1, unknown"), PROXY),
        (PROXY, list_of("1.1.1.1, unknown, 10.8.8.8"), "10.8.8.8"),
        (PROXY, list_of("1.1.1.1,"), PROXY),
        (PROXY, list_of("caf\xe9"), PROXY),
        (PROXY, list_of("1.1.1.1\r\nx"), PROXY),
        (PROXY, standard("for=1.1.1.1"), "1.1.1.1"),
        (PROXY, standard('for=6.6.6.6, For="1.1.1.1:55";by=x;proto=https'), "1.1.1.1"),
        (PROXY, standard('for="[2001:db9::1]:55"'), "2001:db9::1"),
        (PROXY, standard("for=1.1.1.1, for=_hidden"), PROXY),
        (PROXY, standard("for=1.1.1.1, proto=https"), PROXY),
        (PROXY, standard("for=1.1.1.1;for=2.2.2.2"), PROXY),
        (PROXY, standard('by="a, for=6.6.6.6";for=1.1.1.1'), "1.1.1.1"),
        (PROXY, standard('for="1.1.1.1'), PROXY),
        (PROXY, standard('for=6.6.6.6;by="a, for=1.1.1.1'), PROXY),
        (PROXY, standard('for=6.6.6.6;by="a, for=1.1.1.1\\'), PROXY),
        (PROXY, standard('for=6.6.6.6;by="', "for=1.1.1.1"), "1.1.1.1"),
        (PROXY, standard('for=6.6.6.6;by="a\\"";for=1.1.1.1'), PROXY),
        (PROXY, standard("for=6.6.6.6;by=" + "a" * 5000, "for=1.1.1.1"), "1.1.1.1"),
        (PROXY, standard("for=1.1.1.1;by=" + "a" * 5000), PROXY),
        (PROXY, standard("for=6.6.6.6," + "for=10.0.0.9," * 99 + "for=10.0.0.8"), "10.0.0.9"),
        (PROXY, standard("for=6.6.6.6," + "for=10.0.0.9," * 98 + "for=10.0.0.8"), "6.6.6.6"),
        (PROXY, list_of("6.6.6.6, 6.6.6.6," + "10.0.0.9," * 99 + "10.0.0.8"), "10.0.0.9"),
        (PROXY, list_of("6.6.6.6," + "10.0.0.9," * 98 + "10.0.0.8"), "6.6.6.6"),
        (PROXY, list_of("6.6.6.6," * 5000 + "1.1.1.1"), "1.1.1.1"),
        (PROXY, list_of("1.1.1.1") + standard("for=1.1.1.1"), "1.1.1.1"),
        (PROXY, list_of("1.1.1.1") + standard("for=6.6.6.6"), PROXY),
        (PROXY, ((b"X_Forwarded_For", b"1.1.1.1"), (b"X-Real-IP", b"2.2.2.2")), PROXY),
        ("fe80::1%eth0", (), "fe80::1%eth0"),
        (None, list_of("1.1.1.1"), None),
    ],
)
def test_the_caller_is_the_nearest_that_is_no_trusted_proxy(
    peer: str | None, headers: Headers, caller: str | None
) -> None:
    assert caller_of(headers, peer, TRUSTED) == caller


@pytest.mark.parametrize("piece", ['\\"', '"\\', '"', "for=1;", "a", "; ", "[", "1.", "1:"])
def test_no_field_makes_its_reader_go_back(piece: str) -> None:
    """The bound is no measure: who goes back takes minutes for a long one or for the many."""
    began = time.process_time()
    for form in (standard, list_of):
        fits, longest = (form('"' + piece * (size // len(piece))) for size in (4090, 60_000))
        assert caller_of(longest, PROXY, TRUSTED) == PROXY
        for _ in range(200):
            assert caller_of(fits, PROXY, TRUSTED) == PROXY
    assert time.process_time() - began < 3


@given(
    st.sampled_from([CALLER, PROXY, "::1", "unix", None]),
    st.lists(
        st.tuples(
            st.sampled_from([b"Forwarded", b"X-Forwarded-For", b"x_forwarded_for", b"A"]),
            st.text('for=1.0;, ":[]\\_a').map(str.encode) | st.binary(max_size=12),
        ),
        max_size=4,
    ),
)
def test_whatever_they_say_nobody_is_believed_but_a_trusted_proxy(
    peer: str | None, pairs: list[tuple[bytes, bytes]]
) -> None:
    headers = tuple(pairs)
    caller, goes = caller_of(headers, peer, TRUSTED), passed_on(headers, peer, TRUSTED)
    assert b"x_forwarded_for" not in dict(goes)
    assert [pair for pair in goes if pair[0] == b"A"] == [p for p in pairs if p[0] == b"A"]
    if peer is None or not TRUSTED.has(peer):
        assert caller == peer
        assert not any(is_forwarding(name) for name, _ in goes)


@pytest.mark.parametrize(
    "text", ["10.0.0.1/8", "a", "", "10.0.0.0/8,", "1.2.3", "0.0.0.0/0", "::/0"]
)
def test_what_is_no_network_is_refused_with_the_mend(text: str) -> None:
    with pytest.raises(ValueError, match=r"write e\.g\. 10\.|own networks"):
        parse_trusted(text)
