"""The worker SDK: handlers of leased jobs, in a few lines (``docs/worker.md``).

It imports none of the server, so a worker can run where no database can be reached.
"""

from __future__ import annotations

from gateway.worker.client import Client
from gateway.worker.errors import (
    Executed,
    KeyReused,
    LeaseLost,
    Misuse,
    NoAnswer,
    NotSent,
    OutcomeUnknown,
    OwnershipUnknown,
    Refused,
    RetryLater,
    Unretryable,
)
from gateway.worker.job import Job
from gateway.worker.worker import Worker

__all__ = [
    "Client",
    "Executed",
    "Job",
    "KeyReused",
    "LeaseLost",
    "Misuse",
    "NoAnswer",
    "NotSent",
    "OutcomeUnknown",
    "OwnershipUnknown",
    "Refused",
    "RetryLater",
    "Unretryable",
    "Worker",
]
