"""What ``fencegate check`` prints of policies that loaded."""

from __future__ import annotations

from collections.abc import Iterator

from gateway.policy.compiled import CompiledCommand, Mount, Policies, Upstream
from gateway.policy.tools import Tool, Tools

__all__ = ["render_report", "render_tools"]


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
        f"kept {rules.response_days} d, key {rules.key_days} d | rules {rules.version.hex()}"
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


def _token(text: str) -> str:
    """RFC 6901 §3."""
    return text.replace("~", "~0").replace("/", "~1")


def _count(number: int, one: str, many: str) -> str:
    return f"{number} {one if number == 1 else many}"
