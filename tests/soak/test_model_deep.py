"""The larger scenarios of ``tests/model``: half a minute each at most."""

from __future__ import annotations

import pytest

from tests.model.bounds import Bounds
from tests.model.explorer import explore
from tests.model.scenarios import DEEP
from tests.model.test_model import documented


@pytest.mark.parametrize("bounds", DEEP.values(), ids=DEEP.keys())
def test_no_step_breaks_a_guarantee(bounds: Bounds) -> None:
    found = explore(bounds, at_most=1_000_000)
    print(f"{bounds.name}: {found}")
    assert not found.violations, f"\n{found}"
    assert documented()[bounds.name] == (found.states, found.steps, found.depth)
