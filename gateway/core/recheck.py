"""When asking again for an unknown outcome helps: the seconds of ``Retry-After``.

A hint, never a rule: whoever comes sooner is answered by the same table. It is at most
``RECHECK_S``, because a person, a report or a late answer may decide at any moment.
"""

from __future__ import annotations

import math
from typing import assert_never

from gateway.core.model import Rules

__all__ = ["ASKING_S", "RECHECK_S", "after_attempt", "until_asked"]

RECHECK_S = 30
"""Where somebody else decides. Of commands that are sent again, the 16 attempts outlast the default
``settle_delay_s`` at this pace."""

ASKING_S = 5
"""Until a status query has been answered: the first begins some 5 s after an admission, and each
takes at most as long. And until a first repeat: what ended the connection is over, mostly, and an
upstream that deduplicates tells what it did."""


def after_attempt(rules: Rules, *, resent: bool) -> int:
    """Behind an attempt whose outcome is unknown. ``resent``: it was not the first.

    With ``resend`` the caller's own repeat decides. It may come at once, since the upstream
    deduplicates; but one that comes while the first is still at work hears that the key is in use,
    and of such repeats there are 16. Behind ``settle_delay_s`` the upstream is through with it.
    """
    match rules.unknown:
        case "hold":
            return RECHECK_S
        case "probe":
            return ASKING_S
        case "resend":
            pace = RECHECK_S if resent else ASKING_S
            return max(1, min(math.ceil(rules.settle_delay_s), pace))
        case _:
            assert_never(rules.unknown)


def until_asked(due_s: int | None) -> int:
    """Behind a status query that proved nothing. ``due_s``: until the next; ``None``: nobody has
    put it on the list yet, which the next reading does."""
    return ASKING_S if due_s is None else max(1, min(due_s, RECHECK_S))
