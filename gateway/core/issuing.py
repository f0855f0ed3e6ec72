"""Asking for a fence, and what comes of it."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from gateway.core.asking import object_in
from gateway.core.canonical import Json
from gateway.core.keys import Refusal
from gateway.core.model import Headers
from gateway.core.template import Invalid, check_value

__all__ = ["EntityLeased", "Issued", "entity_asked_for"]


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


def entity_asked_for(raw: bytes, headers: Headers) -> str | Refusal:
    """The entity in ``{"entity": "invoice:123"}``, by the rules for entities everywhere."""
    members = object_in(raw, headers, '{"entity": "invoice:123"}')
    return members if isinstance(members, Refusal) else _entity(members)


def _entity(members: dict[str, Json]) -> str | Refusal:
    entity = members.pop("entity", "")
    if members:
        return Refusal("request-invalid", "Send no member but entity; the body holds others.")
    if entity == "":
        return Refusal("entity-missing", 'Send the entity: {"entity": "invoice:123"}.')
    if not isinstance(entity, str):
        return Refusal("request-invalid", "Send the entity as a string.")
    checked = check_value(entity, "the entity")
    if isinstance(checked, Invalid):
        return Refusal("request-invalid", f"Correct the entity: {checked.reason}.")
    return checked
