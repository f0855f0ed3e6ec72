"""Settled responses in this process, bounded by bytes.

Entries are ``bytes`` in plain dictionaries: the collector never looks into those, however many
there are. They stand in segments by age, and where all are full the oldest goes as a whole: no
entry is ever looked for to be removed, and no dictionary begins with a row of holes.

Beside them stands the latest fence that this process saw admitted for each entity. Whoever repeats
its own command after a newer owner came through here is told by the store that it is stale.
"""

from __future__ import annotations

from collections import deque

__all__ = ["Local"]

_SEGMENTS = 8
"""An eighth of all goes at once: 8 MiB of 64, some 12,000 small entries, in about a millisecond."""

_OVERHEAD = 200
"""Bytes that an entry takes beside its name and record: their heads, and its place in a half-full
dictionary."""

_PER_MARK = 240
"""The same for an entity of usual length and its fence."""


_AGES = 4
"""Segments begun in the longest time that an entry answers, where there is little to keep: so what
has ended leaves the memory within a quarter of that time."""


class _Segment:
    __slots__ = ("begun_s", "end_s", "fences", "records", "size")

    def __init__(self, now_s: float) -> None:
        self.records: dict[bytes, bytes] = {}
        self.fences: dict[str, int] = {}
        self.size = 0
        self.begun_s = self.end_s = now_s


class Local:
    """``limit``: bytes that entries may take in all; 0 keeps nothing, and 4 KiB is the least
    otherwise. ``longest_s``: how long any of them answers."""

    def __init__(self, limit: int, longest_s: float) -> None:
        self._part = limit // _SEGMENTS
        self._longest_s = longest_s
        self._segments: deque[_Segment] = deque([_Segment(0.0)])

    def __len__(self) -> int:
        return sum(len(each.records) for each in self._segments)

    @property
    def size(self) -> int:
        """Bytes in use."""
        return sum(each.size for each in self._segments)

    @property
    def entry_limit(self) -> int:
        """Bytes of a record at most: where there is little room, one must not take an eighth."""
        return self._part // 8

    def get(self, name: bytes) -> bytes | None:
        """The record of that name, whether or not its time has passed."""
        for segment in self._segments:
            record = segment.records.get(name)
            if record is not None:
                return record
        return None

    def put(self, name: bytes, record: bytes, now_s: float, end_s: float) -> None:
        """Keep ``record`` until ``end_s`` at most. Of two of one name ``get`` gives the newest."""
        if len(record) > self.entry_limit:
            return
        segment = self._room(len(name) + len(record) + _OVERHEAD, now_s)
        segment.records[name] = record
        segment.end_s = max(segment.end_s, end_s)

    def fence(self, entity: str) -> int | None:
        """The latest fence that was seen for ``entity``, if that is still known."""
        for segment in self._segments:
            fence = segment.fences.get(entity)
            if fence is not None:
                return fence
        return None

    def saw(self, entity: str, fence: int, now_s: float) -> None:
        """``fence`` is the mark of ``entity`` now, by the store. Entries of lower ones stand in
        this segment or an older one, so they are driven out no later."""
        if self._part and self._segments[0].fences.get(entity) != fence:
            segment = self._room(_PER_MARK, now_s)
            segment.fences[entity] = fence
            segment.end_s = now_s + self._longest_s

    def sweep(self, now_s: float) -> None:
        """Let go of segments in which every entry has ended."""
        while len(self._segments) > 1 and self._segments[-1].end_s <= now_s:
            self._segments.pop()
        if self._segments[0].end_s <= now_s:
            self._segments[0] = _Segment(now_s)

    def _room(self, size: int, now_s: float) -> _Segment:
        segment = self._segments[0]
        full = segment.size + size > self._part
        if segment.size and (full or segment.begun_s + self._longest_s / _AGES < now_s):
            segment = _Segment(now_s)
            self._segments.appendleft(segment)
            if len(self._segments) > _SEGMENTS:
                self._segments.pop()
        segment.size += size
        return segment
