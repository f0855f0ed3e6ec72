"""The cache of one process: never more than its limit, and what it gives is what was put."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gateway.cache.local import Local

MIB = 2**20
LONGEST_S = 60.0

_names = st.binary(min_size=1, max_size=2)
_puts = st.tuples(_names, st.integers(0, 3000), st.floats(0, 30))


@given(limit=st.just(0) | st.integers(4096, 40_000), puts=st.lists(_puts, max_size=60))
def test_it_gives_the_newest_or_nothing_and_keeps_its_limit(
    limit: int, puts: list[tuple[bytes, int, float]]
) -> None:
    cache, newest, now_s = Local(limit, LONGEST_S), {}, 0.0
    for number, (name, length, pause_s) in enumerate(puts):
        now_s += pause_s
        record = b"%d:" % number + bytes(length)
        cache.put(name, record, now_s, now_s + LONGEST_S)
        if len(record) <= cache.entry_limit:
            newest[name] = record
        assert cache.size <= limit
        assert all(cache.get(name) in (None, newest.get(name)) for name, _, _ in puts)


def test_what_fits_is_there_and_the_oldest_goes_first() -> None:
    cache = Local(MIB, LONGEST_S)
    for number in range(4000):
        cache.put(b"%d" % number, bytes(500), 0, LONGEST_S)
    there = [number for number in range(4000) if cache.get(b"%d" % number)]
    assert there == list(range(4000 - len(there), 4000))
    assert len(there) == len(cache) > 4000 * 0.3
    assert cache.size <= MIB


def test_one_huge_response_drives_out_nothing() -> None:
    cache = Local(MIB, LONGEST_S)
    cache.put(b"small", bytes(10), 0, LONGEST_S)
    cache.put(b"huge", bytes(MIB), 0, LONGEST_S)
    assert (cache.get(b"small"), cache.get(b"huge")) == (bytes(10), None)


def test_without_room_nothing_is_kept() -> None:
    cache = Local(0, LONGEST_S)
    cache.put(b"a", b"b", 0, LONGEST_S)
    cache.saw("e", 1, 0)
    assert (cache.get(b"a"), cache.fence("e"), cache.size) == (None, None, 0)


def test_what_has_ended_leaves_the_memory() -> None:
    cache = Local(MIB, LONGEST_S)
    for second in range(120):
        cache.put(b"%d" % second, b"", second, second + LONGEST_S)
        cache.sweep(second)
    assert cache.get(b"119") == b""
    assert len(cache) <= LONGEST_S * 1.25 + 1
    cache.sweep(119 + LONGEST_S)
    assert (len(cache), cache.size) == (0, 0)


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 5)), max_size=200))
def test_an_entry_never_outlives_the_fence_that_was_seen_after_it(
    seen: list[tuple[str, int]],
) -> None:
    cache = Local(8 * 1024, LONGEST_S)
    for number, (entity, fence) in enumerate(seen):
        name = b"%d" % number
        cache.put(name, b"", number, number + LONGEST_S)
        cache.saw(entity, fence, number)
        cache.put(b"filler %d" % number, bytes(50), number, number + LONGEST_S)
        if cache.get(name) is not None:
            assert cache.fence(entity) == fence
