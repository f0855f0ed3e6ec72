"""What a gateway needs for the drill, one policy and one tool; and names that its parts share."""

from __future__ import annotations

__all__ = ["LATE", "LEASE_S", "MOUNT", "TOOL", "late_ids", "policy_text", "tools_text"]

MOUNT = "/fencegate-drill"
TOOL = "fencegate-drill"

LATE = ("renewal", "effect", "own-key", "result")
"""What W1 sends past its library."""

LEASE_S = 6.5
"""The shortest that the inequality of lease classes allows with room: two heartbeats, the jitter
and a request of 5 s are 6.1."""

_POLICY = """\
# For `fencegate drill`: the upstream is the drill itself, while it runs.
name     = "fencegate-drill"
mount    = "{mount}"
upstream = "{upstream}"

[[commands]]
name   = "effect"
match  = "POST /effects/{{subject}}/{{step}}"
entity = "drill:{{path.subject}}"
issuer = "here"              # fences come from the leases of jobs
timeout_s = 20
settle_delay_s = 1
"""

_TOOLS = """\
# For `fencegate drill`: a lease that is short enough to watch it expire.
[[tools]]
name          = "{tool}"
lease_s       = {lease}
heartbeat_s   = 0.5
jitter_s      = 0.1
misses        = 2
stage_limit_s = 4
total_s       = 240
attempts      = 2
backoff_s     = 0
backoff_max_s = 0
"""


def policy_text(upstream: str) -> str:
    """The policy file for an upstream at this URL."""
    return _POLICY.format(mount=MOUNT, upstream=upstream)


def tools_text() -> str:
    """The table for `tools.toml`."""
    return _TOOLS.format(tool=TOOL, lease=LEASE_S)


def late_ids(run: str, variant: str) -> dict[str, str]:
    """The request ids of what W1 sends past its library, by what it is."""
    return {what: f"drill-{run}-{variant}-{what}" for what in LATE}
