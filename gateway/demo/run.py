"""The demo from its first line to its verdict, and the end of everything it started."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import time

from gateway.crew import (
    CrewError,
    Interrupted,
    Interrupts,
    crew_in,
    environment,
    open_folder,
)
from gateway.demo import keep, ledger, story
from gateway.demo.render import Narrator
from gateway.demo.stage import Stage
from gateway.demo.world import MOUNT, World, build
from gateway.errors import FencegateError

__all__ = ["main"]

# It takes under 25 s; whoever waits for it was promised an end within 240 s, clean-up included.
_LIMIT_S = 200


def main(argv: list[str]) -> int:
    """0 if the ledgers show what the story claims, 1 if not or if it could not be played,
    128 + number where a signal ended it."""
    arguments = _arguments(argv)
    if os.name != "posix":
        print("fencegate demo: needs Linux or macOS", file=sys.stderr)
        return 1
    interrupts = Interrupts()
    try:
        with interrupts.caught(_LIMIT_S):
            return _demo(arguments.keep, interrupts)
    except Interrupted as interrupted:
        print(f"fencegate demo: ended by {interrupted}", file=sys.stderr)
        return 128 + interrupted.number
    except (CrewError, FencegateError) as error:
        print(f"fencegate demo: {error}", file=sys.stderr)
        return 1
    except BrokenPipeError:
        # Nobody reads on. The interpreter would stumble over the same pipe once more at its exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def _demo(stay: bool, interrupts: Interrupts) -> int:
    out = Narrator(sys.stdout)
    begun = time.monotonic()
    with open_folder("fencegate-demo-") as folder, crew_in(folder, interrupts) as crew:
        out.say("Starting an API without idempotency (twice), PostgreSQL and the gateway ...")
        world = build(folder, crew)
        out.say(f"Ready after {time.monotonic() - begun:.1f} s.")
        differences = _tell(world, out)
        if stay:
            keep.show(world, out)
            interrupts.no_limit()
            with contextlib.suppress(Interrupted):
                keep.wait(world)
            out.say("Stopping.")
    return 1 if differences else 0


def _tell(world: World, out: Narrator) -> list[str]:
    """Play both acts; what differed from the claims."""
    without, guarded = _stages(world, out)
    out.act(
        "Act 1: WITHOUT the gateway",
        "Callers talk to the API themselves. They send idempotency keys and fences, which it does "
        "not know, and every one of them holds the API's token.",
    )
    story.play(without)
    out.act(
        "Act 2: WITH the gateway",
        "The same callers, the same script, another address. Only the gateway holds the token.",
    )
    story.play(guarded)
    story.audit(guarded)
    effects = ledger.read(world.direct.ledger), ledger.read(world.behind.ledger)
    found = without.differences + guarded.differences
    found += ledger.differences(story.SCENARIOS, *effects)
    out.act("Effects in the API's own ledgers", "Counted in its SQLite files, not in answers.")
    out.table(ledger.table(story.SCENARIOS, *effects))
    out.verdict(found)
    return found


def _stages(world: World, out: Narrator) -> tuple[Stage, Stage]:
    without = Stage(
        title="without the gateway",
        base_url=world.direct.url,
        guarded=False,
        api=world.direct,
        crew=world.crew,
        out=out,
        caller_env=environment(CALLER_TOKEN=world.direct.token),
    )
    guarded = Stage(
        title="with the gateway",
        base_url=world.gateway_url + MOUNT,
        guarded=True,
        api=world.behind,
        crew=world.crew,
        out=out,
        caller_env=environment(),
        operator_env=world.operator_env,
    )
    return without, guarded


def _arguments(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="fencegate demo",
        description="Show what goes wrong without the gateway and what does not with it. Starts "
        "everything it needs, needs no input and leaves nothing behind.",
    )
    parser.add_argument(
        "--keep", action="store_true", help="leave everything running, with lines to paste"
    )
    return parser.parse_args(argv)
