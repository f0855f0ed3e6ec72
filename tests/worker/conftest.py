"""Rigs: ``made`` for a test that moves the clock, ``shared`` for one that does not."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.kit.db import Server
from tests.kit.gateway import rows
from tests.worker.rig import Rig, rig


@pytest.fixture
def made(postgres: Server) -> Iterator[Rig]:
    with rig(postgres) as ready:
        yield ready


@pytest.fixture(scope="module")
def _base(postgres: Server) -> Iterator[Rig]:
    with rig(postgres) as ready:
        yield ready


@pytest.fixture
def shared(_base: Rig, tmp_path: Path) -> Iterator[Rig]:
    """Its gateway and database are those of the whole module; its workers end with the test."""
    _base.upstream.clear()
    _base.upstream.script = None
    with contextlib.ExitStack() as held:
        yield replace(_base, folder=tmp_path, held=held)
    for left in rows(_base.database, "select id from gateway.jobs"):
        _base.cancel(str(left["id"]))
