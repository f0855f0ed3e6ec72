"""For how long the end of a lease is tried."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gateway.worker.delivering import tried_until

SECONDS = st.floats(0, 10_000)


@given(SECONDS, SECONDS, SECONDS | st.none(), SECONDS)
def test_never_longer_than_a_lease_nor_than_the_drain(
    out: float, lease_s: float, stopped: float | None, drain_s: float
) -> None:
    until = tried_until(out, lease_s, stopped, drain_s)
    assert out <= until <= out + lease_s
    if stopped is None:
        assert until == out + lease_s
    else:
        assert until <= max(out, stopped) + drain_s
