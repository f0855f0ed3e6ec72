"""How long a replay from the store may be repeated from memory."""

from __future__ import annotations

import pytest

from gateway.cache import Cache, Local, Sent
from gateway.cache.cache import _KEPT_S
from gateway.core.auth import Principal
from gateway.core.command import Settle
from gateway.core.decide import Replay, SettledBy
from gateway.core.scopes import ALL
from gateway.policy.published import json_schema
from tests.kit.commands import OK, attempt, command

HOLDER = Principal(1, "w", "default", bytes(16), "abcdefgh22", scopes=ALL, epoch=bytes(16))
WISH = command("k", by=attempt(0))
SENT = Sent("POST", b"/", b"", (), b"")


class Clock:
    now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def made(clock: Clock) -> Cache:
    return Cache(Local(2**20, 60), None, clock=clock, wall=clock, asked=lambda *_: None)


def replay(age_s: float = 0, by: SettledBy = "answer", *, compared: bool = True) -> Replay:
    return Replay(OK, by, compared, int(age_s * 1000))


@pytest.mark.parametrize(
    ("age_s", "lasts_s"), [(0, 60), (3600, 60), (_KEPT_S - 30, 30), (_KEPT_S, 0), (1e7, 0)]
)
def test_it_ends_before_the_store_may_forget_it(age_s: float, lasts_s: float) -> None:
    clock = Clock()
    cache = made(clock)
    cache.replayed(WISH, HOLDER, replay(age_s), 60)
    for pause_s in (0, lasts_s - 0.5, lasts_s):
        clock.now_s = 1000 + max(pause_s, 0)
        assert (cache.find(WISH, HOLDER, SENT) is not None) == (0 <= pause_s < lasts_s)
        assert (cache.again(SENT, HOLDER) is not None) == (0 <= pause_s < lasts_s)


@pytest.mark.parametrize("by", ["late", "resolved", "probe", "report"])
def test_only_an_answer_of_its_own_in_time_is_kept(by: SettledBy) -> None:
    cache = made(Clock())
    cache.replayed(WISH, HOLDER, replay(by=by), 60)
    cache.replayed(WISH, HOLDER, replay(compared=False), 60)
    assert cache.find(WISH, HOLDER, SENT) is None


def test_no_policy_forgets_earlier_or_caches_for_longer() -> None:
    defined = json_schema()["$defs"]
    retain = next(each for name, each in defined.items() if name.startswith("Retain"))
    for days in ("response_days", "key_days"):
        assert retain["properties"][days]["minimum"] * 86_400 >= _KEPT_S
    one = next(each for name, each in defined.items() if name.startswith("Command"))
    assert one["properties"]["cache_s"]["maximum"] <= _KEPT_S


def test_while_the_epoch_is_not_known_nothing_is_kept() -> None:
    cache, nobody = made(Clock()), Principal(1, "w", "default", bytes(16), scopes=ALL)
    cache.keep(Settle(WISH, OK, True), nobody, 60)
    cache.replayed(WISH, nobody, replay(), 60)
    assert (len(cache.local), cache.find(WISH, nobody, SENT)) == (0, None)
