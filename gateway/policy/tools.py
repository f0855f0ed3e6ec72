"""``tools.toml``: which tools there are, how long their jobs are leased, how many may run at once.

Neither a caller nor a model chooses any of it. Every mistake is found before any is reported, as in
the policies; fields that are not written have a default of ``LeaseClass``.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from gateway.core.jobs import Terms
from gateway.core.leases import LeaseClass, mistakes
from gateway.policy import fields as grammar
from gateway.policy import schema
from gateway.policy.compiled import Policies
from gateway.policy.errors import PolicyError, PolicyErrors
from gateway.policy.loader import load, read_toml

__all__ = ["FILE", "Tool", "ToolModel", "Tools", "load_all", "load_tools"]

FILE = "tools.toml"

MAX_LEASE_S = 3_600
"""Between two signs of life of a worker: an hour passes at worst until its death is noticed."""

MAX_TOTAL_S = 7 * 86_400
"""A week for one attempt at one stage; longer work is several stages."""

_DEFAULT = LeaseClass()

_Name = Annotated[str, AfterValidator(grammar.slug)]
_Seconds = Annotated[float, Field(gt=0, le=MAX_LEASE_S, allow_inf_nan=False)]
_LongSeconds = Annotated[float, Field(gt=0, le=MAX_TOTAL_S, allow_inf_nan=False)]
_Limit = Annotated[int, Field(ge=1, le=10_000)]

MAX_NAMES = 50
"""Models, and providers, that metrics tell apart: with each tool they may make their product."""

MAX_LABEL = 128
"""Characters of such a name, as of the model of a job."""

_Names = list[Annotated[str, Field(min_length=1)]]


class ToolModel(BaseModel):
    """One ``[[tools]]`` table."""

    # strict: a quoted number is a mistake, not a spelling.
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, hide_input_in_errors=True)

    name: _Name
    lease_s: _Seconds = _DEFAULT.lease_s
    heartbeat_s: _Seconds = _DEFAULT.heartbeat_s
    jitter_s: Annotated[float, Field(ge=0, le=MAX_LEASE_S, allow_inf_nan=False)] = _DEFAULT.jitter_s
    misses: Annotated[int, Field(ge=1, le=100)] = _DEFAULT.misses
    stage_limit_s: _LongSeconds = _DEFAULT.stage_limit_s
    total_s: _LongSeconds = _DEFAULT.total_s
    attempts: Annotated[int, Field(ge=1, le=1_000)] = _DEFAULT.attempts
    backoff_s: Annotated[float, Field(ge=0, le=MAX_TOTAL_S, allow_inf_nan=False)] = (
        _DEFAULT.backoff_s
    )
    backoff_max_s: Annotated[float, Field(ge=0, le=MAX_TOTAL_S, allow_inf_nan=False)] = (
        _DEFAULT.backoff_max_s
    )
    max_running: _Limit | None = None
    max_running_per_user: _Limit | None = None


class _FileModel(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, hide_input_in_errors=True)

    models: _Names = []
    providers: _Names = []
    tools: list[ToolModel] = []


@dataclass(frozen=True, slots=True)
class Tool:
    """One tool. ``max_running``: its jobs of one tenant that have a lease at one time;
    ``max_per_user``: those of one user. ``None``: no limit."""

    name: str
    lease: LeaseClass
    max_running: int | None
    max_per_user: int | None

    @property
    def terms(self) -> Terms:
        """On which terms the store leases its jobs."""
        return Terms(
            tool=self.name,
            lease_ms=round(self.lease.lease_s * 1000),
            total_ms=round(self.lease.total_s * 1000),
            attempts=self.lease.attempts,
            max_running=self.max_running,
            max_per_user=self.max_per_user,
        )


@dataclass(frozen=True, slots=True)
class Tools:
    """All tools, by name; a job of any other is refused at enqueue. ``models``, ``providers``: what
    metrics tell apart."""

    by_name: Mapping[str, Tool]
    models: tuple[str, ...] = ()
    providers: tuple[str, ...] = ()

    def unknown(self, name: str) -> str:
        """The sentence for a tool that is not there."""
        close = get_close_matches(name, self.by_name, n=1)
        known = f"did you mean {close[0]!r}?" if close else f"add it to {FILE}"
        return f"There is no tool {name!r}; {known}"

    def terms(self, names: Iterable[str]) -> list[Terms]:
        """Of those among ``names`` that exist."""
        return [self.by_name[name].terms for name in dict.fromkeys(names) if name in self.by_name]

    def lease_class(self, name: str) -> LeaseClass:
        """The class of a tool; the default one for a tool that is not, or no longer, there."""
        found = self.by_name.get(name)
        return _DEFAULT if found is None else found.lease


def load_all(directory: Path, env: Mapping[str, str]) -> tuple[Policies, Tools]:
    """The policies and the tools of ``directory``, or raise ``PolicyErrors`` with the mistakes of
    both."""
    errors: list[PolicyError] = []
    policies, tools = Policies((), ()), Tools({})
    try:
        policies = load(directory, env)
    except PolicyErrors as found:
        errors += found.errors
    try:
        tools = load_tools(directory)
    except PolicyErrors as found:
        errors += found.errors
    if errors:
        raise PolicyErrors(errors)
    return policies, tools


def load_tools(directory: Path) -> Tools:
    """The tools of ``directory``, none without its ``tools.toml``, or raise ``PolicyErrors``."""
    path = directory / FILE
    if _is_absent(path):
        return Tools({})
    table = _table(path)
    if isinstance(table, PolicyError):
        raise PolicyErrors([table])
    found = list(_across(table))
    try:
        model = _FileModel.model_validate(table)
    except ValidationError as error:
        raise PolicyErrors([*map(_corrected, schema.mistakes(FILE, error)), *found]) from None
    if found:
        raise PolicyErrors(found)
    return Tools(
        {tool.name: _tool(tool) for tool in model.tools},
        tuple(model.models),
        tuple(model.providers),
    )


def _is_absent(path: Path) -> bool:
    """Whether there is nothing of that name. A link to nothing is something, and so is what cannot
    be looked at: somebody meant the gateway to have tools."""
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:
        pass  # reading it says why it cannot be
    return False


def _table(path: Path) -> dict[str, object] | PolicyError:
    # Asked first: whoever opens a pipe waits for its other end.
    if os.path.exists(path) and not os.path.isfile(path):  # noqa: PTH110, PTH113  they never raise
        return PolicyError(FILE, "", "is not a file", "make it one, or remove it")
    return read_toml(path)


def _across(table: Mapping[str, object]) -> Iterator[PolicyError]:
    """What several fields or tools show together; read from the raw table, so that it is reported
    beside the mistakes of single fields."""
    for field in ("models", "providers"):
        yield from _labels(field, table.get(field))
    listed = table.get("tools")
    seen: set[str] = set()
    for index, entry in enumerate(listed if isinstance(listed, list) else ()):
        if not isinstance(entry, dict):
            continue
        name = entry.get("name")
        if isinstance(name, str) and name in seen:
            yield PolicyError(
                FILE, f"tools[{index}].name", f"{name!r} is listed before", "rename or remove one"
            )
        if isinstance(name, str):
            seen.add(name)
        try:
            model = ToolModel.model_validate(entry | {"name": "any"})
        except ValidationError:
            continue  # its single fields are reported
        for each in mistakes(_tool(model).lease):
            yield PolicyError(FILE, f"tools[{index}].{each.field}", each.problem, each.mend)
        running, per_user = model.max_running, model.max_running_per_user
        if running is not None and per_user is not None and per_user > running:
            yield PolicyError(
                FILE,
                f"tools[{index}].max_running_per_user",
                f"{per_user} is more than max_running = {running}, so it limits nobody",
                "lower it, or remove it",
            )


def _labels(field: str, listed: object) -> Iterator[PolicyError]:
    """What is wrong with a list of names for metrics, beside their types and lengths."""
    if not isinstance(listed, list):
        return
    if len(listed) > MAX_NAMES:
        yield PolicyError(
            FILE,
            field,
            f"lists {len(listed)} names, and metrics tell {MAX_NAMES} apart",
            "keep those that you watch; the others count as other",
        )
    for index, name in enumerate(listed[:MAX_NAMES]):
        found = _label(name, listed[:index]) if isinstance(name, str) else None
        if found is not None:
            yield PolicyError(FILE, f"{field}[{index}]", *found)


def _label(name: str, before: list[object]) -> tuple[str, str] | None:
    """What is wrong with one name, and its mend."""
    if not name.isprintable() or name != name.strip():
        return "has a control character, or a blank at an end", "take it out"
    if len(name) > MAX_LABEL:
        return f"has {len(name)} characters", f"shorten it to {MAX_LABEL} at most"
    if name in ("none", "other"):
        return f"{name!r} is what metrics call all that is not listed", "remove it"
    if name in before:
        return f"{name!r} is listed before", "remove one"
    return None


def _tool(model: ToolModel) -> Tool:
    lease = LeaseClass(**{each.name: getattr(model, each.name) for each in fields(LeaseClass)})
    return Tool(model.name, lease, model.max_running, model.max_running_per_user)


def _corrected(error: PolicyError) -> PolicyError:
    """``error`` with the fields of this file, where one is not known."""
    if error.problem != "is not a field":
        return error
    name = error.path.rpartition(".")[2]
    known = list(ToolModel.model_fields) if "." in error.path else list(_FileModel.model_fields)
    close = get_close_matches(name, known, n=1)
    if "." not in error.path and name in ToolModel.model_fields:
        return replace(error, mend=f"write {name} inside [[tools]]")
    return replace(error, mend=f"write {close[0]}" if close else f"remove it ({', '.join(known)})")
