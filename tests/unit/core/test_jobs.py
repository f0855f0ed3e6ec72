"""What tells one end of a lease from another, and what a stored state is called outside."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

import pytest

from gateway.core.jobs import Complete, Fail, HandBack, Held, NextStage, digest_of, shown

HELD = Held("e", UUID(int=1), 7)
ENDS = [
    Complete(HELD, b"1"),
    Complete(HELD, b"2"),
    Complete(HELD, b""),
    Complete(HELD, b"1", NextStage("charge")),
    Complete(HELD, b"1", NextStage("charge", "")),
    Complete(HELD, b"1", NextStage("charge", "e")),
    Complete(HELD, b"1", NextStage("charge", "e", wait=True)),
    Complete(HELD, b"1", NextStage("charge", "ewait")),
    Complete(HELD, b"1c", NextStage("harge")),
    Complete(HELD, b"1", NextStage("charge", wait=True)),
    Fail(HELD, "1"),
    Fail(HELD, "1", retry=False),
    Fail(HELD, ""),
    HandBack(HELD),
]


def test_no_two_different_ends_have_one_digest() -> None:
    digests = {digest_of(end) for end in ENDS}
    assert len(digests) == len(ENDS)
    assert {len(digest) for digest in digests} == {32}


def test_a_repeated_end_may_draw_another_delay() -> None:
    fail = Fail(HELD, "1", delay_ms=100)
    assert digest_of(fail) == digest_of(replace(fail, delay_ms=900))
    assert digest_of(HandBack(HELD)) == digest_of(HandBack(HELD, 9))


@pytest.mark.parametrize("stored", ["ready", "scheduled", "behind-entity", "behind-user"])
def test_where_a_job_stands_in_the_queue_is_nobodys_matter(stored: str) -> None:
    assert shown(stored) == "queued"


@pytest.mark.parametrize("stored", ["running", "waiting", "succeeded", "failed", "cancelled"])
def test_other_states_are_called_what_they_are(stored: str) -> None:
    assert shown(stored) == stored
