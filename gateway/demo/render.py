"""How the story looks: plain text, with colours on a terminal."""

from __future__ import annotations

import os
import textwrap
from collections.abc import Sequence
from typing import TextIO

from gateway.demo.ledger import Row
from gateway.demo.wire import Answer

__all__ = ["Narrator"]

_WIDTH = 92
_CODES = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "cyan": "36"}
_TELLING = ("idempotent", "gateway-", "x-execution", "authorization")


class Narrator:
    """Prints the story to `out`; coloured only where a person looks and has not said no."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        wanted = not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
        self._coloured = wanted and out.isatty()
        self._checked = False

    def act(self, title: str, words: str) -> None:
        self._checked = False
        self._line()
        self._line(self._paint(f"== {title} ".ljust(_WIDTH, "="), "bold"))
        self.say(words)

    def scene(self, number: int, title: str) -> None:
        self._checked = False
        self._line()
        self._line(self._paint(f"-- {number}. {title} ".ljust(_WIDTH, "-"), "bold", "cyan"))

    def say(self, words: str) -> None:
        if self._checked:  # narration goes on: some air after what it led to
            self._line()
        self._checked = False
        for line in textwrap.wrap(words, _WIDTH):
            self._line(line)

    def sent(self, lines: Sequence[str]) -> None:
        """A request as it left."""
        self._line()
        self._wire(lines, "cyan")

    def came_back(self, answer: Answer) -> None:
        """An answer as it came, or that none came."""
        if answer.status is None:
            self._line("    " + self._paint(f"! {answer.reason}", "bold", "red"))
            return
        self._wire(answer.lines, _colour(answer.status))

    def typed(self, command: str, output: str) -> None:
        """A command line and what it printed."""
        self._line()
        self._line("    " + self._paint(f"$ {command}", "bold"))
        for line in output.rstrip().splitlines():
            self._line(f"    {line}")

    def checked(self, holds: bool, words: str) -> None:
        mark = self._paint("ok ", "green") if holds else self._paint("NOT", "bold", "red")
        self._line(f"  {mark} {words}")
        self._checked = True

    def table(self, rows: Sequence[Row]) -> None:
        width = max(len(row.title) for row in rows)
        head = f"{'':{width}}  {'intended':>8}  {'without the gateway':>19}  {'with it':>7}"
        self._line()
        self._line(self._paint(head, "bold"))
        for row in rows:
            if row is rows[-1]:
                self._line("-" * len(head))
            without = self._count(f"{row.without:>19}", row.without == row.intended)
            with_it = self._count(f"{row.with_gateway:>7}", row.with_gateway == row.intended)
            self._line(f"{row.title:{width}}  {row.intended:>8}  {without}  {with_it}")

    def verdict(self, differences: Sequence[str]) -> None:
        self._line()
        if not differences:
            words = "VERDICT: one effect per command with the gateway, duplicates without it."
            self._line(self._paint(words, "bold", "green"))
            return
        self._line(self._paint("VERDICT: this is not what was to be shown.", "bold", "red"))
        for each in differences:
            self._line(f"  - {each}")

    def verbatim(self, text: str) -> None:
        """To be copied: neither wrapped nor coloured."""
        for line in text.splitlines():
            self._line(line)

    def _wire(self, lines: Sequence[str], colour: str) -> None:
        """Status line, header fields (those that tell something stand out), body."""
        body = len(lines)
        for number, line in enumerate(lines):
            if len(line) <= 1:
                body = number
            telling = number > body or line[2:].lower().startswith(_TELLING)
            styles = ("bold", colour) if number == 0 else () if telling else ("dim",)
            # Long bodies are folded here, whatever the terminal would make of them.
            folded = textwrap.wrap(
                line, _WIDTH, subsequent_indent=line[:1] + "   ", break_on_hyphens=False
            )
            for part in folded or [line]:
                self._line("    " + self._paint(part, *styles))

    def _count(self, text: str, good: bool) -> str:
        return self._paint(text, "green" if good else "red")

    def _paint(self, text: str, *styles: str) -> str:
        if not self._coloured or not styles:
            return text
        return f"\x1b[{';'.join(_CODES[style] for style in styles)}m{text}\x1b[0m"

    def _line(self, text: str = "") -> None:
        print(text, file=self._out, flush=True)


def _colour(status: int) -> str:
    if status < 300:
        return "green"
    return "yellow" if status < 500 else "red"
