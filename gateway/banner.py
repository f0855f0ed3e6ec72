"""What an operator wants to see first: where it listens, on what, and a line to paste."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, urlsplit

from gateway import __version__
from gateway.core.auth import Snapshot
from gateway.core.scopes import policies_named
from gateway.policy.compiled import CompiledCommand, Policies
from gateway.policy.templates import Placeholder
from gateway.policy.tools import Tools

__all__ = ["banner", "misnamed"]

Tree = dict[str, "Tree | str | int"]

_DRILL = "fencegate-drill"
"""The policy of `fencegate drill`."""

_SHOWN = 10
"""Policies of which it is said that they are not there; a wrong folder may lack all."""

_REAL = "this is a real one to the upstream"
_FENCE = "FENCE-THAT-WAS-ISSUED"


def banner(
    url: str,
    dsn: str,
    policies: Policies,
    tools: Tools,
    *,
    data_dir: Path | None,
    authenticated: bool,
    warnings: Iterable[str] = (),
) -> str:
    """The text that ``serve`` prints once it listens on ``url``; no secret is in it. ``data_dir``:
    where the embedded database lies, if it is one. ``warnings``: on top of those of policies."""
    address = urlsplit(dsn)
    source = f"embedded, in {data_dir.absolute()}" if data_dir else "FENCEGATE_DATABASE_URL"
    callers = (
        "need a gateway key"
        if authenticated
        else "not authenticated: no gateway key exists, so loopback only"
    )
    return "\n".join(
        [
            f"Fencegate {__version__} on {url}",
            f"  database  {_hosts(address.netloc)}{address.path} ({source})",
            f"  callers   {callers}",
            *(f"  policy    {line}" for line in policies.describe()),
            *(["  tools     " + ", ".join(tools.by_name)] if tools.by_name else []),
            *(f"  warning   {warning}" for warning in (*policies.warnings, *warnings)),
            *_sample(url, policies, authenticated),
        ]
    )


def misnamed(keys: Snapshot, policies: Policies) -> Iterable[str]:
    """Warnings about keys that may send to a policy that is not there, often for a slip."""
    served = frozenset(mount.upstream.name for mount in policies.mounts)
    holders: dict[str, list[str]] = {}
    for _, key in sorted(keys.keys.items()):
        for name in policies_named(key.principal.scopes) - served:
            holders.setdefault(name, []).append(str(key.principal.key_id))
    for name, found in sorted(holders.items())[:_SHOWN]:
        others = f" and {len(found) - 1} more" if len(found) > 1 else ""
        yield f"key {found[0]}{others}: scope policy:{name}, and no policy of that name is served"


def _hosts(netloc: str) -> str:
    """Hosts and ports without credentials; there may be several (a failover's)."""
    hosts = netloc.rpartition("@")[2].split(",")
    return ",".join(host if re.search(r":[0-9]+$", host) else f"{host}:5432" for host in hosts)


def _sample(url: str, policies: Policies, authenticated: bool) -> list[str]:
    """A request that works as it is pasted."""
    # The drill's upstream is there only while it plays.
    commands = [each for each in policies.commands() if each.upstream.name != _DRILL]
    outside = [each for each in commands if each.rules.issuer == "outside"]
    if not commands:
        return ["No command to try; whether it serves:", f"  curl {url}/readyz"]
    if outside:
        command = outside[0]
        about = f"A request that its command {command.rules.policy} takes"
        return [f"{about} ({_REAL}):", "  " + _curl(url, command, authenticated, 1)]
    command = commands[0]
    about = f"Fences of its command {command.rules.policy} are issued here. Ask for one, then send"
    return [
        f"{about} ({_REAL}):",
        "  " + _ask(url, command, authenticated),
        "  " + _curl(url, command, authenticated, _FENCE),
    ]


def _ask(url: str, command: CompiledCommand, authenticated: bool) -> str:
    """A line for a shell that sets ``FENCE``, for the entity of ``_curl``."""
    body = json.dumps({"entity": "1".join(command.entity.literals)})
    said = f"curl -s {url}/v1/fences{_fields(authenticated)} -d '{body}'"
    return f"FENCE=$({said} | sed 's/.*\"fence\":\\([0-9]*\\).*/\\1/')"


def _curl(url: str, command: CompiledCommand, authenticated: bool, fence_sent: str | int) -> str:
    """A request that this command takes; every value that its templates need is in it."""
    headers: list[str] = []
    query: list[str] = []
    body: Tree = {}
    key = _Example("first-1", command.key.placeholders)
    needed = command.fence_from.placeholders if command.rules.fence != "off" else ()
    fence = _Example(fence_sent, needed)
    for example in (key, fence, _Example("1", command.entity.placeholders)):
        for place in example.places:
            match place.source:
                case "header":
                    headers.append(f"{place.name}: {example.value}")
                case "query":
                    query.append(f"{quote(place.name)}={example.value}")
                case "body":
                    _put(body, place.pointer, example.value)
                case "path":
                    pass  # every variable of the path is filled below
    path = "".join(
        "/" + ("1" if segment is None else segment.decode("ascii"))
        for segment in command.pattern.segments
    )
    target = url + command.upstream.mount + path + ("?" + "&".join(query) if query else "")
    fields = _fields(authenticated, *headers)
    line = f"curl -i -X {command.pattern.method} '{target}'{fields} -d '{json.dumps(body)}'"
    # Out of the quotes, where the shell puts in what was issued; a number also in JSON.
    return line.replace(f'"{_FENCE}"', "'$FENCE'").replace(_FENCE, "'$FENCE'")


def _fields(authenticated: bool, *more: str) -> str:
    sent = ["Authorization: Bearer fg_…"] if authenticated else []
    sent += [*more, "Content-Type: application/json"]
    return "".join(f" -H '{line}'" for line in dict.fromkeys(sent))


@dataclass(frozen=True, slots=True)
class _Example:
    """One value, and the places that it is to be put in."""

    value: str | int
    places: Sequence[Placeholder]


def _put(tree: Tree, pointer: Sequence[str], value: str | int) -> None:
    for name in pointer[:-1]:
        below = tree.setdefault(name, {})
        if not isinstance(below, dict):
            return
        tree = below
    tree[pointer[-1]] = value
