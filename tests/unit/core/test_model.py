"""The vocabulary: stages rise in the order that bytes travel, values do not change."""

from __future__ import annotations

from dataclasses import FrozenInstanceError

import pytest

from gateway.core.model import Exchange, Response, Stage
from tests.kit.commands import attempt, command, rules


def test_stages_rise_in_the_order_of_an_exchange() -> None:
    assert [stage.name for stage in sorted(Stage)] == [
        "CONNECTING",
        "CONNECTED",
        "SENDING_HEADERS",
        "SENDING_BODY",
        "SENT",
        "STATUS_SEEN",
        "BODY_COMPLETE",
    ]


@pytest.mark.parametrize(
    ("value", "field"),
    [
        (Response(200, (), b""), "status"),
        (Exchange(Stage.SENT), "stage"),
        (rules(), "serial"),
        (command(by=attempt(1)), "attempt"),
    ],
    ids=lambda each: type(each).__name__,
)
def test_values_do_not_change(value: object, field: str) -> None:
    with pytest.raises(FrozenInstanceError):
        setattr(value, field, None)
    assert not hasattr(value, "__dict__")


@pytest.mark.parametrize(
    ("serial", "fence", "locks"),
    [(True, None, True), (True, 0, True), (False, 0, True), (False, None, False)],
)
def test_a_command_locks_its_entity_for_a_fence_or_a_slot(
    serial: bool, fence: int | None, locks: bool
) -> None:
    made = command(by=attempt(1), serial=serial, fence=fence)
    assert made.has_entity_row is locks
