"""Which fields cross the gateway, and which are recorded."""

from __future__ import annotations

import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.headers import (
    CONTROL,
    Head,
    by_names,
    decode_lines,
    encode_lines,
    end_to_end,
    folded,
    handed_on,
    last_hop,
    loops,
    nominated,
    recordable,
    relayable,
    sendable,
    twin,
    values,
    without,
    written,
)
from gateway.core.model import Headers

KEPT: Headers = ((b"Content-Type", b"text/plain"), (b"X-Tag", b"1"), (b"X-Tag", b"2"))


@pytest.mark.parametrize(
    "name",
    [
        b"Connection", b"Keep-Alive", b"TE", b"Trailer", b"Transfer-Encoding", b"Upgrade",
        b"HTTP2-Settings", b"Proxy-Connection", b"Proxy-Authorization", b"Proxy-Authenticate",
        b"Proxy-Anything",
    ],
)  # fmt: skip
@pytest.mark.parametrize("spelled", [bytes, bytes.lower, bytes.upper])
def test_fields_of_one_hop_are_dropped_in_any_case(name: bytes, spelled: object) -> None:
    field = (spelled(name), b"anything")  # type: ignore[operator]
    assert end_to_end((field, *KEPT)) == KEPT


def test_proxy_status_is_added_to_by_every_hop_so_it_stays() -> None:
    fields = ((b"Proxy-Status", b"edge; error=dns_error"),)
    assert end_to_end(fields) == fields


@pytest.mark.parametrize(
    "lines",
    [
        ((b"Connection", b"X-Hop"),),
        ((b"connection", b"close, x-hop"),),
        ((b"Connection", b"close"), (b"CONNECTION", b" X-HOP ,keep-alive")),
        ((b"Connection", b",,x-hop,,"),),
        ((b"Connection", b"x-hop\t,\tte"),),
    ],
)
def test_any_connection_line_nominates_fields_of_this_hop(lines: Headers) -> None:
    assert end_to_end((*lines, (b"X-Hop", b"1"), *KEPT, (b"x-hop", b"2"))) == KEPT


def test_a_longer_name_than_the_nominated_one_stays() -> None:
    fields = ((b"X-Hop-Count", b"1"),)
    assert end_to_end(((b"Connection", b"x-hop"), *fields)) == fields


def test_order_spelling_and_repeats_are_kept() -> None:
    assert end_to_end(KEPT) == KEPT


@pytest.mark.parametrize(
    "name", [b"Idempotent-Replayed", b"gateway-outcome", b"Gateway-Fingerprint"]
)
def test_an_upstream_cannot_speak_for_the_gateway(name: bytes) -> None:
    assert relayable(((name, b"true"), *KEPT)) == KEPT
    assert recordable(((name, b"true"), *KEPT)) == KEPT


@pytest.mark.parametrize(
    "name", [b"Set-Cookie", b"set-cookie2", b"WWW-Authenticate", b"Date", b"Content-Length"]
)
def test_what_is_bound_to_one_moment_or_caller_is_relayed_but_not_recorded(name: bytes) -> None:
    fields = ((name, b"x"), *KEPT)
    assert relayable(fields) == fields
    assert recordable(fields) == KEPT


def test_what_is_recorded_has_no_field_of_the_hop() -> None:
    assert recordable(((b"Connection", b"x-tag"), *KEPT)) == KEPT[:1]


def test_control_fields_are_found_in_any_case() -> None:
    fields = ((b"Authorization", b"Bearer x"), (b"IDEMPOTENCY-KEY", b"k"), *KEPT)
    assert without(fields, CONTROL) == KEPT


def test_values_are_all_lines_in_order() -> None:
    assert values(KEPT, b"x-tag") == [b"1", b"2"]
    assert values(KEPT, b"absent") == []


# Twins (RFC 9110 §17.10).


@pytest.mark.parametrize("name", [b"X-Job", b"x-job", b"X_Job", b"X.JOB", b"x~job"])
def test_one_name_to_stacks_that_make_variables_of_fields(name: bytes) -> None:
    assert folded(name) == b"x-job"
    assert sendable(((name, b"1"), *KEPT), frozenset({b"x-job"})) == KEPT
    found = twin((*KEPT, (name, b"1")), frozenset({b"x-job", b"x-other"}))
    assert found == (None if name.lower() == b"x-job" else name)


def test_another_name_is_no_twin() -> None:
    fields = tuple((name, b"1") for name in (b"X--Job", b"XJob", b"X-Jobs", b"X-J\xf6b"))
    assert twin(fields, frozenset({b"x-job"})) is None
    assert sendable(fields, frozenset({b"x-job"})) == fields


@pytest.mark.parametrize(
    "name", [b"Transfer_Encoding", b"Keep_Alive", b"Proxy_Authorization", b"X_Hop", b"X-Hop"]
)
def test_no_twin_of_a_field_of_this_hop_is_sent(name: bytes) -> None:
    connection = (b"Connection", b"X-Hop, close")
    assert nominated((connection, *KEPT)) == {b"x-hop", b"close"}
    assert sendable((connection, (name, b"1"), *KEPT), frozenset()) == KEPT


# Loops (RFC 9110 §7.6.3).

SELF = b"fencegate-0123456789ab"


@pytest.mark.parametrize(
    "via",
    [
        ((b"Via", b"1.1 " + SELF),),
        ((b"via", b"HTTP/1.1 edge, 1.1 " + SELF),),
        ((b"Via", b"1.0 a"), (b"VIA", b"1.1\t" + SELF + b" (comment)")),
        ((b"Via", b"1.1 " + SELF + b",1.1 edge"),),
    ],
)
def test_a_message_that_came_through_here_is_a_loop(via: Headers) -> None:
    assert loops((*KEPT, *via), SELF)


@pytest.mark.parametrize(
    "via",
    [
        (),
        ((b"Via", b""),),
        ((b"Via", b"1.1 fencegate-ffffffffffff"),),
        ((b"Via", b"1.1 " + SELF + b"x"),),
        ((b"Via", b"1.1 edge (" + SELF + b")"),),
        ((b"Via", SELF),),
        ((b"X-Via", b"1.1 " + SELF),),
    ],
)
def test_anything_else_is_not(via: Headers) -> None:
    assert not loops((*KEPT, *via), SELF)


@pytest.mark.parametrize(
    ("lines", "hop"),
    [
        ([b"1.1 " + SELF], SELF),
        ([b"1.0 fred", b"1.1 " + SELF + b" (a, b)"], SELF),
        ([b"1.1 fencegate-ffffffffffff, HTTP/1.1 " + SELF.upper() + b" "], SELF),
        ([], None),
        ([b""], None),
        ([b"1.1 " + SELF + b", 1.1 varnish"], None),
        ([b"1.1 " + SELF, b"1.1 varnish"], None),
        ([b"1.1 edge (1.1 x, 1.1 " + SELF + b")"], None),
        ([b"1.1 " + SELF + b"\r\nX: 1"], SELF),
        ([b"1.1 fencegate-x\r\ny"], None),
        ([SELF], None),
        ([b"1.1 " + SELF + b" (a (b, c) \\) d)"], SELF),
        ([b"1.1 edge (x (y), 1.1 " + SELF + b" z)"], None),
        ([b"1.1 " + SELF + b" (, 1.1 edge"], None),
        ([b"1.1 " + SELF + b" (\\"], None),
        ([b"1.1 " + SELF + b" )"], None),
        ([b"1.1 edge \\(, 1.1 " + SELF], None),
        ([b"1.1 a, " * 580 + b"1.1 " + SELF], SELF),
        ([b"1.1 a, " * 585 + b"1.1 " + SELF], None),
    ],
)
def test_the_last_hop_is_told_where_it_is_a_gateway(lines: list[bytes], hop: bytes | None) -> None:
    assert last_hop((*KEPT, *((b"Via", line) for line in lines))) == hop


@pytest.mark.parametrize("piece", [b"(\\", b"((", b"()", b"(", b"\\", b"),("])
def test_no_via_makes_its_reader_go_back(piece: bytes) -> None:
    """The bound is no measure: who goes back takes minutes for a long one or for the many."""
    fits, longest = (((b"via", piece * (size // len(piece))),) for size in (4090, 60_000))
    began = time.process_time()
    assert last_hop(longest) is None
    for _ in range(200):
        assert last_hop(fits) is None
    assert time.process_time() - began < 3


def test_a_request_that_was_handed_on_is_named_by_hop_method_and_target() -> None:
    via = ((b"Via", b"1.1 " + SELF),)
    named = handed_on(via, b"POST", b"/pay/x?a=1")
    assert named is not None
    assert re.fullmatch(SELF + rb" [0-9a-f]{16}", named)
    assert (
        handed_on(((b"via", b"1.0 fred, HTTP/1.1 " + SELF), *KEPT), b"POST", b"/pay/x?a=1") == named
    )
    others = [(b"PUT", b"/pay/x?a=1"), (b"POST", b"/pay/x"), (b"POST", b"/PAY/x?a=1")]
    assert len({named, *(handed_on(via, *other) for other in others)}) == 4
    assert handed_on((), b"POST", b"/pay/x?a=1") is None


# For the store.

_TCHAR = b"!#$%&'*+-.^_`|~0123456789abcXYZ"
NAMES = st.lists(st.sampled_from(_TCHAR), min_size=1, max_size=12).map(bytes)
VALUES = st.lists(st.integers(0, 255).filter(lambda byte: byte not in b"\r\n\0"), max_size=20).map(
    bytes
)


@given(st.lists(st.tuples(NAMES, VALUES), max_size=8).map(tuple))
def test_recorded_lines_read_back_as_the_same_pairs(headers: Headers) -> None:
    assert decode_lines(encode_lines(headers)) == headers


def test_a_value_with_colons_and_blanks_reads_back() -> None:
    headers = ((b"Location", b" https://x.test:1/a:b "), (b"Empty", b""))
    assert decode_lines(encode_lines(headers)) == headers
    assert encode_lines(()) == b""


_NAME = st.sampled_from(
    [b"Connection", b"x-job", b"X_Job", b"Via", b"via", b"TE", b"Proxy-X", b"Date", b"Set-Cookie"]
) | st.text("aX-_%", min_size=1, max_size=4).map(str.encode)
_VALUE = st.sampled_from([b"close", b"x-job, date", b"1.1 a", b"", b"%b"])


@given(st.lists(st.tuples(_NAME, _VALUE), max_size=6).map(tuple))
def test_a_head_that_was_looked_through_says_what_its_lines_say(headers: Headers) -> None:
    head = Head(headers)
    assert head == headers
    for name in (b"connection", b"via", b"x-job", b"none"):
        assert values(head, name) == values(headers, name)
    for question in (nominated, end_to_end, relayable, recordable, written):
        assert question(head) == question(headers)
    assert sendable(head, CONTROL) == sendable(headers, CONTROL)
    assert twin(head, frozenset({b"x-job"})) == twin(headers, frozenset({b"x-job"}))
    assert written(headers) == b"".join(b"%b: %b\r\n" % line for line in headers)


def test_what_is_kept_of_names_is_bounded_and_never_mixed_up() -> None:
    asked: list[tuple[bytes, ...]] = []

    @by_names
    def count(sent: tuple[bytes, ...], more: int) -> int:
        asked.append(sent)
        return len(sent) + more

    def heads(number: int) -> Headers:
        return ((b"x-%d" % number, b""), (b"y", b""))

    for _ in range(3):
        for number in range(5):
            assert count(heads(number), number) == 2 + number
    assert len(asked) == 5
    for number in range(10_000):
        assert count(heads(number), 0) == 2
    asked.clear()
    for number in range(10_000):
        assert count(heads(number), 0) == 2
    assert len(asked) > 9_000  # so few are kept
    asked.clear()
    large: Headers = ((b"x" * 2_000, b""),)
    many: Headers = tuple((b"x", b"") for _ in range(100))
    for each in (large, large, many, many):
        assert count(each, 0) == len(each)
    assert len(asked) == 4
