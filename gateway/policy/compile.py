"""From a valid model to its compiled form."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from hashlib import blake2b
from pathlib import Path

from gateway.core.canonical import Pointer, canonical, parse_pointer
from gateway.core.egress import network
from gateway.core.fences import ISSUED_LIMIT, OUTSIDE_LIMIT
from gateway.core.fingerprint import Recipe, rule_version
from gateway.core.headers import CONTROL
from gateway.core.model import ProbeRules, Proof, Rules
from gateway.core.secret import Secret, SecretFields, revealed
from gateway.policy.compiled import CompiledCommand, Mount, Upstream
from gateway.policy.environment import Variables
from gateway.policy.fields import address
from gateway.policy.matcher import Table, parse_pattern
from gateway.policy.probes import Target, parse_target
from gateway.policy.schema import CommandModel, PolicyModel, ProbeModel, ProofModel
from gateway.policy.templates import Placeholder, Template, parse
from gateway.policy.tlsfiles import certificates

__all__ = ["compile_mount"]

NONE: frozenset[int] = frozenset()


def compile_mount(file: Path, model: PolicyModel, env: Variables) -> Mount:
    """``model`` was read from ``file`` and has no mistake left, alone or with others."""
    upstream = _upstream(file, model, env)
    account = _account(model, upstream)
    named = model.account is not None
    commands = tuple(
        _command(command, upstream, _digest(upstream, command, account, env, named=named), env)
        for command in model.commands
    )
    return Mount(
        file=file.name,
        upstream=upstream,
        commands=commands,
        table=Table((command.pattern, command) for command in commands),
        prefix=model.mount.encode("ascii"),
    )


def _upstream(file: Path, model: PolicyModel, env: Variables) -> Upstream:
    place = address(model.upstream)
    return Upstream(
        name=model.name,
        mount=model.mount,
        url=model.upstream,
        scheme=place.scheme,
        host=place.host,
        port=place.port,
        authority=place.authority.encode("ascii"),
        base=place.base.encode("ascii"),
        headers=_fields(model.upstream_headers, env),
        ca_file=_beside(file, model.ca_file),
        client_cert_file=_beside(file, model.client_cert_file),
        client_key_file=_beside(file, model.client_key_file),
        idle_s=model.idle_s,
        max_connections=model.max_connections,
        allow_networks=tuple(map(network, model.allow_networks)),
    )


def _fields(table: Mapping[str, str], env: Variables) -> SecretFields:
    return tuple(
        (name.encode("ascii"), Secret(env.substitute(text).encode("ascii")))
        for name, text in table.items()
    )


def _beside(file: Path, name: str | None) -> str | None:
    return None if name is None else str(file.parent / name)


def _command(
    model: CommandModel, upstream: Upstream, upstream_digest: bytes, env: Variables
) -> CompiledCommand:
    key, fence_from = parse(model.key), parse(model.fence_from)
    entity = replace(parse(model.entity), lowers=model.entity_case == "ignore")
    recipe = _recipe(model, fence_from)
    probe = parse_target(model.probe.request) if model.probe is not None else None
    rules = Rules(
        policy=f"{upstream.name}/{model.name}",
        fence=model.fence,
        serial=model.serial,
        unknown=model.unknown,
        timeout_s=model.timeout_s,
        settle_delay_s=model.settle_delay_s,
        not_executed=frozenset(model.not_executed),
        ambiguous=frozenset(model.ambiguous),
        request_limit=model.request_limit,
        keep_limit=model.keep_limit,
        response_days=model.retain.response_days,
        key_days=model.retain.key_days,
        issuer=model.issuer,
        version=rule_version(recipe, entity.text, lowers=entity.lowers),
        max_in_flight=model.max_in_flight,
        resend_within_s=model.resend_within_s,
        resend_conflict=frozenset(model.resend_conflict) if model.unknown == "resend" else NONE,
        probe=_probe_rules(model.probe) if model.probe is not None else None,
        cache_s=model.cache_s,
    )
    return CompiledCommand(
        name=model.name,
        rules=rules,
        upstream=upstream,
        pattern=parse_pattern(model.match),
        entity=entity,
        key=key,
        fence_from=fence_from,
        fence_limit=ISSUED_LIMIT if model.issuer == "here" else OUTSIDE_LIMIT,
        recipe=recipe,
        decisive=_decisive(recipe, [entity, key, fence_from], probe),
        send_key=_bytes(model.send_key),
        send_fence=_bytes(model.send_fence),
        pass_authorization=model.pass_authorization,
        upstream_digest=upstream_digest,
        probe=probe,
        probe_headers=_fields(model.probe.headers, env) if model.probe is not None else (),
    )


def _probe_rules(model: ProbeModel) -> ProbeRules:
    return ProbeRules(
        applied=_proof(model.applied),
        absent=_proof(model.absent) if model.absent is not None else None,
        interval_s=model.interval_s,
        replays=model.replay,
    )


def _proof(model: ProofModel) -> Proof:
    return Proof(
        status=frozenset(model.status),
        where=parse_pointer(model.where) if model.where is not None else None,
        equals=frozenset(map(canonical, model.equals)) if model.equals is not None else None,
        items=model.items,
    )


def _recipe(model: CommandModel, fence_from: Template) -> Recipe:
    pointers = [parse_pointer(text) for text in model.fingerprint.ignore]
    ignore: list[Pointer] = [pointer for pointer in pointers if pointer]
    place = fence_from.alone
    # A retry under a new lease has another fence in its body, and is still the same command.
    if model.fence != "off" and place is not None and place.source == "body":
        ignore.append(place.pointer)
    names = {name.lower() for name in model.fingerprint.headers}
    return Recipe(
        body=model.fingerprint.body,
        ignore=tuple(sorted(set(ignore))),
        headers=tuple(sorted(name.encode("ascii") for name in names)),
    )


def _decisive(recipe: Recipe, templates: list[Template], probe: Target | None) -> frozenset[bytes]:
    places: list[Placeholder] = [*(probe.placeholders if probe is not None else ())]
    for template in templates:
        places += template.placeholders
    read = {place.name.lower().encode("ascii") for place in places if place.source == "header"}
    return CONTROL | {b"content-type", b"content-encoding", *recipe.headers} | read


def _account(model: PolicyModel, upstream: Upstream) -> list[bytes]:
    """What tells one account from another. Without a name for it, each credential may be one of its
    own; with one, they may change, and what stands in the file may not."""
    if model.account is None:
        parts, fields = [], dict(revealed(upstream.headers))
        if upstream.client_cert_file is not None:  # an account, to an upstream that asks for one
            parts += [b"client certificate", *certificates(upstream.client_cert_file)]
    else:
        parts = [b"named account", model.account.encode("ascii")]
        written = model.upstream_headers.items()
        fields = {name.encode("ascii"): text.encode() for name, text in written}
    return [*_sorted(fields), *parts]


def _asking(probe: ProbeModel | None, env: Variables, *, written: bool) -> list[bytes]:
    """The same of a probe's own fields, which go before those of the upstream: a query that reads
    another account proves nothing about this one. ``written``: as they stand in the file."""
    if probe is None or not probe.headers:
        return []
    if written:
        fields = {name.encode("ascii"): text.encode() for name, text in probe.headers.items()}
    else:
        fields = dict(revealed(_fields(probe.headers, env)))
    return [b"probe headers", *_sorted(fields)]


def _sorted(fields: Mapping[bytes, bytes]) -> list[bytes]:
    """Names and values in turn."""
    lines = sorted((name.lower(), value) for name, value in fields.items())
    return [part for line in lines for part in line]


def _digest(
    upstream: Upstream, model: CommandModel, account: list[bytes], env: Variables, *, named: bool
) -> bytes:
    """16 bytes that change when a key sent again would reach another account, or no longer count
    as that key, and when its outcome would be asked of another."""
    digest = blake2b(digest_size=16, person=b"fg-account")
    parts = [upstream.scheme.encode(), upstream.host.encode(), b"%d" % upstream.port, upstream.base]
    parts.append((model.send_key or "").lower().encode("ascii"))
    for part in (*parts, *account, *_asking(model.probe, env, written=named)):
        digest.update(len(part).to_bytes(8, "big"))
        digest.update(part)
    return digest.digest()


def _bytes(name: str | None) -> bytes | None:
    return None if name is None else name.encode("ascii")
