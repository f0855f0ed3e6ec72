"""`fencegate demo`: the problem and its cure, with real processes, told step by step.

An API without idempotency (`examples/legacy_api`), a database, the gateway and scripted callers
are started; the same script is played without and with the gateway; the API's own ledger gives the
verdict.
"""

from __future__ import annotations

__all__ = ["main"]


def main(argv: list[str]) -> int:
    """Run the demo; 0 if the ledgers show what the story claims."""
    # Callers are processes of this package and start often: they must not import all of it.
    from gateway.demo.run import main as run

    return run(argv)
