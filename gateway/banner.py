"""What an operator wants to see first: where it listens, on what, and a line to paste."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, urlsplit

from gateway import __version__
from gateway.policy.compiled import CompiledCommand, Policies
from gateway.policy.templates import Placeholder
from gateway.policy.tools import Tools

__all__ = ["banner"]

Tree = dict[str, "Tree | str | int"]


def banner(
    url: str,
    dsn: str,
    policies: Policies,
    tools: Tools,
    *,
    data_dir: Path | None,
    authenticated: bool,
) -> str:
    """The text that ``serve`` prints once it listens on ``url``; no secret is in it. ``data_dir``:
    where the embedded database lies, if it is one."""
    address = urlsplit(dsn)
    source = f"embedded, in {data_dir.absolute()}" if data_dir else "FENCEGATE_DATABASE_URL"
    callers = (
        "need a gateway key"
        if authenticated
        else "not authenticated: no gateway key exists, so loopback only"
    )
    commands = policies.commands()
    return "\n".join(
        [
            f"Fencegate {__version__} on {url}",
            f"  database  {address.hostname}:{address.port or 5432}{address.path} ({source})",
            f"  callers   {callers}",
            *(f"  policy    {line}" for line in policies.describe()),
            *(["  tools     " + ", ".join(tools.by_name)] if tools.by_name else []),
            *(f"  warning   {warning}" for warning in policies.warnings),
            "A request that its first command takes (this is a real one to the upstream):",
            "  " + (_curl(url, commands[0], authenticated) if commands else f"curl {url}/readyz"),
        ]
    )


def _curl(url: str, command: CompiledCommand, authenticated: bool) -> str:
    """A request that this command takes; every value that its templates need is in it."""
    headers = ["Authorization: Bearer fg_…"] if authenticated else []
    query: list[str] = []
    body: Tree = {}
    key = _Example("first-1", command.key.placeholders)
    fence = _Example(1, command.fence_from.placeholders if command.rules.fence != "off" else ())
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
    sent = [*headers, "Content-Type: application/json"]
    fields = "".join(f" -H '{line}'" for line in dict.fromkeys(sent))
    return f"curl -i -X {command.pattern.method} '{target}'{fields} -d '{json.dumps(body)}'"


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
