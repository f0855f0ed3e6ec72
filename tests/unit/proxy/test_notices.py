"""A warning is given once, and again only when some time has passed."""

from __future__ import annotations

from gateway.proxy.notices import AGAIN_S, MOST, Notices
from tests.unit.proxy.rig import ManualClock


def test_each_thing_is_said_once_and_again_later() -> None:
    clock = ManualClock()
    notices = Notices(clock)
    assert notices.due("pay/charge", "status 500")
    assert notices.due("pay/charge", "status 404")
    assert notices.due("pay/refund", "status 500")
    clock.now += AGAIN_S - 1
    assert not notices.due("pay/charge", "status 500")
    clock.now += 1
    assert notices.due("pay/charge", "status 500")
    assert not notices.due("pay/charge", "status 500")


def test_only_so_much_is_remembered_and_said() -> None:
    clock = ManualClock()
    notices = Notices(clock)
    assert all(notices.due(str(number)) for number in range(MOST))
    assert not notices.due("one more")
    clock.now += AGAIN_S
    assert notices.due("one more")
