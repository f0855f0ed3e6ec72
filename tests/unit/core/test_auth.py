"""Gateway keys: SEC-04, and that nothing but the right token opens."""

from __future__ import annotations

from hashlib import sha256

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core import auth
from gateway.core.auth import CallerKey, Principal, Snapshot, Token, format_token, parse_token
from gateway.core.scopes import ALL, DEFAULT

SECRET = b"s" * 43
HOLDER = Principal(7, "worker", "billing", bytes(16), "abcdefgh22", scopes=DEFAULT)
ANYBODY = Principal(1, "anonymous", "default", bytes(16), scopes=ALL)
SNAPSHOT = Snapshot({(7, "abcdefgh22"): CallerKey(HOLDER, sha256(SECRET).digest())})
TOKEN = b"fg_7_abcdefgh22_" + SECRET


@pytest.mark.parametrize(
    "line",
    [
        b"Bearer " + TOKEN,
        b"bearer " + TOKEN,
        b"BEARER   " + TOKEN,
        b" \tBearer " + TOKEN + b" \t",
    ],
)
def test_the_right_token_is_taken_whatever_the_schemes_case(line: bytes) -> None:
    assert SNAPSHOT.authenticate([line]) == HOLDER


@pytest.mark.parametrize(
    "lines",
    [
        [],
        [b""],
        [b"Bearer"],
        [b"Bearer "],
        [b"Bearer caf\xe9"],
        [b"bearer caf\xe9"],
        [TOKEN],
        [b"Basic " + TOKEN],
        [b"Bearer" + TOKEN],
        [b"Bearer\t" + TOKEN],
        [b"Bearer " + TOKEN[:-1]],
        [b"Bearer " + TOKEN[:-1] + b"x"],
        [b"Bearer " + TOKEN + b"s"],
        [b"Bearer " + TOKEN[:-1] + b"\xe9"],
        [b"Bearer " + TOKEN + b"\n"],
        [b"Bearer " + TOKEN + b", Bearer " + TOKEN],
        [b"Bearer " + TOKEN, b"Bearer " + TOKEN],
        [b"Bearer " + TOKEN, b""],
        [b"Bearer " + TOKEN.replace(b"fg_7", b"fg_8")],
        [b"Bearer " + TOKEN.replace(b"fg_7", b"fg_07")],
        [b"Bearer " + TOKEN.replace(b"fg_7", b"fg_99999999999")],
        [b"Bearer " + TOKEN.replace(b"abcdefgh22", b"abcdefgh23")],
        [b"Bearer " + TOKEN.replace(b"abcdefgh22", b"ABCDEFGH22")],
        [b"Bearer " + TOKEN.upper()],
        [b"Bearer " + bytes(32)],
        [b"Bearer " + b"x" * 100_000],
    ],
)
def test_anything_else_is_nobody(lines: list[bytes]) -> None:
    assert SNAPSHOT.authenticate(lines) is None


@given(st.lists(st.binary(max_size=120), max_size=3))
def test_no_bytes_raise_or_open(lines: list[bytes]) -> None:
    assert SNAPSHOT.authenticate(lines) is None
    assert SNAPSHOT.authenticate([b"Bearer " + line for line in lines]) is None


@pytest.mark.parametrize(
    "line",
    [
        b"Bearer " + TOKEN,
        b"Bearer " + TOKEN[:-1] + b"x",
        b"Bearer " + TOKEN.replace(b"abcdefgh22", b"abcdefgh23"),
        b"Bearer caf\xe9",
        b"Bearer ",
        b"",
    ],
)
def test_every_candidate_takes_one_compare_of_digests(
    line: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same path for unknown and wrong: a digest of 32 bytes against one of 32 bytes, once."""
    compared: list[tuple[int, int]] = []

    def compare(left: bytes, right: bytes) -> bool:
        compared.append((len(left), len(right)))
        return left == right

    monkeypatch.setattr(auth, "compare_digest", compare)
    SNAPSHOT.authenticate([line])
    assert compared == [(32, 32)]


def test_anonymous_is_never_the_answer_to_a_token() -> None:
    snapshot = Snapshot({}, ANYBODY)
    assert snapshot.authenticate([b"Bearer " + TOKEN]) is None
    assert snapshot.closed().anonymous is None


def test_two_tenants_may_have_a_key_of_the_same_id() -> None:
    other = Principal(8, "worker", "support", bytes(16), "abcdefgh22", scopes=DEFAULT)
    both = Snapshot(
        {**SNAPSHOT.keys, (8, "abcdefgh22"): CallerKey(other, sha256(b"t" * 43).digest())}
    )
    assert both.authenticate([b"Bearer fg_8_abcdefgh22_" + b"t" * 43]) == other
    assert both.authenticate([b"Bearer fg_8_abcdefgh22_" + SECRET]) is None


def test_a_token_reads_back_as_it_was_written() -> None:
    token = Token(7, "abcdefgh22", b"_-" + b"x" * 41)
    assert parse_token(format_token(token).encode()) == token


def test_no_secret_is_in_any_repr() -> None:
    shown = repr((SNAPSHOT, Token(7, "abcdefgh22", SECRET)))
    assert repr(SECRET) not in shown
    assert repr(sha256(SECRET).digest()) not in shown
