"""What only shows when a policy's rules for unknown outcomes are seen together.

As ``crosscheck``, it reads the raw tables, and leaves out what is itself malformed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from gateway.policy.crosscheck import CommandSketch, Sketch
from gateway.policy.errors import PolicyError, PolicyWarning
from gateway.policy.matcher import Pattern
from gateway.policy.probes import Target, TargetError, parse_target

__all__ = ["warnings", "within"]

# Whoever answers so was not asked about the command, or did not look.
_NOT_REACHED = frozenset({401, 403, 407, 408, 421, 425, 429})

_KEY_DAYS = 400
"""``retain.key_days`` where a policy does not say it."""


def within(file: Sketch) -> Iterator[PolicyError]:
    """Mistakes that one file shows."""
    for command in file.commands:
        yield from _passed(command)
        yield from _resend(command)
        yield from _probe(file, command)


def warnings(files: Sequence[Sketch]) -> Iterator[PolicyWarning]:
    """What is legal and probably not meant."""
    for file, command in ((each, command) for each in files for command in each.commands):
        yield from _window(command)
        target = _target(command)
        if target is None:
            continue
        yield from _other_account(file, command, target)
        if not target.names & {"key", "upstream_key"}:
            yield command.warning(
                "probe.request",
                "does not name the command, so that another one's effect may pass for its; let it "
                "ask for {upstream_key} or {key}",
            )
        absent = _proof(command, "absent")
        if absent is not None and "where" not in absent:
            yield command.warning(
                "probe.absent",
                "goes by the status alone, which a wrong path answers too, and then every unknown "
                "command would be given back; ask for a list, with items",
            )


def _passed(command: CommandSketch) -> Iterator[PolicyError]:
    """A caller's credential is kept nowhere, and another caller's may lead to another account."""
    unknown = command.table.get("unknown")
    if command.table.get("pass_authorization") is not True or unknown not in ("resend", "probe"):
        return
    found_out = "sent again with another caller's" if unknown == "resend" else "asked about with no"
    yield command.error(
        "pass_authorization",
        f'with unknown = "{unknown}" an unknown command is {found_out} Authorization, perhaps in '
        "another account",
        'put the upstream\'s credential into upstream_headers, or set unknown = "hold"',
    )


def _other_account(file: Sketch, command: CommandSketch, target: Target) -> Iterator[PolicyWarning]:
    """A field of the caller's that tells two commands apart may choose the account, and nothing of
    the caller's goes with a probe but what its request names."""
    asked = {place.name for place in target.placeholders if place.source == "header"}
    own = command.inner("probe", "headers")
    sent = {name.lower() for name in (*asked, *file.header_names, *_keys(own))}
    listed = command.inner("fingerprint", "headers")
    for name in listed if isinstance(listed, list) else ():
        if isinstance(name, str) and name.lower() not in sent:
            yield command.warning(
                "probe.request",
                f"asks without {name}, which fingerprint.headers lists: if it chooses an account, "
                "absent there proves nothing here; ask with {header."
                f'{name}}} in the query, or set unknown to "resend" or "hold"',
            )


def _keys(table: object) -> list[str]:
    return [key for key in table if isinstance(key, str)] if isinstance(table, dict) else []


def _window(command: CommandSketch) -> Iterator[PolicyWarning]:
    within_s, key_days = command.table.get("resend_within_s"), command.inner("retain", "key_days")
    days = _KEY_DAYS if key_days is None else key_days
    if isinstance(within_s, int) and isinstance(days, int) and within_s > days * 86_400:
        yield command.warning(
            "resend_within_s",
            f"is longer than the key is remembered here ({days} days), so that the window of a key "
            f"which was forgotten begins anew; lower it to {days * 86_400}, or raise "
            "retain.key_days",
        )


def _resend(command: CommandSketch) -> Iterator[PolicyError]:
    within_s = command.table.get("resend_within_s")
    if command.table.get("unknown") != "resend":
        for field in ("resend_within_s", "resend_conflict"):
            if field in command.table:
                yield command.error(
                    field, 'has no use without unknown = "resend"', "set that, or remove it"
                )
        return
    if command.table.get("send_key") is None:
        yield command.error(
            "send_key",
            "is missing, and an upstream that gets a command again knows it by nothing else",
            'name the field that it reads, e.g. send_key = "Idempotency-Key"',
        )
    if within_s is None:
        yield command.error(
            "resend_within_s",
            'is missing, and unknown = "resend" needs it',
            "write less than the upstream remembers a key, e.g. 72000 for a day",
        )


def _probe(file: Sketch, command: CommandSketch) -> Iterator[PolicyError]:
    wanted = command.table.get("unknown") == "probe"
    if "probe" not in command.table:
        if wanted:
            yield command.error(
                "probe",
                'is missing, and unknown = "probe" needs it',
                "add [commands.probe] with request and applied",
            )
        return
    if not wanted:
        yield command.error("probe", 'has no use without unknown = "probe"', "set that")
    yield from _proofs(command)
    target = _target(command)
    if target is not None:
        yield from _asked(file, command, target)


def _asked(file: Sketch, command: CommandSketch, target: Target) -> Iterator[PolicyError]:
    names = set(command.pattern.names) if command.pattern is not None else None
    for place in target.placeholders:
        if place.source == "path" and names is not None and place.name not in names:
            yield command.error(
                "probe.request",
                f"{place.text} is not a variable of match",
                "take one that match has",
            )
    if "upstream_key" in target.names and command.table.get("send_key") is None:
        yield command.error(
            "probe.request",
            "asks for {upstream_key}, and none is sent",
            "set send_key to the field in which the upstream takes it, or ask for {key}",
        )
    for other in file.commands:
        if other.pattern is not None and _meet(target.pattern(), other.pattern):
            yield command.error(
                "probe.request",
                f"is what {other.path} lists as a command, so asking would do something",
                "ask for another path",
            )


def _meet(one: Pattern, other: Pattern) -> bool:
    return one.method == other.method and (
        len(one.loose) == len(other.loose)
        and all(None in (a, b) or a == b for a, b in zip(one.loose, other.loose, strict=True))
    )


def _proofs(command: CommandSketch) -> Iterator[PolicyError]:
    applied, absent = _proof(command, "applied"), _proof(command, "absent")
    for name, proof in (("applied", applied), ("absent", absent)):
        given = [field for field in ("equals", "items") if proof is not None and field in proof]
        if proof is not None and ("where" in proof) != (len(given) == 1):
            yield command.error(
                f"probe.{name}",
                "needs where together with one of equals and items",
                'write e.g. { status = [200], where = "/data", items = "some" }',
            )
    executed = [status for status in _statuses(applied) if status >= 300]
    if executed:
        yield command.error(
            "probe.applied.status",
            f"lists {executed}, by which nothing is found",
            "list statuses from 200 to 299",
        )
    unheard = sorted(_NOT_REACHED.intersection(_statuses(absent)))
    if unheard:
        yield command.error(
            "probe.absent.status",
            f"lists {unheard}, by which the upstream says that it did not look",
            "remove it",
        )
    if applied is not None and absent is not None and _both(applied, absent):
        yield command.error(
            "probe.absent",
            "counts an answer that applied counts too",
            "tell the two apart, by status or by what stands in the body",
        )


def _both(applied: Mapping[str, object], absent: Mapping[str, object]) -> bool:
    """Whether one answer surely counts as both; others are told when they come."""
    if not set(_statuses(applied)) & set(_statuses(absent)):
        return False
    if "where" not in applied or "where" not in absent:
        return True
    if applied["where"] != absent["where"]:
        return False
    one, other = applied.get("equals"), absent.get("equals")
    if isinstance(one, list) and isinstance(other, list):
        return any(type(a) is type(b) and a == b for a in one for b in other)
    return "items" in applied and applied.get("items") == absent.get("items")


def _proof(command: CommandSketch, name: str) -> Mapping[str, object] | None:
    found = command.inner("probe", name)
    return found if isinstance(found, dict) else None


def _statuses(proof: Mapping[str, object] | None) -> list[int]:
    listed = proof.get("status") if proof is not None else None
    return [each for each in listed if isinstance(each, int)] if isinstance(listed, list) else []


def _target(command: CommandSketch) -> Target | None:
    text = command.inner("probe", "request")
    try:
        return parse_target(text) if isinstance(text, str) else None
    except TargetError:
        return None
