"""The case book: public bug reports of other systems, as tests named by their id."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cases.book import BOOK, FURTHER
from tests.cases.driver import Case, World, run
from tests.kit.operating import fencegate


def ids(case: Case) -> str:
    return str(case["id"])


@pytest.mark.parametrize("case", BOOK, ids=ids)
def test_case(case: Case, request: pytest.FixtureRequest) -> None:
    world: World = request.getfixturevalue("ambient" if "given" in case["input"] else "plain")
    run(case, world)


@pytest.mark.parametrize("case", FURTHER, ids=ids)
def test_further(case: Case, plain: World) -> None:
    run(case, plain)


def test_every_case_has_further_inputs_of_its_kind() -> None:
    book, further = {ids(case) for case in BOOK}, [ids(case).split("/")[0] for case in FURTHER]
    kinds = {ids(case): case["kind"] for case in BOOK}
    assert set(further) <= book
    for kind in kinds.values():
        assert sum(kinds[of] == kind for of in further) >= 3, kind
    assert len(set(map(ids, FURTHER))) == len(FURTHER)


@pytest.mark.parametrize(
    "field",
    ["", 'entity = ""', 'entity = "a:{path.other}"', 'entity = "{body./x"'],
)
def test_a_fenced_policy_without_an_entity_is_refused_when_it_is_loaded(
    tmp_path: Path, field: str
) -> None:
    """FENCE-10: fence on a route with no entity rule."""
    text = 'name = "p"\nmount = "/p"\nupstream = "http://127.0.0.1:1"\n'
    text += f'[[commands]]\nname = "c"\nmatch = "POST /v1/unscoped/ping"\n{field}\n'
    (tmp_path / "p.toml").write_text(text)
    done = fencegate("check", "--policies", str(tmp_path))
    assert done.code == 1
    assert "entity" in done.err
