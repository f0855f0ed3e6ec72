"""``serve``, ``demo`` and ``check``."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from gateway.cli.options import Subparsers, add_command
from gateway.observe.text import one_line
from gateway.policy import Policies, PolicyErrors, load, render_report
from gateway.policy.check import render_tools
from gateway.policy.lookup import looked_up
from gateway.policy.published import as_text
from gateway.policy.tools import load_all
from gateway.settings import load_settings

__all__ = ["add_policies", "demo", "read_policies", "register"]

T = TypeVar("T")

HOST = "127.0.0.1"
PORT = 8080


def register(subparsers: Subparsers) -> None:
    serve = add_command(
        subparsers,
        "serve",
        _serve,
        summary="run the gateway",
        details="Ends on SIGTERM or Ctrl-C: it stops admitting, lets running attempts end, and\n"
        "leaves the rest to time.",
        example="fencegate serve --policies ./policies --port 8080",
    )
    add_policies(serve)
    serve.add_argument("--host", default=HOST, help=f"address to listen on (default {HOST})")
    serve.add_argument(
        "--port", type=_port, default=PORT, help=f"port to listen on (default {PORT})"
    )
    serve.add_argument(
        "--allow-failpoints",
        action="store_true",
        help="let FENCEGATE_FAILPOINTS kill, stop or delay this process; never in production",
    )
    add_command(
        subparsers,
        "demo",
        lambda _: demo([]),
        summary="show the problem and its cure with real processes; needs no input",
        example="fencegate demo",
    )
    check = add_command(
        subparsers,
        "check",
        _check,
        summary="check the policy files and show what they say",
        details="Reports every mistake of every file, each with its mend; then the exit code is 1.",
        example="fencegate check --policies ./policies",
    )
    add_policies(check)
    check.add_argument(
        "--schema",
        action="store_true",
        help="print the JSON Schema of a policy file instead, for your editor",
    )


def demo(arguments: Sequence[str]) -> int:
    """Run the demonstration with arguments of its own."""
    # By name: the demo drives this command line from outside, so neither may import the other.
    return int(importlib.import_module("gateway.demo").main(list(arguments)))


def _serve(options: argparse.Namespace) -> int:
    # Only here: no other command needs the server's parts.
    from gateway.server import serve

    settings = load_settings()
    serve(
        settings,
        options.policies or settings.policies_dir,
        options.host,
        options.port,
        allow_failpoints=options.allow_failpoints,
    )
    return 0


def _check(options: argparse.Namespace) -> int:
    if options.schema:
        print(as_text(), end="")
        return 0
    found = _read(options, load_all)
    if found is None:
        return 1
    policies, tools = found
    policies = replace(policies, warnings=(*policies.warnings, *looked_up(policies)))
    print(render_report(policies))
    if tools.by_name:
        print(render_tools(tools))
    return 0


def read_policies(options: argparse.Namespace, env: Mapping[str, str]) -> Policies | None:
    """The policies of ``--policies``; ``None`` once their mistakes are printed."""
    return _read(options, lambda directory, _: load(directory, env))


def _read(options: argparse.Namespace, read: Callable[[Path, Mapping[str, str]], T]) -> T | None:
    directory = options.policies or load_settings().policies_dir
    try:
        return read(directory, os.environ)
    except PolicyErrors as errors:
        for error in errors.errors:
            print(f"fencegate: {one_line(str(error))}", file=sys.stderr)
        return None


def add_policies(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--policies",
        type=Path,
        metavar="DIR",
        help="folder of the policy files (default: FENCEGATE_POLICIES_DIR, else ./policies)",
    )


def _port(value: str) -> int:
    if value.isascii() and value.isdigit() and int(value) < 65536:
        return int(value)
    raise argparse.ArgumentTypeError(f"{value!r} is no port; write a number from 0 to 65535")
