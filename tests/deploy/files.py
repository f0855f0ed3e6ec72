"""docker-compose.yml and the Dockerfile as values. No engine is needed to read either."""

import json
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from compose_spec import PyOptions

__all__ = ["ROOT", "Compose", "Image", "Step", "compose", "image", "seconds"]

ROOT = Path(__file__).resolve().parents[2]

_VARIABLE = re.compile(r"\$\{(\w+)(?::-([^}]*))?\}")
_UNITS = {"s": 1, "m": 60, "h": 3600}


@dataclass(frozen=True)
class Compose:
    """``services`` with merge keys applied and variables filled in from ``env``."""

    services: dict[str, dict[str, Any]]
    volumes: set[str]
    variables: set[str]


def compose(env: Mapping[str, str] | None = None, text: str | None = None) -> Compose:
    """The file (or ``text``), validated against the specification's schema.

    Raises ``ValueError`` where it does not comply, ``KeyError`` where a variable has neither a
    value in ``env`` nor a default.
    """
    source = (ROOT / "docker-compose.yml").read_text("utf-8") if text is None else text
    given = env or {}

    def value(match: re.Match[str]) -> str:
        name, default = match.groups()
        return given.get(name) or (given[name] if default is None else default)

    parsed = PyOptions(apply_merge=True).from_yaml(_VARIABLE.sub(value, source))
    parsed.validate()  # networks, volumes, configs and secrets that are used are declared
    parsed.to_spec()  # and once more by the models of the published schema
    found = parsed.to_dict()
    names = {match[1] for match in _VARIABLE.finditer(source)}
    return Compose(found["services"], set(found.get("volumes", {})), names)


def seconds(duration: str) -> int:
    """``1m30s`` in seconds."""
    return sum(int(number) * _UNITS[unit] for number, unit in re.findall(r"(\d+)([smh])", duration))


@dataclass(frozen=True)
class Step:
    """One instruction of a Dockerfile: ``arguments`` of an exec form, or its words."""

    name: str
    arguments: tuple[str, ...]
    exec_form: bool
    flags: tuple[str, ...] = ()


@dataclass(frozen=True)
class Image:
    """The stages in their order, and the ``ARG`` defaults before the first."""

    stages: list[list[Step]] = field(default_factory=list)
    arguments: dict[str, str] = field(default_factory=dict)

    def last(self, name: str) -> Step:
        """The instruction of the final stage that counts."""
        return [step for step in self.stages[-1] if step.name == name][-1]


def image(text: str | None = None) -> Image:
    """The Dockerfile, line continuations joined and comments left out."""
    source = (ROOT / "Dockerfile").read_text("utf-8") if text is None else text
    lines = [line for line in source.splitlines() if not line.lstrip().startswith("#")]
    found = Image()
    for line in filter(None, re.sub(r"\\\n", " ", "\n".join(lines)).splitlines()):
        step = _step(line)
        if step.name == "FROM":
            found.stages.append([])
        if found.stages:
            found.stages[-1].append(step)
        else:
            name, _, default = step.arguments[0].partition("=")
            found.arguments[name] = default
    return found


def _step(line: str) -> Step:
    name, _, rest = line.strip().partition(" ")
    flags = []
    rest = rest.strip()
    while rest.startswith("--"):
        flag, _, rest = rest.partition(" ")
        flags.append(flag)
        rest = rest.strip()
    if name == "HEALTHCHECK":
        rest = rest.removeprefix("CMD").strip()
    if rest.startswith("["):
        return Step(name, tuple(json.loads(rest)), True, tuple(flags))
    return Step(name, tuple(shlex.split(rest)), False, tuple(flags))
