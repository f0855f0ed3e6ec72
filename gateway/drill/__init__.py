"""`fencegate drill`: the unpleasant test, as a command.

W1 claims a job and sends its first effect. It is cut off, blocked, stopped or killed; its lease
expires; W2 claims the same job; W1 is let go on. Then W1 must not be able to renew its lease, to
write its result, or to have a second effect. Real processes, real sockets, real PostgreSQL.
"""

from __future__ import annotations

__all__ = ["main", "print_policy"]


def main(**wish: object) -> int:
    """Run the drill; see `gateway.drill.run.drill`."""
    # Its workers are modules of this package, too, and must not import all of it.
    from gateway.drill.run import drill

    return drill(**wish)  # type: ignore[arg-type]


def print_policy(upstream: str) -> None:
    """Print what a deployment needs for the drill."""
    from gateway.drill.policy import policy_text, tools_text

    print(f"# --- policies/drill.toml\n{policy_text(upstream)}")
    print(f"# --- add to policies/tools.toml\n{tools_text()}", end="")
