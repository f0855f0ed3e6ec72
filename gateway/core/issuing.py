"""What comes of asking for a fence."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

__all__ = ["EntityLeased", "Issued"]


@dataclass(frozen=True, slots=True)
class Issued:
    """``fence`` is now the entity's high-water mark and the one that is held."""

    fence: int


@dataclass(frozen=True, slots=True)
class EntityLeased:
    """``job`` holds the entity, so a fence would take its right away. ``remaining_ms``: until its
    lease ends unless it is renewed; not above 0 where its end is not recorded yet."""

    job: UUID
    remaining_ms: int
