"""What is read back is what was written, and a stranger's bytes are nothing."""

from __future__ import annotations

import string

from hypothesis import given
from hypothesis import strategies as st

from gateway.cache.record import Entry, name_of, pack, seal, unpack, unseal
from gateway.core.auth import Principal
from gateway.core.command import Settle
from gateway.core.headers import recordable
from gateway.core.model import Response
from gateway.core.scopes import ALL
from tests.kit.commands import attempt, command

SALT, OTHER = bytes(16), bytes(15) + b"x"

_token = st.text(string.ascii_letters + "-", min_size=1, max_size=12).map(str.encode)
_value = st.text(string.printable[:95], max_size=20).map(str.encode)
_responses = st.builds(
    Response, st.integers(200, 599), st.lists(st.tuples(_token, _value)).map(tuple), st.binary()
)
_fences = st.none() | st.integers(0, 2**63 - 1)


@given(response=_responses, fence=_fences, end_s=st.floats(0, 1e9))
def test_it_is_read_back_as_the_store_would_give_it(
    response: Response, fence: int | None, end_s: float
) -> None:
    settle = Settle(command("k", by=attempt(0)), response, True)
    entry = Entry(end_s, fence, response.status, settle.head, response.body)
    assert unpack(pack(entry)) == entry
    recorded = recordable(response.headers)
    assert entry.response == Response(response.status, recorded, response.body)


@given(record=st.binary(), at=st.integers(0), flip=st.integers(1, 255))
def test_a_seal_opens_only_what_it_was_put_on(record: bytes, at: int, flip: int) -> None:
    sealed = seal(SALT, b"name", record)
    assert unseal(SALT, b"name", sealed) == record
    mangled = bytearray(sealed)
    mangled[at % len(sealed)] ^= flip
    for salt, name, found in (
        (SALT, b"name", bytes(mangled)),
        (SALT, b"name", sealed[:-1]),
        (SALT, b"other", sealed),
        (OTHER, b"name", sealed),
        (SALT, b"name", b""),
    ):
        assert unseal(salt, name, found) is None


def test_a_name_is_of_one_tenant_key_request_and_epoch() -> None:
    def named(epoch: bytes = bytes(16), **about: object) -> bytes:
        holder = Principal(1, "w", "default", SALT, "abcdefgh22", scopes=ALL, epoch=epoch)
        made = {"key": "k", "by": attempt(0), **about}
        return name_of(command(**made), holder)  # type: ignore[arg-type]

    names = {named(), named(b"x" * 16), named(key="l"), named(body="other")}
    assert len(names) == 4
    assert named(b"") == b""
