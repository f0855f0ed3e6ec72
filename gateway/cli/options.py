"""Options that several commands share, and how their texts are read."""

from __future__ import annotations

import argparse
import getpass
import os
import re
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, NoReturn, TypeAlias
from uuid import UUID

from gateway.core.jobs import REASON_LIMIT
from gateway.core.keys import Refusal, check_key
from gateway.errors import ConfigurationError
from gateway.observe.text import one_line

__all__ = [
    "EXAMPLE_STYLE",
    "LIMIT",
    "Parser",
    "Subparsers",
    "add_command",
    "add_format",
    "add_group",
    "add_limit",
    "add_operator",
    "exact",
    "job_id",
    "key",
    "moment",
    "name",
    "operator_name",
    "reason",
    "stdin",
    "text",
]

Subparsers: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"

EXAMPLE_STYLE = argparse.RawDescriptionHelpFormatter

LIMIT = 100
"""Rows that a list shows unless told otherwise: two or three screens."""

_AGO = re.compile(r"([0-9]{1,6})([smhd])(?: ago)?")
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


class Parser(argparse.ArgumentParser):
    """As the base class, but mistakes are one line, and an option has one spelling: what is short
    for one today may be short for two tomorrow."""

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **{"allow_abbrev": False, **named})

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {one_line(message)}; see: {self.prog} --help\n")


def add_command(
    subparsers: Subparsers,
    name: str,
    run: Callable[[argparse.Namespace], int],
    *,
    summary: str,
    example: str,
    details: str = "",
) -> argparse.ArgumentParser:
    """A command with its help: a sentence, details, and an example to paste."""
    parser = subparsers.add_parser(
        name,
        help=summary,
        description=f"{summary[:1].upper()}{summary[1:]}.\n{details}",
        epilog=f"example:\n  {example}",
        formatter_class=EXAMPLE_STYLE,
    )
    parser.set_defaults(run=run, parser=parser)
    return parser


def add_group(
    subparsers: Subparsers, name: str, *, summary: str, details: str, example: str
) -> Subparsers:
    """The place for the commands of a group, with its help: a sentence, details and an example."""
    return subparsers.add_parser(
        name,
        help=summary,
        description=f"{summary[:1].upper()}{summary[1:]}.\n{details}",
        epilog=f"example:\n  {example}",
        formatter_class=EXAMPLE_STYLE,
    ).add_subparsers(metavar="COMMAND", required=True)


def add_format(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--format",
        choices=("table", "jsonl", "csv"),
        default="table",
        help="table for people (default), jsonl or csv for programs; always one line per row",
    )


def add_limit(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--limit",
        type=_limit,
        default=LIMIT,
        metavar="N",
        help=f"rows at most, 0 for all (default {LIMIT})",
    )


def add_operator(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--by",
        type=text,
        metavar="NAME",
        help="who does this, for the audit (default: the name of the user who types it)",
    )


def operator_name(options: argparse.Namespace) -> str:
    """For the audit; best effort, it authenticates nobody."""
    if options.by:
        return str(options.by)
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container whose user has no entry
        return f"uid-{os.getuid()}"


def text(value: str) -> str:
    """Any text but an empty one, and one that UTF-8 can hold; without blanks at its ends."""
    return exact(value).strip()


def exact(value: str) -> str:
    """As ``text``, but as it was written: what is looked for may have come over HTTP."""
    if not value.strip():
        raise argparse.ArgumentTypeError("must not be empty")
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        raise argparse.ArgumentTypeError("is not UTF-8") from None
    return value


def name(value: str) -> str:
    """A text by which something will be known: one with a blank at an end is a slip, and without
    it the name of another thing."""
    given = exact(value)
    if given != given.strip():
        raise argparse.ArgumentTypeError(f"{value!r} begins or ends with a blank; take it out")
    return given


def reason(value: str) -> str:
    """A text that says something: not the placeholder of a line that was pasted unchanged."""
    given = text(value)
    if len(given) > REASON_LIMIT:
        raise argparse.ArgumentTypeError(
            f"has {len(given)} characters; say it in {REASON_LIMIT} at most"
        )
    if given.strip("\"'<>…. ").upper() in ("", "REASON"):
        raise argparse.ArgumentTypeError(f"{given!r} is no reason; say how that is known")
    return given


def stdin(most: int) -> bytes:
    """At most so many bytes of standard input."""
    if sys.stdin is None:
        raise ConfigurationError("standard input is closed; name a file, or send it there")
    try:
        return sys.stdin.buffer.read(most)
    except OSError as error:  # a folder, or a terminal that is gone
        raise ConfigurationError(
            f"standard input cannot be read ({error.strerror}); name a file"
        ) from None


def key(value: str) -> str:
    """An idempotency key, spelled as the audit and the lists spell it (without quotes)."""
    checked = check_key(value)
    if isinstance(checked, Refusal):
        raise argparse.ArgumentTypeError(checked.detail)
    return checked


def job_id(value: str) -> UUID:
    """A job, by its id."""
    try:
        return UUID(value)
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{value!r} is no job; write its id, as `fencegate jobs list` shows it"
        ) from None


def moment(value: str) -> datetime | timedelta:
    """A moment (RFC 3339), or how long ago (``15m``)."""
    if ago := _AGO.fullmatch(value.strip()):
        return timedelta(**{_UNITS[ago[2]]: int(ago[1])})
    try:
        found = datetime.fromisoformat(value)
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{value!r} is no time; write 2026-01-31T12:00:00Z, or 15m, 2h, 1d for so long ago"
        ) from None
    if found.tzinfo is None:
        raise argparse.ArgumentTypeError(f"{value!r} lacks its time zone; put Z behind it for UTC")
    try:
        found.astimezone(UTC)
    except OverflowError:
        raise argparse.ArgumentTypeError(
            f"{value!r} is not within the years 1 to 9999 in UTC; write another time"
        ) from None
    return found


def _limit(value: str) -> int | None:
    if not value.isascii() or not value.isdigit() or len(value) > 9:
        raise argparse.ArgumentTypeError(f"{value!r} is no number; write 0 for all")
    return int(value) or None
