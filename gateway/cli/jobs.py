"""``jobs``: what is to be done, who is at it, what became of it."""

from __future__ import annotations

import argparse
from typing import assert_never

from gateway.cli import job_detail, job_making
from gateway.cli.database import check_tenant, no_tenant, on_database
from gateway.cli.options import (
    Subparsers,
    add_command,
    add_format,
    add_group,
    add_limit,
    add_operator,
    exact,
    job_id,
    operator_name,
    reason,
    text,
)
from gateway.cli.rows import Cells, Writer, conclude
from gateway.core.jobs import Cancelled, Finished
from gateway.errors import FencegateError
from gateway.observe.text import one_line
from gateway.store.database import Database
from gateway.store.job_reads import (
    JobFilter,
    Listed,
    NoJob,
    NoTenant,
    Story,
    job_holders,
    job_of_key,
    job_story,
    list_jobs,
    tenant_named,
)
from gateway.store.jobs import JobStore, Shown
from gateway.store.tenants import OPERATOR

__all__ = ["register"]

_STATES = ("queued", "running", "waiting", "succeeded", "failed", "cancelled")

_COLUMNS = (
    *("state", "tenant", "job", "tool", "stage", "entity", "key", "attempts", "created_at"),
    *("owner", "fence", "remaining_ms", "error"),
)
_FULL = (
    *_COLUMNS,
    *("place", "stage_no", "session", "on_behalf", "model", "provider", "priority", "run_at"),
    *("give_up_at", "finished_at", "beat_ms"),
)

_ERROR_SHOWN = 60
"""Characters of an error's last line in the table: its end."""


def register(subparsers: Subparsers) -> None:
    group = add_group(
        subparsers,
        "jobs",
        summary="enqueue, list, show, cancel, retry and approve jobs",
        details="A job is work that one worker at a time may do, under a lease that carries the\n"
        "fence of its entity.",
        example="fencegate jobs list --state running",
    )
    job_making.register(group)
    _register_list(group)
    show = add_command(
        group,
        "show",
        _show,
        summary="show all that is recorded of one job: its leases, and its audit",
        example="fencegate jobs show --key order-17",
    )
    which = show.add_mutually_exclusive_group(required=True)
    which.add_argument("job", nargs="?", type=job_id, metavar="ID", help="the job's id")
    which.add_argument("--key", type=exact, help="instead: its key")
    _add_tenant(show)
    show.add_argument(
        "--format", choices=("text", "json"), default="text", help="json: documents as text"
    )
    _register_decisions(group)


def _register_list(group: Subparsers) -> None:
    listing = add_command(
        group,
        "list",
        _list,
        summary="list jobs: the unfinished, latest made first; then the finished, latest end first",
        example="fencegate jobs list --state failed --tool charge",
    )
    listing.add_argument("--state", choices=_STATES, help="queued: waits for a worker or its turn")
    listing.add_argument("--tool", type=text, help="what does it")
    listing.add_argument("--session", type=exact, help="what it belongs to")
    listing.add_argument("--entity", type=exact, help="of its stage now, e.g. invoice:123")
    listing.add_argument("--tenant", type=text, help="a tenant's name (default: all)")
    add_limit(listing)
    add_format(listing)


def _register_decisions(group: Subparsers) -> None:
    cancel = add_command(
        group,
        "cancel",
        _cancel,
        summary="cancel a job, or all unfinished jobs of a session",
        details="A lease ends at once: its fence is stale, its worker's result is refused. What\n"
        "was sent before goes on.",
        example="fencegate jobs cancel --session chat-7 --reason 'the user closed it'",
    )
    which = cancel.add_mutually_exclusive_group(required=True)
    which.add_argument("job", nargs="?", type=job_id, metavar="ID", help="the job's id")
    which.add_argument("--key", type=exact, help="instead: its key")
    which.add_argument("--session", type=exact, help="instead: all of this session")
    retry = add_command(
        group,
        "retry",
        _retry,
        summary="queue a failed or cancelled job again, from the stage it had come to",
        details="It keeps its id and key: commands whose final answer is on record are replayed,\n"
        "not sent, also a refusal, e.g. 402. A corrected wish is a new job with a new key.\n"
        "Its attempts begin anew, and it has no time to give up at.",
        example="fencegate jobs retry --key order-17 --reason 'the worker is mended'",
    )
    approve = add_command(
        group,
        "approve",
        _approve,
        summary="let a stage run that waits for approval",
        example="fencegate jobs approve ID --reason 'Ada agreed to 1,200.00'",
    )
    for parser in (retry, approve):
        which = parser.add_mutually_exclusive_group(required=True)
        which.add_argument("job", nargs="?", type=job_id, metavar="ID", help="the job's id")
        which.add_argument("--key", type=exact, help="instead: its key")
    for parser in (cancel, retry, approve):
        parser.add_argument("--reason", type=reason, required=True, help="why, for the audit")
        _add_tenant(parser)
        add_operator(parser)


def _add_tenant(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--tenant", type=text, default="default", help="whose job (default: default)"
    )


def _list(options: argparse.Namespace) -> int:
    wanted = JobFilter(
        tenant=options.tenant,
        state=options.state,
        tool=options.tool,
        session=options.session,
        entity=options.entity,
        limit=options.limit,
    )
    people = options.format == "table"

    async def work(database: Database) -> int:
        await check_tenant(database, options.tenant)
        writer = Writer(options.format, _COLUMNS if people else _FULL)
        async for listed in list_jobs(database, wanted):
            writer.add(_brief(listed) if people else _full(listed))
        return writer.close()

    conclude(on_database(work), options.format, options.limit, nothing="no job matches")
    return 0


def _show(options: argparse.Namespace) -> int:
    async def work(database: Database) -> int:
        found = await job_story(database, options.tenant, job=options.job, key=options.key)
        match found:
            case NoTenant(name):
                raise FencegateError(no_tenant(name))
            case NoJob(elsewhere):
                raise FencegateError(_absent(options, elsewhere))
            case Story() if options.format == "json":
                job_detail.print_json(found)
            case Story():
                job_detail.print_text(found)
            case _:
                assert_never(found)
        return 0

    return on_database(work)


def _cancel(options: argparse.Namespace) -> int:
    async def work(database: Database) -> int:
        tenant = await _tenant(database, options)
        store, by = JobStore(database), OPERATOR + operator_name(options)
        if options.session is not None:
            cancelled = 0
            for job in await store.of_session(tenant, options.session):
                if isinstance(await store.cancel(tenant, job, by, options.reason), Cancelled):
                    print(f"job {job} is cancelled")
                    cancelled += 1
            if not cancelled:
                raise FencegateError(
                    f"session {one_line(options.session)} of tenant {options.tenant} has no "
                    "unfinished job; see: fencegate jobs list --session "
                    + one_line(options.session)
                )
            return 0
        await _name(database, tenant, options)
        match await store.cancel(tenant, options.job, by, options.reason):
            case Cancelled():
                print(f"job {options.job} is cancelled: a lease on it is over, its fence is stale")
            case Finished(state):
                raise FencegateError(
                    f"job {options.job} is {state}, so there is nothing to cancel; see: "
                    + _show_line(options)
                )
            case None:
                raise FencegateError(_absent(options, await job_holders(database, options.job)))
        return 0

    return on_database(work)


def _retry(options: argparse.Namespace) -> int:
    async def work(database: Database) -> int:
        tenant = await _tenant(database, options)
        store, by = JobStore(database), OPERATOR + operator_name(options)
        await _name(database, tenant, options)
        if not await store.retry(tenant, options.job, by, options.reason):
            found = await _found(database, store, tenant, options)
            raise FencegateError(
                f"job {options.job} is {found.job.state}; only a failed or cancelled one is queued "
                f"again; see: {_show_line(options)}"
            )
        found = await _found(database, store, tenant, options)
        stage = found.job.stage or f"{found.job.stage_no}"
        print(f"job {options.job} is queued again at stage {one_line(stage)}, with fresh attempts")
        return 0

    return on_database(work)


def _approve(options: argparse.Namespace) -> int:
    async def work(database: Database) -> int:
        tenant = await _tenant(database, options)
        store, by = JobStore(database), OPERATOR + operator_name(options)
        await _name(database, tenant, options)
        if not await store.approve(tenant, options.job, by, options.reason):
            found = await _found(database, store, tenant, options)
            raise FencegateError(
                f"job {options.job} is {found.job.state} and waits for no approval; see: "
                + _show_line(options)
            )
        found = await _found(database, store, tenant, options)
        stage = found.job.stage or f"{found.job.stage_no}"
        print(f"job {options.job} may run on: stage {one_line(stage)} is approved")
        return 0

    return on_database(work)


async def _tenant(database: Database, options: argparse.Namespace) -> int:
    found = await tenant_named(database, options.tenant)
    if found is None:
        raise FencegateError(no_tenant(options.tenant))
    return found.number


async def _name(database: Database, tenant: int, options: argparse.Namespace) -> None:
    """Where a key was given, put the id of its job beside it."""
    if options.job is None:
        options.job = await job_of_key(database, tenant, options.key)
        if options.job is None:
            raise FencegateError(_absent(options, await job_holders(database, key=options.key)))


async def _found(
    database: Database, store: JobStore, tenant: int, options: argparse.Namespace
) -> Shown:
    found = await store.find(tenant, options.job)
    if found is None:
        raise FencegateError(_absent(options, await job_holders(database, options.job)))
    return found


def _absent(options: argparse.Namespace, elsewhere: tuple[str, ...]) -> str:
    key = getattr(options, "key", None)
    which = f"no job of key {one_line(key)}" if key is not None else f"no job {options.job}"
    if not elsewhere:
        return f"tenant {one_line(options.tenant)} has {which}; see: fencegate jobs list"
    mend = elsewhere[0] if len(elsewhere) == 1 else "and one of them"
    return (
        f"tenant {one_line(options.tenant)} has {which}, but there is one under "
        f"{', '.join(elsewhere)}; if you mean it, add --tenant {mend}"
    )


def _show_line(options: argparse.Namespace) -> str:
    return f"fencegate jobs show {options.job} --tenant {options.tenant}"


def _brief(listed: Listed) -> Cells:
    return _cells(listed, _end_of(listed.job.error))


def _full(listed: Listed) -> Cells:
    job = listed.job
    return (
        *_cells(listed, job.error),
        *(listed.place, job.stage_no, job.session, job.on_behalf, job.model, job.provider),
        *(job.priority, job.run_at, job.give_up_at, job.finished_at, job.beat_ms),
    )


def _cells(listed: Listed, error: str | None) -> Cells:
    job = listed.job
    return (
        *(job.state, listed.tenant_name, job.id, job.tool, job.stage, job.entity, job.key),
        *(job.attempts, job.created_at, job.owner, job.fence, job.remaining_ms, error),
    )


def _end_of(error: str | None) -> str | None:
    line = job_detail.last_line(error)
    if line is None or len(line) <= _ERROR_SHOWN:
        return line
    return f"…{line[-_ERROR_SHOWN:]}"
