"""From a matched request to what admit needs: entity, key, fence and the fingerprint's parts.

Pure. The checks run in the order in which a caller would mend them: request, body, entity, key,
fence. At last those for fields that are not read here and that an upstream may read: alone they
count as absent, and beside what they resemble the request means two things.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from gateway.core.canonical import Absent, Unreadable, lookup
from gateway.core.fences import fence_of_json, parse_fence
from gateway.core.fingerprint import Body, Parts, chosen_headers, fingerprint
from gateway.core.headers import folded, nominated, twin, values
from gateway.core.keys import OWS, Refusal, check_key, parse_key
from gateway.core.model import Headers
from gateway.core.problems import ProblemType
from gateway.core.template import Invalid, Missing
from gateway.policy.compiled import CompiledCommand, Match
from gateway.policy.templates import Context, Placeholder

__all__ = ["Derived", "check_passage", "derive"]

# RFC 3986 §3.4, and the characters that browsers leave raw in a query. No #, blanks or raw UTF-8:
# uvicorn with h11 leaves a fragment in the query.
_QUERY = re.compile(rb"[!\"$-;=?-~]*")

_OVERRIDES = {
    b"x-http-method": "method",
    b"x-http-method-override": "method",
    b"x-method-override": "method",
    b"x-original-url": "path",
    b"x-rewrite-url": "path",
}

# Without them the upstream is asked for something else, whatever the templates read.
_FRAME = frozenset({b"content-length", b"host"})

_FENCE_NAME = "x-execution-fence"
_FENCE = _FENCE_NAME.encode("ascii")

_SHOWN = 255
"""Characters of a refused value that a problem document repeats."""


@dataclass(frozen=True, slots=True)
class Derived:
    """``fence`` is ``None`` where the policy passes fences over, or the caller sent none and may.
    ``parts``: the fingerprint's, all but the salt."""

    entity: str
    key: str
    fence: int | None
    parts: Parts

    def fingerprint(self, salt: bytes) -> bytes:
        """32 bytes, for the 16-byte salt of the caller's tenant."""
        return fingerprint(salt, self.parts)


def derive(
    match: Match, method: str, raw_path: bytes, raw_query: bytes, headers: Headers, body: bytes
) -> Derived | Refusal:
    """Read the request as its command says. ``raw_path`` and ``raw_query`` as they came."""
    command = match.command
    refusal = check_passage(headers, raw_query) or _check_nominated(command, headers)
    if refusal is not None:
        return refusal
    context = Context(match.variables, raw_query, headers, Body(body, headers, command.recipe.body))
    compared = context.body.compared(command.recipe.ignore)
    if isinstance(compared, Unreadable):
        return _unreadable(compared)
    entity = _entity(command, context)
    if isinstance(entity, Refusal):
        return entity
    key = _key(command, context)
    if isinstance(key, Refusal):
        return key
    fence = _fence(command, context)
    if isinstance(fence, Refusal):
        return fence
    refusal = _check_twins(command, headers)
    if refusal is not None:
        return refusal
    chosen = chosen_headers(headers, command.recipe.headers)
    parts = Parts(
        method=method,
        path=raw_path,
        query=raw_query,
        entity=entity,
        headers=chosen,
        form=context.body.form,
        body=compared,
        version=command.rules.version,
    )
    return Derived(entity, key, fence, parts)


def check_passage(headers: Headers, raw_query: bytes) -> Refusal | None:
    """Why a request may not pass whatever its policy says; also for what streams through.

    A field that overrides the method or the path would make another request of it behind the
    gateway's back, an unsafe one out of a safe one.
    """
    if not _QUERY.fullmatch(raw_query):
        return Refusal(
            "request-invalid", "The query holds a character that must be percent-encoded; do so."
        )
    for name, _ in headers:
        changed = _OVERRIDES.get(folded(name))
        if changed is not None:
            return Refusal(
                "request-invalid",
                f"The field {_shown(name)} changes the {changed}; send that {changed} itself.",
            )
    return None


def _check_nominated(command: CompiledCommand, headers: Headers) -> Refusal | None:
    """A field that ``Connection`` names ends here, so the upstream must not depend on it."""
    decisive = frozenset(map(folded, command.decisive | _FRAME))
    for name in sorted(nominated(headers)):
        if folded(name) in decisive:
            return Refusal(
                "request-invalid",
                f"Connection names {_shown(name)}, without which this would be another request; "
                "leave the name out.",
            )
    return None


def _check_twins(command: CompiledCommand, headers: Headers) -> Refusal | None:
    name = twin(headers, command.decisive)
    if name is None:
        return None
    return Refusal(
        "request-invalid",
        f"The field {_shown(name)} may be read as {_shown(folded(name))}, which decides about "
        "this request; leave it out.",
    )


def _entity(command: CompiledCommand, context: Context) -> str | Refusal:
    rendered = command.entity.render(context)
    if not isinstance(rendered, str):
        return _refusal(rendered, "entity-missing", "request-invalid", "The entity")
    lines = values(context.headers, b"x-execution-entity")
    if not lines:
        return rendered
    if len(lines) > 1 or not lines[0].strip(OWS):
        return Refusal(
            "request-invalid", "X-Execution-Entity must be one line with a value, or be left out."
        )
    sent = lines[0].strip(OWS).decode("latin-1")
    if sent == rendered:
        return rendered
    shown = sent[:_SHOWN]
    return Refusal(
        "entity-mismatch",
        f"X-Execution-Entity names {shown!a}, but this request acts on {rendered!r}; "
        "send the command to its own entity, or correct the field.",
        (("entity", rendered), ("entity_sent", shown)),
    )


def _key(command: CompiledCommand, context: Context) -> str | Refusal:
    alone = command.key.alone
    if alone is not None and alone.source == "header" and _is_key_field(alone.name):
        return parse_key(values(context.headers, b"idempotency-key"))
    rendered = command.key.render(context)
    if not isinstance(rendered, str):
        return _refusal(rendered, "key-missing", "key-invalid", "The idempotency key")
    return check_key(rendered)


def _is_key_field(name: str) -> bool:
    return name.lower() == "idempotency-key"


def _fence(command: CompiledCommand, context: Context) -> int | Refusal | None:
    mode = command.rules.fence
    if mode == "off":
        return None
    fence = _read_fence(command, context)
    if fence is None and mode == "required":
        return Refusal(
            "fence-required",
            f"Send the fence of your lease in {command.fence_from.placeholders[0].place}; this "
            "policy requires one.",
        )
    return fence


def _read_fence(command: CompiledCommand, context: Context) -> int | Refusal | None:
    place = command.fence_from.placeholders[0]
    limit = command.fence_limit
    sent = parse_fence(values(context.headers, _FENCE), limit=limit)
    if isinstance(sent, Refusal) or (
        place.source == "header" and place.name.lower() == _FENCE_NAME
    ):
        return sent
    fence = _fence_elsewhere(place, context, limit)
    if sent is not None and fence != sent and not isinstance(fence, Refusal):
        # A caller that believes to be fenced by its field must not go unfenced, or by another.
        return Refusal(
            "fence-invalid",
            f"The fence in {place.place}, where this policy looks, is not the one in "
            "X-Execution-Fence; send the same in both, or leave that field out.",
        )
    return fence


def _fence_elsewhere(place: Placeholder, context: Context, limit: int) -> int | Refusal | None:
    if place.source == "header":
        return parse_fence(values(context.headers, place.name.lower().encode("ascii")), limit=limit)
    document = context.body.document()
    if isinstance(document, Unreadable):
        return _unreadable(document)
    value = lookup(document.value, place.pointer)
    return None if isinstance(value, Absent) else fence_of_json(value, limit=limit)


def _refusal(
    rendered: Missing | Invalid | Unreadable, missing: ProblemType, invalid: ProblemType, what: str
) -> Refusal:
    match rendered:
        case Missing(place):
            return Refusal(missing, f"{what} cannot be derived: {place} is absent or empty.")
        case Invalid(reason):
            return Refusal(invalid, f"{what} cannot be derived: {reason}.")
        case Unreadable():
            return _unreadable(rendered)


def _shown(name: bytes) -> str:
    return name[:_SHOWN].decode("latin-1")


def _unreadable(body: Unreadable) -> Refusal:
    return Refusal("body-unreadable", f"The body {body.reason}.")
