"""Durations say what the client library's histogram would say of the same observations."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Histogram, generate_latest

from gateway.observe.durations import Durations

BUCKETS = (0.001, 0.01, 1, 10)


def shown(registry: CollectorRegistry) -> list[str]:
    lines = generate_latest(registry).decode().splitlines()
    return [line for line in lines if "_created" not in line]


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["p/a", "p/b"]),
            st.floats(0, 100) | st.sampled_from(BUCKETS),
        )
    )
)
def test_they_are_a_histogram(observed: list[tuple[str, float]]) -> None:
    theirs, ours = CollectorRegistry(), CollectorRegistry()
    usual = Histogram("d_seconds", "Text.", ("policy",), buckets=BUCKETS, registry=theirs)
    made = Durations("d_seconds", "Text.", BUCKETS)
    ours.register(made)
    for policy, seconds in observed:
        usual.labels(policy).observe(seconds)
        made.observe(policy, seconds)
    assert shown(ours) == shown(theirs)
