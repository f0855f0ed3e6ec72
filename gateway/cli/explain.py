"""``explain``: what a request means to the gateway, and what would happen to it now."""

from __future__ import annotations

import argparse
import asyncio
import re
import sys
from pathlib import Path
from urllib.parse import urlsplit

from gateway.cli import explained
from gateway.cli.at_hand import Lenient
from gateway.cli.database import check_tenant, on_database
from gateway.cli.options import Subparsers, add_command, stdin, text
from gateway.cli.rehearsal import Rehearsal, Sought, by_policies_alone, rehearse
from gateway.cli.server import add_policies, read_policies
from gateway.core.model import Headers
from gateway.errors import AnswerLost, ConfigurationError, FencegateError, StoreUnavailable
from gateway.observe.text import one_line
from gateway.policy.schema import MAX_BODY
from gateway.store.database import Database

__all__ = ["register"]

_METHOD = re.compile(r"[A-Z][A-Z0-9-]*")
_FIELD_NAME = re.compile(rb"[A-Za-z0-9!#$%&'*+.^_`|~-]+")  # RFC 9110 §5.6.2
_CONTROL = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")

# What curl adds to a request with --data or --json.
_AS_FORM: Headers = ((b"content-type", b"application/x-www-form-urlencoded"),)
_AS_JSON: Headers = ((b"content-type", b"application/json"), (b"accept", b"application/json"))


def register(subparsers: Subparsers) -> None:
    parser = add_command(
        subparsers,
        "explain",
        _explain,
        summary="say what a request means to the gateway, and what would happen to it now",
        details="Nothing is sent and nothing is written. It takes the gateway's policies and\n"
        "database. PATH may carry a query, and may be a whole URL as it was given to curl.\n"
        "Where the key was used for something else, it names the paths that differ.\n"
        "Bodies, credentials and the values of upstream_headers are never shown.",
        example="fencegate explain POST /legacy/v1/invoices/inv-1/capture \\\n"
        "      -H 'Idempotency-Key: pay-1' -H 'X-Execution-Fence: 2' \\\n"
        '      -H \'Content-Type: application/json\' -d \'{"amount": 9900, "currency": "EUR"}\'',
    )
    parser.add_argument("method", type=_method, metavar="METHOD", help="e.g. POST")
    parser.add_argument("target", type=_target, metavar="PATH", help="as it is sent to the gateway")
    parser.add_argument(
        "-H",
        "--header",
        dest="headers",
        type=_header,
        action="append",
        default=[],
        metavar="'NAME: VALUE'",
        help="a field of the request; as often as needed",
    )
    body = parser.add_mutually_exclusive_group()
    body.add_argument(
        "-d",
        "--data",
        "--data-raw",
        type=_data,
        action="append",
        metavar="TEXT",
        help="the body itself; as with curl a form, unless a Content-Type says otherwise, and "
        "several are joined with &",
    )
    body.add_argument("--json", type=_data, metavar="TEXT", help="the body itself, as JSON")
    body.add_argument("--body", metavar="FILE", help="the file that holds the body; - is stdin")
    parser.add_argument(
        "--tenant",
        type=text,
        help="whose request (default: that of the gateway key in Authorization, else default)",
    )
    add_policies(parser)
    parser.add_argument(
        "--format", choices=("text", "json"), default="text", help="json: one object, for programs"
    )


def _explain(options: argparse.Namespace) -> int:
    sought = _sought(options)
    environment = Lenient()
    policies = read_policies(options, environment)
    if policies is None:
        return 1

    async def work(database: Database) -> Rehearsal:
        await check_tenant(database, options.tenant)
        return await rehearse(database, policies, sought, options.tenant)

    try:
        seen = on_database(work)
    except (ConfigurationError, StoreUnavailable, AnswerLost) as error:
        seen = asyncio.run(by_policies_alone(policies, sought, options.tenant))
        explained.print_out(seen, options.format, environment.lacked)
        sys.stdout.flush()  # before the error, where both go to one place
        if isinstance(error, ConfigurationError):
            raise FencegateError(str(error)) from error
        raise
    explained.print_out(seen, options.format, environment.lacked)
    return 0


def _sought(options: argparse.Namespace) -> Sought:
    path, _, query = options.target.partition(b"?")
    headers: Headers = tuple(options.headers)
    body = b""
    added: Headers = ()
    if options.data is not None:
        body, added = b"&".join(options.data), _AS_FORM
    elif options.json is not None:
        body, added = options.json, _AS_JSON
    elif options.body is not None:
        body = _read(options.body)
    typed = {name for name, _ in headers}
    headers += tuple(field for field in added if field[0] not in typed)
    return Sought(options.method, path, query, headers, body)


def _read(file: str) -> bytes:
    """At most a byte more than any policy lets through; it is for the intake to refuse that."""
    try:
        if file == "-":
            return stdin(MAX_BODY + 1)
        with Path(file).open("rb") as opened:
            return opened.read(MAX_BODY + 1)
    except IsADirectoryError:
        raise ConfigurationError(
            f"--body {one_line(file)} is a folder; name the file that holds the body"
        ) from None
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        reason = getattr(error, "strerror", None) or error
        raise ConfigurationError(
            f"--body {one_line(file)} cannot be read ({reason}); name a file, or - for stdin"
        ) from None


def _method(value: str) -> str:
    if _METHOD.fullmatch(value):
        return value
    if _METHOD.fullmatch(value.upper()):
        raise argparse.ArgumentTypeError(
            f"{value!r} is another method to HTTP; write {value.upper()}"
        )
    raise argparse.ArgumentTypeError(f"{value!r} is no method; write e.g. POST")


def _target(value: str) -> bytes:
    """Path and query; of a whole URL, its origin is dropped, and the fragment as clients do."""
    if value.startswith("/"):
        return _raw(value)
    try:
        parts = urlsplit(value)
    except ValueError:
        parts = urlsplit("")
    if parts.scheme not in ("http", "https") or not parts.netloc:
        raise argparse.ArgumentTypeError(
            f"{value!r} is no path; begin it with a slash, or write a whole http:// URL"
        )
    rest = value.partition("://")[2].partition("#")[0]
    start = min((rest.find(mark) for mark in "/?" if mark in rest), default=len(rest))
    target = rest[start:]
    return _raw(target if target.startswith("/") else f"/{target}")


def _header(value: str) -> tuple[bytes, bytes]:
    name, colon, rest = _raw(value).partition(b":")
    if not colon:
        raise argparse.ArgumentTypeError(f"{value!r} has no colon; write 'Name: value'")
    if not _FIELD_NAME.fullmatch(name):
        raise argparse.ArgumentTypeError(f"{value!r} has no usable name; write 'Name: value'")
    line = rest.strip(b" \t")
    if _CONTROL.search(line):
        raise argparse.ArgumentTypeError(
            f"the value of {name.decode()} holds a control character; write it on one line"
        )
    return name.lower(), line


def _data(value: str) -> bytes:
    if value.startswith("@"):
        raise argparse.ArgumentTypeError(
            f"{value!r} is not read as a file; write --body {value[1:] or 'FILE'}"
        )
    return _raw(value)


def _raw(value: str) -> bytes:
    """The bytes that were typed, be they UTF-8 or not."""
    return value.encode("utf-8", "surrogateescape")
