"""`--keep`: everything stays up, with lines to paste."""

from __future__ import annotations

import shlex
import sys
import time
from pathlib import Path

from gateway.crew import CrewError, environment
from gateway.demo.render import Narrator
from gateway.demo.world import MOUNT, World

__all__ = ["show", "wait"]

_POLL_S = 0.2


def show(world: World, out: Narrator) -> None:
    """Print lines to paste: a new command, its replay, a stale write, the audit."""
    fencegate = _write_wrapper(world)
    new = _curl(world, "my-first-key", 6)
    stale = _curl(world, "my-late-key", 5)
    late, other = _explain(world, "my-late-key", 5), _explain(world, "my-first-key", 6, 9900)
    out.verbatim(
        f"""
Everything keeps running. In another terminal, paste:

# a new command goes through (201, Gateway-Outcome: applied)
{new}
# the same line again is a replay (201, Idempotent-Replayed: true)
{new}
# a worker with an older fence is refused (412)
{stale}
# the refusal is on record
{fencegate} audit --event fence_stale
# why it is refused, and what else the gateway makes of it
{fencegate} {late}
# the first key with another amount: what would be heard, and where it differs
{fencegate} {other}
# what the API itself has in its ledger
{_curl_ledger(world)}

gateway {world.gateway_url}, its log {world.crew.log("gateway")}
Press Ctrl-C here to stop everything and remove {world.folder}."""
    )


def wait(world: World) -> None:
    """Until a signal ends it. Raises `CrewError` if the gateway ends by itself."""
    while world.gateway.poll() is None:
        time.sleep(_POLL_S)
    raise CrewError(f"the gateway has ended:\n{world.crew.tail('gateway')}")


def _curl(world: World, key: str, fence: int) -> str:
    return f"curl -i {_request(world, key, fence)}"


def _explain(world: World, key: str, fence: int, amount: int = 1200) -> str:
    return f"explain POST {_request(world, key, fence, amount)}"


def _request(world: World, key: str, fence: int, amount: int = 1200) -> str:
    return (
        f"{world.gateway_url}{MOUNT}/v1/invoices/inv-900/capture"
        f" -H 'Idempotency-Key: {key}' -H 'X-Execution-Fence: {fence}'"
        f""" -H 'Content-Type: application/json' -d '{{"amount": {amount}, "currency": "EUR"}}'"""
    )


def _curl_ledger(world: World) -> str:
    return f"curl {world.gateway_url}{MOUNT}/v1/invoices/inv-900"


def _write_wrapper(world: World) -> Path:
    """A `fencegate` that finds this gateway's database and policies, so that no password is
    printed."""
    wanted = ("FENCEGATE_DATABASE_URL", "FENCEGATE_POLICIES_DIR", "LEGACY_TOKEN", "PYTHONPATH")
    known = {
        **environment(),
        **world.operator_env,
        "FENCEGATE_POLICIES_DIR": str(world.folder / "policies"),
        "LEGACY_TOKEN": world.behind.token,
    }
    lines = [f"export {name}={shlex.quote(known[name])}" for name in wanted]
    wrapper = world.folder / "fencegate"
    wrapper.touch(mode=0o700)
    wrapper.write_text(
        "\n".join(["#!/bin/sh", *lines, f'exec {shlex.quote(sys.executable)} -m gateway.cli "$@"'])
        + "\n"
    )
    return wrapper
