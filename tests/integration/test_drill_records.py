"""How the drill reads the audit: a signal that arrives meanwhile ends the drill, and is not lost in
the event loop."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from gateway.crew import Interrupted, Interrupts
from gateway.drill.records import Deployment


def test_a_signal_while_the_database_is_asked_is_heard_afterwards(database: str) -> None:
    interrupts = Interrupts()
    arriving = False

    @contextmanager
    def undisturbed() -> Iterator[None]:
        with interrupts.held():
            if arriving:
                signal.raise_signal(signal.SIGTERM)
            yield

    with interrupts.caught(60):
        deployment = Deployment("http://127.0.0.1:1", None, database, undisturbed)
        try:
            assert deployment.audit("drill:none") == []
            arriving = True
            for ask in (lambda: deployment.audit("drill:none"), deployment.check_database):
                with pytest.raises(Interrupted, match="SIGTERM"):
                    ask()
            arriving = False
            assert deployment.audit("drill:none") == []  # its connections are as good as before
        finally:
            deployment.close()
