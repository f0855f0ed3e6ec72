"""One job in full, as ``jobs show`` prints it."""

from __future__ import annotations

import json
from dataclasses import fields

from gateway.cli.audit import BRIEF, brief
from gateway.cli.detail import print_trail
from gateway.cli.rows import Cell, Cells, Writer, plain, shown
from gateway.core.jobs import Job
from gateway.observe.text import one_line
from gateway.store.job_reads import Run, Story

__all__ = ["print_json", "print_text"]

_DOCUMENT_SHOWN = 2048
"""Bytes of a payload, a result or an error that are shown to people: as of a command's body."""

_JOB = tuple(each.name for each in fields(Job))
_RUN = ("stage", "entity", "fence", "owner", "granted_at", "ended_at", "how", "became", "error")


def print_text(story: Story) -> None:
    """For people: one line per column, the leases that ended, then the audit."""
    values = _values(story)
    width = max(map(len, values)) + 2
    for name, value in values.items():
        if value is not None:
            print(f"{name.ljust(width)}{shown(value)[:_DOCUMENT_SHOWN]}")
    for name, document in (("payload", story.payload), ("result", story.result)):
        if document is not None:
            said = f"{len(document)} bytes: {one_line(_text(document[:_DOCUMENT_SHOWN]))}"
            print(f"{name.ljust(width)}{said}")
    print(f"\n{_meaning(story)}")
    if story.runs:
        print("\nleases that ended:")
        writer = Writer("table", _RUN)
        for run in story.runs:
            writer.add(_run(run))
        writer.close()
    if story.trail:
        print("\naudit:")
        print_trail(story.trail)


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
        *(became, run.error),
    )


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
        case "failed" | "cancelled":
            return (
                f"{job.state.capitalize()}. To run it again, from the stage it had come to:\n"
                f"  fencegate jobs retry {line}"
            )


def _queued(story: Story) -> str:
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


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "backslashreplace")
