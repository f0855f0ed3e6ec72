"""One job in full, as ``jobs show`` prints it."""

from __future__ import annotations

import json
import shlex
from dataclasses import fields

from gateway.cli.audit import BRIEF, brief
from gateway.cli.detail import print_trail
from gateway.cli.rows import Cell, Cells, Writer, plain, shown
from gateway.core.jobs import Job
from gateway.observe.text import one_line
from gateway.store.job_reads import OpenCommand, Run, Story

__all__ = ["last_line", "print_json", "print_text"]

_DOCUMENT_SHOWN = 2048
"""Bytes of a payload or a result that are shown to people: as of a command's body."""

_HANDED_BACK = 3
"""Leases in a row that were handed back, from which on `jobs show` says so: one or two are a worker
that stopped."""

_JOB = tuple(each.name for each in fields(Job))
_RUN = ("stage", "entity", "fence", "owner", "granted_at", "ended_at", "how", "became", "error")


def print_text(story: Story) -> None:
    """For people: one line per column, the error as it was written, the leases that ended, then the
    audit."""
    values = _values(story)
    error = values.pop("error")
    width = max(map(len, values)) + 2
    for name, value in values.items():
        if value is not None:
            print(f"{name.ljust(width)}{shown(value)}")
    _print_documents(story, width)
    if isinstance(error, str):
        print("last error" if story.job.finished_at is None else "error")
        for line in error.splitlines():
            print(f"  {one_line(line)}".rstrip())
    print(f"\n{_meaning(story)}")
    for command in story.open_commands:
        if story.job.state != "succeeded" or _is_of(story.job, command):
            print(_held_open(story, command))
    if story.runs:
        print("\nleases that ended:")
        writer = Writer("table", _RUN)
        for run in story.runs:
            writer.add(_run(run))
        writer.close()
    if story.trail:
        print("\naudit:")
        print_trail(story.trail)


def _print_documents(story: Story, width: int) -> None:
    # Of an unfinished job it is what its stage was given, as in a claim.
    result = "previous" if story.job.finished_at is None else "result"
    for name, document in (("payload", story.payload), (result, story.result)):
        if document is not None:
            said = f"{len(document)} bytes: {one_line(_text(document[:_DOCUMENT_SHOWN]))}"
            print(f"{name.ljust(width)}{said}")


def print_json(story: Story) -> None:
    """For programs: one object on one line; documents as text, as they were sent."""
    document: dict[str, object] = {name: plain(value) for name, value in _values(story).items()}
    document |= {
        "payload": _text(story.payload),
        "result": None if story.result is None else _text(story.result),
        "leases": [
            {
                **{each.name: _plain(getattr(run, each.name)) for each in fields(Run)},
                "result": None if run.result is None else _text(run.result),
            }
            for run in story.runs
        ],
        "open_commands": [
            {each.name: _plain(getattr(command, each.name)) for each in fields(OpenCommand)}
            for command in story.open_commands
        ],
        "audit": [dict(zip(BRIEF, map(plain, brief(row)), strict=True)) for row in story.trail],
    }
    print(json.dumps(document, ensure_ascii=True))


def _values(story: Story) -> dict[str, Cell]:
    return {
        "job": story.job.id,
        "tenant": story.tenant_name,
        **{name: getattr(story.job, name) for name in _JOB if name != "id"},
        "place": story.place,
    }


def _plain(value: Cell) -> str | int | bool | None:
    return plain(value)


def _run(run: Run) -> Cells:
    stage = run.stage or str(run.stage_no)
    became = "queued" if run.state in ("ready", "scheduled") else run.state
    return (
        *(stage, run.entity, run.fence, run.owner, run.granted_at, run.ended_at, run.how),
        *(became, last_line(run.error)),
    )


def last_line(error: str | None) -> str | None:
    """Where a traceback says what happened; its other lines are in `jobs show`."""
    lines = [line for line in (error or "").splitlines() if line.strip()]
    return lines[-1].strip() if lines else error


def _meaning(story: Story) -> str:
    """What the state says, and what to do."""
    job, line = story.job, f"{story.job.id} --tenant {story.tenant_name} --reason '…'"
    match job.state:
        case "queued":
            return _queued(story)
        case "running" if job.remaining_ms is not None and job.remaining_ms <= 0:
            return "Running: its lease is over, and a gateway is about to record that."
        case "running":
            left = (job.remaining_ms or 0) / 1000
            return f"Running: {one_line(job.owner or '-')} has it for {left:.0f} s more, or longer."
        case "waiting":
            return (
                "Waiting: its next stage runs once somebody agrees.\n"
                f"  fencegate jobs approve {line}\n"
                f"  fencegate jobs cancel {line}"
            )
        case "succeeded":
            return "Succeeded: its key answers with this result."
        case "failed":
            return f"Failed. {_again(line)}"
        case "cancelled":
            return (
                "Cancelled: no result of it is taken. What it sent before may have happened:\n"
                f"  fencegate commands list --job {job.id} --tenant {story.tenant_name}\n"
                f"{_again(line)}"
            )


def _again(line: str) -> str:
    return (
        "To run it again, from the stage it had come to:\n"
        f"  fencegate jobs retry {line}\n"
        "Commands whose final answer is on record are replayed then, not sent, also where that\n"
        "answer was a refusal. A corrected wish is a new job with a new key."
    )


def _queued(story: Story) -> str:
    said = _waits_for(story)
    times = 0
    for run in reversed(story.runs):
        if run.how != "handed-back":
            break
        times += 1
    if times < _HANDED_BACK:
        return said
    job, owner = story.job, one_line(story.runs[-1].owner)
    return (
        f"{said}\nIt was handed back {times} times in a row, last by {owner}: that worker has no "
        f"handler for stage {one_line(job.stage or str(job.stage_no))} of {one_line(job.tool)}, or "
        "waits for a command whose outcome is unknown; its log says which."
    )


def _waits_for(story: Story) -> str:
    match story.place:
        case "scheduled":
            return f"Queued: not before {shown(story.job.run_at)}."
        case "behind-user":
            return "Queued: its user has as many of this tool running as tools.toml allows."
        case _ if story.holder is not None:
            return (
                f"Queued: job {story.holder} has its entity, "
                f"with worker {one_line(story.holder_owner or '-')}."
            )
        case _:
            return f"Queued: it waits for a worker that claims {one_line(story.job.tool)}."


def _is_of(job: Job, command: OpenCommand) -> bool:
    return command.key.startswith(f"tool-job:{job.id}:")


def _held_open(story: Story, command: OpenCommand) -> str:
    """Why commands of the job wait, and the mend."""
    whose = "its own command" if _is_of(story.job, command) else "another's command"
    which = f"{shlex.quote(command.key)} --tenant {story.tenant_name}"
    held = f"{one_line(command.entity)} is held by {whose} {one_line(command.key)}"
    if not command.is_unknown:
        return f"{held}, in flight for at most {command.remaining_s} s more."
    decide = f"  fencegate commands resolve {which} --attempt {command.attempt}"
    return (
        f"{held}, whose outcome is unknown: nothing else is sent for it until somebody decides.\n"
        f"  fencegate commands show {which}\n"
        f"{decide} --executed --reason '…'\n"
        f"{decide} --not-executed --reason '…'"
    )


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "backslashreplace")
