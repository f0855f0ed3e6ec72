"""The same bytes are the same request; one byte more, or elsewhere, is another."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from gateway.cache.verbatim import BODY_LIMIT, Sent, Verbatim, Wish
from gateway.core.auth import Principal
from gateway.core.scopes import ALL

HOLDER = Principal(1, "w", "default", bytes(16), "abcdefgh22", scopes=ALL)
OTHER = Principal(2, "w", "billing", bytes(15) + b"x", "abcdefgh23", scopes=ALL)

# Few bytes, so that one piece often begins as the next does; line ends only where they may be.
_name = st.text("ab", min_size=1, max_size=2).map(str.encode)
_text = st.text("ab", max_size=2).map(str.encode)
_body = st.text("ab\n", max_size=6).map(str.encode)
_headers = st.lists(st.tuples(_name, _text), max_size=3).map(tuple)
_sent = st.builds(Sent, st.sampled_from(["a", "b"]), _text, _text, _headers, _body)


def wish(number: int) -> Wish:
    return Wish(b"%d" % number, bytes(16), "pay/charge", 1, "invoice:1", 1)


def _of(*fields: bytes, body: bytes) -> Sent:
    return Sent("a", b"", b"", tuple(zip(fields[::2], fields[1::2], strict=True)), body)


@given(one=_sent, two=_sent)
@example(one=_of(b"a", b"b", body=b""), two=_of(b"a", b"", body=b"b"))
@example(one=_of(b"a", b"b", body=b""), two=_of(body=b"a\nb"))
@example(one=_of(b"a", b"b", body=b""), two=_of(body=b"a\nb\n\n"))
def test_only_equal_requests_have_one_digest(one: Sent, two: Sent) -> None:
    assert (one.digest(bytes(16)) == two.digest(bytes(16))) == (one == two)


@given(st.lists(_sent, unique=True, min_size=2, max_size=8))
def test_each_is_the_command_that_it_was(sents: list[Sent]) -> None:
    seen = Verbatim()
    for number, sent in enumerate(sents[1:]):
        seen.add(sent, HOLDER, wish(number))
    assert seen.get(sents[0], HOLDER) is None
    for number, sent in enumerate(sents[1:]):
        assert seen.get(sent, HOLDER) == wish(number)
        assert seen.get(sent, OTHER) is None


def test_many_are_forgotten_and_large_ones_never_learnt() -> None:
    seen = Verbatim()
    for number in range(20_000):
        seen.add(Sent("POST", b"/", b"", (), b"%d" % number), HOLDER, wish(number))
    there = [n for n in range(20_000) if seen.get(Sent("POST", b"/", b"", (), b"%d" % n), HOLDER)]
    assert there == list(range(20_000 - len(there), 20_000))
    assert 4096 <= len(there) <= 8192
    large = Sent("POST", b"/", b"", (), bytes(BODY_LIMIT + 1))
    seen.add(large, HOLDER, wish(0))
    assert seen.get(large, HOLDER) is None
