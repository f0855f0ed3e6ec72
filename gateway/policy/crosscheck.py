"""What only shows when several fields, commands or files are seen together.

The checks read the raw tables, not the models, so that they also run on a file with other mistakes
and everything is reported at once. A field that is itself malformed is left out here; ``schema``
reports it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from pydantic_core import PydanticCustomError

from gateway.core.egress import Egress, is_named, network
from gateway.policy.errors import PolicyError, PolicyWarning
from gateway.policy.fields import address
from gateway.policy.matcher import Pattern, PatternError, overlap, parse_pattern
from gateway.policy.templates import Placeholder, Template, TemplateError, parse

__all__ = ["CommandSketch", "Sketch", "across", "sketch", "warnings", "within"]

Table = Mapping[str, object]

# $NAME, {NAME} and {{NAME}}, and not ${NAME}.
_ALMOST_REFERENCE = re.compile(r"\$([A-Za-z_][A-Za-z0-9_]*)|(?<!\$)\{+([A-Za-z_][A-Za-z0-9_]*)\}+")

# On these the commands of one entity must agree; with what they are unless a policy says so.
_RULINGS: Mapping[str, object] = {
    "serial": True,
    "fence": "required",
    "issuer": "outside",
    "entity_case": "exact",
}

_FENCE = "x-execution-fence"
_ENTITY = "x-execution-entity"


@dataclass(frozen=True, slots=True)
class CommandSketch:
    """What could be read of one command; ``None`` where a field is malformed or missing."""

    file: str
    path: str
    table: Table
    name: str | None
    pattern: Pattern | None
    entity: Template | None
    key: Template | None
    fence_from: Template | None

    def error(self, field: str, problem: str, mend: str) -> PolicyError:
        return PolicyError(self.file, f"{self.path}.{field}", problem, mend)

    def warning(self, field: str, text: str) -> PolicyWarning:
        return PolicyWarning(self.file, f"{self.path}.{field}", text)

    def ruling(self, field: str) -> object:
        """A field on which commands of one entity must agree, or its default."""
        return self.table.get(field, _RULINGS[field])

    def inner(self, table: str, field: str) -> object:
        return _table(self.table.get(table)).get(field)


@dataclass(frozen=True, slots=True)
class Sketch:
    """What could be read of one file."""

    file: str
    table: Table
    name: str | None
    mount: str | None
    commands: tuple[CommandSketch, ...]

    @property
    def header_names(self) -> list[str]:
        return list(_table(self.table.get("upstream_headers")))


def sketch(file: str, table: Table) -> Sketch:
    """Read ``table`` as far as it goes."""
    listed = table.get("commands")
    commands = tuple(
        _command(file, f"commands[{index}]", entry)
        for index, entry in enumerate(listed if isinstance(listed, list) else ())
        if isinstance(entry, dict)
    )
    return Sketch(file, table, _text(table, "name"), _text(table, "mount"), commands)


def within(file: Sketch) -> Iterator[PolicyError]:
    """Mistakes that one file shows."""
    for command in file.commands:
        yield from _templates(command)
        yield from _issuer(command)
        yield from _fence_place(command)
        yield from _fence_apart(command)
        yield from _fingerprint(command)
        yield from _statuses_and_days(command)
        yield from _sent_fields(file, command)
    for one, other in combinations(file.commands, 2):
        yield from _pair(one, other)
    yield from _sealed_address(file)
    lower = [name.lower() for name in file.header_names]
    for name in file.header_names:
        if lower.count(name.lower()) > 1 and name.lower() != name:
            yield PolicyError(
                file.file,
                f"upstream_headers.{name}",
                "is listed in another case too",
                "keep one spelling",
            )


def across(files: Sequence[Sketch]) -> Iterator[PolicyError]:
    """Mistakes that show only between files, and between any two commands."""
    for one, other in combinations(files, 2):
        if one.name is not None and one.name == other.name:
            yield PolicyError(
                other.file, "name", f"{other.name!r} is the name in {one.file} too", "rename one"
            )
        if one.mount is not None and one.mount == other.mount:
            yield PolicyError(
                other.file, "mount", f"{other.mount} is mounted by {one.file} too", "move one"
            )
    commands = [command for file in files for command in file.commands]
    for first, second in combinations(commands, 2):
        yield from _entity_rulings(first, second)


def warnings(files: Sequence[Sketch]) -> Iterator[PolicyWarning]:
    """What is legal and probably not meant."""
    for file in files:
        if not file.commands:
            yield PolicyWarning(file.file, "commands", "none: every unsafe request is refused")
        yield from _unfilled(file)
        yield from _inner_name(file)
        for command in file.commands:
            yield from _free_entity(command)
            yield from _free_key(command)
            yield from _foreign_variable(command)
            yield from _believed_statuses(command)
        for other in files:
            yield from _hidden(file, other)


def _free_entity(command: CommandSketch) -> Iterator[PolicyWarning]:
    if command.entity is None:
        return
    if not command.entity.start:
        yield command.warning(
            "entity",
            f"{command.entity.text!r} has no literal start, so it may name another policy's "
            'entity; begin it with e.g. "invoice:", unless that is meant',
        )
    places = command.entity.placeholders
    if any(place.source == "header" and place.name.lower() == _ENTITY for place in places):
        yield command.warning(
            "entity",
            "is what the caller says in X-Execution-Entity, and nothing compares that with what "
            "the request acts on; read the path or the body, unless one entity a job is meant",
        )


def _free_key(command: CommandSketch) -> Iterator[PolicyWarning]:
    """Keys are one name space in a tenant; those that callers choose are theirs to tell apart."""
    if command.key is None or command.key.start or not command.key.placeholders:
        return
    if command.key.placeholders[0].source != "header":
        yield command.warning(
            "key",
            f"{command.key.text!r} has no literal start, and keys are one name space over all "
            'commands; begin it with e.g. "capture:"',
        )


def _foreign_variable(command: CommandSketch) -> Iterator[PolicyWarning]:
    for segment in command.pattern.segments if command.pattern is not None else ():
        if segment is not None and segment[:1] in (b":", b"$") and len(segment) > 1:
            name = segment[1:].decode("ascii")
            yield command.warning(
                "match",
                f"takes {segment.decode('ascii')!r} as it stands; a variable is written {{{name}}}",
            )


def _unfilled(file: Sketch) -> Iterator[PolicyWarning]:
    """What looks like a variable of other tools goes up as it is written."""
    for name, text in _table(file.table.get("upstream_headers")).items():
        found = _ALMOST_REFERENCE.search(text) if isinstance(text, str) else None
        if found is not None:
            yield PolicyWarning(
                file.file,
                f"upstream_headers.{name}",
                f"sends {found[0]} as it stands; a variable is written ${{{found[1] or found[2]}}}",
            )


_INNER = re.compile(
    r"[^.]+|.*\.(?:internal|local|localhost|lan|corp|home|intranet|private|svc|test|home\.arpa)"
)
"""One label, as in a compose file, or an ending that no public name has."""


def _inner_name(file: Sketch) -> Iterator[PolicyWarning]:
    """A name that looks like one of the own network, without a network that it may lead to."""
    host = _host(file)
    if host is None or not is_named(host) or file.table.get("allow_networks"):
        return
    if _INNER.fullmatch(host):
        yield PolicyWarning(
            file.file,
            "upstream",
            f"names {host!r}, which looks like a host of your own network, and a name may lead "
            "to public addresses only; list its network, e.g. "
            'allow_networks = ["10.0.0.0/8"]',
        )


def _sealed_address(file: Sketch) -> Iterator[PolicyError]:
    """An upstream that is written as an address and must be listed all the same."""
    host = _host(file)
    if host is None or is_named(host) or host == "localhost":
        return
    try:
        networks = tuple(map(network, _texts(file.table.get("allow_networks"))))
    except ValueError:
        return  # reported as what it is
    if not Egress(host, networks).allows(host):
        yield PolicyError(
            file.file,
            "upstream",
            f"{host} belongs to a metadata service or to this link, and is never reached by "
            "mistake",
            f'if it is meant, list it: allow_networks = ["{host}"]',
        )


def _host(file: Sketch) -> str | None:
    text = _text(file.table, "upstream")
    try:
        return address(text).host if text is not None else None
    except PydanticCustomError:
        return None


def _believed_statuses(command: CommandSketch) -> Iterator[PolicyWarning]:
    listed = _whole(command.table.get("not_executed"))
    doubtful = sorted({status for status in listed if status >= 500 or status == 408})
    if doubtful:
        yield command.warning(
            "not_executed",
            f"lists {doubtful}, which an upstream or a proxy before it may also answer after it "
            "acted; move them to ambiguous, unless yours never does",
        )


def _templates(command: CommandSketch) -> Iterator[PolicyError]:
    names = set(command.pattern.names) if command.pattern is not None else None
    for field, template in (("entity", command.entity), ("key", command.key)):
        for place in template.placeholders if template is not None else ():
            if place.source == "path" and names is not None and place.name not in names:
                known = ", ".join(f"{{{name}}}" for name in sorted(names)) or "no variable"
                yield command.error(
                    field,
                    f"{place.text} is not a variable of match, which has {known}",
                    f"write {{{place.name}}} as a segment of match, or take another variable",
                )
    if command.key is not None and not command.key.placeholders:
        yield command.error(
            "key",
            "is the same for every request, so all but the first would be replays",
            'use a placeholder, e.g. "{header.Idempotency-Key}"',
        )


def _fence_apart(command: CommandSketch) -> Iterator[PolicyError]:
    """A key or an entity made of the fence would be another for each owner."""
    place = command.fence_from.alone if command.fence_from is not None else None
    for field, template in (("entity", command.entity), ("key", command.key)):
        for read in template.placeholders if template is not None else ():
            usual = read.source == "header" and read.name.lower() == _FENCE
            if usual or (place is not None and _same_place(read, place)):
                yield command.error(
                    field,
                    f"{read.text} is the fence, which is another for each owner",
                    "take what all attempts of one command share",
                )


def _same_place(one: Placeholder, other: Placeholder) -> bool:
    if one.source == "body":
        return other.source == "body" and one.pointer == other.pointer
    return one.source == other.source and one.name.lower() == other.name.lower()


def _issuer(command: CommandSketch) -> Iterator[PolicyError]:
    fence = command.ruling("fence")
    if command.table.get("issuer") == "here" and fence in ("optional", "off"):
        # A command without a fence would pass whoever holds the entity.
        yield command.error(
            "fence",
            f'is "{fence}", and fences that are issued here are always required',
            'remove it, or set issuer = "outside"',
        )


def _fence_place(command: CommandSketch) -> Iterator[PolicyError]:
    if command.fence_from is None:
        return
    place = command.fence_from.alone
    # A fence changes with every attempt, the path and the query of a command must not.
    if place is None or place.source not in ("header", "body"):
        yield command.error(
            "fence_from",
            f"{command.fence_from.text!r} is not one header or body placeholder and nothing else",
            'use "{header.X-Execution-Fence}" or e.g. "{body./execution_fence}"',
        )
    elif place.source == "body" and command.inner("fingerprint", "body") == "raw":
        yield command.error(
            "fence_from",
            "is in a body that is compared byte by byte, so a new fence is another command",
            'set fingerprint.body = "json" or "form"',
        )


def _fingerprint(command: CommandSketch) -> Iterator[PolicyError]:
    if command.inner("fingerprint", "body") == "raw" and command.inner("fingerprint", "ignore"):
        yield command.error(
            "fingerprint.ignore",
            "names members, and the body is compared byte by byte",
            'remove it, or set body = "json" or "form"',
        )
    place = command.fence_from.alone if command.fence_from is not None else None
    fences = {_FENCE}
    if place is not None and place.source == "header":
        fences.add(place.name.lower())
    for name in _texts(command.inner("fingerprint", "headers")):
        if name.lower() in fences:
            yield command.error(
                "fingerprint.headers",
                f"{name} carries the fence, which changes with the owner",
                "remove it",
            )


def _statuses_and_days(command: CommandSketch) -> Iterator[PolicyError]:
    lists = (command.table.get("not_executed"), command.table.get("ambiguous"))
    defaults = ([401, 407, 421, 425, 429], [408, 500, 502, 503, 504])
    first, second = (
        set(_whole(given if given is not None else default))
        for given, default in zip(lists, defaults, strict=True)
    )
    if first & second:
        yield command.error(
            "ambiguous",
            f"shares {sorted(first & second)} with not_executed",
            "list each status once",
        )
    response, key = (command.inner("retain", "response_days"), command.inner("retain", "key_days"))
    response, key = 30 if response is None else response, 400 if key is None else key
    if isinstance(response, int) and isinstance(key, int) and response > key:
        yield command.error(
            "retain.response_days",
            f"is {response}, longer than the key is remembered ({key})",
            "lower it, or raise key_days",
        )


def _sent_fields(file: Sketch, command: CommandSketch) -> Iterator[PolicyError]:
    set_names = {name.lower() for name in file.header_names}
    send_key, send_fence = _text(command.table, "send_key"), _text(command.table, "send_fence")
    for field, name in (("send_key", send_key), ("send_fence", send_fence)):
        if name is not None and name.lower() in set_names:
            yield command.error(
                field, f"{name} is set by upstream_headers too", "remove one of the two"
            )
    if send_key and send_fence and send_key.lower() == send_fence.lower():
        yield command.error("send_fence", f"{send_fence} is send_key too", "rename one of the two")
    if command.table.get("pass_authorization") is True and "authorization" in set_names:
        yield command.error(
            "pass_authorization",
            "would meet the Authorization in upstream_headers",
            "remove one of the two",
        )


def _pair(one: CommandSketch, other: CommandSketch) -> Iterator[PolicyError]:
    if one.name is not None and one.name == other.name:
        yield other.error("name", f"{other.name!r} is the name of {one.path} too", "rename one")
    if one.pattern is None or other.pattern is None or not overlap(one.pattern, other.pattern):
        return
    yield other.error(
        "match",
        f"{other.pattern.text!r} and {one.pattern.text!r} ({one.path}) may take the same path, "
        "and neither is the more literal (case, encoding and a last slash make no difference)",
        "make one of them literal where the other is, or remove it",
    )


def _entity_rulings(one: CommandSketch, other: CommandSketch) -> Iterator[PolicyError]:
    if one.entity is None or other.entity is None or not _may_meet(one.entity, other.entity):
        return
    for field in _RULINGS:
        first, second = one.ruling(field), other.ruling(field)
        if first != second:
            yield other.error(
                field,
                f"is {_toml(second)}, but {_toml(first)} in {one.file}: {one.path}, and both act "
                f"on entities that start with {one.entity.start!r}",
                "make them agree, or begin the entities differently",
            )


def _may_meet(one: Template, other: Template) -> bool:
    """Whether the literal starts allow the same entity. Without a literal start anything may meet
    anything; that is a warning of its own."""
    first, second = one.start, other.start
    return bool(first and second) and (first.startswith(second) or second.startswith(first))


def _hidden(outer: Sketch, inner: Sketch) -> Iterator[PolicyWarning]:
    if not outer.mount or not inner.mount or not inner.mount.startswith(outer.mount + "/"):
        return
    below = inner.mount[len(outer.mount) :].encode("ascii", "replace").split(b"/")[1:]
    for command in outer.commands:
        segments = command.pattern.segments if command.pattern is not None else ()
        if len(segments) >= len(below) and all(
            own in (None, step) for own, step in zip(segments, below, strict=False)
        ):
            yield command.warning(
                "match",
                f"paths below {inner.mount} go to {inner.file}, never to this command",
            )


def _command(file: str, path: str, table: Table) -> CommandSketch:
    match = _text(table, "match")
    return CommandSketch(
        file=file,
        path=path,
        table=table,
        name=_text(table, "name"),
        pattern=_pattern(match) if match is not None else None,
        entity=_template(table.get("entity")),
        key=_template(table.get("key", "{header.Idempotency-Key}")),
        fence_from=_template(table.get("fence_from", "{header.X-Execution-Fence}")),
    )


def _pattern(text: str) -> Pattern | None:
    try:
        return parse_pattern(text)
    except PatternError:
        return None


def _template(value: object) -> Template | None:
    try:
        return parse(value) if isinstance(value, str) else None
    except TemplateError:
        return None


def _text(table: Table, field: str) -> str | None:
    value = table.get(field)
    return value if isinstance(value, str) else None


def _table(value: object) -> Table:
    return value if isinstance(value, dict) else {}


def _texts(value: object) -> list[str]:
    return [item for item in value if isinstance(item, str)] if isinstance(value, list) else []


def _whole(value: object) -> list[int]:
    return [item for item in value if isinstance(item, int)] if isinstance(value, list) else []


def _toml(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else f'"{value}"'
