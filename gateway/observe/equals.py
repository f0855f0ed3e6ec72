"""Equal commands under different keys: the mark of a caller that mints a new key per attempt.

Such a retry cannot be told from a second wish, so it is never refused; it can only be counted. The
memory is one process's own, and a lost memory costs a warning, not a promise.
"""

from __future__ import annotations

__all__ = ["HALF_AGE_S", "HALF_COUNT", "EqualCommands"]

HALF_COUNT = 32_768
"""Commands in a generation; some 200 bytes each, so the two take 13 MB at most. At a thousand
commands a second they reach back half a minute, which is as far as clients retry by themselves."""

HALF_AGE_S = 1_800.0
"""Seconds that a generation takes in. Queues give a job out again within minutes; what is equal
after more than an hour is more likely a second wish."""


class EqualCommands:
    """The commands that may have taken effect of late, by fingerprint: each is remembered for at
    least ``age_s`` seconds, or for the next ``count`` commands, and for at most twice that.

    Two generations instead of a queue: forgetting costs no scan. Nothing but bytes is in them, so
    the garbage collector has no objects to walk.
    """

    __slots__ = ("_age_s", "_began", "_count", "_old", "_young")

    def __init__(self, count: int = HALF_COUNT, age_s: float = HALF_AGE_S) -> None:
        self._count = count
        self._age_s = age_s
        self._began = float("-inf")
        self._young: dict[bytes, bytes] = {}
        self._old: dict[bytes, bytes] = {}

    def __len__(self) -> int:
        return len(self._young) + len(self._old)

    def add(self, policy: str, fingerprint: bytes, key: bytes, now_s: float) -> bytes | None:
        """Remember a command; the ``key`` (digest) of the last equal one if it was another.

        Equal: the same fingerprint (it is salted per tenant) under the same ``policy``. ``now_s``:
        seconds on any clock that never steps back.
        """
        self._turn(now_s)
        # Two mounts may have the same paths, and a test system's command is no live one.
        name = fingerprint + policy.encode("ascii")
        last = self._young.get(name, self._old.get(name))
        self._young[name] = key
        return last if last != key else None

    def _turn(self, now_s: float) -> None:
        """Begin a new generation if this one is full or old, and forget the one before."""
        age_s = now_s - self._began
        if age_s >= 2 * self._age_s:
            self._old, self._young, self._began = {}, {}, now_s
        elif age_s >= self._age_s:
            # By one age, not to the present: else a pause would make the old ones live longer.
            self._old, self._young, self._began = self._young, {}, self._began + self._age_s
        elif len(self._young) >= self._count:
            self._old, self._young, self._began = self._young, {}, now_s
