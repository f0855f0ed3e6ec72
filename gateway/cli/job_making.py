"""``jobs enqueue``."""

from __future__ import annotations

import argparse
import sys
from contextlib import suppress
from datetime import datetime, timedelta
from pathlib import Path
from uuid import uuid4

from gateway.cli.database import no_tenant, on_database
from gateway.cli.options import Subparsers, add_command, moment, name, stdin, text
from gateway.cli.server import add_policies
from gateway.core.canonical import Unreadable, read_json
from gateway.core.jobs import PAYLOAD_LIMIT, Enqueued, NewJob, mistakes_in
from gateway.core.template import Invalid, check_value
from gateway.errors import AnswerLost, ConfigurationError, FencegateError
from gateway.observe.text import one_line
from gateway.policy import PolicyErrors
from gateway.policy.tools import load_tools
from gateway.settings import load_settings
from gateway.store.database import Database
from gateway.store.job_reads import database_now, tenant_named
from gateway.store.jobs import JobStore

__all__ = ["register"]


def register(group: Subparsers) -> None:
    parser = add_command(
        group,
        "enqueue",
        _enqueue,
        summary="queue one job, and print its id",
        details="A key names one job for good: with a known one nothing is queued, the id of the\n"
        "first job is printed, and the exit code is 1 if that one has another tool or payload.",
        example="fencegate jobs enqueue charge '{\"amount\": 1200}' --key order-17 \\\n"
        "      --entity invoice:123",
    )
    parser.add_argument("tool", type=text, metavar="TOOL", help="one of tools.toml")
    parser.add_argument(
        "payload",
        nargs="?",
        default="{}",
        metavar="PAYLOAD",
        help="a JSON document, kept as it is; @FILE reads it from there, - from stdin (default {})",
    )
    parser.add_argument("--key", type=name, help="one job for each key (default: the job's id)")
    parser.add_argument(
        "--entity", type=name, help="what its fence protects (default: job:ID, its own)"
    )
    parser.add_argument("--session", type=name, help="what it belongs to, to be cancelled with it")
    parser.add_argument("--on-behalf", type=name, metavar="USER", help="for whom, for limits")
    parser.add_argument("--model", type=text, help="which model asked for it")
    parser.add_argument("--provider", type=text, help="whose model that is")
    parser.add_argument("--stage", type=text, help="the name of its first stage")
    parser.add_argument(
        "--priority", type=int, default=5, metavar="N", help="1 is the soonest, 9 the last"
    )
    when = "2026-01-31T12:00:00Z, or 15m, 2h, 1d from now"
    parser.add_argument("--run-at", type=_ahead, metavar="TIME", help=f"not before: {when}")
    parser.add_argument("--give-up-at", type=_ahead, metavar="TIME", help=f"not after: {when}")
    parser.add_argument(
        "--tenant", type=text, default="default", help="whose job (default: default)"
    )
    add_policies(parser)


def _enqueue(options: argparse.Namespace) -> int:
    _check_tool(options)
    payload = _payload(options.payload)

    async def work(database: Database) -> int:
        tenant = await tenant_named(database, options.tenant)
        if tenant is None:
            raise FencegateError(no_tenant(options.tenant))
        job = await _new(database, options, payload)
        store = JobStore(database)
        try:
            (done,) = await store.enqueue(tenant.number, [job])
        except AnswerLost:  # under the same id the second try finds what the first did
            (done,) = await store.enqueue(tenant.number, [job])
        return _say(done, job)

    return on_database(work)


def _check_tool(options: argparse.Namespace) -> None:
    directory: Path = options.policies or load_settings().policies_dir
    try:
        tools = load_tools(directory)
    except PolicyErrors as errors:
        raise FencegateError("\n".join(str(error) for error in errors.errors)) from None
    if options.tool in tools.by_name:
        return
    where = "" if tools.by_name else f" in {directory}, or name another folder with --policies"
    raise FencegateError(tools.unknown(options.tool) + where)


def _payload(given: str) -> bytes:
    raw = _read(given)
    if len(raw) > PAYLOAD_LIMIT:
        raise ConfigurationError(
            f"the payload has more than {PAYLOAD_LIMIT} bytes; put it elsewhere and send a "
            "reference"
        )
    read = read_json(raw)
    if isinstance(read, Unreadable):
        raise ConfigurationError(f"the payload {one_line(read.reason)}")
    return raw


def _read(given: str) -> bytes:
    """At most a byte more than a payload may have."""
    if given == "-":
        return stdin(PAYLOAD_LIMIT + 1)
    if not given.startswith("@"):
        return given.encode("utf-8", "surrogateescape")
    try:
        with Path(given[1:]).open("rb") as file:
            return file.read(PAYLOAD_LIMIT + 1)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        why = getattr(error, "strerror", None) or error
        raise ConfigurationError(
            f"{one_line(given)} cannot be read ({why}); name a file, or - for stdin"
        ) from None


async def _new(database: Database, options: argparse.Namespace, payload: bytes) -> NewJob:
    if options.entity is not None:
        # As everywhere: any other text names an entity that no command can have.
        checked = check_value(options.entity, "--entity")
        if isinstance(checked, Invalid):
            raise ConfigurationError(checked.reason)
    job = uuid4()
    new = NewJob(
        id=job,
        key=options.key or str(job),
        tool=options.tool,
        payload=payload,
        entity=options.entity,
        session=options.session,
        on_behalf=options.on_behalf,
        model=options.model,
        provider=options.provider,
        stage=options.stage,
        priority=options.priority,
        run_at=await _moment(database, options.run_at),
        give_up_at=await _moment(database, options.give_up_at),
    )
    found = mistakes_in(new)
    if found:
        raise ConfigurationError("\n".join(map(_of_option, found)))
    return new


def _of_option(mistake: str) -> str:
    """``on_behalf: …`` as the option spells it."""
    field, colon, rest = mistake.partition(":")
    return f"--{field.replace('_', '-')}{colon}{rest}"


async def _moment(database: Database, given: datetime | timedelta | None) -> datetime | None:
    """``given`` as a moment; so long from now on the database's clock."""
    if isinstance(given, timedelta):
        return await database_now(database) + given
    return given


def _ahead(value: str) -> datetime | timedelta:
    """A moment, or how long from now; what lies behind is for the database to pass over."""
    if not value.strip().endswith("ago"):
        with suppress(argparse.ArgumentTypeError):
            return moment(value)
    raise argparse.ArgumentTypeError(
        f"{value!r} is no time; write 2026-01-31T12:00:00Z, or 15m, 2h, 1d for so long from now"
    )


def _say(done: Enqueued, job: NewJob) -> int:
    print(done.job)
    if done.created:
        return 0
    sys.stdout.flush()  # before what is said of it, where both go to one place
    named = f"key {one_line(job.key)} already names job {done.job}, which is {done.state}"
    if done.state == "forgotten":
        print(
            f"fencegate: key {one_line(job.key)} named job {done.job}, which is forgotten; nothing "
            "was queued. For another wish take another key",
            file=sys.stderr,
        )
        return 1
    if done.same:
        print(f"fencegate: {named}; nothing was queued", file=sys.stderr)
        return 0
    print(
        f"fencegate: {named} and has another tool or payload; nothing was queued. For another "
        f"wish take another key; see: fencegate jobs show {done.job}",
        file=sys.stderr,
    )
    return 1
