"""What a flood may cost: each limit with its number and its reason, in one place.

``TABLE`` is what `docs/limits.md` shows; a test compares the two. Limits of single values (keys,
templates, JSON) stand beside their grammars.
"""

from __future__ import annotations

__all__ = [
    "ADMIT_TURN_S",
    "ANSWERS_PART",
    "BATCHES",
    "BATCH_BYTES",
    "BATCH_S",
    "BODY_S",
    "CROWDED_HEAD_S",
    "FRESH_S",
    "HEAD_S",
    "PACE",
    "READ_S",
    "REPEATS",
    "REPEAT_WINDOW_S",
    "ROOM_TO_REFUSE",
    "SLICE_S",
    "SMALL_BODY",
    "SMALL_PART",
    "TABLE",
    "TAKE_S",
    "WEIGHT",
]

HEAD_S = 10.0
"""Seconds from the first byte of a head to its end. One packet is usual, 64 KiB over 56 kbit/s take
as long."""

FRESH_S = 20.0
"""Seconds for which a new connection may stay silent: a client that opens it beforehand uses it by
then, and one that holds it costs a socket and 20 KiB."""

CROWDED_HEAD_S = 2.0
"""The same two for a connection over the limit of all: it only waits to hear that it is refused."""

ROOM_TO_REFUSE = 64
"""Connections over the limit that may be there to be refused in order; more are closed at once."""

TAKE_S = 120.0
"""Seconds in which a caller takes what has been written for it. Here and in the kernel that may be
1 MiB, for a line of 70 kbit/s. One that has stopped reading would keep its connection, and what
streams through also one to the upstream, for ever."""

BODY_S = 60.0
"""Seconds in which a body must be in: the default limit of 8 MiB over a line of 1.2 Mbit/s. Until
then it occupies memory, and nobody knows yet whether its caller may. Of a body that streams through
this is the longest that may be waited for its pieces, beyond what ``PACE`` gives back, since it
occupies a connection to the upstream."""

PACE = 1024
"""Bytes of a streamed body that give back a second of waiting: a modem of 1990 was faster."""

SMALL_BODY = 64 * 1024
"""Bytes of a body that counts as small: nearly all commands are."""

SMALL_PART = 8
"""One part in so many of the memory for bodies is kept for small ones: 32 MiB by default, 2,000
bodies of 16 KiB."""

ANSWERS_PART = 4
"""One part in so many of it is for answers that their callers do not take: 64 MiB by default."""

WEIGHT = 3
"""Where several tenants have gateway keys, one holds at most so many times what it leaves free:
three quarters alone, three sevenths where two flood."""

ADMIT_TURN_S = 5.0
"""Shortest patience of whoever stands in line for the database, as for a fence. Callers that wait
longer for an earlier command (``Prefer: wait``) wait as long here."""

BATCH_BYTES = 256 * 1024
"""Bytes of bodies that are recorded in one transaction: a line of 2 Mbit/s carries them in a
second, half of what a statement has. A larger body goes alone."""

BATCH_S = 0.25
"""Seconds after which a batch holds up nobody behind it: it waits for a lock, a dead connection or
a standby. One of 256 commands takes some 10 ms."""

BATCHES = 3
"""Batches of admits, and as many of settles, on their way at most, those that take longer included;
each has a connection."""

READ_S = 30.0
"""Longest wait for a turn to read a body that is not small, as the usual ``timeout_s``: 300 bodies
of 8 MiB, or 25 of those that take longest."""

SLICE_S = 0.01
"""Seconds of one turn of the event loop that reading small bodies may fill before others get
theirs."""

REPEATS = 10
"""Equal refusals, in a window, that have an audit row each: enough to see the pattern. Those that
come at the same moment do not see each other, so there may be a few more."""

REPEAT_WINDOW_S = 3600
"""Seconds. The rest of an hour shares one row, so a client that loops for a day leaves some 264,
not a million."""

TABLE: tuple[tuple[str, str, str], ...] = (
    (
        "head of a request, from its first byte to its last",
        f"{HEAD_S:.0f} s",
        "one packet is usual; 64 KiB over 56 kbit/s take as long",
    ),
    (
        "new connection without a byte",
        f"{FRESH_S:.0f} s",
        "who opens one beforehand uses it by then",
    ),
    (
        "connections to one process",
        "`FENCEGATE_MAX_CONNECTIONS`, and what `ulimit -n` leaves",
        "the one idle longest behind an answer is closed, else the newest; none with a request",
    ),
    (
        "connections over that, to hear that they are refused",
        f"{ROOM_TO_REFUSE}, {CROWDED_HEAD_S:.0f} s each",
        "more are closed at once, without an answer",
    ),
    (
        "body of a command or below `/v1/`, whole",
        f"{BODY_S:.0f} s",
        "the default limit of 8 MiB over 1.2 Mbit/s, however it drips",
    ),
    (
        "body that streams through",
        f"{BODY_S:.0f} s of waiting, and a second for each {PACE} bytes",
        "it occupies a connection to the upstream",
    ),
    (
        "answer that its caller does not take",
        f"{TAKE_S:.0f} s; one below 64 KiB, from when its connection is to close",
        "1 MiB, here and in the kernel, over 70 kbit/s",
    ),
    (
        "request bodies and answers in memory, all together",
        "`FENCEGATE_MEMORY_MIB`",
        "bodies as they are read, until their command is over; answers while nobody takes them",
    ),
    (
        "of that, for bodies up to 64 KiB alone",
        f"1/{SMALL_PART}",
        "large ones never stand in the way of usual commands",
    ),
    (
        "of that, for answers alone",
        f"1/{ANSWERS_PART}",
        "past it, a tenant whose callers do not read is refused",
    ),
    (
        "share of one tenant in memory, attempts, `max_in_flight`, places to wait, and streams",
        f"{WEIGHT} times what it leaves free",
        "who floods is refused before others are; a single tenant may have all",
    ),
    (
        "admits of one entity, in one process",
        "one at a time",
        "they would wait for each other in the database, and hold its connections meanwhile",
    ),
    (
        "commands that are admitted, or settled, in one transaction",
        f"`FENCEGATE_BATCH_LIMIT`, and {BATCH_BYTES // 1024} KiB of bodies",
        "they share its commit, and what fails of it; a larger body goes alone",
    ),
    (
        "such transactions on their way, in one process",
        f"one of each; up to {BATCHES} where one takes over {BATCH_S} s",
        "what comes meanwhile goes together in the next",
    ),
    (
        "waiting for a turn to be admitted",
        f"{ADMIT_TURN_S:.0f} s, or what `Prefer: wait` says; as many as may wait for a key",
        "tenants have turns one after the other",
    ),
    (
        "waiting for a turn to read a body over 16 KiB",
        f"{READ_S:.0f} s",
        "as the usual `timeout_s`; 300 bodies of 8 MiB, 25 of those that take longest",
    ),
    (
        "reading small bodies, in one turn of the event loop",
        f"{SLICE_S * 1000:.0f} ms",
        "others get their turn between two of them",
    ),
    (
        "equal refusals with an audit row of their own",
        f"about {REPEATS} in {REPEAT_WINDOW_S // 60} minutes",
        "the rest share a row, with how many they are and when the last was",
    ),
)
