"""Mutants of batches: how they are formed, and what their statements do by themselves."""

from tests.soak.mutant import Mutant

__all__ = ["BATCHES"]

_SQL = "migrations/0020_batches.sql"
_PY = "gateway/proxy/batching.py"
_STORE = "tests/contract/test_command_store.py::"
_MIXED = "tests/contract/test_store_batches.py::"
_FORMED = "tests/unit/proxy/test_batching.py::"
_ADMIT = "tests/unit/proxy/test_admitting.py::"
_SETTLING = "tests/unit/proxy/test_settling.py::"

BATCHES = [
    Mutant(
        _SQL,
        "a serial command is not fresh where another is open",
        "\n                        or i.serial and e.open_key is not null then 'other'",
        " then 'other'",
        (f"{_STORE}test_a_serial_command_waits_for_the_open_one",),
    ),
    Mutant(
        _SQL,
        "an entity is locked before its command is taken for fresh",
        "for no key update skip locked) e on true",
        "for key share skip locked) e on true",
        (f"{_MIXED}test_what_somebody_else_has_locked_stops_nobody_else_in_its_batch",),
    ),
    Mutant(
        _SQL,
        "a command below the mark is not fresh",
        "when i.fence < e.fence then case",
        "when false then case",
        (f"{_STORE}test_a_lower_fence_is_refused_with_evidence_and_an_equal_one_passes",),
    ),
    Mutant(
        _SQL,
        "a stale command of a batch leaves evidence",
        "          where i.what = 'stale';\n        return query",
        "          where false;\n        return query",
        (f"{_STORE}test_a_lower_fence_is_refused_with_evidence_and_an_equal_one_passes",),
    ),
    Mutant(
        _SQL,
        "a slot is given back whose command was not inserted",
        "where i.what = 'other' and e.tenant",
        "where false and e.tenant",
        (f"{_MIXED}test_of_a_command_that_is_not_admitted_its_new_entity_keeps_the_fence_alone",),
    ),
    Mutant(
        _SQL,
        "where fences are issued here, a new entity remembers none from outside",
        "coalesce(case when not i.here then i.fence end, 0)",
        "coalesce(i.fence, 0)",
        (f"{_MIXED}test_of_a_command_that_is_not_admitted_its_new_entity_keeps_the_fence_alone",),
    ),
    Mutant(
        _SQL,
        "a command that is answered in time frees its entity",
        "and e.open_key = i.key_digest and e.open_attempt = i.attempt;",
        "and false;",
        (f"{_STORE}test_settled_in_time_is_replayed_to_everybody_with_that_key",),
    ),
    Mutant(
        _SQL,
        "only the attempt that holds the key settles it in time",
        "and c.key_digest = i.key_digest and c.attempt = i.attempt\n       and c.settled_at",
        "and c.key_digest = i.key_digest\n       and c.settled_at",
        (f"{_STORE}test_a_response_after_another_attempt_took_the_key_is_an_alarm",),
    ),
    Mutant(
        _SQL,
        "an answer past the deadline is late",
        "and c.deadline > v_now and c.earlier is null;",
        "and c.earlier is null;",
        (f"{_STORE}test_an_unknown_command_is_settled_late_by_its_own_response",),
    ),
    Mutant(
        _PY,
        "no two commands of a batch share a key or an entity",
        "if names.isdisjoint(own) and size <= left:",
        "if size <= left:",
        (f"{_FORMED}test_who_shares_a_name_comes_behind_and_others_pass",),
    ),
    Mutant(
        _PY,
        "who shares one with an earlier command comes behind it",
        "kept.append(member)\n            names.update(own)",
        "kept.append(member)\n                continue\n            names.update(own)",
        (f"{_FORMED}test_who_shares_a_name_comes_behind_and_others_pass",),
    ),
    Mutant(
        _PY,
        "a poisoned command fails alone",
        "if len(batch) == 1 or not (_is_cut_off(error) or _may_be_of_one(error)):",
        "if len(batch) == 1 or not _is_cut_off(error):",
        (f"{_FORMED}test_of_a_batch_with_poison_only_the_poisoned_fails_and_the_lane_goes_on",),
    ),
    Mutant(
        "gateway/proxy/admitting.py",
        "an admit whose answer was lost is repeated alone",
        "            ask = self._batches.alone\n            if self",
        "            if self",
        (f"{_ADMIT}test_a_repeat_is_never_in_a_batch",),
    ),
    Mutant(
        "gateway/proxy/settling.py",
        "a settle whose answer was lost is repeated alone",
        "                ask = self._batches.alone\n",
        "",
        (f"{_SETTLING}test_a_repeat_is_never_in_a_batch",),
    ),
]
