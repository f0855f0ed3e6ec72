"""From an ASGI request to a call that can be admitted, or to the reason why not.

The order of the checks: parse → authenticate → match policy → may the key send to it → limits →
read body → entity, key, fence, fingerprint. Until the last of them nothing of the request is
remembered anywhere.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from os import urandom
from typing import Any, Protocol
from uuid import UUID

from gateway.cache import Cache, Recall, Sent
from gateway.core.auth import Principal, Snapshot
from gateway.core.command import Command
from gateway.core.fingerprint import key_digest, upstream_key
from gateway.core.forwarded import NOBODY, Trusted, caller_of, passed_on
from gateway.core.headers import CONTROL, Head, handed_on, loops, sendable, values
from gateway.core.keys import Refusal
from gateway.core.local import foreign
from gateway.core.model import Headers, Rules
from gateway.core.prefer import parse_wait
from gateway.core.problems import Problem
from gateway.core.scopes import forbidden, policy_scope
from gateway.core.secret import revealed
from gateway.core.value import value
from gateway.limits import BODY_S, READ_S
from gateway.policy.compiled import Match, NoPolicy, Policies, Unguarded, Upstream
from gateway.policy.derive import Derived, check_head, check_passage, derive, key_and_fence
from gateway.proxy.body import (
    Gone,
    Inflow,
    TooLarge,
    TooSlow,
    declared_length,
    fitting,
    read_body,
)
from gateway.proxy.call import GRACE_S, Call, first_byte_s
from gateway.proxy.lanes import Reading
from gateway.proxy.respond import Receive
from gateway.proxy.shares import Held, Memory
from gateway.upstream import Client, Request, Streamed
from gateway.upstream.messages import encoded

__all__ = [
    "Identity",
    "Intake",
    "Keys",
    "Passage",
    "Recalled",
    "Refused",
    "allowed",
    "head_of",
    "identity_of",
    "principal_of",
    "request_id_of",
]

_NO_ATTEMPT = UUID(int=0)
_REQUEST_ID_LIMIT = 64
_REQUEST_ID = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-")

# Named by this hop: the client sets the first two, the server has dealt with the third.
_REPLACED = frozenset({b"host", b"content-length", b"expect"})


Limit = Callable[[int, Rules], Problem | None]
"""Why a tenant's command can be admitted no more, if none can."""

_UNBOUNDED = 2**62
"""Bytes of memory where nobody says how many: for one request by itself."""


class Keys(Protocol):
    """Where the gateway keys in force come from."""

    def current(self) -> Snapshot | None:
        """``None`` where the last snapshot is too old to trust."""


@value(frozen=True, slots=True)
class Identity:
    """Who asks, and under which id its log lines stand. ``caller``: the address it came from, as
    far as that can be believed."""

    request_id: str
    principal: Principal | None = None
    caller: str | None = None

    @property
    def holds_key(self) -> bool:
        return self.principal is not None and self.principal.key_id is not None


@dataclass(frozen=True, slots=True)
class Refused:
    """Answered without admitting. ``unread``: body may be left on the wire; ``asked``: its caller
    was told to send it. ``mismatch``: set where the refusal is evidence for the audit."""

    identity: Identity
    problem: Problem
    unread: bool = False
    mismatch: Mismatch | None = None
    asked: bool = False


@dataclass(frozen=True, slots=True)
class Mismatch:
    """A command sent to another entity than the one it names. ``entity``: the request's own.
    ``key`` and ``fence``: where they can be told."""

    policy: str
    entity: str
    detail: str
    key: str | None
    fence: int | None


@value(frozen=True, slots=True)
class Passage:
    """A safe request that streams through, unrecorded; its body is still to be read."""

    identity: Identity
    client: Client
    request: Request
    policy: str
    inflow: Inflow


@value(frozen=True, slots=True)
class Admissible:
    """A guarded request, read whole."""

    identity: Identity
    call: Call


@dataclass(frozen=True, slots=True)
class Recalled:
    """A guarded request whose answer is in this process's cache."""

    identity: Identity
    recall: Recall


Taken = Refused | Passage | Admissible | Recalled | Gone


@value(frozen=True, slots=True)
class _Asked:
    """What is known of a command before its body is read. ``judged_by``: the keys by which its
    caller may send it."""

    scope: Mapping[str, Any]
    headers: Head
    identity: Identity
    principal: Principal
    match: Match
    judged_by: Snapshot | None


@dataclass(frozen=True, slots=True)
class Intake:
    """``pseudonym`` names this deployment in ``Via``. ``clients`` and ``passages``: one client per
    upstream, by name; apart, so that what streams through takes no connection from commands.
    ``trusted``: the proxies that are believed about where a request came from. ``memory``: what
    bodies take, ``reading``: turns to read them. ``cache``: replays that need nobody else."""

    policies: Policies
    clients: Mapping[str, Client]
    passages: Mapping[str, Client]
    keys: Keys
    pseudonym: bytes
    trusted: Trusted = NOBODY
    memory: Memory = field(default_factory=lambda: Memory(_UNBOUNDED))
    reading: Reading = field(default_factory=Reading)
    cache: Cache | None = None

    async def take(self, scope: Mapping[str, Any], receive: Receive, at_a_limit: Limit) -> Taken:
        """Take one request in, its body included if it is a command. ``at_a_limit`` says why no
        further command can be taken now, if none can; it is asked before the body is read."""
        headers = head_of(scope)
        looped = loops(headers, self.pseudonym)
        judged_by = self.keys.current()
        principal = principal_of(judged_by, headers)
        known = principal if isinstance(principal, Principal) and not looped else None
        identity = identity_of(scope, headers, self.trusted, known)
        if looped:
            return Refused(identity, _loop(scope), unread=True)
        if isinstance(principal, Problem):
            return Refused(identity, principal, unread=True)
        self.memory.account(scope, principal.tenant)
        found = self.policies.match(scope["method"], scope["raw_path"])
        if isinstance(found, (Match, Unguarded)):  # a union would be made anew each time
            barred = forbidden(principal, policy_scope(found.upstream.name))
            if barred is not None:
                return Refused(identity, barred, unread=True)
        match found:
            case Match():
                asked = _Asked(scope, headers, identity, principal, found, judged_by)
                return self._early(asked, at_a_limit) or await self._read(asked, receive)
            case Unguarded():
                return self._pass(scope, receive, headers, identity, found)
            case NoPolicy(detail):
                return Refused(identity, Problem("no-policy", detail), unread=True)
            case Refusal():
                return Refused(identity, _problem(found), unread=True)

    def _early(self, asked: _Asked, at_a_limit: Limit) -> Refused | None:
        """Why the body need not be read, if that can be told."""
        headers, identity, found = asked.headers, asked.identity, asked.match
        tenant, rules, length = (
            asked.principal.tenant,
            found.command.rules,
            declared_length(headers),
        )
        full = at_a_limit(tenant, rules) or self.memory.full(tenant, length)
        limit = rules.request_limit
        if length > limit:
            return Refused(identity, _too_large(limit), unread=True)
        # Reading asks for the body (100 Continue). A caller that waits for that is told what its
        # head lacks, and so is one that could not be admitted now: sending it again would not help.
        # Any other has the body on the wire, and refusing early would cost it the connection.
        if full is not None or values(headers, b"expect"):
            query = asked.scope["query_string"]
            refusal = check_head(found, query, headers)
            if refusal is not None:
                return _refused(identity, found, refusal, query, headers, None)
        return None if full is None else Refused(identity, full, unread=True)

    async def _read(self, asked: _Asked, receive: Receive) -> Taken:
        identity, limit = asked.identity, asked.match.command.rules.request_limit
        held = self.memory.hold(asked.principal.tenant)
        whole: Callable[[], bytes | None] | None = asked.scope.get("state", {}).get("whole_body")
        here = whole() if whole is not None else None
        # What the server has whole, as nearly always, is waited for in no way.
        body = await read_body(receive, limit, held) if here is None else fitting(here, limit, held)
        match body:
            case bytes():
                return await self._understand(asked, body, held)
            case Gone():
                return body
            case TooLarge():
                return Refused(identity, _too_large(limit), unread=True, asked=True)
            case TooSlow():
                return Refused(identity, _TOO_SLOW, unread=True, asked=True)
            case Problem():
                return Refused(identity, body, unread=True, asked=True)

    async def _understand(self, asked: _Asked, body: bytes, held: Held) -> Taken:
        """Read what the body says, when it has its turn. Only what is admissible goes on holding
        it."""
        principal, scope, cache = asked.principal, asked.scope, self.cache
        taken: Taken | None = None
        sent = Sent(scope["method"], scope["raw_path"], scope["query_string"], asked.headers, body)
        try:
            barred = self._barred(asked)  # the key may have been revoked meanwhile
            if barred is not None:
                return Refused(asked.identity, barred)
            known = cache.again(sent, principal) if cache is not None else None
            if known is not None:
                return Recalled(asked.identity, known)
            reading, size = self.reading, len(body)
            if reading.free(size):
                taken = reading.read(lambda: self._derive(asked, body, held))
            else:
                until = asyncio.get_running_loop().time() + READ_S
                taken = await reading.run(
                    size, principal.tenant, lambda: self._derive(asked, body, held), until
                )
            if cache is not None and isinstance(taken, Admissible):
                known = cache.find(taken.call.command, principal, sent)
                if known is not None:
                    taken = Recalled(asked.identity, known)
            return taken or Refused(asked.identity, _NO_TURN)
        finally:
            if not isinstance(taken, Admissible):
                held.close()

    def _derive(self, asked: _Asked, body: bytes, held: Held) -> Taken:
        scope, headers, identity, match = asked.scope, asked.headers, asked.identity, asked.match
        method, query = scope["method"], scope["query_string"]
        derived = derive(match, method, scope["raw_path"], query, headers, body)
        if isinstance(derived, Refusal):
            return _refused(identity, match, derived, query, headers, body)
        command = command_of(match, derived, asked.principal, identity.request_id)
        request = _written(
            method.encode("ascii"),
            match.target(query),
            self._headers_up(match.command.upstream, scope, headers, identity, match, command),
            body,
        )
        if isinstance(request, Problem):
            return Refused(identity, request)
        call = Call(
            command=command,
            rules=match.command.rules,
            client=self.clients[match.command.upstream.name],
            request=request,
            wait_s=parse_wait(values(headers, b"prefer")),
            tenant_name=asked.principal.tenant_name,
            barred=lambda: self._barred(asked),
            key_field=match.command.send_key,
            held=held,
            principal=asked.principal,
        )
        return Admissible(identity, call)

    def _barred(self, asked: _Asked) -> Problem | None:
        """Why the caller may not send this, by the keys as they are now. By those that it was
        judged by it may."""
        if self.keys.current() is asked.judged_by:
            return None
        principal = allowed(self.keys, asked.headers, policy_scope(asked.match.upstream.name))
        return principal if isinstance(principal, Problem) else None

    def _pass(
        self,
        scope: Mapping[str, Any],
        receive: Receive,
        headers: Headers,
        identity: Identity,
        found: Unguarded,
    ) -> Refused | Passage:
        query: bytes = scope["query_string"]
        refusal = check_passage(headers, query)
        if refusal is not None:
            return Refused(identity, _problem(refusal), unread=True)
        inflow = Inflow(receive, headers)
        request = _written(
            scope["method"].encode("ascii"),
            found.target(query),
            self._headers_up(found.upstream, scope, headers, identity),
            Streamed(inflow.length, inflow.pull) if inflow.unread else b"",
        )
        if isinstance(request, Problem):
            return Refused(identity, request, unread=True)
        name = found.upstream.name
        return Passage(identity, self.passages[name], request, name, inflow)

    def _headers_up(
        self,
        upstream: Upstream,
        scope: Mapping[str, Any],
        headers: Headers,
        identity: Identity,
        match: Match | None = None,
        command: Command | None = None,
    ) -> Headers:
        """The caller's end-to-end fields in their order; ours behind them."""
        ours = revealed(upstream.headers) if upstream.headers else ()
        authorized = False
        if match is not None and command is not None:
            ours += _guarded_fields(match, command)
            # A gateway key speaks to us; whatever the policy says, no upstream gets to see it.
            authorized = match.command.pass_authorization and not identity.holds_key
        names = tuple([name for name, _ in ours]) if ours else ()
        kept = sendable(headers, _withheld(names, authorized))
        kept = passed_on(kept, _peer(scope), self.trusted)
        via = (b"via", b"%b %b" % (scope["http_version"].encode(), self.pseudonym))
        return ((b"host", upstream.authority), *kept, *ours, via)


def head_of(scope: Mapping[str, Any]) -> Head:
    """The fields of a request; our own server hands them over as such."""
    headers: Head | list[tuple[bytes, bytes]] = scope["headers"]
    return headers if isinstance(headers, Head) else Head(headers)


def principal_of(snapshot: Snapshot | None, headers: Headers) -> Principal | Problem:
    """Who asks, or why that cannot be told. Without keys it is anybody on this machine.
    ``snapshot``: the keys by which it is judged, if any can be trusted."""
    if snapshot is None:
        return _KEYS_UNKNOWN
    principal = snapshot.anonymous
    if principal is not None and principal.key_id is None:
        wrong = foreign(headers)
        return principal if wrong is None else Problem("local-only", wrong)
    principal = principal or snapshot.authenticate(values(headers, b"authorization"))
    return principal or _UNAUTHENTICATED


def identity_of(
    scope: Mapping[str, Any],
    headers: Headers,
    trusted: Trusted,
    principal: Principal | None = None,
) -> Identity:
    """What is known of whoever asks; ``principal``: where its key was looked at."""
    return Identity(request_id_of(headers), principal, caller_of(headers, _peer(scope), trusted))


def _peer(scope: Mapping[str, Any]) -> str | None:
    """The address at the other end of the connection; ``None`` where it has none."""
    client = scope.get("client")
    return client[0] if client else None


def allowed(keys: Keys, headers: Headers, wanted: str) -> Principal | Problem:
    """Who asks, where that is somebody with the scope ``wanted``; else why it may not."""
    principal = principal_of(keys.current(), headers)
    if isinstance(principal, Problem):
        return principal
    return forbidden(principal, wanted) or principal


def command_of(match: Match, derived: Derived, principal: Principal, request_id: str) -> Command:
    """What admit will record; its attempt is set when a round of admitting begins."""
    policy = match.command
    rules, salt = policy.rules, principal.salt
    sent_key = upstream_key(salt, derived.key) if policy.send_key else None
    return Command(
        tenant=principal.tenant,
        key_digest=key_digest(salt, derived.key),
        key=derived.key,
        policy=rules.policy,
        entity=derived.entity,
        fingerprint=derived.fingerprint(salt),
        rules=rules.version,
        fence=derived.fence,
        attempt=_NO_ATTEMPT,
        principal=principal.name,
        request_id=request_id,
        serial=rules.serial,
        unknown=rules.unknown,
        upstream_key=sent_key,
        upstream_digest=policy.upstream_digest,
        deadline_ms=int((rules.timeout_s + GRACE_S) * 1000),
        settle_delay_s=int(rules.settle_delay_s),
        response_days=rules.response_days,
        key_days=rules.key_days,
        outline=derived.outline(salt),
        issuer_here=rules.issuer == "here",
        probe_target=derived.probe_target(policy, sent_key or "") if policy.probe else None,
        resend_within_ms=_resend_within_ms(rules),
    )


def _resend_within_ms(rules: Rules) -> int | None:
    """Until when it may be admitted again, so that it arrives within what the policy allows."""
    if rules.resend_within_s is None:
        return None
    return int((rules.resend_within_s - first_byte_s(rules.timeout_s)) * 1000)


def request_id_of(headers: Headers) -> str:
    """The caller's ``X-Request-Id`` where it is one short plain word, else a new id."""
    lines = values(headers, b"x-request-id")
    if len(lines) == 1:
        given = lines[0]
        if 0 < len(given) <= _REQUEST_ID_LIMIT and _REQUEST_ID.issuperset(given):
            return given.decode("ascii")
    return urandom(16).hex()


@lru_cache(256)  # of what policies name: few lists
def _withheld(ours: tuple[bytes, ...], authorized: bool) -> frozenset[bytes]:
    """What does not go up of the caller's fields, beside those of this hop: what stands in ``ours``
    as well, and what speaks to the gateway. ``authorized``: but for ``Authorization``."""
    control = CONTROL - {b"authorization"} if authorized else CONTROL
    return _REPLACED | control | {name.lower() for name in ours}


def _guarded_fields(match: Match, command: Command) -> Headers:
    fields: Headers = ()
    if match.command.send_key is not None and command.upstream_key is not None:
        fields += ((match.command.send_key, command.upstream_key.encode("ascii")),)
    if match.command.send_fence is not None and command.fence is not None:
        fields += ((match.command.send_fence, b"%d" % command.fence),)
    return fields


def _written(
    method: bytes, target: bytes, headers: Headers, body: bytes | Streamed
) -> Request | Problem:
    """The request with its head, or why it cannot have one."""
    try:
        return encoded(method, target, headers, body)
    except ValueError as error:
        return Problem("request-invalid", f"Send it without control characters: {error}.")


def _refused(
    identity: Identity,
    match: Match,
    refusal: Refusal,
    query: bytes,
    headers: Headers,
    body: bytes | None,
) -> Refused:
    """``body``: ``None`` where it was not read."""
    mismatch = None
    if refusal.type == "entity-mismatch":
        entity = dict(refusal.members)["entity"]
        key, fence = key_and_fence(match, query, headers, body)
        mismatch = Mismatch(match.command.rules.policy, entity, refusal.detail, key, fence)
    return Refused(identity, _problem(refusal), body is None, mismatch)


def _problem(refusal: Refusal) -> Problem:
    return Problem(refusal.type, refusal.detail, members=dict(refusal.members))


def _loop(scope: Mapping[str, Any]) -> Problem:
    query = scope["query_string"]
    target = scope["raw_path"] + (b"?" + query if query else b"")
    hop = handed_on(tuple(scope["headers"]), scope["method"].encode("ascii"), target) or b"other"
    return Problem(
        "loop-detected",
        "Point the policy's upstream at the API itself: this request came through this gateway "
        "before.",
        members={"refused": hop.decode("ascii")},
    )


def _too_large(limit: int) -> Problem:
    return Problem(
        "body-too-large",
        f"Send at most {limit} bytes of body, or raise request_limit in the policy.",
        members={"limit": limit},
    )


_UNAUTHENTICATED = Problem(
    "unauthenticated",
    "Send one Authorization field with a gateway key: Bearer fg_…; `fencegate keys add` makes one.",
)
_NO_TURN = Problem(
    "overloaded",
    "Repeat the same request later: too many large bodies wait to be read by this gateway process.",
    retry_after_s=1,
)
_TOO_SLOW = Problem("request-invalid", f"Send the whole body within {BODY_S:.0f} s of the head.")
_KEYS_UNKNOWN = Problem(
    "store-unavailable",
    "Repeat the same request later: nothing was sent, because the gateway keys could not be read "
    "from the database for too long.",
    retry_after_s=1,
)
