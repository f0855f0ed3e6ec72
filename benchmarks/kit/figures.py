"""Figures of rounds, and what may be said of them. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

__all__ = ["Broken", "Case", "Figures", "Key", "Results", "median", "percentile"]

Key = tuple[str, str]
"""Who was measured, and at what: ``("nginx", "fresh 200 B, 64 connections")``."""

Figures = Mapping[str, float]
"""By name, unit last. ``rate`` is per second."""


class Broken(Exception):
    """A run whose effects are not what they must be, so its figures mean nothing."""


@dataclass(frozen=True, slots=True)
class Case:
    """One measurement. ``run`` raises ``Broken`` where its effects do not hold. ``rounds``: play it
    in so many rounds at most; None: in all."""

    subject: str
    what: str
    run: Callable[[], Figures] = field(repr=False)
    rounds: int | None = None

    @property
    def key(self) -> Key:
        return (self.subject, self.what)


@dataclass(slots=True)
class Results:
    """By case, a list by round: figures, or None where the case was not played or broke.

    ``broken``: every reason, by case, also of a single round.
    """

    rounds: dict[Key, list[Figures | None]] = field(default_factory=dict)
    broken: dict[Key, str] = field(default_factory=dict)

    def add(self, key: Key, number: int, figures: Figures | None) -> None:
        """Of round ``number``, counted from 0."""
        row = self.rounds.setdefault(key, [])
        row.extend([None] * (number - len(row)))
        row.append(figures)

    def values(self, key: Key, figure: str) -> list[float]:
        """Of all rounds; empty where the case broke in any."""
        if key in self.broken:
            return []
        return [each[figure] for each in self.rounds.get(key, ()) if each and figure in each]

    def median(self, key: Key, figure: str) -> float | None:
        return median(self.values(key, figure))

    def ratio(self, key: Key, to: Key, figure: str = "rate") -> float | None:
        """The median over rounds of one case's figure by another's in the same round."""
        if key in self.broken or to in self.broken:
            return None
        pairs = zip(self.rounds.get(key, ()), self.rounds.get(to, ()), strict=False)
        return median(
            [
                mine[figure] / theirs[figure]
                for mine, theirs in pairs
                if mine and theirs and figure in mine and theirs.get(figure)
            ]
        )


def median(values: Sequence[float]) -> float | None:
    """None of nothing."""
    if not values:
        return None
    ordered = sorted(values)
    middle = len(ordered) // 2
    if len(ordered) % 2:
        return ordered[middle]
    return (ordered[middle - 1] + ordered[middle]) / 2


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least ``share`` (0 to 1) of them do not exceed.

    Raises ``ValueError`` for nothing, or a share outside."""
    if not values or not 0 <= share <= 1:
        raise ValueError("a percentile needs values, and a share between 0 and 1")
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]
