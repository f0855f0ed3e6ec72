"""The parser, and what becomes of failures."""

from __future__ import annotations

import argparse
import errno
import os
import sys
from collections.abc import Sequence

from gateway import __version__
from gateway.cli import (
    audit,
    commands,
    doctor,
    drill,
    explain,
    faults,
    jobs,
    keys,
    losses,
    retention,
    schema,
    server,
    worker,
)
from gateway.cli.options import EXAMPLE_STYLE, Parser
from gateway.errors import AnswerLost, ConfigurationError, FencegateError, StoreUnavailable
from gateway.observe.crash import trace
from gateway.observe.text import one_line

__all__ = ["main"]

_DESCRIPTION = """\
Fencegate stands between workers and HTTP APIs that cannot undo what they do.

It admits a command once per idempotency key, refuses writes of workers that lost
their lease, and never sends again what may have happened.
"""

_EPILOG = """\
Settings come from environment variables that begin with FENCEGATE_. Without
FENCEGATE_DATABASE_URL an embedded PostgreSQL in FENCEGATE_DATA_DIR (./.fencegate) is used.

example:
  fencegate serve --policies ./policies
"""

_MODULES = (
    *(server, explain, schema, keys, commands, jobs, worker, audit),
    *(retention, losses, doctor, drill, faults),
)
"""Each registers its commands; in the order of the help."""

# What a full disk, a quota or a broken one makes of writing; anything else is a mistake of ours.
_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO})


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code. ``argv`` is without the program's name."""
    if sys.stdout is None:  # Python's word for a closed one; the next file would be in its place
        print("fencegate: standard output is closed; send it somewhere", file=sys.stderr)
        return 2
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments[:1] == ["help"]:  # `fencegate help keys add` is `fencegate keys add --help`
        arguments = [*arguments[1:], "--help"]
    try:
        code = _run(arguments)
        sys.stdout.flush()  # here, where a closed pipe is still an answer and not a complaint
    except FencegateError as error:
        return _fail(error)
    except BrokenPipeError:
        # `fencegate audit | head` ends early on purpose. Nothing may be written at exit either.
        _leave_stdout()
        return 0
    except OSError as error:
        if error.errno not in _NO_ROOM:
            raise
        _leave_stdout()
        return _fail(FencegateError(f"the output cannot be written ({error.strerror}); make room"))
    except KeyboardInterrupt:
        return 130
    except Exception as error:  # noqa: BLE001 - a mistake of ours; its message may hold anything
        print(
            f"fencegate: this is a mistake in fencegate; please report it:\n{trace(error)}",
            file=sys.stderr,
        )
        return 70  # EX_SOFTWARE
    return code


def _run(arguments: list[str]) -> int:
    if not arguments:
        _parser().print_help(sys.stderr)
        return 2
    if arguments[:1] == ["demo"]:  # it has options of its own, its --help included
        return server.demo(arguments[1:])
    options, unknown = _parser().parse_known_args(arguments)
    if unknown:
        options.parser.error(f"unrecognized arguments: {' '.join(unknown)}")
    return int(options.run(options))


def _leave_stdout() -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _fail(error: FencegateError) -> int:
    code = 2 if isinstance(error, ConfigurationError) else 1
    # Lists of mistakes have a line each; what comes from elsewhere within a line stays in it.
    lines = [one_line(line) for line in _explain(error).splitlines()]
    print("fencegate: " + "\n  ".join(lines), file=sys.stderr)
    return code


def _explain(error: FencegateError) -> str:
    match error:
        case StoreUnavailable() if error.code is None:
            return (
                f"the database cannot be reached ({error}); check that it runs and that "
                "FENCEGATE_DATABASE_URL is right"
            )
        case StoreUnavailable():
            return f"the database refused: {error}"
        case AnswerLost():
            return (
                f"the database's answer was lost ({error}), so it may have been done; look before "
                "you repeat it (fencegate keys list, commands show, jobs show, audit)"
            )
        case _:
            return str(error)


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        "fencegate", description=_DESCRIPTION, epilog=_EPILOG, formatter_class=EXAMPLE_STYLE
    )
    parser.add_argument("--version", action="version", version=f"fencegate {__version__}")
    subparsers = parser.add_subparsers(metavar="COMMAND", required=True)
    for module in _MODULES:
        module.register(subparsers)
    subparsers.add_parser("help", help="show this, or the help of the command behind it")
    return parser
