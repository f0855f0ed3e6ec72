"""From a matched request to what admit needs: entity, key, fence and the fingerprint's parts.

Pure. The checks run in the order in which a caller would mend them: request, body, entity, key,
fence. At last those for fields that are not read here and that an upstream may read: alone they
count as absent, and beside what they resemble the request means two things.

``check_head`` is all of them that need no body, for a caller that asks before it sends one.
"""

from __future__ import annotations

import re
from dataclasses import field

from gateway.core.body import Body
from gateway.core.canonical import ABSENT, Absent, Document, Json, Unreadable, lookup
from gateway.core.fences import fence_of_json, fence_of_text, parse_fence
from gateway.core.fingerprint import Parts, body_type, chosen_headers, fingerprint
from gateway.core.form import Parameters, percent_decode, spelled
from gateway.core.forwarded import is_forwarding
from gateway.core.framing import NO_UPGRADE
from gateway.core.headers import CONTROL, by_names, folded, nominated, twin, values
from gateway.core.keys import OWS, Refusal, check_key, parse_key
from gateway.core.model import Headers
from gateway.core.multipart import Multipart
from gateway.core.names import hides_method, says_method
from gateway.core.outline import EXPANDED_LIMIT, Differences, differences, outline
from gateway.core.problems import ProblemType
from gateway.core.template import Invalid, Missing, find_beside, find_field, query_fields
from gateway.core.value import value
from gateway.policy.compiled import CompiledCommand, Match
from gateway.policy.templates import Context, Placeholder

__all__ = ["Derived", "check_head", "check_passage", "derive", "key_and_fence"]

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

# Without them it is another request, or a loop shows late, whatever the templates read. What tells
# where it came from must not be for the caller to take away either.
_NEVER_NAMED = frozenset({b"content-length", b"host", b"via", *CONTROL})

_FENCE = b"x-execution-fence"

_SHOWN = 255
"""Characters of a refused value that a problem document repeats."""

_UNSEEN = b"?"
"""In place of a body that is still to come: what is only true of an empty one must not hold."""


@value(frozen=True, slots=True)
class Derived:
    """``fence`` is ``None`` where the policy passes fences over, or the caller sent none and may.
    ``parts``: the fingerprint's, all but the salt. ``members``: the body's, as they are compared;
    absent where the body is too large to be expanded. ``probe_values``: what the status query reads
    of the request.
    """

    entity: str
    key: str
    fence: int | None
    parts: Parts
    members: Json | Absent = field(repr=False, compare=False)
    probe_values: tuple[str, ...] = ()

    def fingerprint(self, salt: bytes) -> bytes:
        """32 bytes, for the 16-byte salt of the caller's tenant."""
        return fingerprint(salt, self.parts)

    def probe_target(self, command: CompiledCommand, upstream_key: str) -> bytes | None:
        """The target of the command's status query at its upstream, base path included."""
        if command.probe is None:
            return None
        rest = command.probe.render(self.probe_values, self.key, self.entity, upstream_key)
        path, _, query = rest.partition(b"?")
        return command.upstream.target(path, query)

    def outline(self, salt: bytes) -> bytes:
        """At most 256 bytes, recorded so that ``differences`` can be told later."""
        return outline(salt, self.key, self.parts, self.members)

    def differences(self, salt: bytes, recorded: bytes) -> Differences:
        """Where this request differs from the one under the same key whose outline is
        ``recorded``; it must have the same rule version."""
        return differences(salt, self.key, self.parts, self.members, recorded)


def derive(
    match: Match, method: str, raw_path: bytes, raw_query: bytes, headers: Headers, body: bytes
) -> Derived | Refusal:
    """Read the request as its command says. ``raw_path`` and ``raw_query`` as they came."""
    command = match.command
    plain = _is_plain(headers, command.decisive)
    usual = plain and not raw_query and not nominated(headers)
    refusal = None if usual else _check_request(command, raw_query, headers)
    if refusal is not None:
        return refusal
    read = Body(body, headers, command.recipe.body)
    context = Context(match.variables, raw_query, headers, read)
    found = read.understood(command.recipe.ignore)
    if isinstance(found, Unreadable):
        return _unreadable(found)
    refusal = _check_body(command, context) if read.may_be_form else None
    if refusal is not None:
        return refusal
    entity = _entity(command, context)
    if isinstance(entity, Refusal):
        return entity
    key = _key(command, context)
    if isinstance(key, Refusal):
        return key
    fence = _fence(command, context)
    if isinstance(fence, Refusal):
        return fence
    asked = _probe(command, context, key, entity) if command.probe is not None else ()
    if isinstance(asked, Refusal):
        return asked
    refusal = None if plain else _check_twins(command, headers)
    if refusal is not None:
        return refusal
    # Members of a large body would cost more than all the rest, and none is looked at.
    members = found.members if len(found.compared) <= EXPANDED_LIMIT else ABSENT
    listed = command.recipe.headers
    media = body_type(headers) if read.is_coded else read.media
    parts = Parts(
        method,
        raw_path,
        raw_query,
        entity,
        chosen_headers(headers, listed) if listed else (),
        media if body else b"",  # many clients label no body, others do not
        found.form,
        found.compared,
        command.rules.version,
        found.pieces,
    )
    return Derived(entity, key, fence, parts, members, asked)


def check_head(match: Match, raw_query: bytes, headers: Headers) -> Refusal | None:
    """Why ``derive`` would refuse the request whatever its body is; ``None`` where that depends."""
    command = match.command
    body = Body(_UNSEEN, headers, command.recipe.body)
    context = Context(match.variables, raw_query, headers, body)
    found: list[object] = [_check_request(command, raw_query, headers)]
    if body.unfit is not None and (not body.is_lenient or _reads(command, body)):
        found.append(_unreadable(body.unfit))
    if command.entity.reads_body:
        found.append(_check_entity_lines(headers))
    else:
        found.append(_entity(command, context))
    if not command.key.reads_body:
        found.append(_key(command, context))
    if command.fence_from.reads_body and command.rules.fence != "off":
        found.append(_fence_field(command, context))
    else:
        found.append(_fence(command, context))
    probe = command.probe
    if probe is not None and all(place.source != "body" for place in probe.placeholders):
        found.append(_probe(command, context, "x", "x"))
    found.append(_check_twins(command, headers))
    return next((refusal for refusal in found if isinstance(refusal, Refusal)), None)


def key_and_fence(
    match: Match, raw_query: bytes, headers: Headers, body: bytes | None
) -> tuple[str | None, int | None]:
    """Of a request that is refused for its entity: what its key and fence are, each where that can
    be told. ``body``: ``None`` where it is still to come."""
    command = match.command
    unread = Body(_UNSEEN if body is None else body, headers, command.recipe.body)
    context = Context(match.variables, raw_query, headers, unread)
    key, fence = _key(command, context), _fence(command, context)
    return (
        key if isinstance(key, str) else None,
        None if isinstance(fence, Refusal) else fence,
    )


def check_passage(headers: Headers, raw_query: bytes) -> Refusal | None:
    """Why a request may not pass whatever its policy says; also for what streams through.

    A field that overrides the method or the path would make another request of it behind the
    gateway's back, an unsafe one out of a safe one.
    """
    if not _QUERY.fullmatch(raw_query):
        return Refusal(
            "request-invalid", "The query holds a character that must be percent-encoded; do so."
        )
    found = _overriding(headers, None)
    if found is not None:
        name, changed = found
        return Refusal(
            "request-invalid",
            f"The field {_shown(name)} changes the {changed}; send that {changed} itself.",
        )
    return _check_nominated(_NEVER_NAMED, headers)


@by_names
def _is_plain(sent: tuple[bytes, ...], decisive: frozenset[bytes]) -> bool:
    """Whether no name of a head is why ``_check_request`` or ``_check_twins`` refuses it."""
    nameless: Headers = tuple((name, b"") for name in sent)
    return _overriding(nameless, None) is None and twin(nameless, decisive) is None


@by_names
def _overriding(sent: tuple[bytes, ...], _: None) -> tuple[bytes, str] | None:
    """The first field that overrides the method or the path, and which."""
    found = ((name, _OVERRIDES.get(folded(name))) for name in sent)
    return next(((name, changed) for name, changed in found if changed is not None), None)


def _check_request(command: CompiledCommand, raw_query: bytes, headers: Headers) -> Refusal | None:
    refusal = check_passage(headers, raw_query)
    if refusal is None and nominated(headers):
        refusal = _check_nominated(command.decisive, headers) or _check_upgrade(headers)
    return refusal or _check_query(raw_query)


def _check_upgrade(headers: Headers) -> Refusal | None:
    """A command must not be taken for the first request of another protocol (RFC 9110 §7.8). An
    offer is one only where ``Connection`` names it."""
    if values(headers, b"upgrade") and b"upgrade" in nominated(headers):
        return Refusal("request-invalid", NO_UPGRADE)
    return None


def _check_query(raw_query: bytes) -> Refusal | None:
    if not raw_query or not hides_method(raw_query):  # nearly always
        return None
    names = (percent_decode(pair.partition(b"=")[0]) for pair in raw_query.split(b"&"))
    return _override("query") if any(map(says_method, names)) else None


def _check_body(command: CompiledCommand, context: Context) -> Refusal | None:
    """Why the upstream may read something else than the templates do."""
    if context.body.says_method:
        return _override("body")
    return _check_mixed(command, context) if context.body.may_be_form else None


def _check_mixed(command: CompiledCommand, context: Context) -> Refusal | None:
    """Many frameworks mix the parameters of a query and of a form, and disagree which one counts
    where both have it."""
    for place in _places(command):
        found = _beside(place, context)
        if isinstance(found, Unreadable):
            return _unreadable(found)
        if found is not None:
            return Refusal(
                "request-invalid", f"Some readers mix query and body, and {found.reason}."
            )
    return None


def _beside(place: Placeholder, context: Context) -> Invalid | Unreadable | None:
    """What stands in the other of the two and may be read for ``place``."""
    match place.source:
        case "body":
            fields = query_fields(context.query, place.place)
            if isinstance(fields, Invalid):
                return fields
            return find_beside(fields, spelled(place.pointer), place.place)
        case "query":
            match context.body.document():
                case Parameters() | Multipart() as content:
                    return find_beside(content.fields, place.name.encode("ascii"), place.place)
                case Unreadable() as reason if context.body.raw:
                    return reason
                case _:
                    return None
        case "path" | "header":
            return None


def _override(where: str) -> Refusal:
    return Refusal(
        "request-invalid",
        f"The parameter _method in the {where} changes the method; send that method itself.",
    )


def _check_nominated(decisive: frozenset[bytes], headers: Headers) -> Refusal | None:
    """A field that ``Connection`` names ends here, so nobody must depend on it."""
    names = nominated(headers)
    if not names:
        return None
    alike = frozenset(map(folded, decisive))
    for name in sorted(names):
        if folded(name) in alike or is_forwarding(name):
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
    wrong = _check_entity_lines(context.headers)
    if wrong is not None:
        return wrong
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


def _check_entity_lines(headers: Headers) -> Refusal | None:
    lines = values(headers, b"x-execution-entity")
    if len(lines) < 2 and all(line.strip(OWS) for line in lines):
        return None
    return Refusal(
        "request-invalid", "X-Execution-Entity must be one line with a value, or be left out."
    )


def _key(command: CompiledCommand, context: Context) -> str | Refusal:
    if command.usual_key:
        return parse_key(values(context.headers, b"idempotency-key"))
    rendered = command.key.render(context)
    if not isinstance(rendered, str):
        return _refusal(rendered, "key-missing", "key-invalid", "The idempotency key")
    return check_key(rendered)


def _probe(
    command: CompiledCommand, context: Context, key: str, entity: str
) -> tuple[str, ...] | Refusal:
    """What the status query needs of the request. Without it the command could be sent, and its
    outcome never be asked for."""
    if command.probe is None:
        return ()
    read = command.probe.read(context)
    if not isinstance(read, tuple):
        return _refusal(read, "request-invalid", "request-invalid", "The command's status query")
    wrong = command.probe.check(command.probe.render(read, key, entity, "x"))
    if wrong is None:
        return read
    return Refusal(
        "request-invalid",
        f"The command's status query cannot be made of this request. {wrong.detail}",
    )


def _fence(command: CompiledCommand, context: Context) -> int | Refusal | None:
    mode = command.rules.fence
    if mode == "off":
        return None
    usual = command.usual_fence
    fence = (_fence_field if usual else _read_fence)(command, context)
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
    sent = _fence_field(command, context)
    if isinstance(sent, Refusal):
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


def _fence_field(command: CompiledCommand, context: Context) -> int | Refusal | None:
    """The fence in the usual field, which counts wherever the policy looks."""
    return parse_fence(values(context.headers, _FENCE), limit=command.fence_limit)


def _fence_elsewhere(place: Placeholder, context: Context, limit: int) -> int | Refusal | None:
    if place.source == "header":
        return parse_fence(values(context.headers, place.name.lower().encode("ascii")), limit=limit)
    match context.body.document():
        case Unreadable() as reason:
            return _unreadable(reason)
        case Document(document):
            value = lookup(document, place.pointer)
            return None if isinstance(value, Absent) else fence_of_json(value, limit=limit)
        case content:
            found = find_field(content.fields, place.pointer, place.text)
            if isinstance(found, Invalid):
                return Refusal("fence-invalid", f"The fence cannot be told: {found.reason}.")
            return None if found is None else fence_of_text(found, limit=limit)


def _places(command: CompiledCommand) -> list[Placeholder]:
    """Everything that the command's templates read."""
    read = [command.entity, command.key]
    if command.rules.fence != "off":
        read.append(command.fence_from)
    places = [place for template in read for place in template.placeholders]
    return [*places, *(command.probe.placeholders if command.probe is not None else ())]


def _reads(command: CompiledCommand, body: Body) -> bool:
    """Whether a body that cannot be read is in the way."""
    sources = {place.source for place in _places(command)}
    return "body" in sources or (body.may_be_form and "query" in sources)


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
