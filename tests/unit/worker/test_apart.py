"""One payload that cannot be read takes none of the other leases along."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.worker.apart import Unreadable, read_claim
from gateway.worker.wire import Malformed, leases, read, read_leases

DEEP = b"[" * 100_000 + b"]" * 100_000
LONG = b"1" * 5_000

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


def claim(*payloads: bytes) -> bytes:
    """As the gateway splices it."""
    return b'{"leases":[%b]}' % b",".join(
        b'{"lease":{"payload":"p"},"payload":%b,"previous":null,"key":"k"}' % each
        for each in payloads
    )


@pytest.mark.parametrize("poison", [DEEP, LONG, b'{"a":' + DEEP + b"}", b'["]}",' + LONG + b"]"])
@settings(max_examples=20, deadline=None)  # each reads 200,000 brackets
@given(before=JSON, after=JSON)
def test_the_others_are_read_as_they_are(poison: bytes, before: object, after: object) -> None:
    for ascii_only in (True, False):
        raw = [json.dumps(each, ensure_ascii=ascii_only) for each in (before, after)]
        if any("\\ud" in each or not _is_text(each) for each in raw):
            raw = [json.dumps(each) for each in (before, after)]
        document = read_claim(claim(raw[0].encode(), poison, raw[1].encode()))
        assert isinstance(document, dict)
        first, spoilt, last = document["leases"]
        assert (first["payload"], last["payload"]) == (before, after)
        assert isinstance(spoilt["payload"], Unreadable)
        assert (spoilt["lease"], spoilt["key"]) == ({"payload": "p"}, "k")


def _is_text(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def test_a_lease_says_what_of_it_cannot_be_read() -> None:
    terms = '{"lease_s":60,"heartbeat_s":15,"jitter_s":2,"misses":3,"stage_limit_s":600}'
    lease = (
        '{"lease":{"job":"j","entity":"e","fence":1,"tool":"t","attempt":1},"max_attempts":1,'
        '"remaining_ms":1,"total_remaining_ms":1,"key":"k","stage_no":0,"payload":%s,'
        '"previous":%s,"terms":' + terms + "}"
    )
    cases = [("1", "2"), (LONG.decode(), "2"), ("1", DEEP.decode())]
    body = ",".join(lease % each for each in cases)
    good, payload, previous = leases(read_leases(f'{{"leases": [ {body} ]}}'.encode()))
    assert (good.unreadable, good.payload, good.previous) == (None, 1, 2)
    assert "the payload cannot be read here" in (payload.unreadable or "")
    assert "the previous result cannot be read here" in (previous.unreadable or "")


@pytest.mark.parametrize("body", [b"", b"<html>", b'{"leases":[{"payload":', b"\xff", DEEP, b"[1,"])
def test_what_is_no_claim_is_malformed(body: bytes) -> None:
    with pytest.raises(Malformed):
        leases(read_leases(body))
    with pytest.raises(Malformed):
        leases(read(body))
