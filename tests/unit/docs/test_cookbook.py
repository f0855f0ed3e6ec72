"""The cookbook in docs/policies.md: every file loads, every request gives what stands under it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from gateway.core.keys import Refusal
from gateway.policy import Derived, Match, derive, load

PAGE = Path(__file__).parents[3] / "docs" / "policies.md"
_BLOCK = re.compile(r"^```(toml|http|text)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_VARIABLE = re.compile(r"\$\{([A-Z_]+)\}")


@dataclass(frozen=True)
class Recipe:
    policy: str
    request: str
    promised: str

    @property
    def name(self) -> str:
        return self.policy.split('"')[1]


def recipes() -> Iterator[Recipe]:
    text = PAGE.read_text(encoding="utf-8").partition("\n## Cookbook\n")[2]
    blocks = [(found[1], found[2]) for found in _BLOCK.finditer(text.partition("\n## ")[0])]
    kinds = [kind for kind, _ in blocks]
    assert kinds == ["toml", "http", "text"] * (len(kinds) // 3)
    for policy, request, promised in zip(blocks[::3], blocks[1::3], blocks[2::3], strict=True):
        yield Recipe(policy[1], request[1], promised[1])


RECIPES = list(recipes())


def test_every_kind_of_api_has_a_recipe() -> None:
    names = {recipe.name for recipe in RECIPES}
    assert names == {
        "stripe",
        "paypal",
        "jira",
        "servicenow",
        "zendesk",
        "tools",
        "plant",
        "ledger",
        "once",
    }


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.name)
def test_a_recipe_gives_what_it_says(recipe: Recipe, tmp_path: Path) -> None:
    (tmp_path / "recipe.toml").write_text(recipe.policy, encoding="utf-8")
    policies = load(tmp_path, dict.fromkeys(_VARIABLE.findall(recipe.policy), "secret"))

    head, _, body = recipe.request.partition("\n\n")
    first, *lines = head.splitlines()
    method, target = first.split(" ")
    path, _, query = target.partition("?")
    headers = tuple(
        (name.encode(), value.encode()) for name, value in (line.split(": ") for line in lines)
    )
    match = policies.match(method, path.encode())
    assert isinstance(match, Match)
    raw = body.rstrip("\n").encode()
    derived = derive(match, method, path.encode(), query.encode(), headers, raw)
    assert not isinstance(derived, Refusal), derived
    assert _shown(derived) == dict(line.split(maxsplit=1) for line in recipe.promised.splitlines())


def _shown(derived: Derived) -> dict[str, str]:
    return {
        "entity": derived.entity,
        "key": derived.key,
        "fence": "none" if derived.fence is None else str(derived.fence),
        "body": derived.parts.form,
    }
