"""What a gateway key may do, in words.

``policy:NAME`` sends to one policy, what it guards and what streams through, ``policy:*`` to every
one, those to come among them. ``enqueue`` makes jobs and reads them; ``work`` claims, renews and
ends them, and has fences issued; ``operate`` decides in a person's place: it cancels, retries and
approves jobs, and reports what became of a command; ``audit`` reads audit and commands.

A scope that this release does not know, because a later one granted it, allows nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Literal, get_args

from gateway.core.auth import Principal
from gateway.core.problems import Problem

__all__ = [
    "ALL",
    "ANY_POLICY",
    "BEFORE",
    "DEFAULT",
    "LIMIT",
    "Work",
    "allows",
    "forbidden",
    "is_scope",
    "ordered",
    "policies_named",
    "policy_scope",
]

Work = Literal["enqueue", "work", "operate", "audit"]
"""The scopes that are no policy's."""

_WORDS: tuple[Work, ...] = get_args(Work)
_POLICY = "policy:"

ANY_POLICY = "policy:*"

DEFAULT = frozenset({ANY_POLICY, "enqueue", "work"})
"""What a new key may do unless it is told otherwise: what callers and workers need. To decide in a
person's place is granted, never a matter of course."""

BEFORE = DEFAULT | {"operate"}
"""What every key could do before there were scopes, and those of that time still may."""

ALL = BEFORE | {"audit"}
"""What callers may do while no key has ever existed."""

LIMIT = 50
"""Scopes of one key: who may send to more policies than that by name wants ``policy:*``."""

# A policy's name, as the schema of policies has it.
_SCOPE = re.compile(r"policy:(?:\*|[a-z0-9](?:[a-z0-9_-]{0,62}[a-z0-9])?)")


def is_scope(text: str) -> bool:
    """Whether ``text`` is a scope that can be granted."""
    return text in _WORDS or _SCOPE.fullmatch(text) is not None


def policy_scope(name: str) -> str:
    """What it takes to send to the policy ``name``."""
    return _POLICY + name


def allows(scopes: frozenset[str], wanted: str) -> bool:
    """Whether a holder of ``scopes`` may do what takes ``wanted``."""
    return wanted in scopes or (wanted.startswith(_POLICY) and ANY_POLICY in scopes)


def forbidden(principal: Principal, wanted: str) -> Problem | None:
    """Why ``principal`` may not do what takes ``wanted``; ``None`` where it may."""
    if allows(principal.scopes, wanted):
        return None
    whose = f"{principal.key_id} --tenant {principal.tenant_name}"
    return Problem(
        "forbidden",
        f"Use a gateway key that has the scope {wanted}, or have it granted to this one: "
        f"`fencegate keys grant {whose} --scope {wanted}`.",
        members={"scope": wanted},
    )


def ordered(scopes: Iterable[str]) -> tuple[str, ...]:
    """Each once, as they are shown: the policies by name, then the rest."""
    words: tuple[str, ...] = _WORDS
    place = {word: number for number, word in enumerate(words)}
    return tuple(sorted(set(scopes), key=lambda scope: (place.get(scope, -1), scope)))


def policies_named(scopes: Iterable[str]) -> frozenset[str]:
    """The policies that ``scopes`` name one by one."""
    named = (scope.removeprefix(_POLICY) for scope in scopes if scope.startswith(_POLICY))
    return frozenset(named) - {"*"}
