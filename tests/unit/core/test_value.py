"""``value`` makes what ``dataclass`` makes, only quicker."""

from __future__ import annotations

import copy
import inspect
import pickle
from dataclasses import FrozenInstanceError, asdict, dataclass, field, fields

import pytest

from gateway.core.value import altered, value


@value(frozen=True, slots=True)
class Quick:
    a: int
    b: str = "b"
    c: list[int] = field(default_factory=list)
    d: int = field(default=4, repr=False, compare=False)


@dataclass(frozen=True, slots=True)
class Usual:
    a: int
    b: str = "b"
    c: list[int] = field(default_factory=list)
    d: int = field(default=4, repr=False, compare=False)


@value(frozen=True, slots=True, kw_only=True)
class Named:
    a: int = 1
    b: int


def test_it_is_made_as_a_dataclass_is() -> None:
    assert list(inspect.signature(Quick).parameters) == list(inspect.signature(Usual).parameters)
    for given in ({"a": 1}, {"a": 1, "b": "x"}, {"a": 1, "c": [2], "d": 5}):
        assert asdict(Quick(**given)) == asdict(Usual(**given))  # type: ignore[arg-type]
    assert repr(Quick(1)) == repr(Usual(1)).replace("Usual", "Quick")
    assert Quick(1).c is not Quick(1).c
    assert Named(b=2) == Named(a=1, b=2)
    for wrong in ((), (1, 2, 3, 4, 5)):
        with pytest.raises(TypeError):
            Quick(*wrong)
    with pytest.raises(TypeError):
        Named(1, 2)  # type: ignore[misc]


def test_it_compares_and_hashes_as_one() -> None:
    assert Quick(1, d=5) == Quick(1, d=6) != Quick(2)
    assert hash(Named(b=2)) == hash(Named(b=2))
    assert Quick(1) != Usual(1)


def test_it_does_not_change_and_holds_nothing_else() -> None:
    made = Quick(1)
    for each in (made, altered(made, b="x"), copy.deepcopy(made), pickle.loads(pickle.dumps(made))):
        assert type(each) is Quick
        assert not hasattr(each, "__dict__")
        for name in [*(own.name for own in fields(Quick)), "other"]:
            with pytest.raises((FrozenInstanceError, TypeError, AttributeError)):
                setattr(each, name, None)


def test_altered_is_another_one() -> None:
    made = Quick(1, "x", [2], 5)
    assert altered(made) == made
    assert altered(made) is not made
    other = altered(made, a=7, d=8)
    assert (other.a, other.b, other.c, other.d) == (7, "x", [2], 8)
    assert other.c is made.c
    with pytest.raises(TypeError):
        altered(made, no_such_field=1)  # type: ignore[call-arg]
