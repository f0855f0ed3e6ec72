"""The mutants of jobs and leases; see ``table``."""

from tests.soak.mutant import Mutant

__all__ = ["JOBS"]

_SQL = "migrations/0007_work.sql"
_CLAIM = "migrations/0010_claims.sql"
_END = "migrations/0011_late_ends.sql"
_FLOODS = "migrations/0019_floods.sql"
_STORE = "tests/contract/test_job_store.py::"
_RACES = "tests/integration/test_job_races.py::"
_PLANS = "tests/contract/test_job_plans.py::"
_LEASES = "tests/unit/core/test_leases.py::"
_JOBS = "tests/unit/core/test_jobs.py::"
_LAST = "    v_last text[];  -- entities whose leases are these and are not over\nbegin\n"
_LOCKED = """\
    perform 1 from gateway.job_leases l
      where l.tenant = p_tenant and l.entity = any (p_entity) and l.job = any (p_job)
      order by l.entity
        for no key update;
"""

_PAST = """\
         order by random()
    )
    select p.tenant, p.entity, p.job, p.fence, p.tool, j.attempts,
           floor(extract(epoch from v_now - p.lease_until) * 1000)::bigint
      from past p
     cross join lateral (
        select from gateway.entities e where e.tenant = p.tenant and e.entity = p.entity
           for no key update skip locked) as e
     cross join lateral (
        select from gateway.job_leases l where l.tenant = p.tenant and l.entity = p.entity\
"""
_UNLOCKED = ") as l\n"

JOBS = [
    Mutant(
        _CLAIM,
        "a claim passes over an entity that is locked",
        " skip locked) as e;\n        v_now := gateway.clock();\n        with leased",
        ") as e;\n        v_now := gateway.clock();\n        with leased",
        (f"{_RACES}test_a_locked_entity_keeps_no_claim_from_the_others",),
    ),
    Mutant(
        _SQL,
        "a claim passes over an entity that another transaction is just making",
        "set lock_timeout = '5ms'\n",
        "",
        (f"{_RACES}test_a_locked_entity_keeps_no_claim_from_the_others",),
    ),
    Mutant(
        _FLOODS,
        "an end locks its entity before its lease",
        "        for no key update;\n    perform 1\n       from gateway.job_leases l\n",
        "        for no key update skip locked;\n    perform 1\n       from gateway.job_leases l\n",
        (f"{_RACES}test_a_heartbeat_does_not_wait_for_an_end_that_waits_for_its_entity",),
    ),
    Mutant(
        _SQL,
        "the end of a lease makes ready what was behind it of every tool",
        "                      and j.tool > b.tool\n",
        "                      and false\n",
        (f"{_STORE}test_the_end_of_a_lease_frees_the_best_job_of_every_tool",),
    ),
    Mutant(
        _CLAIM,
        "a limit that was raised or removed frees who was behind it",
        "    perform gateway.free_behind_users(p_tenant, p_tool, p_max_per_user);\n",
        "",
        (f"{_STORE}test_a_users_limit_that_was_raised_or_removed_frees_who_was_behind_it",),
    ),
    Mutant(
        _SQL,
        "a raised limit frees no more than have room",
        "                    limit b.room) as j) as room\n",
        "                    limit 0) as j) as room\n",
        (f"{_STORE}test_a_raised_limit_frees_no_more_than_have_room",),
    ),
    Mutant(
        "migrations/0006_jobs.sql",
        "a job's times are such as every language can hold",
        "at < timestamptz '9999-01-01 00:00:00Z'",
        "true",
        (f"{_STORE}test_times_that_not_every_language_holds_are_refused",),
    ),
    Mutant(
        "gateway/store/jobs.py",
        "a batch of ends that waited too long is repeated one by one",
        "            if error.code != _TIMED_OUT or len(ends) == 1:\n                raise\n",
        "            raise\n",
        (f"{_RACES}test_one_locked_entity_keeps_no_other_result_of_a_batch",),
    ),
    Mutant(
        "gateway/store/jobs.py",
        "the loser of a deadlock is repeated",
        "_TRIES = 3\n",
        "_TRIES = 1\n",
        (f"{_RACES}test_the_loser_of_a_deadlock_is_repeated",),
    ),
    Mutant(
        "gateway/core/jobs.py",
        "an error is sent as the database can hold it",
        '.replace("\\0", "\\ufffd")',
        "",
        (f"{_STORE}test_a_worker_can_say_that_it_failed_whatever_its_error_holds",),
    ),
    Mutant(
        _END,
        "every end of a lease raises the counter",
        "update gateway.entities e set fence = e.fence + 1, held = 0, touched_at = p_now",
        "update gateway.entities e set held = 0, touched_at = p_now",
        (
            f"{_STORE}test_a_zombie_can_neither_renew_nor_finish_after_the_takeover",
            f"{_STORE}test_a_cancelled_job_ends_at_once_and_its_worker_hears_of_it",
        ),
    ),
    Mutant(
        _SQL,
        "a lease that is over is not renewed",
        "     where l.job = i.job and l.fence = i.fence and l.lease_until > v_now;\n    update",
        "     where l.job = i.job and l.fence = i.fence;\n    update",
        (
            f"{_STORE}test_a_lease_that_is_over_is_never_renewed_though_nobody_reaped_it",
            f"{_RACES}test_a_renewal_that_waited_past_the_lease_is_refused",
        ),
    ),
    Mutant(
        _SQL,
        "renewing locks first and reads the clock then",
        f"    v_now  timestamptz;\n{_LAST}{_LOCKED}    v_now := gateway.clock();\n",
        f"    v_now  timestamptz := gateway.clock();\n{_LAST}{_LOCKED}",
        (f"{_RACES}test_a_renewal_that_waited_past_the_lease_is_refused",),
    ),
    Mutant(
        _SQL,
        "no heartbeat reaches beyond the total",
        "least(v_now + l.lease_ms * interval '1 millisecond', l.total_until)",
        "v_now + l.lease_ms * interval '1 millisecond', total_until = 'infinity'",
        (f"{_STORE}test_a_heartbeat_gives_a_full_lease_and_never_more_than_the_total",),
    ),
    Mutant(
        _FLOODS,
        "the end of a lease that is over is not accepted",
        "     where l.job = i.job and l.fence = i.fence and l.lease_until > v_now;\n    perform",
        "     where l.job = i.job and l.fence = i.fence;\n    perform",
        (
            f"{_STORE}test_a_late_result_is_recorded_once_however_often_it_is_sent",
            f"{_RACES}test_a_result_that_waited_past_the_lease_is_rejected",
        ),
    ),
    Mutant(
        _FLOODS,
        "a result of a job that was never there leaves no row",
        "           and (o.key is not null or exists (\n",
        "           and (true or exists (\n",
        (f"{_STORE}test_a_made_up_result_leaves_no_row_and_one_of_a_forgotten_job_does",),
    ),
    Mutant(
        _SQL,
        "only what is over is reaped",
        "       and l.lease_until <= v_now;\n    if v_job",
        "    ;\n    if v_job",
        (f"{_RACES}test_a_lease_that_was_renewed_meanwhile_is_not_reaped",),
    ),
    Mutant(
        _SQL,
        "one stuck row stops no reaper",
        _PAST + _UNLOCKED.replace(") as l", "\n           for update skip locked) as l"),
        _PAST.replace("         order by random()\n", "") + _UNLOCKED,
        (f"{_RACES}test_one_row_that_is_stuck_stops_no_reaper",),
    ),
    Mutant(
        _END,
        "the end of a lease makes ready what was behind it",
        "    perform gateway.unblock(p_tenant, v_entity, v_tool, v_on_behalf);\n\n    -- Every",
        "    -- Every",
        (f"{_STORE}test_the_best_of_those_behind_comes_next",),
    ),
    Mutant(
        _SQL,
        "a job is put behind a lease under a lock on it",
        "               for key share skip locked) as l;",
        "               ) as l;",
        (f"{_RACES}test_an_end_waits_for_who_is_put_behind_its_lease",),
    ),
    Mutant(
        _SQL,
        "where the pick was taken away the next is picked",
        "        exit when v_freed = cardinality(v_best);",
        "        exit;",
        (f"{_RACES}test_an_end_frees_the_next_where_the_best_behind_is_just_cancelled",),
    ),
    Mutant(
        _SQL,
        "who is put behind a user gives the entity free",
        "    perform gateway.unblock(p_tenant, v_free, null, null);",
        "",
        (f"{_STORE}test_a_user_at_its_limit_does_not_keep_an_entity_from_others",),
    ),
    Mutant(
        _SQL,
        "who is put behind an entity gives the user free",
        "    perform gateway.unblock(p_tenant, null, v_tool, v_on_behalf);",
        "",
        (f"{_STORE}test_an_entity_that_is_taken_does_not_keep_its_user_from_other_work",),
    ),
    Mutant(
        _CLAIM,
        "claims of a limited tool come one after the other",
        "              where t.max_running is not null or t.max_per_user is not null\n",
        "              where false\n",
        (f"{_RACES}test_claims_of_a_limited_tool_come_one_after_the_other",),
    ),
    Mutant(
        _CLAIM,
        "a claim that is repeated waits for the first",
        "    perform pg_advisory_xact_lock(\n"
        "        hashtextextended(format('fencegate claim %s %s', p_tenant, p_claim), 0));\n",
        "",
        (f"{_RACES}test_a_claim_repeated_while_the_first_still_commits_waits_for_its_leases",),
    ),
    Mutant(
        _CLAIM,
        "a claim that is repeated is one of the same worker",
        " and l.owner = p_owner;",
        ";",
        (f"{_STORE}test_the_claim_of_another_worker_with_the_same_uuid_is_a_wish_of_its_own",),
    ),
    Mutant(
        _CLAIM,
        "nothing is claimed past its give_up_at",
        "(j.give_up_at <= v_now or j.attempts >= t.attempts)",
        "j.attempts >= t.attempts",
        (f"{_STORE}test_nothing_is_claimed_past_its_give_up",),
    ),
    Mutant(
        _CLAIM,
        "a backlog is met once",
        "            perform gateway.set_behind(p_tenant, v_ids, p_tool, p_max_per_user);",
        "            null;",
        (f"{_PLANS}test_a_backlog_that_cannot_be_served_makes_no_claim_of_others_slow",),
    ),
    Mutant(
        "gateway/core/leases.py",
        "a lease is trusted from before its request left",
        "return asked_mono_s + remaining_ms / 1000 * (1 - DRIFT)",
        "return asked_mono_s + 1 + remaining_ms / 1000 * (1 - DRIFT)",
        (f"{_LEASES}test_a_worker_never_trusts_its_lease_for_longer_than_it_lasts",),
    ),
    Mutant(
        "gateway/core/leases.py",
        "a lease outlasts its missed heartbeats",
        "if not terms.lease_s > missed:",
        "if not terms.lease_s >= missed:",
        (f"{_LEASES}test_a_lease_outlasts_its_missed_heartbeats_and_says_with_which_numbers",),
    ),
    Mutant(
        "gateway/core/jobs.py",
        "two parts of an end are never read as one",
        '        digest.update(len(part).to_bytes(8, "big"))\n',
        "",
        (f"{_JOBS}test_no_two_different_ends_have_one_digest",),
    ),
]
