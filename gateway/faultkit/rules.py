"""What the fault proxy does to which answers, as written in a rules file or sent over HTTP."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, cast, get_args

from gateway.errors import ConfigurationError

__all__ = ["Action", "Rule", "Struck", "encoded", "parse_rule"]

Action = Literal["delay", "cut", "swallow", "half-close", "reset"]

_FIELDS = frozenset({"action", "match", "after", "delay_ms", "times"})
_LARGEST = 2**31


@dataclass(frozen=True, slots=True)
class Rule:
    """What becomes of the answer to a request that begins with ``match``; of every one where that
    is empty. A client's head has to come in one piece, as clients write it.

    ``delay``: it comes ``delay_ms`` later. The others let ``after`` bytes of it pass; then ``cut``
    ends the connection, ``reset`` ends it without an orderly end, ``half-close`` ends only the
    direction to the client, and ``swallow`` throws the rest away and tells nobody. An answer ends
    where its client sends again after some of it has come; what comes then meets no rule that it
    has not met itself. ``times``: for so many answers, ``None`` for all.
    """

    action: Action
    match: bytes = b""
    after: int = 0
    delay_ms: int = 0
    times: int | None = 1


@dataclass(slots=True, eq=False)
class Struck:
    """A rule in force, and how often it has struck."""

    rule: Rule
    taken: int = 0
    hits: int = 0
    _changed: threading.Condition = field(default_factory=threading.Condition)

    @property
    def spent(self) -> bool:
        return self.rule.times is not None and self.taken >= self.rule.times

    def strike(self) -> None:
        with self._changed:
            self.hits += 1
            self._changed.notify_all()

    def wait(self, timeout_s: float = 15.0) -> None:
        """Block until it has struck once. Raises ``TimeoutError``."""
        with self._changed:
            if not self._changed.wait_for(lambda: self.hits > 0, timeout_s):
                raise TimeoutError(f"nothing met {self.rule} within {timeout_s} s")


def parse_rule(document: Mapping[str, object]) -> Rule:
    """A rule from TOML or JSON. Raises ``ConfigurationError`` that names the mend."""
    unknown = sorted(set(document) - _FIELDS)
    if unknown:
        raise ConfigurationError(
            f"a rule has no field {unknown[0]}; it takes {', '.join(sorted(_FIELDS))}"
        )
    action, match = document.get("action"), document.get("match", "")
    if action not in get_args(Action):
        raise ConfigurationError(f"action is {action!r}; write {', '.join(get_args(Action))}")
    start = encoded(match)
    if start is None:
        raise ConfigurationError('match is no text; write the start of a request, "POST /v1/x"')
    delay_ms = _number(document, "delay_ms", 0)
    if (action == "delay") != (delay_ms > 0):
        raise ConfigurationError("delay_ms goes with the action delay, and is above 0 there")
    times = None if document.get("times") == "always" else _number(document, "times", 1)
    after = _number(document, "after", 0)
    return Rule(cast(Action, action), start, after, delay_ms, times)


def encoded(text: object) -> bytes | None:
    """``None`` where it is no text, or one with half a surrogate pair, as JSON may hold."""
    try:
        return text.encode() if isinstance(text, str) else None
    except UnicodeEncodeError:
        return None


def _number(document: Mapping[str, object], name: str, default: int) -> int:
    value = document.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < _LARGEST:
        raise ConfigurationError(f"{name} is {value!r}; write a number from 0 to 2147483647")
    return value
