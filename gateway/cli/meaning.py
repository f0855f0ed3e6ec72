"""What the state of one command says, and what to do about it."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator
from datetime import timedelta
from typing import assert_never

from gateway.cli.rows import shown_time
from gateway.observe.text import one_line
from gateway.policy.compiled import CompiledCommand
from gateway.proxy.call import first_byte_s
from gateway.store.operator import CommandDetail

__all__ = ["meaning"]

_NOBODY_S = 60
"""So long due, a command is asked about by nobody: whoever may looks every second."""

_TAKEN_OVER = 16
"""Attempts of one command that gave way at most (``gateway.take_over``)."""

_REPEATED = "410 response-not-retained"


def meaning(found: CommandDetail, policy: CompiledCommand | None) -> str:
    """In sentences, and with the lines to type. ``policy``: the command's, where it is at hand."""
    info = found.info
    match info.state:
        case "in-flight":
            left = math.ceil(max(info.remaining_ms, 0) / 1000)
            return f"In flight: its outcome is known, or unknown, in at most {left} s."
        case "settled":
            return _settled(found)
        case "unknown":
            return "\n".join(_unknown(found, policy))
        case _:
            assert_never(info.state)


def _settled(found: CommandDetail) -> str:
    info = found.info
    if found.body is not None:
        how = {"probe": ", executed by what a probe showed", "report": ", executed by a report"}
        by = how.get(info.settled_by or "", "")
        return f"Settled{by}: its key is answered by the recorded response ({info.status})."
    if info.status is None:
        by = {"probe": "a probe showed it", "report": "it was reported"}.get(
            info.settled_by or "", "an operator resolved it"
        )
        return (
            f"Settled as executed: {by}. No response is recorded, so its key answers {_REPEATED} "
            "with resolved: executed."
        )
    return (
        f"Settled: it was answered {info.status}, and that response is not kept (erased, past its "
        f"response_days, or larger than keep_limit), so its key answers {_REPEATED}."
    )


def _unknown(found: CommandDetail, policy: CompiledCommand | None) -> Iterator[str]:
    info = found.info
    line = (
        f"fencegate commands resolve {shlex.quote(info.key)} --tenant {info.tenant_name} "
        f"--attempt {info.attempt}"
    )
    yield "Unknown: it may or may not have happened."
    match found.unknown:
        case "probe":
            yield from _asked(found)
            yield from _query(found, policy)
        case "resend":
            yield _sent_again(found, policy)
            yield "Or look at the upstream."
        case _:
            yield (
                'Nothing asks by itself (unknown = "hold"): a late answer, a report or you decide. '
                "Look at the upstream."
            )
    yield "Then decide:"
    yield f"  {line} --executed --reason '…'"
    yield f"  {line} --not-executed --reason '…'"


def _asked(found: CommandDetail) -> Iterator[str]:
    """What the gateway's own queries came to, and when the next is."""
    if found.last_look_at is not None:
        times = "1 query" if found.looks == 1 else f"{found.looks} queries"
        yield f"Last asked {shown_time(found.last_look_at)} ({times}): {found.last_look}."
    else:
        yield "No query about it has been answered yet."
    left = found.next_look_s
    if found.asking:
        yield "It is being asked about now."
    elif left is None:
        yield "It is not on the list yet; that takes some seconds behind its deadline."
    elif left > 0:
        yield f"Next query in {left} s."
    elif left > -_NOBODY_S:
        yield "The next query is due."
    else:
        yield (
            f"The next query has been due for {-left} s: no gateway that serves now may ask, since "
            "upstream, account or send_key changed since it was sent, or none serves its policy "
            "(log event probe_not_ours)."
        )


def _query(found: CommandDetail, policy: CompiledCommand | None) -> Iterator[str]:
    if found.probe is None:
        yield "Look at the upstream."
        return
    if policy is None:
        yield (
            f"Look first yourself: GET {one_line(found.probe)} at its upstream (with "
            "--policies DIR, its host too)."
        )
        return
    place = policy.upstream
    url = f"{place.scheme}://{place.authority.decode()}{found.probe}"
    yield f"Look first yourself: GET {one_line(url)}, with the credentials of {place.name}."


def _sent_again(found: CommandDetail, policy: CompiledCommand | None) -> str:
    left = _TAKEN_OVER - (found.attempts_before or 0)
    if left <= 0:
        return f"It has been sent again {_TAKEN_OVER} times, and is not any more."
    since = shown_time(found.first_sent_at)
    within = policy.rules.resend_within_s if policy is not None else None
    if policy is None or within is None:
        return (
            "Its caller's repeat sends it again while resend_within_s of its policy lasts, counted "
            f"from {since} (with --policies DIR, until when)."
        )
    window_s = within - first_byte_s(policy.rules.timeout_s)
    until = found.first_sent_at + timedelta(seconds=window_s)
    if window_s <= found.first_sent_ago_s:
        return f"Its caller's repeat is sent again no more: that was so until {shown_time(until)}."
    return (
        f"Its caller's repeat sends it again until {shown_time(until)}, at most {left} times more, "
        "if upstream, account and send_key are still the same."
    )
