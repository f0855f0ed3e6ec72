"""The mutants: where, which rule is broken, how, and the tests that must notice.

Every entry is one mistake that somebody could make: a comparison that is off by one, a guard that
was forgotten, a wait that looked needless. `old` must stand once in its file.
"""

from tests.soak.batches import BATCHES
from tests.soak.boundary import BOUNDARY
from tests.soak.cache import CACHE
from tests.soak.floods import FLOODS
from tests.soak.jobs import JOBS
from tests.soak.memory import MEMORY
from tests.soak.mutant import Mutant
from tests.soak.secrets import SECRETS
from tests.soak.unknowns import UNKNOWNS

__all__ = ["MUTANTS"]

_DECIDE = "tests/unit/core/test_decide.py::"
_SETTLE = "tests/unit/core/test_settle.py::"
_FINGERPRINT = "tests/unit/core/test_fingerprint.py::"
_CANONICAL = "tests/unit/core/test_canonical.py::"
_KEYS = "tests/unit/core/test_keys.py::"
_FENCES = "tests/unit/core/test_fences.py::"
_FRAMING = "tests/unit/core/test_framing.py::"
_HEADERS = "tests/unit/core/test_headers.py::"
_ISSUING = "tests/unit/core/test_issuing.py::"
_ISSUES = "tests/e2e/test_fences.py::"
_AUTH = "tests/unit/core/test_auth.py::"
_STORE = "tests/contract/test_command_store.py::"
_PLANS = "tests/contract/test_store_plans.py::"
_RACES = "tests/integration/test_store_concurrency.py::"
_OPERATOR = "tests/integration/test_operator.py::"
_TENANTS = "tests/integration/test_keys.py::"
_EXECUTE = "tests/unit/proxy/test_execute.py::"
_SETTLING = "tests/unit/proxy/test_settling.py::"
_WAITING = "tests/unit/proxy/test_waiting.py::"
_ADMIT = "tests/unit/proxy/test_admitting.py::"
_CALL = "tests/unit/proxy/test_call.py::"
_DOWN = "tests/faults/test_database_down.py::"
_CONNECTION = "tests/unit/upstream/test_connection.py::"
_STAGE = "test_stage_is_raised_before_the_first_write_and_small_requests_take_one_write"
_CLIENT = "tests/integration/test_upstream_client.py::"
_LIMITS = "tests/integration/test_upstream_limits.py::"
_GIVEN_UP = "tests/integration/test_upstream_given_up.py::"
_TURNS = "tests/unit/upstream/test_turns.py::"
_STREAMING = "tests/unit/upstream/test_streaming.py::"
_HTTP1 = "tests/e2e/test_http1.py::"

_CORE = [
    Mutant(
        "gateway/core/decide.py",
        "an equal fence passes",
        "if fence < mark:",
        "if fence <= mark:",
        (f"{_DECIDE}test_an_equal_or_higher_fence_is_not_stale",),
    ),
    Mutant(
        "gateway/core/decide.py",
        "an attempt recognises its own row, also after its fence was overtaken",
        "if known is not None and known.attempt == facts.attempt:",
        "if known is not None and known.attempt == facts.attempt and facts.fence == facts.mark:",
        (f"{_DECIDE}test_the_own_row_is_forwarded_though_its_fence_was_overtaken_meanwhile",),
    ),
    Mutant(
        "gateway/core/decide.py",
        "an attempt past its deadline is never sent",
        "return Lapsed(known.attempt)",
        "return Forward(known.attempt)",
        (
            f"{_DECIDE}test_the_own_row_past_its_deadline_is_never_sent",
            f"{_EXECUTE}test_an_attempt_admitted_too_late_is_given_back_unsent",
        ),
    ),
    Mutant(
        "gateway/core/decide.py",
        "an unknown command of the entity is not waited for as if it would end",
        "return RejectUnresolved(facts.open)",
        "return WaitForEntity(facts.open)",
        (f"{_DECIDE}test_each_row_of_the_table_has_its_decision",),
    ),
    Mutant(
        "gateway/core/decide.py",
        "what cannot be compared is not called re-used",
        "if known.same is False:",
        "if not known.same:",
        (f"{_DECIDE}test_each_row_of_the_table_has_its_decision",),
    ),
    Mutant(
        "gateway/core/settle.py",
        "from the first byte on nothing proves that nothing was sent",
        "if exchange.stage < Stage.SENDING_HEADERS:",
        "if exchange.stage <= Stage.SENDING_HEADERS:",
        (f"{_SETTLE}test_whatever_happens_after_it_without_a_status_is_unknown",),
    ),
    Mutant(
        "gateway/core/settle.py",
        "a body that was cut short is not recorded as the answer",
        "Answered(response, kept=whole,",
        "Answered(response, kept=True,",
        (f"{_SETTLE}test_only_a_whole_body_within_the_limit_is_kept",),
    ),
    Mutant(
        "gateway/core/settle.py",
        "an ambiguous status settles nothing",
        "if response.status in rules.ambiguous:",
        "if response.status in rules.ambiguous and not whole:",
        (
            f"{_SETTLE}test_the_policys_own_lists_decide",
            f"{_EXECUTE}test_each_outcome_is_answered_and_decides_the_next_request_with_the_key",
        ),
    ),
    Mutant(
        "gateway/core/settle.py",
        "bytes that were handed to the socket may have left",
        'Stage.SENDING_HEADERS | Stage.SENDING_BODY:\n            return "unknown"',
        'Stage.SENDING_HEADERS | Stage.SENDING_BODY:\n            return "no"',
        (f"{_SETTLE}test_whatever_happens_after_it_without_a_status_is_unknown",),
    ),
    Mutant(
        "gateway/core/fingerprint.py",
        "the parts of a request never run into each other",
        'written += (_SIZES[size] if size < _FEW else size.to_bytes(8, "big"), part)',
        "written.append(part)",
        (
            f"{_FINGERPRINT}test_every_part_counts",
            f"{_FINGERPRINT}test_where_one_part_ends_and_the_next_begins_counts",
        ),
    ),
    Mutant(
        "gateway/core/fingerprint.py",
        "the entity is part of what must be equal",
        'listed += (parts.entity.encode("ascii"), b"%d"',
        'listed += (b"", b"%d"',
        (f"{_FINGERPRINT}test_every_part_counts",),
    ),
    Mutant(
        "gateway/core/fingerprint.py",
        "the key that the upstream sees tells nothing of the key in the store",
        'person=b"fg-upstream")',
        'person=b"fg-key")',
        (f"{_FINGERPRINT}test_key_digest_and_upstream_key",),
    ),
    Mutant(
        "gateway/core/canonical.py",
        "a member that occurs twice is refused",
        "if len(members) != len(pairs):",
        "if False:",
        (f"{_CANONICAL}test_what_two_readers_may_read_differently_is_refused",),
    ),
    Mutant(
        "gateway/core/canonical.py",
        "a member that occurs twice is refused where no pair is looked at",
        "if len(members) == most and",
        "if",
        (f"{_CANONICAL}test_what_two_readers_may_read_differently_is_refused",),
    ),
    Mutant(
        "gateway/core/canonical.py",
        "numbers are equal by their exact value, not as floats",
        "parse_float=_number,",
        "parse_float=float,",
        (f"{_CANONICAL}test_different_documents",),
    ),
    Mutant(
        "gateway/core/keys.py",
        "a bare key with a comma may be two",
        "if _COMMA in value:",
        "if False:",
        (f"{_KEYS}test_what_is_not_one_key_is_refused_with_a_reason",),
    ),
    Mutant(
        "gateway/core/keys.py",
        "two lines are not one key",
        "if len(lines) > 1:",
        "if len(set(lines)) > 1:",
        (f"{_KEYS}test_two_lines_are_never_one_key",),
    ),
    Mutant(
        "gateway/core/fences.py",
        "two lines are not one fence",
        "if len(lines) > 1:",
        "if len(set(lines)) > 1:",
        (f"{_FENCES}test_two_lines_are_never_one_fence",),
    ),
    Mutant(
        "gateway/core/fences.py",
        "a fence has one spelling",
        'if digits.startswith(b"0") and len(digits) > 1:',
        "if False:",
        (f"{_FENCES}test_anything_else_is_refused",),
    ),
    Mutant(
        "gateway/core/framing.py",
        "a message has a length or is chunked, not both",
        'if version == "1.0" or _values(headers, b"content-length"):',
        'if version == "1.0":',
        (f"{_FRAMING}test_a_coding_beside_a_length_or_in_http_1_0_is_refused",),
    ),
    Mutant(
        "gateway/core/headers.py",
        "a field that Connection names goes no further",
        "dropped = _HOP_BY_HOP | nominated(headers)\n",
        "dropped = _HOP_BY_HOP\n",
        (f"{_HEADERS}test_any_connection_line_nominates_fields_of_this_hop",),
    ),
    Mutant(
        "gateway/core/headers.py",
        "a cookie is not replayed to somebody else",
        'b"set-cookie", ',
        "",
        (f"{_HEADERS}test_what_is_bound_to_one_moment_or_caller_is_relayed_but_not_recorded",),
    ),
    Mutant(
        "gateway/core/headers.py",
        "a request that comes back is a loop",
        "return words[1].lower()",
        "return words[0].lower()",
        (f"{_HEADERS}test_a_message_that_came_through_here_is_a_loop",),
    ),
    Mutant(
        "gateway/core/auth.py",
        "a key is its secret, not its name",
        "if equal and found is not None else None",
        "if found is not None else None",
        (f"{_AUTH}test_anything_else_is_nobody",),
    ),
    Mutant(
        "gateway/core/asking.py",
        "only what is declared as JSON asks for a fence",
        'if body.declared != "json":',
        "if False:",
        (f"{_ISSUING}test_only_what_is_declared_as_json_is_read",),
    ),
    Mutant(
        "gateway/core/issuing.py",
        "entities for which fences are issued are spelled as everywhere",
        "if isinstance(checked, Invalid):",
        "if False:",
        (f"{_ISSUING}test_what_is_not_one_entity_is_refused",),
    ),
    Mutant(
        "gateway/api/fences.py",
        "a fence is issued to the tenant of the key",
        "self._store.issue(tenant, entity)",
        "self._store.issue(1, entity)",
        (f"{_ISSUES}test_a_key_is_asked_for_and_tenants_share_no_counter",),
    ),
    Mutant(
        "gateway/api/fences.py",
        "those who ask for one entity leave turns to others",
        "own = frozenset({entity})",
        "own: frozenset[str] = frozenset()",
        (f"{_ISSUES}test_who_asks_for_a_locked_entity_keeps_no_turn_from_others",),
    ),
]

_SQL = [
    Mutant(
        "migrations/0019_floods.sql",
        "one command of an entity at a time",
        "           and (not i.serial or (e.entity is not null and e.open_key is null))\n",
        "",
        (
            f"{_STORE}test_a_serial_command_waits_for_the_open_one",
            f"{_RACES}test_of_many_commands_on_one_entity_exactly_one_is_forwarded_at_a_time",
        ),
    ),
    Mutant(
        "migrations/0019_floods.sql",
        "a good fence is remembered, though its command is refused",
        "then greatest(e.fence, i.fence) else e.fence end,",
        "and n.attempt is not null then greatest(e.fence, i.fence) else e.fence end,",
        (f"{_STORE}test_a_good_fence_is_remembered_whatever_the_later_rows_say",),
    ),
    Mutant(
        "migrations/0019_floods.sql",
        "a key of another command is reused, though its rule version is another, too",
        "case when c.policy <> i.policy or c.entity <> i.entity then false\n"
        "                    when c.rules",
        "case when c.rules",
        (f"{_STORE}test_a_key_of_another_command_or_entity_is_reused_whatever_the_rules",),
    ),
    Mutant(
        "migrations/0005_issue.sql",
        "where fences are issued here, only the one that is held is admitted",
        "else fence <> held end;",
        "else false end;",
        (f"{_STORE}test_once_a_fence_was_issued_here_only_the_one_that_is_held_is_admitted",),
    ),
    Mutant(
        "migrations/0019_floods.sql",
        "a fence of an outside issuer raises no counter that is kept here",
        "case when e.held is null and i.issuer_here is not true",
        "case when true",
        (f"{_STORE}test_once_a_fence_was_issued_here_only_the_one_that_is_held_is_admitted",),
    ),
    Mutant(
        "migrations/0005_issue.sql",
        "the first fence issued here leaves those of an outside issuer behind",
        "then fence + 1048577 else fence + 1 end;",
        "then fence + 1 else fence + 1 end;",
        (f"{_STORE}test_the_first_fence_issued_here_leaves_those_of_an_outside_issuer_far_behind",),
    ),
    Mutant(
        "migrations/0005_issue.sql",
        "so does the first on an entity of which no outside fence was seen",
        "case when held is null then fence + 1048577",
        "case when held is null and fence > 0 then fence + 1048577",
        (f"{_STORE}test_so_does_the_first_on_an_entity_of_which_no_outside_fence_was_seen",),
    ),
    Mutant(
        "migrations/0019_floods.sql",
        "at its deadline a command is unknown",
        "when c.deadline <= v_now then 'unknown'",
        "when c.deadline < v_now then 'unknown'",
        (f"{_STORE}test_the_deadline_itself_is_already_unknown",),
    ),
    Mutant(
        "migrations/0019_floods.sql",
        "a stale command leaves evidence, also where another is open",
        "             where j.stale\n",
        "             where false\n",
        (f"{_PLANS}test_a_refusal_reads_its_own_rows_of_the_audit",),
    ),
    Mutant(
        "migrations/0013_outcomes.sql",
        "only the attempt that holds the key settles it",
        "(c.attempt = i.attempt or i.attempt = any (c.earlier)) and c.settled_at is null\n",
        "c.settled_at is null\n",
        (f"{_STORE}test_a_response_after_another_attempt_took_the_key_is_an_alarm",),
    ),
    Mutant(
        "migrations/0013_outcomes.sql",
        "what is settled stays as it is",
        "(c.attempt = i.attempt or i.attempt = any (c.earlier)) and c.settled_at is null\n",
        "(c.attempt = i.attempt or i.attempt = any (c.earlier))\n",
        (f"{_STORE}test_settling_again_changes_nothing",),
    ),
    Mutant(
        "migrations/0013_outcomes.sql",
        "an unknown outcome is never released",
        "c.settled_at is null and c.evidence_at is null\n           and c.earlier is null",
        "c.settled_at is null\n           and c.earlier is null",
        (f"{_STORE}test_an_unknown_command_is_never_given_back",),
    ),
    Mutant(
        "migrations/0013_outcomes.sql",
        "only the attempt that holds the key gives it back",
        "           and c.attempt = i.attempt and c.settled_at is null and c.evidence_at is null\n",
        "           and c.settled_at is null and c.evidence_at is null\n",
        (f"{_STORE}test_only_the_attempt_that_holds_the_key_can_give_it_back",),
    ),
    Mutant(
        "migrations/0003_settle.sql",
        "calling it unknown never gives a command more time",
        "set deadline = least(c.deadline, v_now),",
        "set deadline = v_now,",
        (f"{_STORE}test_holding_never_moves_a_deadline_ahead",),
    ),
    Mutant(
        "migrations/0003_settle.sql",
        "whose outcome is unknown holds its entity as unknown",
        "set open_until = d.deadline",
        "set open_until = e.open_until",
        (f"{_STORE}test_holding_makes_unknown_at_once_and_once",),
    ),
    Mutant(
        "migrations/0013_outcomes.sql",
        "not executed is decided when the upstream cannot act any more",
        "elsif not p_executed and v_left > interval '0' then",
        "elsif false then",
        (
            f"{_STORE}test_not_executed_waits_until_the_upstream_cannot_act_any_more",
            f"{_OPERATOR}test_not_executed_waits_for_the_settle_delay_and_gives_the_key_back",
        ),
    ),
    Mutant(
        "migrations/0013_outcomes.sql",
        "a decision is about the attempt that was looked at",
        "elsif v_row.attempt <> p_attempt then\n        return query select 'changed', 0;",
        "elsif false then\n        return query select 'changed', 0;",
        (f"{_OPERATOR}test_a_decision_names_the_attempt_that_was_judged",),
    ),
    Mutant(
        "gateway/store/sql/commands.sql",
        "waiters hear of a command that became unknown",
        " where c.deadline is null or c.settled_at is not null or c.deadline <= gateway.clock()",
        " where c.deadline is null or c.settled_at is not null",
        (f"{_STORE}test_what_became_unknown_is_ready_so_that_its_waiters_hear_of_it",),
    ),
    Mutant(
        "gateway/store/sql/tenants.sql",
        "a revoked key opens nothing",
        "k.revoked_at is not null as revoked",
        "false as revoked",
        (f"{_TENANTS}test_anonymous_only_while_no_key_has_ever_existed",),
    ),
]

_PROXY = [
    Mutant(
        "gateway/proxy/execute.py",
        "an answer is recorded before the caller hears it",
        "if not await self._record(call, settle, limits, trace):",
        "if not self._record(call, settle, limits, trace):",
        (f"{_EXECUTE}test_a_bug_while_recording_is_raised_and_nothing_is_relayed",),
    ),
    Mutant(
        "gateway/proxy/execute.py",
        "a recording goes on when its call is cut off",
        "            self.background.spawn(self._settle(settle, trace, call, first))\n",
        "",
        (f"{_EXECUTE}test_a_recording_goes_on_when_its_call_is_cut_off",),
    ),
    Mutant(
        "gateway/proxy/execute.py",
        "a first try that failed has recorded nothing",
        "if first.done() and not first.cancelled() and first.exception() is None:",
        "if first.done():",
        (f"{_EXECUTE}test_a_recording_whose_first_try_fails_is_repeated_before_anybody_hears",),
    ),
    Mutant(
        "gateway/proxy/execute.py",
        "what is not recorded by its deadline is not relayed",
        "if not recording.done() or recording.cancelled():\n            return False",
        "if not recording.done() or recording.cancelled():\n            return True",
        (f"{_DOWN}test_down_past_the_deadline",),
    ),
    Mutant(
        "gateway/proxy/execute.py",
        "an attempt that is given up is released, since its lost try may have committed",
        "            self._abandon(call.command, lost_until)\n",
        "            pass\n",
        (f"{_EXECUTE}test_an_attempt_that_is_given_up_is_released_in_case_its_lost_try_committed",),
    ),
    Mutant(
        "gateway/proxy/execute.py",
        "it is released again once its lost try cannot commit any more",
        "        if left > 0:\n            await asyncio.sleep(left)\n",
        "        if left > 3600:\n            await asyncio.sleep(left)\n",
        (f"{_EXECUTE}test_what_a_lost_try_commits_behind_the_first_release_is_released_too",),
    ),
    Mutant(
        "gateway/proxy/execute.py",
        "who is woken and has hung up wakes the next",
        "            if ticket.woken.is_set():\n                self._pass_on(topic)\n"
        '            return "gone"',
        '            return "gone"',
        (f"{_EXECUTE}test_who_is_woken_and_has_hung_up_passes_its_turn_on",),
    ),
    Mutant(
        "gateway/proxy/execute.py",
        "unknown is on record before the late answer that heals it",
        "            await asyncio.wait({held})  # ",
        "            # ",
        (f"{_EXECUTE}test_unknown_is_on_record_before_the_late_answer_that_heals_it",),
    ),
    Mutant(
        "gateway/proxy/settling.py",
        "a settle whose answer was lost is repeated",
        "except (StoreUnavailable, AnswerLost):\n                self._on_retry",
        "except StoreUnavailable:\n                self._on_retry",
        (f"{_SETTLING}test_each_end_is_repeated_until_it_is_recorded",),
    ),
    Mutant(
        "gateway/proxy/settling.py",
        "a body is given up only where the database is silent about it",
        "silent += isinstance(error, AnswerLost) or error.code == _TIMED_OUT",
        "silent += 1",
        (f"{_SETTLING}test_a_body_is_kept_however_long_the_database_is_away",),
    ),
    Mutant(
        "gateway/proxy/waiting.py",
        "the one that waits longest for an entity is woken first",
        "            queue[0].woken.set()",
        "            queue[-1].woken.set()",
        (
            f"{_WAITING}test_a_change_of_an_entity_wakes_the_one_that_waits_longest",
            f"{_WAITING}test_waiters_of_an_entity_are_woken_in_the_order_they_came",
        ),
    ),
    Mutant(
        "gateway/proxy/waiting.py",
        "all who wait for a key are woken",
        "            for ticket in queue:\n                ticket.woken.set()\n        else:",
        "            queue[0].woken.set()\n        else:",
        (f"{_WAITING}test_a_change_of_a_key_wakes_all_who_wait_for_it",),
    ),
    Mutant(
        "gateway/proxy/waiting.py",
        "who was woken in vain keeps its place",
        "queue.appendleft(ticket) if front else queue.append(ticket)",
        "queue.append(ticket)",
        (f"{_WAITING}test_one_that_was_woken_in_vain_goes_to_the_front",),
    ),
    Mutant(
        "gateway/proxy/admitting.py",
        "a lost try counts until its statement must have ended",
        "lost_until = self._clock() + STATEMENT_TIMEOUT_S",
        "lost_until = self._clock()",
        (f"{_ADMIT}test_the_lost_try_may_commit_until_one_statement_timeout_after_it_was_lost",),
    ),
    Mutant(
        "gateway/proxy/admitting.py",
        "once an answer was lost, a refusal proves nothing",
        "if lost_until is None and error.code not in _RETRYABLE:",
        "if error.code not in _RETRYABLE:",
        (f"{_ADMIT}test_once_an_answer_was_lost_a_refusal_is_not_final",),
    ),
    Mutant(
        "gateway/proxy/call.py",
        "each round is an attempt of its own",
        "altered(self.command, attempt=uuid4())",
        "self.command",
        (f"{_CALL}test_each_round_is_an_attempt_of_its_own",),
    ),
    Mutant(
        "gateway/proxy/call.py",
        "an attempt stops before the database calls it unknown",
        " - _STOP_BEFORE_S",
        "",
        (f"{_CALL}test_it_stops_a_second_before_the_database_calls_it_unknown",),
    ),
]

_UPSTREAM = [
    Mutant(
        "gateway/upstream/connection.py",
        "nothing is written once the clock says that it is too late",
        '            reader.fail("paused")\n        return reader.fault is None',
        '            reader.fail("paused")\n        return True',
        (
            f"{_CONNECTION}test_nothing_is_written_once_a_deadline_has_passed",
            f"{_CONNECTION}test_a_pause_between_two_writes_ends_the_sending",
        ),
    ),
    Mutant(
        "gateway/upstream/connection.py",
        "the stage is raised before the write that could let a byte out",
        "        self.stage = Stage.SENDING_HEADERS\n",
        "",
        (f"{_CONNECTION}{_STAGE}",),
    ),
    Mutant(
        "gateway/upstream/connection.py",
        "what waits in the kernel is thrown away with its connection",
        "sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)",
        "pass",
        (f"{_GIVEN_UP}test_what_waits_in_the_kernel_is_thrown_away",),
    ),
    Mutant(
        "gateway/upstream/connection.py",
        "a connection with bytes behind its response is not used again",
        "            and not reader.extra\n",
        "",
        (f"{_CLIENT}test_not_reused",),
    ),
    Mutant(
        "gateway/upstream/connection.py",
        "an answer after the deadline is not in time",
        "if reader.fault is None and self._clock() >= self._due:",
        "if False:",
        (f"{_CONNECTION}test_an_answer_after_the_deadline_is_a_timeout_and_is_heard_late",),
    ),
    Mutant(
        "gateway/upstream/pool.py",
        "an idle connection is looked at before it is used",
        "self._idle_s and connection.alive():",
        "self._idle_s:",
        (f"{_CLIENT}test_a_connection_that_ended_while_idle_is_found_out_before_anything_is_sent",),
    ),
    Mutant(
        "gateway/upstream/pool.py",
        "a connection made during a suspend is too late",
        "if self._clock() >= deadline:  # ",
        "if False:  # ",
        (f"{_LIMITS}test_a_connection_made_after_a_suspend_is_too_late",),
    ),
    Mutant(
        "gateway/upstream/pool.py",
        "newcomers do not overtake those that wait for a connection",
        "waiter, _ = self._waiters.popitem(last=False)",
        "waiter, _ = self._waiters.popitem()",
        (f"{_LIMITS}test_waiters_are_served_in_order_and_never_above_the_limit",),
    ),
    Mutant(
        "gateway/upstream/turns.py",
        "streams together move only so much in one turn of the loop",
        "while self._line and self._let_in < self._limit:",
        "while self._line:",
        (f"{_TURNS}test_so_many_are_let_through_in_a_turn_and_in_their_order",),
    ),
    Mutant(
        "gateway/upstream/connection.py",
        "an answer before the end of its request does not wait for the rest without end",
        "                self._quiet = deadlines\n",
        "                pass\n",
        (f"{_STREAMING}test_an_answer_before_the_end_of_its_request_may_not_pause_for_ever",),
    ),
    Mutant(
        "gateway/upstream/client.py",
        "a body that breaks off while its reader stands in line does not look whole",
        "                if reader.has_news:\n                    continue",
        "                if reader.done:\n                    continue",
        (f"{_STREAMING}test_an_end_that_comes_while_it_stands_in_line_is_not_missed",),
    ),
    Mutant(
        "gateway/http1.py",
        "blanks behind a value are no part of it",
        'value.rstrip(b" \\t")',
        "value",
        (f"{_HTTP1}test_blanks_behind_a_value_are_no_part_of_it",),
    ),
    Mutant(
        "gateway/cycle.py",
        "a body that the close would complete is cut off by a reset",
        "        if self._delimited:\n            reset(",
        "        if False:\n            reset(",
        (f"{_HTTP1}test_a_body_that_breaks_off_does_not_end_like_a_whole_one",),
    ),
]

_FAULTS = [
    Mutant(
        "gateway/faults.py",
        "a variable that was inherited arms nothing",
        "    if points and not allowed:\n",
        "    if points and not allowed and False:\n",
        ("tests/unit/test_faults.py::test_a_variable_alone_arms_nothing",),
    ),
    Mutant(
        "gateway/store/commands.py",
        "a failpoint behind a commit stands behind it",
        '            faults.reach("settle.committed")\n',
        "",
        ("tests/unit/test_faults.py::test_each_failpoint_stands_at_one_place",),
    ),
]

MUTANTS = [
    *(*_CORE, *_SQL, *_PROXY, *_UPSTREAM, *JOBS, *MEMORY, *_FAULTS, *UNKNOWNS),
    *(*BOUNDARY, *SECRETS, *FLOODS, *BATCHES, *CACHE),
]
