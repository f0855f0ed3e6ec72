"""The net itself is tested: each rule of the table, broken in a copy, fails the tests named there.

`tests/mutants` does the same within the suite for three rules, without a copy; this is the wide
net, and takes some minutes: `python3 dev.py soak`.
"""

import pytest

from tests.soak.mutant import CONTROL_LIMIT_S, Copy, Mutant, Stale, judged
from tests.soak.table import MUTANTS


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Copy:
    """A copy on which all named tests pass: without this control a failure would prove nothing."""
    made = Copy(tmp_path_factory.mktemp("soak"))
    tests = sorted({test for mutant in MUTANTS for test in mutant.tests})
    verdict = made.run(tests, CONTROL_LIMIT_S)
    assert verdict.broken is None, f"{verdict.broken}{verdict.end}"
    assert [name for name, failures in verdict.failures.items() if failures] == [], verdict.end
    return made


def test_the_table_names_rules_once() -> None:
    names = [str(mutant) for mutant in MUTANTS]
    assert len(set(names)) == len(names) >= 20
    assert [str(mutant) for mutant in MUTANTS if mutant.old == mutant.new] == []


@pytest.mark.parametrize("mutant", MUTANTS, ids=str)
def test_its_named_tests_fail(copy: Copy, mutant: Mutant) -> None:
    with copy.mutated(mutant):
        verdict = copy.run(mutant.tests)
    assert verdict.broken is None, f"{verdict.broken}{verdict.end}"
    survived = [test for test in mutant.tests if not verdict.failures[test]]
    assert survived == [], f"passed with the rule broken: {mutant.breaks}"
    for test in mutant.tests:
        assert judged(verdict.failures[test]), verdict.end


def test_a_mutant_whose_text_has_gone_is_stale(copy: Copy) -> None:
    gone = Mutant("gateway/core/decide.py", "none", "no such text", "", ("x",))
    with pytest.raises(Stale, match="0 times"), copy.mutated(gone):
        pass


def test_a_mutant_that_is_only_broken_is_no_proof(copy: Copy) -> None:
    """A syntax error fails every test, and says nothing about the net."""
    test = "tests/unit/core/test_decide.py::test_fence_zero_is_a_fence"
    path = copy.root / "gateway/core/decide.py"
    sound = path.read_text("utf-8")
    for old, new in [
        ("def decide(", "def decide(("),
        ("    known = facts.known\n", "    known = facts.nothing\n"),
    ]:
        with copy.mutated(Mutant("gateway/core/decide.py", "none", old, new, (test,))):
            verdict = copy.run([test])
        assert verdict.broken is not None or not judged(verdict.failures[test])
        assert path.read_text("utf-8") == sound
