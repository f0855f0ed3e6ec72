"""One stack for each test: what these tests do to it leaves nothing to share."""

from collections.abc import Iterator

import pytest

from tests.kit.db import Server
from tests.kit.faults import Rig, rig


@pytest.fixture
def here(postgres: Server) -> Iterator[Rig]:
    """A gateway behind a wire proxy, with a policy that has time and one that has little."""
    with rig(postgres) as made:
        yield made
