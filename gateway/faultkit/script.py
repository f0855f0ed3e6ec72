"""What the scriptable upstream answers, as written in an answers file or sent over HTTP."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, assert_never, cast, get_args

from gateway.errors import ConfigurationError
from gateway.faultkit.answers import Answer, Gate, cut, gated, hang, respond
from gateway.faultkit.rules import encoded
from gateway.faultkit.upstream import Recorded

__all__ = ["Line", "Script", "parse_line"]

Do = Literal["respond", "cut", "reset", "hang"]

_FIELDS = frozenset({"match", "do", "status", "body", "delay_ms", "effect", "times"})


@dataclass(frozen=True, slots=True)
class Line:
    """What becomes of requests whose request line begins with ``match``.

    ``respond`` answers, ``cut`` and ``reset`` end the connection without a byte, ``hang`` never
    answers. ``delay_ms``: so much later. ``effect``: whether it counts as done; by default an
    answer below 400 does, and so does every one that was not given. ``times``: for so many
    requests, ``None`` for all.
    """

    match: bytes = b""
    do: Do = "respond"
    status: int = 200
    body: bytes = b""
    delay_ms: int = 0
    effect: bool | None = None
    times: int | None = 1

    def answer(self) -> Answer:
        did = True if self.effect is None else self.effect
        match self.do:
            case "respond":
                headers = [("Content-Type", "application/json")]
                made = respond(self.status, self.body, headers, effect=self.effect)
            case "cut":
                made = cut(effect=did)
            case "reset":
                made = cut("reset", effect=did)
            case "hang":
                return hang(effect=did)
            case _:
                assert_never(self.do)
        if not self.delay_ms:
            return made
        gate = Gate()
        timer = threading.Timer(self.delay_ms / 1000, gate.release)
        timer.daemon = True
        timer.start()
        return gated(gate, made)


class Script:
    """Lines in force: the first that matches is taken. Give it to a ``RecordingUpstream``."""

    def __init__(self, lines: list[Line]) -> None:
        self._lines = [(line, [0]) for line in lines]
        self._lock = threading.Lock()

    def add(self, line: Line) -> None:
        with self._lock:
            self._lines.append((line, [0]))

    def clear(self) -> None:
        with self._lock:
            self._lines.clear()

    def __call__(self, request: Recorded) -> Answer | None:
        with self._lock:
            for line, taken in self._lines:
                left = line.times is None or taken[0] < line.times
                if left and request.head.startswith(line.match):
                    taken[0] += 1
                    return line.answer()
        return None


def parse_line(document: Mapping[str, object]) -> Line:
    """A line from TOML or JSON. Raises ``ConfigurationError`` that names the mend."""
    unknown = sorted(set(document) - _FIELDS)
    if unknown:
        raise ConfigurationError(
            f"an answer has no field {unknown[0]}; it takes {', '.join(sorted(_FIELDS))}"
        )
    do, effect = document.get("do", "respond"), document.get("effect")
    if do not in get_args(Do):
        raise ConfigurationError(f"do is {do!r}; write {', '.join(get_args(Do))}")
    if effect is not None and not isinstance(effect, bool):
        raise ConfigurationError("effect is true or false")
    return Line(
        _text(document, "match"),
        cast(Do, do),
        _number(document, "status", 200, 200, 599),
        _text(document, "body"),
        _number(document, "delay_ms", 0, 0, 3_600_000),
        effect,
        None if document.get("times") == "always" else _number(document, "times", 1, 0, 2**31),
    )


def _text(document: Mapping[str, object], name: str) -> bytes:
    text = encoded(document.get(name, ""))
    if text is None:
        raise ConfigurationError(f"{name} is {document[name]!r}; write a text")
    return text


def _number(document: Mapping[str, object], name: str, default: int, low: int, high: int) -> int:
    value = document.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise ConfigurationError(f"{name} is {value!r}; write a number from {low} to {high}")
    return value
