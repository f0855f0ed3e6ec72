"""Exceptions: for unavailable dependencies and bad configuration only. Expected results are
values."""

from __future__ import annotations

__all__ = ["AnswerLost", "ConfigurationError", "FencegateError", "RowsLost", "StoreUnavailable"]


class FencegateError(Exception):
    """The base of everything that this package raises on purpose; its text names the mend."""


class ConfigurationError(FencegateError):
    """The process cannot start as it is configured."""


class StoreUnavailable(FencegateError):
    """The database refused or could not be reached, and the statement certainly did not take
    effect. ``code``: the SQLSTATE, where there is one. ``lost_until``: set where an earlier try of
    the same admit may still commit until that reading of the gateway's clock (seconds)."""

    def __init__(self, reason: str, *, code: str | None = None, lost_until: float | None = None):
        super().__init__(reason)
        self.code = code
        self.lost_until = lost_until


class RowsLost(StoreUnavailable):
    """The database no longer has rows that it had acknowledged, and nobody has looked at it yet."""


class AnswerLost(FencegateError):
    """The database's answer was lost: the statement may have taken effect, or still may."""
