"""The mutants of what is forgotten and of what must not be."""

from tests.soak.mutant import Mutant

__all__ = ["MEMORY"]

_SQL = "migrations/0015_retention.sql"
_LOSSES = "migrations/0017_losses.sql"
_RETENTION = "tests/integration/test_retention.py::"
_FAILOVER = "tests/faults/test_failover.py::"
_ACKNOWLEDGED = "tests/unit/core/test_acknowledged.py::"
_SHARED = "tests/faults/test_pool_shared.py::"
_WITNESS = "tests/integration/test_witness.py::"
_UNKNOWN = "tests/integration/test_unknown_store.py::"
_WATCHED = "test_what_is_watched_and_decided_goes_though_nobody_serves_its_policy_any_more"
_ENTITIES = f"{_RETENTION}test_an_entity_"

MEMORY = [
    Mutant(
        _SQL,
        "a key goes by its own date",
        "and c.settled_at is not null and c.expires_at <= v_now",
        "and c.settled_at is not null",
        (f"{_RETENTION}test_the_body_goes_before_the_key_and_the_key_in_its_time",),
    ),
    Mutant(
        _SQL,
        "the entity of an unknown command is touched",
        "         where i.open and e.touched_at",
        "         where false and e.touched_at",
        (f"{_ENTITIES}with_an_unknown_command_stays_serial_or_not",),
    ),
    Mutant(
        _SQL,
        "an entity with a lease stays",
        "where l.tenant = e.tenant and l.entity = e.entity);\n    get",
        "where false);\n    get",
        (f"{_ENTITIES}with_a_lease_and_no_job_stays",),
    ),
    Mutant(
        _SQL,
        "the entities of unfinished jobs are touched",
        "         where e.touched_at < v_now - interval '1 day'\n",
        "         where false\n",
        (f"{_ENTITIES}with_a_lease_or_an_unfinished_job_stays",),
    ),
    Mutant(
        _SQL,
        "the key of a job learns what became of it",
        "         where k.tenant = g.tenant and k.key = g.key and k.job = g.id\n",
        "         where false\n",
        (f"{_RETENTION}test_the_key_of_a_job_outlives_the_job",),
    ),
    Mutant(
        "migrations/0016_expired_keys.sql",
        "a key's age is told by the database's clock",
        "< gateway.clock() - make_interval(days => key_days)",
        "< clock_timestamp() - make_interval(days => key_days)",
        (f"{_RETENTION}test_the_age_is_told_by_the_databases_clock",),
    ),
    Mutant(
        _LOSSES,
        "where fences are issued here nobody holds an entity whose mark was put back",
        "           held = case when e.held is not null or i.issued then 0 end\n",
        "           held = case when e.held is not null or i.issued then i.fence end\n",
        (f"{_FAILOVER}test_a_fence_that_was_issued_and_forgotten_is_not_issued_twice",),
    ),
    Mutant(
        _LOSSES,
        "a command that is put back takes the open slot again",
        "     where n.serial and n.settled_at is null\n",
        "     where false\n",
        (f"{_FAILOVER}test_a_lost_command_of_a_serial_entity_holds_it_again",),
    ),
    Mutant(
        "gateway/store/database.py",
        "a cancelled wait for the standby is a lost answer",
        "        if raw is not None and raw.unreplicated:\n",
        "        if False:\n",
        (f"{_FAILOVER}test_a_wait_for_the_standby_that_is_cancelled_sends_nothing",),
    ),
    Mutant(
        "gateway/store/doubts.py",
        "a repeat waits for what it finds to reach the standby",
        "*args, flush=True)",
        "*args, flush=False)",
        (f"{_FAILOVER}test_a_repeat_does_not_find_what_no_standby_has",),
    ),
    Mutant(
        "gateway/store/witness.py",
        "on another server everything that is remembered is looked up",
        "missing = await self._missing(few=server == before)",
        "missing = []",
        (f"{_FAILOVER}test_a_standby_that_lags_is_promoted_the_loss_is_named_and_everybody_stops",),
    ),
    Mutant(
        "gateway/store/witness.py",
        "whoever hears of another's loss looks for its own",
        "operator looks at.\n            await self._looked_at()",
        "operator looks at.\n            await self.clear()",
        (f"{_FAILOVER}test_who_hears_of_a_loss_from_another_first_reports_its_own_as_well",),
    ),
    Mutant(
        "gateway/core/acknowledged.py",
        "a mark that is known never falls",
        "max(fence, known.fence)",
        "fence",
        (f"{_ACKNOWLEDGED}test_a_mark_that_is_known_never_falls",),
    ),
    Mutant(
        "gateway/store/sql/losses.sql",
        "the row of an attempt that another one took over is not missing",
        "or coalesce(i.attempt = any (c.earlier), false) as own",
        "as own",
        (f"{_WITNESS}test_a_command_that_another_process_took_over_is_not_missing",),
    ),
    Mutant(
        "gateway/store/sql/losses.sql",
        "nor is it once the attempt that took over was found not executed",
        "and not (i.resent and exists (",
        "and not (false and exists (",
        (f"{_WITNESS}test_a_command_that_another_process_took_over_is_not_missing",),
    ),
    Mutant(
        "gateway/store/unknowns.py",
        "an attempt that took over is remembered",
        'if result == "taken" and self._witness is not None:',
        "if False:",
        (f"{_WITNESS}test_a_take_over_that_was_lost_is_put_back",),
    ),
    Mutant(
        _LOSSES,
        "a command that comes back is not sent again",
        "case when i.unknown = 'resend' then 'hold' else i.unknown end",
        "i.unknown",
        (f"{_WITNESS}test_a_command_that_was_taken_over_and_lost_comes_back_held",),
    ),
    Mutant(
        _SQL,
        "what a probe asks goes with the response",
        "num_nonnulls(c.headers, c.body, c.evidence, c.probe_target) > 0",
        "num_nonnulls(c.headers, c.body, c.evidence) > 0",
        (f"{_RETENTION}test_what_a_probe_asks_goes_with_the_response",),
    ),
    Mutant(
        _SQL,
        "the key of a forgotten job answers in the snapshot in which its job is looked for",
        "coalesce(j.state, h.state, k.state, 'forgotten')",
        "coalesce(j.state, h.state, 'forgotten')",
        (f"{_RETENTION}test_the_key_of_a_job_outlives_the_job",),
    ),
    Mutant(
        _SQL,
        "a job is looked for by its key as well as its id",
        "j.id = k.job and j.key = k.key",
        "j.id = k.job",
        (
            f"{_RETENTION}test_the_id_of_a_forgotten_job_under_another_key_is_not_shown_under_the_old_one",
        ),
    ),
    Mutant(
        _SQL,
        "what is unsettled stays on the list of the watched",
        "and w.key_digest = i.key_digest and c.attempt is null;",
        "and w.key_digest = i.key_digest;",
        (f"{_RETENTION}{_WATCHED}",),
    ),
    Mutant(
        "gateway/store/unknowns.py",
        "nothing is asked about or judged while rows are lost",
        "self._ask: Asked = database if witness is None else witness",
        "self._ask: Asked = database",
        (f"{_WITNESS}test_no_probe_is_begun_or_judged_while_rows_are_lost_and_all_are_after_it",),
    ),
    Mutant(
        "gateway/store/witness.py",
        "what was looked up holds for one generation",
        "flush=flush, generation=generation)",
        "flush=flush)",
        (
            f"{_WITNESS}test_a_claim_that_waited_for_a_connection_while_rows_were_lost_leases_nothing",
        ),
    ),
    Mutant(
        "gateway/store/doubts.py",
        "an answer ends no doubt that came up while it was asked",
        "if self._attempts.get(each) is doubt:",
        "if True:",
        (f"{_WITNESS}test_an_answer_ends_no_doubt_that_came_up_while_it_was_asked",),
    ),
    Mutant(
        "gateway/proxy/prober.py",
        "the prober asks the database one thing at a time",
        "self._turn = asyncio.Lock()",
        "self._turn = asyncio.Semaphore(99)",
        (f"{_SHARED}test_locks_that_everybody_else_waits_for_leave_a_connection_to_commands",),
    ),
    Mutant(
        _SQL,
        "an entity is forgotten a day later than its keys",
        "v_idle   interval := make_interval(days => p_days + 1);",
        "v_idle   interval := make_interval(days => p_days);",
        (f"{_RETENTION}test_a_mark_outlives_every_key_that_came_with_it",),
    ),
    Mutant(
        "gateway/store/retention.py",
        "where an entity could not be touched none is forgotten",
        "if longest > 0 and not self._missed:",
        "if longest > 0:",
        (f"{_ENTITIES}that_could_not_be_touched_is_not_forgotten_in_that_round",),
    ),
    Mutant(
        "gateway/store/witness.py",
        "what was put back is remembered",
        "if isinstance(each, KeptCommand) and not stands:",
        "if isinstance(each, KeptCommand):",
        (f"{_WITNESS}test_what_was_put_back_is_found_missing_when_it_is_lost_again",),
    ),
    Mutant(
        "gateway/store/commands.py",
        "the answer to what was decided otherwise is remembered",
        'if result == "duplicate":',
        'if result in ("duplicate", "resolved"):',
        (f"{_WITNESS}test_the_answer_to_what_a_probe_had_decided_is_remembered",),
    ),
    Mutant(
        _LOSSES,
        "nothing is added to a loss that was acknowledged",
        "where l.id = v_loss and l.acknowledged_at is null for share;",
        "where l.id = v_loss for share;",
        (f"{_WITNESS}test_what_is_found_while_somebody_acknowledges_is_a_loss_of_its_own",),
    ),
    Mutant(
        "migrations/0014_watch.sql",
        "the sweeps go back with a clock that stepped back",
        "elsif v_from > v_upto then",
        "elsif false then",
        (f"{_UNKNOWN}test_what_is_unknown_is_found_after_the_clock_stepped_back",),
    ),
    Mutant(
        "migrations/0013_outcomes.sql",
        "when an unknown command was first sent is remembered as long as it",
        "o.key_digest and c.settled_at is null)\n         order by",
        "o.key_digest and false)\n         order by",
        (f"{_RETENTION}test_when_an_unknown_command_was_first_sent_is_remembered_as_long_as_it",),
    ),
]
