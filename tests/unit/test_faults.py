"""Failpoints: what is written, where they stand, and that an unarmed one does nothing."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import gateway
from gateway import faults
from gateway.errors import AnswerLost, ConfigurationError, StoreUnavailable
from gateway.faults import POINTS, Armed, arm, checked, parse

PACKAGE = Path(gateway.__file__).parent

names = st.sampled_from(sorted(POINTS))
hits = st.none() | st.integers(1, 999_999_999)


@pytest.fixture(autouse=True)
def unarmed() -> Iterator[None]:
    yield
    arm([])


def placed() -> Counter[str]:
    """The names with which ``faults.reach`` is called, in the whole package."""
    found: Counter[str] = Counter()
    for file in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            match node:
                case ast.Call(
                    ast.Attribute(ast.Name("faults"), "reach"), [ast.Constant(str() as name)]
                ):
                    found[name] += 1
                case ast.ImportFrom("gateway.faults", names):
                    assert "reach" not in {each.name for each in names}, f"{file} binds it for good"
    return found


def test_each_failpoint_stands_at_one_place() -> None:
    assert placed() == Counter(dict.fromkeys(POINTS, 1))


@given(names, st.sampled_from(["kill", "stop"]), hits)
def test_what_is_written_is_what_is_armed(name: str, action: str, hit: int | None) -> None:
    text = f"{name}={action}" + (f"@{hit}" if hit else "")
    assert parse(text) == [Armed(name, action, hit=hit)]  # type: ignore[arg-type]


@given(st.text())
def test_any_text_is_understood_or_refused(text: str) -> None:
    try:
        found = parse(text)
    except ValueError:
        return
    assert {each.name for each in found} <= set(POINTS)


def test_several_and_a_delay() -> None:
    assert parse("send.before=delay:250@2; settle.committed=error%3;") == [
        Armed("send.before", "delay", 250, 2),
        Armed("settle.committed", "error", every=3),
    ]


@pytest.mark.parametrize(
    ("text", "mend"),
    [
        ("settle.comitted=kill", "did you mean settle.committed?"),
        ("settle.committed", "write NAME=kill"),
        ("settle.committed=kill@0", "write NAME=kill"),
        ("settle.committed=delay", "write NAME=kill"),
        ("send.before=error", "take kill, stop or delay:MS"),
        ("send.before=kill;send.before=stop", "takes one action"),
    ],
)
def test_a_mistake_names_its_mend(text: str, mend: str) -> None:
    with pytest.raises(ValueError, match=mend.replace("?", r"\?")):
        parse(text)


def test_an_unarmed_place_is_a_function_without_a_body() -> None:
    for name in POINTS:
        faults.reach(name)
    code = faults.reach.__code__  # type: ignore[attr-defined]
    assert (code.co_names, code.co_varnames, code.co_consts[1:]) == ((), ("name",), (None,))


def test_an_error_is_what_the_database_would_have_said() -> None:
    arm(parse("admit.before=error;admit.committed=error@2"))
    with pytest.raises(StoreUnavailable):
        faults.reach("admit.before")
    faults.reach("admit.committed")
    with pytest.raises(AnswerLost):
        faults.reach("admit.committed")
    faults.reach("admit.committed")  # the second hit only
    arm(parse("admit.before=error%2"))
    for _ in range(3):
        faults.reach("admit.before")
        with pytest.raises(StoreUnavailable):
            faults.reach("admit.before")
    arm([])
    faults.reach("admit.before")


def test_a_variable_alone_arms_nothing() -> None:
    assert checked(None, allowed=False) == []
    assert checked("send.before=kill", allowed=True) == [Armed("send.before", "kill")]
    with pytest.raises(ConfigurationError, match="--allow-failpoints"):
        checked("send.before=kill", allowed=False)
