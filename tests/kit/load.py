"""Many callers at several gateways of one database, while something breaks; and the reckoning.

Every caller repeats its command with the same key for as long as the answer says that this may
help. ``Load.reckon`` then lets every deadline pass, asks once more for everything, and compares
what callers heard, what the upstream did and what the database holds.
"""

from __future__ import annotations

import http.client
import itertools
import random
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import Literal

from tests.kit.client import Caller, Reply
from tests.kit.db import with_connection
from tests.kit.gateway import policy, rows
from tests.kit.invariants import Send, assert_holds, read_store
from tests.kit.operating import move_clock
from tests.kit.upstream import Answer, Gate, Recorded, RecordingUpstream, cut, gated, respond

__all__ = ["Counts", "Load", "policies", "script"]

Kind = Literal["plain", "stale", "twins", "busy", "large", "lost", "late", "asked"]

MIX: Sequence[Kind] = (
    *("plain",) * 8,
    *("stale", "twins", "twins", "busy", "busy", "large", "lost", "late", "asked"),
)
"""What is asked for, in equal shares: half of it ordinary."""

SERIAL_ENTITIES = 120
"""So many that what a killed process leaves unknown, which holds its entity, leaves others free."""

TRIES = 6
"""Of one caller before the reckoning."""

WAITS = 2
"""Answers that say "wait" until a caller leaves it to the reckoning: what a killed process left in
flight keeps its key and its entity for seconds, in which others are to be asked for."""

MOVED_S = 3600

_PAUSE_S = 0.2
"""Between two requests of a caller that outlasts a database that is away."""

_LATE_S = 1.4
"""After which an upstream answers that is waited for 1 s."""

PAY = """
name = "pay"
match = "POST /v1/accounts/{account}/charges"
entity = "account:{path.account}"
timeout_s = 3
settle_delay_s = 1
"""
LOOSE = """
name = "loose"
match = "POST /v1/loose/{account}"
entity = "loose:{path.account}"
serial = false
fence = "off"
timeout_s = 1
settle_delay_s = 30
"""
ASKED = """
name = "asked"
match = "POST /v1/asked/{account}"
entity = "asked:{path.account}"
serial = false
fence = "off"
timeout_s = 1
settle_delay_s = 1
unknown = "probe"

[commands.probe]
request = "GET /v1/found?key={key}"
applied = { status = [200], where = "/found", items = "some" }
absent = { status = [200], where = "/found", items = "none" }
interval_s = 1
replay = true
"""


def policies(url: str) -> list[str]:
    return [policy(url, PAY, LOOSE, ASKED)]


def script() -> Callable[[Recorded], Answer | None]:
    """What the upstream does with each kind, which the caller's own field tells it."""
    seen: Counter[bytes] = Counter()

    def answer(request: Recorded) -> Answer | None:
        if request.method == b"GET":
            return found(request.target.rpartition(b"=")[2])
        key, kind = request.one("X-Key") or b"", request.one("X-Kind")
        seen[key] += request.complete
        match kind:
            case b"busy" if seen[key] == 1:
                return respond(429, b"{}")
            case b"lost" | b"asked":
                return cut()
            case b"late":
                gate = Gate()
                threading.Timer(_LATE_S, gate.release).start()
                return gated(gate)
            case _:
                return None

    def found(key: bytes) -> Answer:
        """A status query: whether the command of this key was done."""
        listed = b'"%b"' % key if seen[key] else b""
        return respond(200, b'{"found":[%b]}' % listed, effect=False)

    return answer


@dataclass(frozen=True, slots=True)
class Wish:
    """One command that somebody wants once."""

    key: str
    kind: Kind
    account: str
    fence: int

    @property
    def serial(self) -> bool:
        return self.kind not in ("lost", "late", "asked")

    @property
    def place(self) -> str:
        return "asked" if self.kind == "asked" else "loose"

    @property
    def entity(self) -> str:
        return f"account:{self.account}" if self.serial else f"{self.place}:{self.account}"


@dataclass(frozen=True, slots=True)
class Counts:
    """What it came to; printed by whoever ran it."""

    commands: int
    requests: int
    effects: int
    settled: int
    unknown: int
    free: int
    """Keys of which nothing is on record: refused, released or never admitted."""
    heard: int
    """Settled answers that callers heard before the reckoning."""
    repeats: int
    """Requests that callers sent beyond the first of each command."""
    broken: int
    """Requests whose connection ended in place of an answer."""


@dataclass
class Load:
    """``urls``: of the gateways that may be there now. ``patience_s``: so long callers repeat what
    the database was not there for, however often."""

    urls: Callable[[], Sequence[str]]
    upstream: RecordingUpstream
    database: str
    callers: int = 8
    seed: int = 1
    patience_s: float = 0.0
    wishes: list[Wish] = field(default_factory=list)
    heard: dict[str, Reply] = field(default_factory=dict)
    asked: Counter[str] = field(default_factory=Counter)
    broken: int = 0
    grown: threading.Condition = field(default_factory=threading.Condition)
    _fences: dict[str, int] = field(default_factory=lambda: defaultdict(lambda: 1))

    def run(self, over: Callable[[], bool], at_least: int) -> None:
        """Until ``over`` says so, and at least so many commands."""
        chance = random.Random(self.seed)
        with ThreadPoolExecutor(self.callers) as pool:
            busy: set[Future[None]] = set()
            for wish in self._wishes(chance):
                if over() and len(self.wishes) >= at_least:
                    break
                with self.grown:
                    self.wishes.append(wish)
                    self.grown.notify_all()
                for _ in range(2 if wish.kind == "twins" else 1):
                    busy.add(pool.submit(self._insist, wish, chance.random()))
                while len(busy) >= self.callers:
                    done, busy = wait(busy, return_when=FIRST_COMPLETED)
                    for each in done:
                        each.result()
            for each in busy:
                each.result()

    def _wishes(self, chance: random.Random) -> Iterator[Wish]:
        for number in itertools.count():
            kind = chance.choice(MIX)
            account = f"{chance.randrange(SERIAL_ENTITIES)}"
            fence = self._fences[account]
            match kind:
                case "lost" | "late" | "asked":
                    account = f"{number}"
                case "stale":
                    fence -= 1
                case _:
                    fence += chance.random() < 0.5
                    self._fences[account] = fence
            yield Wish(f"k{number}-{kind}", kind, account, fence)

    def _insist(self, wish: Wish, seed: float) -> None:
        chance = random.Random(seed)
        tries = waits = 0
        while tries < TRIES:
            tries += 1
            try:
                reply = self._outlast(wish, chance)
            except ConnectionRefusedError:
                tries -= 1  # being started again; one that is always there takes it
                continue
            except (OSError, http.client.HTTPException):
                self.broken += 1
                continue
            if reply.problem is None and reply.outcome in ("applied", "replayed"):
                before = self.heard.setdefault(wish.key, reply)
                assert before.body == reply.body, (before, reply)
                return
            unknown = reply.problem == "outcome-unknown"
            if (unknown and wish.kind != "asked") or reply.problem == "entity-unresolved":
                return  # what can be asked about is asked for again
            if reply.problem is not None:
                retry = reply.json()["retry"]
                waits += retry == "wait"
                if retry == "never" or waits == WAITS:
                    return

    def _outlast(self, wish: Wish, chance: random.Random) -> Reply:
        until = time.monotonic() + self.patience_s
        while True:
            reply = self._ask(wish, chance.choice(self.urls()), wish.fence)
            if reply.problem != "store-unavailable" or time.monotonic() >= until:
                return reply
            time.sleep(_PAUSE_S)  # a caller's manners; nothing is waited for

    def _ask(self, wish: Wish, url: str, fence: int) -> Reply:
        fields = [
            *(("Idempotency-Key", wish.key), ("X-Key", wish.key), ("X-Kind", wish.kind)),
            *(("X-Fence", str(fence)), ("X-Execution-Fence", str(fence))),
            *(("Content-Type", "application/json"), ("Prefer", "wait=1")),
        ]
        what = f"accounts/{wish.account}/charges" if wish.serial else f"{wish.place}/{wish.account}"
        body = b'{"note":"%s"}' % (b"x" * 200_000) if wish.kind == "large" else b'{"amount":1}'
        sent = Caller(url).open("POST", f"/pay/v1/{what}", fields, body)
        self.asked[wish.key] += 1
        return sent.reply()

    # -- the reckoning

    def reckon(self, url: str) -> Counts:
        """Ask ``url`` for everything once more when all deadlines have passed, and check all that
        is promised. Nothing may be in flight at any gateway that lives."""
        sent_before = len(self.upstream.requests)
        move_clock(self.database, MOVED_S)
        with ThreadPoolExecutor(self.callers) as pool:
            last = dict(
                zip(
                    [wish.key for wish in self.wishes],
                    pool.map(lambda wish: self._last(wish, url), self.wishes),
                    strict=True,
                )
            )
        stored = {
            row["key"]: row
            for row in rows(
                self.database,
                "select key, status, body, settled_at is not null as settled from gateway.commands",
            )
        }
        effects = Counter((each.one("X-Key") or b"").decode() for each in self.upstream.effects)
        for wish in self.wishes:
            self._check(wish, stored.get(wish.key), effects[wish.key], last[wish.key])
        self._check_history(sent_before)
        settled = sum(row["settled"] for row in stored.values())
        return Counts(
            commands=len(self.wishes),
            requests=sum(each.method != b"GET" for each in self.upstream.requests),
            effects=sum(effects.values()),
            settled=settled,
            unknown=len(stored) - settled,
            free=len(self.wishes) - len(stored),
            heard=len(self.heard),
            repeats=sum(self.asked.values()) - len(self.asked),
            broken=self.broken,
        )

    def _last(self, wish: Wish, url: str) -> Reply:
        fence = self._fences[wish.account] if wish.kind != "stale" else wish.fence
        return self._ask(wish, url, fence)

    def _check(self, wish: Wish, row: dict[str, object] | None, effects: int, last: Reply) -> None:
        about = (wish, row, effects, last)
        assert effects <= 1, about
        heard = self.heard.get(wish.key)
        if heard is not None:
            assert row is not None, about
            assert (row["status"], row["body"]) == (heard.status, heard.body), about
        asked = wish.kind == "asked"  # and may be found out between the last answer and this look
        if row is None:
            assert effects == 0, about
            refused = last.problem in ("entity-unresolved", "fence-stale") or last.status == 429
            assert refused or asked, about
        elif row["settled"]:
            assert effects == 1, about
            healed = wish.kind in ("late", "asked") and last.problem == "outcome-unknown"
            if last.problem != "fence-stale" and not healed:
                assert (last.status, last.body) == (row["status"], row["body"]), about
        else:
            assert last.problem in ("outcome-unknown", "fence-stale"), about

    def _check_history(self, sent_before: int) -> None:
        """Of what was sent and what the database says of it, as ``tests.kit.invariants`` has it."""
        history = with_connection(self.database, read_store)
        offset = time.time() - time.monotonic()
        (tenant,) = {
            row["tenant"] for row in rows(self.database, "select tenant from gateway.tenants")
        }
        serial = {wish.key: wish for wish in self.wishes if wish.serial}
        for number, each in enumerate(self.upstream.requests):
            if each.method == b"GET":
                continue
            key = (each.one("X-Key") or b"").decode()
            wish = serial.get(key)
            moved = MOVED_S if number >= sent_before else 0
            answered_429 = key.endswith("-busy") and not any(s.key == key for s in history.sends)
            history.sends.append(
                Send(
                    at=each.arrived_mono + offset + moved,
                    tenant=tenant,
                    key=key,
                    entity=wish.entity if wish else f"alone:{key}",
                    fence=int(each.one("X-Fence") or 0) if wish else None,
                    serial=wish is not None,
                    may_have_executed=not answered_429,
                )
            )
        assert_holds(history)
        suspected = "select * from gateway.audit where event = 'duplicate_effect_suspected'"
        assert rows(self.database, suspected) == []
