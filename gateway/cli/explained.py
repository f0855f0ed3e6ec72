"""What ``explain`` found, as text for people and as one JSON object for programs.

Both say the same; the text is made from the object. Neither holds a value of the body, a
credential, or a value of the policy's ``upstream_headers``.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Collection, Iterator, Mapping
from typing import TypeAlias, assert_never

from gateway.cli.rehearsal import Own, Rehearsal
from gateway.cli.rows import plain
from gateway.core.answers import refusal
from gateway.core.decide import (
    Decision,
    Forward,
    Hindrance,
    Lapsed,
    Probe,
    RejectExpired,
    RejectNotHeld,
    RejectNotRetained,
    RejectReused,
    RejectStale,
    RejectUnknown,
    RejectUnresolved,
    Repeat,
    Replay,
    TakeOver,
    WaitForEntity,
    WaitForKey,
    hindrance,
)
from gateway.core.headers import folded
from gateway.core.problems import PREFIX, Problem
from gateway.observe.text import one_line
from gateway.policy import Match, Unguarded
from gateway.policy.check import proof_text
from gateway.proxy.intake import Admissible, Passage, Refused
from gateway.store.operator import CommandInfo
from gateway.upstream import Request
from gateway.upstream.messages import encode_head

__all__ = ["ROWS", "document", "print_out"]

Json: TypeAlias = "str | int | float | bool | list[Json] | dict[str, Json] | None"
Section: TypeAlias = "dict[str, Json]"

ROWS: Mapping[type[Decision], tuple[int | None, str]] = {
    RejectStale: (1, "the fence is below the highest one seen for the entity"),
    RejectNotHeld: (
        2,
        (
            "fences of the entity are issued here (it or the policy says so), and this is not the "
            "one now held"
        ),
    ),
    RejectReused: (3, "the key is known, for another request"),
    Replay: (4, "the key is known and its answer is recorded"),
    RejectNotRetained: (5, "the key is known and executed, its answer is not kept"),
    WaitForKey: (6, "the key is known, its attempt is in flight"),
    TakeOver: (7, "the key is known, its outcome is unknown, and it may be sent again"),
    Probe: (8, "the key is known, its outcome is unknown, and the upstream can be asked"),
    RejectUnknown: (9, "the key is known, its outcome is unknown"),
    RejectExpired: (10, "the key is older than the memory of keys"),
    RejectUnresolved: (11, "another command of the entity is unknown"),
    WaitForEntity: (12, "another command of the entity is in flight"),
    Forward: (13, "a new key, and nothing in the way"),
    Lapsed: (None, "admitted, but its deadline passed before anything was sent"),
    Repeat: (None, "the key was given back while it was looked at"),
}
"""The row of the decision table and what is found there, as ``docs/wire.md`` has them."""

# A field whose name says so may hold a credential; better one too many than one too few.
_SECRET = re.compile(
    rb"auth|cookie|token|secret|passw|credential|session|signature|api-?key|access-?key"
)
_HIDDEN = "not shown"
_UNKNOWN = "not known without the database"
_OF_POLICY = "set by the policy, not shown"

_BY = {"resolved": "a person", "probe": "a probe", "report": "a report"}

_WIDTH = 13


def print_out(seen: Rehearsal, format: str, lacked: Collection[str] = ()) -> None:
    """``format``: ``text`` or ``json``. ``lacked``: variables that the policies name and that are
    not set here."""
    found = document(seen, lacked)
    if format == "json":
        print(json.dumps(found, ensure_ascii=True))
        return
    for line in _lines(found):
        print(line)


def document(seen: Rehearsal, lacked: Collection[str] = ()) -> Section:
    """The object; what does not apply, or cannot be known here, is null. ``high_water_mark_after``
    is the entity's once this request is decided."""
    return {
        "method": seen.sought.method,
        "path": _text(seen.sought.path),
        "query": _text(seen.sought.query),
        "tenant": seen.tenant,
        "tenant_assumed": seen.assumed,
        **_route(seen),
        **_command(seen),
        **_upstream(seen),
        "unknown": _unknown_rules(seen),
        "now": _now(seen, lacked),
        "earlier": _info(seen.earlier),
        "blocked_by": _info(seen.blocker),
        "differences": _differences(seen),
    }


def _route(seen: Rehearsal) -> Section:
    found = seen.found
    match found:
        case Match():
            name = found.command.rules.policy
            return {"policy": found.upstream.name, "command": name, "match": _match(found)}
        case Unguarded():
            return {"policy": found.upstream.name, "command": None, "match": None}
        case _:
            return {"policy": None, "command": None, "match": None}


def _match(found: Match) -> str:
    return found.command.pattern.text


def _command(seen: Rehearsal) -> Section:
    """What was derived, all null for what is no command or was refused before."""
    salted = seen.tenant is not None
    derived, taken = seen.derived, seen.taken
    if derived is None or not isinstance(taken, Admissible) or not isinstance(seen.found, Match):
        names = ("entity", "key", "key_digest", "fence", "high_water_mark_after", "body")
        return {**dict.fromkeys(names), "fingerprint": None, "rules": None}
    command = taken.call.command
    return {
        "entity": derived.entity,
        "key": derived.key,
        "key_digest": command.key_digest.hex() if salted else None,
        "fence": derived.fence,
        "high_water_mark_after": seen.facts.mark if seen.facts else None,
        "body": {"bytes": len(seen.sought.body), "compared_as": derived.parts.form},
        "fingerprint": command.fingerprint.hex() if salted else None,
        "rules": command.rules.hex(),
    }


def _upstream(seen: Rehearsal) -> Section:
    """Where it would go, and the field lines that would be sent there."""
    found, taken = seen.found, seen.taken
    if not isinstance(found, Match | Unguarded):
        return {"upstream": None, "fields": None, "withheld": None}
    place = found.upstream
    url = f"{place.scheme}://{_text(place.authority)}{_text(found.target(seen.sought.query))}"
    where: Json = {"method": seen.sought.method, "url": url}
    if isinstance(taken, Refused | Own):
        return {"upstream": where, "fields": None, "withheld": None}
    request = taken.call.request if isinstance(taken, Admissible) else taken.request
    ours = {folded(name) for name, _ in place.headers}
    fields = [_field(name, value, ours) for name, value in _sent(request)]
    if seen.tenant is None and isinstance(found, Match) and found.command.send_key is not None:
        # The key that is sent takes the tenant's salt.
        own: Section = {"name": _text(found.command.send_key), "value": None, "why": _UNKNOWN}
        fields = [own if field["name"] == own["name"] else field for field in fields]
    sent = {folded(name) for name, _ in request.headers}
    dropped = dict.fromkeys(name for name, _ in seen.sought.headers if folded(name) not in sent)
    withheld: list[Json] = [_text(name) for name in dropped]
    return {"upstream": where, "fields": list(fields), "withheld": withheld}


def _sent(request: Request) -> Iterator[tuple[bytes, bytes]]:
    """The field lines as the client writes them, its own among them."""
    for line in encode_head(request).split(b"\r\n")[1:]:
        name, colon, value = line.partition(b": ")
        if colon:
            yield name, value


def _field(name: bytes, value: bytes, ours: set[bytes]) -> Section:
    """``value`` is null where it is not shown, and ``why`` says why."""
    if folded(name) in ours:
        return {"name": _text(name), "value": None, "why": _OF_POLICY}
    if _SECRET.search(name.lower()):
        return {"name": _text(name), "value": None, "why": _HIDDEN}
    return {"name": _text(name), "value": _text(value), "why": None}


def _unknown_rules(seen: Rehearsal) -> Section | None:
    """What the policy says of unknown outcomes, and the status query of this request."""
    if not isinstance(seen.found, Match):
        return None
    command = seen.found.command
    said: Section = {
        "mode": command.rules.unknown,
        "settle_delay_s": command.rules.settle_delay_s,
        "resend_within_s": command.rules.resend_within_s,
    }
    probe = command.rules.probe
    if probe is None or command.probe is None:
        return {**said, "probe": None}
    made = seen.taken.call.command.probe_target if isinstance(seen.taken, Admissible) else None
    asks: Json = None
    if made is not None:
        asks = f"GET {_text(made)}"  # with the base path
        salted = seen.tenant is None and "upstream_key" in command.probe.names
        if salted or any(place.source != "path" for place in command.probe.placeholders):
            asks = None  # it takes the tenant's salt; or it holds a value of body, field or query
    return {
        **said,
        "probe": {
            "request": command.probe.text,
            "of_this_request": asks,
            "applied": proof_text(probe.applied),
            "absent": None if probe.absent is None else proof_text(probe.absent),
            "interval_s": probe.interval_s,
            "replay": probe.replays,
        },
    }


def _now(seen: Rehearsal, lacked: Collection[str]) -> Section | None:
    """What would happen. ``would``: send, send again, ask, replay, wait, refuse, pass or own;
    ``status`` and the members from ``type`` on are what the caller would hear (in the end, where
    something else comes first)."""
    taken, decision = seen.taken, seen.decision
    match taken:
        case Refused(problem=problem):
            return {"would": "refuse", "row": None, "found": None, **_heard(problem)}
        case Own():
            return {"would": "own", "row": None, "found": "no policy applies to it"}
        case Passage() if seen.tenant is not None:
            return {"would": "pass", "row": None, "found": "no command lists this safe request"}
        case Admissible() if decision is not None:
            row, words = ROWS[type(decision)]
            now = {**_decided(decision, taken), "row": row, "found": words}
            return {**now, **_why_not(seen, decision, lacked)}
        case _:
            return None


_HINDERED: Mapping[Hindrance, str] = {
    "held": 'it was admitted with unknown = "hold": somebody decides',
    "another-account": "upstream, account or send_key changed since it was sent",
    "no-key": "it was sent without a key of send_key",
    "not-offered": "its policy says no longer how",
    "not-compared": "its fingerprint was made by other rules, so that it cannot be told the same",
    "window-over": "its key was first sent longer ago than resend_within_s allows",
    "entity-open": "another command of the entity is open",
}


def _why_not(seen: Rehearsal, decision: Decision, lacked: Collection[str]) -> Section:
    """Why an unknown command is neither sent again nor asked about."""
    facts = seen.facts
    if not isinstance(decision, RejectUnknown) or facts is None or facts.known is None:
        return {}
    why = hindrance(facts.known, facts)
    if why is None:
        return {}
    words = _HINDERED[why]
    if why == "another-account" and lacked:
        names = ", ".join(sorted(lacked))
        words += f"; or it only looks so, because {names} is not set here"
    return {"hindrance": why, "not_again": words}


def _decided(decision: Decision, taken: Admissible) -> Section:
    match decision:
        case Forward():
            return {"would": "send"}
        case TakeOver(otherwise=rejected):
            return {"would": "send again", **_heard(refusal(rejected))}
        case Probe(otherwise=rejected):
            return {"would": "ask", **_heard(refusal(rejected))}
        case Replay(response, settled_by, compared):
            how: Section = {"status": response.status, "settled_by": settled_by}
            return {"would": "replay", **how, "compared": compared}
        case WaitForKey() | WaitForEntity():
            heard = _heard(refusal(decision))
            return {"would": "wait", "wait_s": taken.call.wait_s, **heard}
        case (
            RejectStale()
            | RejectNotHeld()
            | RejectReused()
            | RejectNotRetained()
            | RejectUnknown()
            | RejectExpired()
            | RejectUnresolved()
            | Lapsed()
            | Repeat()
        ):
            return {"would": "refuse", **_heard(refusal(decision))}
        case _:
            assert_never(decision)


def _heard(problem: Problem) -> Section:
    kind = problem.kind
    members: Section = {
        name: dict(value) if isinstance(value, Mapping) else value
        for name, value in problem.members.items()
    }
    return {
        "status": kind.status,
        "type": PREFIX + problem.type,
        "detail": problem.detail,
        "sent": problem.sent or kind.sent,
        "retry": problem.retry or kind.retry,
        **members,
    }


def _info(info: CommandInfo | None) -> Section | None:
    if info is None:
        return None
    return {
        "key": info.key,
        "policy": info.policy,
        "entity": info.entity,
        "fence": info.fence,
        "state": info.state,
        "status": info.status,
        "settled_by": info.settled_by,
        "evidence_status": info.evidence_status,
        "principal": info.principal,
        "admitted_at": str(plain(info.admitted_at)),
        "attempt": str(info.attempt),
    }


def _differences(seen: Rehearsal) -> Section | None:
    found = seen.differences
    if found is None:
        return None
    return {
        "changed": list(found.changed),
        "added": list(found.added),
        "absent": found.absent,
    }


# --- for people


def _lines(found: Section) -> Iterator[str]:
    for title, lines in (*_request_lines(found), *_field_lines(found)):
        yield from _entry(title, lines)
    yield ""
    for title, lines in (*_now_lines(found), *_record_lines(found)):
        yield from _entry(title, lines)


Entry: TypeAlias = "tuple[str, list[str]]"


def _entry(title: str, lines: list[str]) -> Iterator[str]:
    for number, line in enumerate(lines):
        yield f"{title if number == 0 else '':<{_WIDTH}}{line}".rstrip()


def _request_lines(found: Section) -> Iterator[Entry]:
    query = f"?{found['query']}" if found["query"] else ""
    yield "request", [one_line(f"{found['method']} {found['path']}{query}")]
    if found["tenant"] is not None:
        assumed = " (assumed, as no gateway key was given)" if found["tenant_assumed"] else ""
        yield "tenant", [f"{found['tenant']}{assumed}"]
    if found["command"] is not None:
        yield "command", [f"{found['command']}, {found['match']}"]
    elif found["policy"] is not None:
        yield "command", [f"none of policy {found['policy']}"]
    if where := _section(found["upstream"]):
        yield "upstream", [one_line(f"{where['method']} {where['url']}")]
    if found["entity"] is None:
        return
    yield "entity", [one_line(str(found["entity"]))]
    yield "key", [one_line(str(found["key"]))]
    yield "key_digest", [str(found["key_digest"] or _UNKNOWN)]
    yield "fence", [_fence(found)]
    body = _section(found["body"])
    yield "body", [f"{body['bytes']} bytes, compared as {body['compared_as']}"]
    yield "fingerprint", [f"{found['fingerprint'] or _UNKNOWN} (rules {found['rules']})"]
    if unknown := _section(found["unknown"]):
        yield "if unknown", list(_unknown_lines(unknown))


def _unknown_lines(unknown: Section) -> Iterator[str]:
    within = unknown["resend_within_s"]
    again = "" if within is None else f", resend_within_s {within}"
    yield f"{unknown['mode']}{again}, settle_delay_s {unknown['settle_delay_s']}"
    if probe := _section(unknown["probe"]):
        yield one_line(f"asks {probe['of_this_request'] or probe['request']}")
        yield one_line(f"applied: {probe['applied']}")
        yield one_line(f"absent: {probe['absent'] or 'no answer proves it'}")
        replayed = ", the answer that proves it is replayed" if probe["replay"] else ""
        yield f"interval_s {probe['interval_s']}{replayed}"


def _fence(found: Section) -> str:
    """The mark that came back is the one after a good fence was remembered."""
    fence, mark = found["fence"], found["high_water_mark_after"]
    if not isinstance(mark, int):
        return _or_none(fence)
    if not isinstance(fence, int):
        return f"none; the high-water mark is {mark}"
    if fence < mark:
        return f"{fence}, below the high-water mark {mark}"
    return f"{fence}, not below the high-water mark"


def _or_none(value: Json) -> str:
    return "none" if value is None else str(value)


def _field_lines(found: Section) -> Iterator[Entry]:
    yield "sent up", [_field_line(_section(each)) for each in _list(found["fields"])]
    if withheld := _list(found["withheld"]):
        yield "not sent up", [one_line(", ".join(map(str, withheld)))]


def _field_line(field: Section) -> str:
    value = f"({field['why']})" if field["value"] is None else str(field["value"])
    return one_line(f"{field['name']}: {value}")


def _now_lines(found: Section) -> Iterator[Entry]:
    now = _section(found["now"])
    if not now:
        return
    lines = [_would(now)]
    if found["tenant_assumed"]:
        lines[0] += "; without a gateway key: 401 unauthenticated"
    if now["found"] is not None:
        row = "" if now["row"] is None else f"row {now['row']} of the decision table: "
        lines.append(f"{row}{now['found']}")
    if "not_again" in now:
        lines.append(f"neither sent again (row 7) nor asked about (row 8): {now['not_again']}")
    if now.get("compared") is False or now.get("fingerprint") == "not-compared":
        lines.append("its request is not compared: the policy's fingerprint rules have changed")
    if "detail" in now:
        lines.append(one_line(str(now["detail"])))
        lines.append(f"sent: {now['sent']}, retry: {now['retry']}")
    yield "now", lines


def _would(now: Section) -> str:
    heard = f"{now.get('status')} {str(now.get('type', '')).removeprefix(PREFIX)}"
    match now["would"]:
        case "send":
            return "it would be sent"
        case "send again":
            return f"it would be sent again; if it cannot be any more: {heard}"
        case "ask":
            return f"the upstream would be asked about it; if that proves nothing: {heard}"
        case "own":
            return "it would be answered by the gateway: the path is its own"
        case "pass":
            return "it would stream through, unrecorded and without a promise"
        case "replay":
            return f"the recorded response would be replayed ({now['status']}); nothing is sent"
        case "wait" if now["wait_s"]:
            wait = f"it would wait up to {now['wait_s']:g} s for that to end"
            return f"{wait}; if it does not: {heard}"
        case _:
            return f"it would be refused: {heard}"


def _record_lines(found: Section) -> Iterator[Entry]:
    tenant = found["tenant"]
    see: list[str] = []
    for title, name in (("same key", "earlier"), ("in the way", "blocked_by")):
        if info := _section(found[name]):
            yield title, list(_info_lines(info))
            key = shlex.quote(str(info["key"]))
            see.append(f"fencegate commands show {key} --tenant {tenant}")
    heard = _section(found["now"]).get("type")
    if heard == f"{PREFIX}key-reused":
        yield "differs in", _difference_lines(_section(found["differences"]))
    if heard == f"{PREFIX}fence-stale":
        entity = shlex.quote(str(found["entity"]))
        see.append(f"fencegate commands list --entity {entity} --tenant {tenant}")
    if see:
        yield "see", see


def _info_lines(info: Section) -> Iterator[str]:
    state = str(info["state"])
    if info["status"] is not None:
        state += f" ({info['status']})"
    elif info["settled_by"] in ("resolved", "probe", "report"):
        state += f" (executed, by {_BY[str(info['settled_by'])]})"
    elif info["evidence_status"] is not None:
        state += f" (the upstream said {info['evidence_status']})"
    yield one_line(f"{info['key']}, {state}")
    yield one_line(f"{info['policy']}, {info['entity']}, fence {_or_none(info['fence'])}")
    yield one_line(f"admitted {info['admitted_at']} for {info['principal']}")


def _difference_lines(differences: Section) -> list[str]:
    if not differences:
        return ["not known: no outline of the first request is recorded"]
    lines = [one_line(str(each)) for each in _list(differences["changed"])]
    for each in _list(differences["added"]):
        lines.append(f"{one_line(str(each))} (only in this request)")
    absent = differences["absent"]
    if absent:
        lines.append(f"{absent} more, only in the first request (their names are not recorded)")
    return lines or ["not told: the outline is too coarse, the fingerprints differ"]


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "surrogateescape")


def _section(value: Json) -> Section:
    return value if isinstance(value, dict) else {}


def _list(value: Json) -> list[Json]:
    return value if isinstance(value, list) else []
