"""The log: one JSON object per physical line on stderr.

``decision`` writes what became of one request; ``event`` everything else that operators care
about (started, draining, alarms). Keys are logged as their digest, bodies and header values not at
all. JSON in plain ASCII escapes every control character, so no value from outside can begin a line.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext, suppress
from dataclasses import fields
from datetime import UTC, datetime
from functools import lru_cache
from json.encoder import encode_basestring_ascii as _quoted
from operator import attrgetter
from typing import Literal, TextIO, TypeVar

from gateway.core.command import Command
from gateway.core.value import value
from gateway.observe.crash import trace

__all__ = [
    "VALUE_LIMIT",
    "Decided",
    "Level",
    "Value",
    "applied",
    "configure",
    "decision",
    "event",
]

VALUE_LIMIT = 4096
"""Characters of one value: a trace of forty places. An entity has 255 in each of its parts."""

Level = Literal["debug", "info", "warning", "error"]
Value = str | int | float | bool | None

T = TypeVar("T")

_ROOT = logging.getLogger()
_LOGGER = logging.getLogger("gateway")
_FIELDS = "gateway_fields"
_LEVELS = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
}


@value(frozen=True, slots=True, kw_only=True)
class Decided:
    """One request and what became of it. ``None`` is left out of the line.

    ``key_digest``: hex, the row's primary key; never the key itself. ``fence`` is the request's,
    ``caller``: the address that it came from, as far as that can be believed;
    ``mark`` the entity's high-water mark after it. ``decision`` is the name of the decision,
    ``outcome`` what ``Gateway-Outcome`` said, ``problem`` the problem type. Durations in
    milliseconds: of the whole request, and of its parts. ``cache``: which one a replay came from,
    if one.
    """

    request_id: str
    status: int
    outcome: str
    caller: str | None = None
    tenant: str | None = None
    principal: str | None = None
    policy: str | None = None
    entity: str | None = None
    key_digest: str | None = None
    fence: int | None = None
    mark: int | None = None
    decision: str | None = None
    problem: str | None = None
    attempt: str | None = None
    upstream_status: int | None = None
    duration_ms: float | None = None
    admit_ms: float | None = None
    wait_ms: float | None = None
    send_ms: float | None = None
    settle_ms: float | None = None
    cache: str | None = None


_DECIDED = tuple(each.name for each in fields(Decided))
_STARTS = tuple(f', "{name}": ' for name in _DECIDED)
_values: Callable[[Decided], tuple[Value, ...]] = attrgetter(*_DECIDED)


def configure(
    level: Level = "info", stream: TextIO | None = None, *, messages: bool = True
) -> None:
    """Log to ``stream`` (default stderr) as JSON, whichever library speaks. May be repeated.

    ``messages``: whether the messages of exceptions are kept. In a gateway they hold what callers
    and upstreams sent; in a worker they are its owner's own words.
    """
    handler = _Lines(sys.stderr if stream is None else stream)
    handler.setFormatter(_JsonFormatter(messages))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(max(_LEVELS[level], logging.INFO))  # other people's debug lines help nobody
    _LOGGER.setLevel(_LEVELS[level])
    # A line that cannot be written (disk full, pipe closed) must not become output of its own.
    logging.raiseExceptions = False


def decision(decided: Decided) -> None:
    """Log one decision (level info)."""
    if not _LOGGER.isEnabledFor(logging.INFO):
        return
    values = _values(decided)
    match _ROOT.handlers:
        case [_Lines() as ours]:  # nearly always: a line for each request has to be cheap
            ours.write(_decision(values))
        case _:
            found = zip(_DECIDED, values, strict=True)
            given: dict[str, Value] = {name: each for name, each in found if each is not None}
            _emit(logging.INFO, "decision", given)


def applied(
    request_id: str,
    status: int,
    caller: str | None,
    tenant: str,
    command: Command,
    upstream_status: int,
    seconds: tuple[float, float, float, float],
) -> bool:
    """``decision``, for a command that was sent, answered and recorded: nearly all are, and a line
    of one shape costs a third. False where ``decision`` has to write it. ``seconds``: all, admit,
    send, settle."""
    if not _LOGGER.isEnabledFor(logging.INFO):
        return True
    total_s, admit_s, send_s, settle_s = seconds
    handlers = _ROOT.handlers
    ours = handlers[0] if len(handlers) == 1 else None
    if type(ours) is _Lines and len(command.entity) + len(command.principal) <= VALUE_LIMIT:
        at = "" if caller is None else f', "caller": {_quoted(caller)}'
        fence = "" if command.fence is None else f', "fence": {command.fence}'
        ours.write(
            f'{{"time": "{_stamp(time.time())}", "level": "info", "event": "decision"'
            f', "request_id": {_quoted(request_id)}, "status": {status}, "outcome": "applied"{at}'
            f', "tenant": {_quoted(tenant)}, "principal": {_quoted(command.principal)}'
            f', "policy": {_quoted(command.policy)}, "entity": {_quoted(command.entity)}'
            f', "key_digest": "{command.key_digest.hex()}"{fence}, "decision": "Forward"'
            f', "attempt": "{command.attempt}", "upstream_status": {upstream_status}'
            f', "duration_ms": {total_s * 1000:.3f}, "admit_ms": {admit_s * 1000:.3f}'
            f', "send_ms": {send_s * 1000:.3f}, "settle_ms": {settle_s * 1000:.3f}}}\n'
        )
        return True
    return False


def event(name: str, *, level: Level = "info", **values: Value) -> None:
    """Log one event of the process, e.g. ``event("draining", attempts=3)``."""
    number = _LEVELS[level]
    if _LOGGER.isEnabledFor(number):
        _emit(number, name, values)


def _emit(level: int, name: str, values: dict[str, Value]) -> None:
    # Built by hand: the ordinary way walks the stack for every line to find out who called.
    record = _LOGGER.makeRecord(_LOGGER.name, level, "", 0, name, (), None)
    record.__dict__[_FIELDS] = values
    _LOGGER.handle(record)


def _short(value: T) -> T | str:
    """``value``, cut where somebody made it long."""
    if isinstance(value, str) and len(value) > VALUE_LIMIT:
        return value[:VALUE_LIMIT] + "…"
    return value


def _decision(values: tuple[Value, ...]) -> str:
    """The line that the formatter would make."""
    parts = [f'{{"time": "{_stamp(time.time())}", "level": "info", "event": "decision"']
    for start, each in zip(_STARTS, values, strict=True):
        if each is not None:
            if not isinstance(each, str):
                parts += (start, repr(each))
            elif len(each) <= VALUE_LIMIT:
                parts += (start, _quoted(each))
            else:
                parts += (start, _quoted(_short(each)))
    parts.append("}\n")
    return "".join(parts)


def _stamp(at: float) -> str:
    """UTC to the millisecond."""
    seconds = int(at)
    return f"{_second(seconds)}.{int((at - seconds) * 1000):03}Z"


@lru_cache(2)
def _second(at: int) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat().removesuffix("+00:00")


class _Lines(logging.StreamHandler[TextIO]):
    """Where all lines go: those of decisions in one write for each turn of the event loop, since
    a write costs more than its line; any other at once, and what waits before it. So whoever is
    killed loses the decisions of a turn at most, which is milliseconds."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__(stream)
        self._waiting: list[str] = []

    def write(self, line: str) -> None:
        """``line`` ends itself. What cannot be written is lost, as with any other line."""
        self._waiting.append(line)
        if len(self._waiting) > 1:
            return  # whoever came first has asked for the turn's end
        try:
            asyncio.get_running_loop().call_soon(self.flush)
        except RuntimeError:  # no loop: nobody else would write it
            self.flush()

    def emit(self, record: logging.LogRecord) -> None:
        self.flush()
        super().emit(record)

    def flush(self) -> None:
        """Also by ``logging`` itself as the process ends."""
        with self.lock or nullcontext(), suppress(OSError, ValueError):
            if self._waiting:
                lines, self._waiting = self._waiting, []
                self.stream.write("".join(lines))
            super().flush()


class _JsonFormatter(logging.Formatter):
    def __init__(self, messages: bool) -> None:
        super().__init__()
        self._messages = messages

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": _stamp(record.created),
            "level": record.levelname.lower(),
        }
        values = record.__dict__.get(_FIELDS)
        if values is None:  # another library's, or an ordinary call of this package
            line |= {"event": "log", "logger": record.name, "message": _short(record.getMessage())}
        else:
            own = ((k, _short(v)) for k, v in values.items() if k not in line)
            line |= {"event": record.msg, **dict(own)}
        if record.exc_info and record.exc_info[1] is not None:
            line["exception"] = (
                self.formatException(record.exc_info)
                if self._messages
                else trace(record.exc_info[1])
            )
        return json.dumps(line, ensure_ascii=True, default=str)
