"""Policies: what the gateway may do to which upstream, read from TOML files and compiled.

``load`` reads a folder once, at start; ``Policies.match`` and ``derive`` are all that the hot path
asks. Only the core is imported from here.
"""

from __future__ import annotations

from gateway.policy.check import render_report
from gateway.policy.compiled import CompiledCommand, Match, NoPolicy, Policies, Unguarded, Upstream
from gateway.policy.derive import Derived, check_head, check_passage, derive
from gateway.policy.errors import PolicyError, PolicyErrors
from gateway.policy.loader import load
from gateway.policy.published import json_schema

__all__ = [
    "CompiledCommand",
    "Derived",
    "Match",
    "NoPolicy",
    "Policies",
    "PolicyError",
    "PolicyErrors",
    "Unguarded",
    "Upstream",
    "check_head",
    "check_passage",
    "derive",
    "json_schema",
    "load",
    "render_report",
]
