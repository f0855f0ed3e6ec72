"""The readers of what comes from outside: never an exception but the refusal that is declared."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.fuzz.values import READERS, body_seeds, policy_seeds, read_body, read_policy

SEED = 20_26
COUNTS = {name: 100 if name == "policies" else 1_500 for name in READERS}
"""How many of each; a folder of policies costs a hundred times what a key costs."""


@pytest.mark.parametrize(("name", "raw"), body_seeds(), ids=[name for name, _ in body_seeds()])
def test_a_body_of_the_corpus_is_read_or_refused(name: str, raw: bytes) -> None:
    read_body(name.partition("-")[0], raw)


@pytest.mark.parametrize(("name", "text"), policy_seeds(), ids=[name for name, _ in policy_seeds()])
def test_a_policy_of_the_corpus_is_compiled_or_named_with_its_mistakes(
    name: str, text: str
) -> None:
    read_policy(text.encode("utf-8"))


@pytest.mark.parametrize("name", READERS)
def test_what_is_generated_is_read_or_refused(name: str) -> None:
    chance = Random(f"{SEED} {name}")
    for _ in range(COUNTS[name]):
        READERS[name](chance)


@pytest.mark.parametrize("name", READERS)
def test_what_hypothesis_finds_is_read_or_refused(name: str) -> None:
    @settings(max_examples=25, suppress_health_check=[HealthCheck.too_slow])
    @given(st.randoms(use_true_random=False))
    def finds(chance: Random) -> None:
        READERS[name](chance)

    finds()


@pytest.mark.parametrize("kind", ["json", "form", "multipart"])
def test_any_bytes_are_read_or_refused(kind: str) -> None:
    @settings(max_examples=150)
    @given(st.binary(max_size=200))
    def reads(raw: bytes) -> None:
        read_body(kind, raw)

    reads()


@settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow])
@given(st.binary(max_size=300))
def test_any_file_is_compiled_or_named_with_its_mistakes(raw: bytes) -> None:
    read_policy(raw)
