"""What ``fencegate check`` prints of policies that loaded."""

from __future__ import annotations

from collections.abc import Iterator

from gateway.core.model import Proof
from gateway.policy.compiled import CompiledCommand, Mount, Policies, Upstream
from gateway.policy.tools import Tool, Tools

__all__ = ["proof_text", "render_report", "render_tools"]


def render_report(policies: Policies) -> str:
    """Mounts, their commands, and warnings, for people. Header values are never shown."""
    lines: list[str] = []
    for mount in policies.mounts:
        lines += _mount(mount)
        lines.append("")
    for warning in policies.warnings:
        lines.append(f"warning: {warning}")
    commands, warnings = len(policies.commands()), len(policies.warnings)
    lines.append(
        f"{_count(len(policies.mounts), 'policy', 'policies')}, "
        f"{_count(commands, 'command', 'commands')}, {_count(warnings, 'warning', 'warnings')}"
    )
    return "\n".join(lines)


def render_tools(tools: Tools) -> str:
    """The tools of ``tools.toml``, as a table."""
    head = (
        "TOOL",
        "LEASE",
        "HEARTBEAT",
        "MISSES",
        "STAGE",
        "TOTAL",
        "ATTEMPTS",
        "BACKOFF",
        "RUNNING",
    )
    rows = [head, *(_tool(tool) for tool in tools.by_name.values())]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
    for what, names in (("models", tools.models), ("providers", tools.providers)):
        if names:
            lines.append(f"{what} in metrics: {', '.join(names)}")
    return "\n".join(["", *lines, _count(len(tools.by_name), "tool", "tools")])


def _tool(tool: Tool) -> tuple[str, ...]:
    lease = tool.lease
    limits = [f"{tool.max_running}"] if tool.max_running is not None else []
    limits += [f"{tool.max_per_user} a user"] if tool.max_per_user is not None else []
    return (
        tool.name,
        f"{lease.lease_s:g} s",
        f"{lease.heartbeat_s:g} + {lease.jitter_s:g} s",
        str(lease.misses),
        f"{lease.stage_limit_s:g} s",
        f"{lease.total_s:g} s",
        str(lease.attempts),
        f"{lease.backoff_s:g} to {lease.backoff_max_s:g} s",
        ", ".join(limits) or "any",
    )


def _mount(mount: Mount) -> Iterator[str]:
    upstream = mount.upstream
    yield f"{upstream.mount} -> {upstream.url}  [{upstream.name}, {mount.file}]"
    files = [f"{what} {file}" for what, file in _tls_files(upstream) if file is not None]
    if files:
        yield "  TLS: " + ", ".join(files)
    if upstream.allow_networks:
        yield "  may lead to " + ", ".join(map(str, upstream.allow_networks))
    if upstream.headers:
        yield "  sets " + ", ".join(name.decode("ascii") for name, _ in upstream.headers)
    for command in mount.commands:
        yield from _command(command)
    yield "  other GET, HEAD, OPTIONS stream through; anything else is refused"


def _tls_files(upstream: Upstream) -> tuple[tuple[str, str | None], ...]:
    return (
        ("trusts", upstream.ca_file),
        ("shows", upstream.client_cert_file),
        ("with the key in", upstream.client_key_file),
    )


def _command(command: CompiledCommand) -> Iterator[str]:
    rules = command.rules
    yield f"  {command.pattern.text}  [{command.name}]"
    fence = rules.fence if rules.fence == "off" else f"{rules.fence}, {command.fence_from.text}"
    entity = command.entity.text + (" in lower case" if command.entity.lowers else "")
    yield f"    entity {entity} | key {command.key.text} | fence {fence}"
    order = "serial" if rules.serial else "not serial"
    yield (
        f"    {order} | unknown {rules.unknown} | timeout {rules.timeout_s:g} s | "
        f"settle_delay_s {rules.settle_delay_s:g} | "
        f"kept {rules.response_days} d, key {rules.key_days} d | cached {rules.cache_s} s | "
        f"rules {rules.version.hex()}"
    )
    recipe = command.recipe
    ignored = ", ".join(f"/{'/'.join(map(_token, pointer))}" for pointer in recipe.ignore)
    listed = ", ".join(name.decode("ascii") for name in recipe.headers)
    compared = [f"body as {recipe.body}"] if recipe.body != "auto" else []
    compared += [f"without {ignored}"] if ignored else []
    compared += [f"with {listed}"] if listed else []
    if compared:
        yield f"    compares {' | '.join(compared)}"
    sent = [
        f"{what} as {field.decode('ascii')}"
        for what, field in (("key", command.send_key), ("fence", command.send_fence))
        if field is not None
    ]
    if command.pass_authorization:
        sent.append("the caller's Authorization")
    if sent:
        yield f"    sends {', '.join(sent)}"
    yield from _unknown(command)


def _unknown(command: CompiledCommand) -> Iterator[str]:
    """How an unknown outcome is found out; what "hold" does is said by its name."""
    rules = command.rules
    if rules.resend_within_s is not None:
        conflict = _statuses(rules.resend_conflict)
        yield f"    resend_within_s {rules.resend_within_s} | key in use by {conflict}"
    if rules.probe is None or command.probe is None:
        return
    yield f"    asks {command.probe.text} | interval_s {rules.probe.interval_s}"
    absent = "no answer" if rules.probe.absent is None else proof_text(rules.probe.absent)
    replayed = ", which is replayed" if rules.probe.replays else ""
    yield f"    applied by {proof_text(rules.probe.applied)}{replayed} | absent by {absent}"


def proof_text(proof: Proof) -> str:
    """``status 200, /data has items``."""
    text = f"status {_statuses(proof.status)}"
    if proof.where is None:
        return text
    place = f"{text}, /{'/'.join(map(_token, proof.where))}"
    if proof.items is not None:
        return (
            f"{place} is a list {'with an element' if proof.items == 'some' else 'that is empty'}"
        )
    return f"{place} is {' or '.join(_value(each) for each in sorted(proof.equals or ()))}"


def _value(canonical: bytes) -> str:
    return canonical.decode("utf-8", "replace")


def _statuses(statuses: frozenset[int]) -> str:
    return ", ".join(map(str, sorted(statuses))) or "no status"


def _token(text: str) -> str:
    """RFC 6901 §3."""
    return text.replace("~", "~0").replace("/", "~1")


def _count(number: int, one: str, many: str) -> str:
    return f"{number} {one if number == 1 else many}"
