"""Policies for those who only read them: the command line tells more where they are at hand."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from gateway.policy import Policies, PolicyErrors, load
from gateway.policy.compiled import CompiledCommand
from gateway.settings import load_settings

__all__ = ["Lenient", "command_at_hand"]


class Lenient(dict[str, str]):
    """The environment, with a stand-in for what it lacks: upstream's secrets are the gateway's,
    whoever explains need not hold them, and they are not shown anyway. ``lacked``: their names."""

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        super().__init__(
            (name, value)
            for name, value in environment.items()
            if value and not name.endswith("_FILE")  # the gateway's, too
        )
        self.lacked: set[str] = set()

    def __missing__(self, name: str) -> str:
        self.lacked.add(name)
        return "-"

    def get(self, name: str, default: object = None) -> str:
        return self[name]


def command_at_hand(directory: Path | None, name: str) -> CompiledCommand | None:
    """The command ``upstream/command`` of the policies in ``directory`` (default: the setting's);
    ``None`` where they are not there, do not load, or have none of that name."""
    try:
        policies = _policies(directory)
    except (PolicyErrors, OSError):
        return None
    return next((each for each in policies.commands() if each.rules.policy == name), None)


def _policies(directory: Path | None) -> Policies:
    return load(directory or load_settings().policies_dir, Lenient())
