"""The mutants of what finds unknown outcomes out: probes, take-overs, reports."""

from tests.soak.mutant import Mutant

__all__ = ["UNKNOWNS"]

_DECIDE = "tests/unit/core/test_decide.py::"
_EVIDENCE = "tests/unit/core/test_evidence.py::"
_EXECUTE = "tests/unit/proxy/test_execute.py::"
_SETTLE = "tests/unit/core/test_settle.py::"
_POLICY = "tests/unit/policy/test_outcomes.py::"
_FILES = "tests/unit/policy/test_policy_files.py::"
_STORE = "tests/integration/test_unknown_store.py::"
_CASES = "tests/cases/test_unknown_outcomes.py::"
_PROBE = "tests/e2e/test_probe.py::"
_RESEND = "tests/e2e/test_resend.py::"
_REPORT = "tests/e2e/test_evidence.py::"

_OUTCOMES = "migrations/0013_outcomes.sql"
_WATCH = "migrations/0014_watch.sql"

UNKNOWNS = [
    Mutant(
        "gateway/core/decide.py",
        "a command is sent again only as it was admitted",
        'if known.unknown == "hold":',
        "if False:",
        (f"{_DECIDE}test_why_an_unknown_command_waits_for_somebody",),
    ),
    Mutant(
        "gateway/core/decide.py",
        "another account is neither asked nor sent to again",
        "if not known.account_same:",
        "if False:",
        (f"{_DECIDE}test_each_row_of_the_table_has_its_decision",),
    ),
    Mutant(
        "gateway/core/decide.py",
        "what cannot be compared is not sent again",
        "if not known.same:",
        "if False:",
        (f"{_DECIDE}test_each_row_of_the_table_has_its_decision",),
    ),
    Mutant(
        "gateway/core/decide.py",
        "nothing is sent again for longer than the upstream remembers",
        "known.age_ms >= facts.resend_within_ms",
        "known.age_ms > facts.resend_within_ms",
        (f"{_DECIDE}test_each_row_of_the_table_has_its_decision",),
    ),
    Mutant(
        "gateway/core/settle.py",
        "that the repeat was not executed says nothing about the first",
        "        case NotExecuted(response):\n            return _said(response)",
        "        case NotExecuted(response):\n            return Answered(response, True, True)",
        (f"{_SETTLE}test_a_status_proves_nothing_about_an_attempt_that_was_taken_over",),
    ),
    Mutant(
        "gateway/core/settle.py",
        "a key in use is no answer",
        "if response.status in rules.resend_conflict:",
        "if False:",
        (f"{_SETTLE}test_a_status_proves_nothing_about_an_attempt_that_was_taken_over",),
    ),
    Mutant(
        "gateway/core/evidence.py",
        "an answer that is cut short proves nothing",
        "if exchange.stage is not Stage.BODY_COMPLETE or exchange.oversize:",
        "if False:",
        (f"{_EVIDENCE}test_a_list_that_is_cut_short_or_too_long_is_no_empty_list",),
    ),
    Mutant(
        "gateway/core/evidence.py",
        "what is no list is no empty list",
        "return isinstance(found, list) and bool(found)",
        "return bool(found)",
        (f"{_EVIDENCE}test_a_list_is_one_only_where_it_is_a_list",),
    ),
    Mutant(
        "gateway/core/evidence.py",
        "an answer that is both is neither",
        "        case (True, False):",
        "        case (True, _):",
        (f"{_EVIDENCE}test_an_answer_that_is_both_is_neither",),
    ),
    Mutant(
        "gateway/policy/compile.py",
        "another client certificate is another account",
        'parts += [b"client certificate", *certificates(upstream.client_cert_file)]',
        "pass",
        (f"{_FILES}test_the_upstream_digest_covers_the_client_certificate",),
    ),
    Mutant(
        "gateway/policy/compile.py",
        "a query with other fields asks the same account",
        'return [b"probe headers", *_sorted(fields)]',
        "return []",
        (f"{_POLICY}test_the_fields_of_a_probe_are_part_of_the_account_that_is_asked",),
    ),
    Mutant(
        "gateway/policy/outcomes.py",
        "a caller's credential goes with what is asked about",
        "        yield from _passed(command)\n",
        "",
        (f"{_POLICY}test_a_mistake_names_its_place",),
    ),
    Mutant(
        "gateway/policy/compile.py",
        "an account with another name is another account",
        'parts = [b"named account", model.account.encode("ascii")]',
        'parts = [b"named account"]',
        (f"{_FILES}test_under_a_named_account_credentials_may_change_and_nothing_else",),
    ),
    Mutant(
        "gateway/policy/compile.py",
        "what a policy's own fields say is the same account",
        '        fields = {name.encode("ascii"): text.encode() for name, text in written}',
        "        fields = {}",
        (f"{_FILES}test_under_a_named_account_credentials_may_change_and_nothing_else",),
    ),
    Mutant(
        "gateway/proxy/execute.py",
        "who is refused for a full room wakes nobody",
        "if front:  # whoever was not woken has no turn to pass on",
        "if True:",
        (f"{_EXECUTE}test_who_is_refused_for_a_full_room_wakes_nobody",),
    ),
    Mutant(
        "gateway/policy/probes.py",
        "a value is one parameter, whatever it holds",
        'quote(value, safe="")',
        'quote(value, safe="&=/")',
        (f"{_POLICY}test_each_value_is_one_segment_or_one_parameter",),
    ),
    Mutant(
        _WATCH,
        "one answer never proves absence",
        "           and p_asked_at >= v_watched.absent_at + v_pause) then",
        "           ) then",
        (f"{_STORE}test_absence_takes_two_late_and_far_apart",),
    ),
    Mutant(
        _WATCH,
        "two answers at once are one",
        "           and p_asked_at >= v_watched.absent_at + v_pause) then",
        "           and v_watched.absent_at is not null) then",
        (
            f"{_STORE}test_absence_takes_two_late_and_far_apart",
            f"{_CASES}test_crash_04_not_found_twice_by_one_look_is_one",
        ),
    ),
    Mutant(
        _WATCH,
        "absence counts when the upstream cannot act any more",
        "select c.deadline + make_interval(secs => c.settle_delay_s) into v_counts",
        "select c.deadline into v_counts",
        (
            f"{_STORE}test_absence_takes_two_late_and_far_apart",
            f"{_STORE}test_one_that_was_asked_before_it_counts_does_not_count_when_it_is_recorded",
        ),
    ),
    Mutant(
        _WATCH,
        "a look counts by when it began",
        "'absent' and p_asked_at >= v_counts and v_watched.absent_at is null then",
        "'absent' and v_now >= v_counts and v_watched.absent_at is null then",
        (f"{_STORE}test_one_that_was_asked_before_it_counts_does_not_count_when_it_is_recorded",),
    ),
    Mutant(
        _WATCH,
        "two ask about a command one after the other",
        "         where w.busy_until <= v_now\n",
        "",
        (f"{_STORE}test_a_caller_asks_at_once_and_the_background_meanwhile_not",),
    ),
    Mutant(
        _WATCH,
        "who died with a probe leaves it to others",
        "           set due_at = v_now + p_busy_ms * interval '1 millisecond',\n",
        "           set due_at = 'infinity',\n",
        (f"{_STORE}test_one_process_asks_and_if_it_dies_another_does",),
    ),
    Mutant(
        _WATCH,
        "another account is not asked",
        "w.upstream_digest = p.digest and w.due_at <= v_now\n",
        "w.due_at <= v_now\n",
        (
            f"{_STORE}test_who_cannot_ask_about_it_leaves_it_to_others",
            f"{_STORE}test_what_nobody_here_may_ask_about_hides_nothing_else",
        ),
    ),
    Mutant(
        _WATCH,
        "what a crash left is told",
        "        perform gateway.tell_unknown(\n",
        "        perform num_nulls(\n",
        (f"{_STORE}test_what_nobody_settled_is_found_and_told_once",),
    ),
    Mutant(
        _WATCH,
        "what shares the last moment of a reading is read with it",
        "fetch first p_limit rows with ties",
        "fetch first p_limit rows only",
        (f"{_STORE}test_a_batch_admitted_at_one_moment_is_never_cut",),
    ),
    Mutant(
        _OUTCOMES,
        "an attempt that took over is never given back",
        "           and c.earlier is null\n",
        "",
        (f"{_RESEND}test_what_took_over_is_never_given_back",),
    ),
    Mutant(
        _OUTCOMES,
        "an answer to any of its attempts settles a command",
        "(c.attempt = i.attempt or i.attempt = any (c.earlier))",
        "(c.attempt = i.attempt)",
        (f"{_RESEND}test_the_answer_to_an_attempt_that_was_taken_over_settles_its_command",),
    ),
    Mutant(
        _OUTCOMES,
        "only the attempt that was judged is taken over",
        "v_row.attempt <> p_judged or ",
        "",
        (f"{_RESEND}test_two_who_judged_the_same_attempt_take_it_over_once",),
    ),
    Mutant(
        _OUTCOMES,
        "what is in flight is not taken over",
        "       or v_row.deadline > v_now or p_fence < v_entity.fence\n",
        "       or p_fence < v_entity.fence\n",
        (f"{_RESEND}test_a_take_over_is_judged_under_the_locks",),
    ),
    Mutant(
        _OUTCOMES,
        "a stale fence takes nothing over",
        "       or v_row.deadline > v_now or p_fence < v_entity.fence\n",
        "       or v_row.deadline > v_now\n",
        (f"{_RESEND}test_a_take_over_is_judged_under_the_locks",),
    ),
    Mutant(
        _OUTCOMES,
        "a command that was admitted to be held is held",
        "elsif v_row.unknown <> 'resend' or ",
        "elsif ",
        (f"{_RESEND}test_a_take_over_is_judged_under_the_locks",),
    ),
    Mutant(
        _OUTCOMES,
        "a command is sent again only while the upstream remembers its key",
        "          + p_within_ms * interval '1 millisecond' <= v_now\n",
        "          is null\n",
        (f"{_RESEND}test_a_take_over_is_judged_under_the_locks",),
    ),
    Mutant(
        _OUTCOMES,
        "what was given back does not begin its window anew",
        "gateway.first_sent(p_tenant, p_key_digest, v_row.admitted_at)",
        "v_row.admitted_at",
        (f"{_RESEND}test_a_take_over_counts_from_when_the_key_was_first_given_back",),
    ),
    Mutant(
        "gateway/proxy/execute.py",
        "what never reached the upstream begins no window",
        "outcome.fault, lost_until, heard=False",
        "outcome.fault, lost_until, heard=True",
        (f"{_RESEND}test_what_the_upstream_never_heard_of_counts_for_no_window",),
    ),
    Mutant(
        "gateway/proxy/execute.py",
        "a refusal shows that the upstream has heard of the key",
        "self._release(call, why, lost_until, heard=True)",
        "self._release(call, why, lost_until, heard=False)",
        (f"{_RESEND}test_the_window_counts_from_the_first_send_that_the_upstream_heard_of",),
    ),
    Mutant(
        "gateway/proxy/call.py",
        "the key that is sent again is the recorded one",
        'key.encode("ascii") if name == self.key_field else value',
        "value",
        (f"{_CASES}test_up_10_the_key_is_the_recorded_one",),
    ),
    Mutant(
        "gateway/proxy/execute.py",
        "what a repeat came to is judged as a repeat",
        "return after_resend(outcome, call.rules) if call.resent else outcome",
        "return outcome",
        (f"{_RESEND}test_what_says_nothing_final_leaves_it_unknown",),
    ),
    Mutant(
        "gateway/proxy/execute.py",
        "a late refusal of one attempt ends nothing of another",
        "outcome = after_resend(classify(exchange, call.rules, _hop(call, exchange)), call.rules)",
        "outcome = classify(exchange, call.rules)",
        (f"{_RESEND}test_a_late_refusal_of_the_first_attempt_ends_nothing_of_the_second",),
    ),
    Mutant(
        "gateway/proxy/respond.py",
        "what somebody else said is marked as that",
        "if answer.evidence is not None:",
        "if False:",
        (
            f"{_PROBE}test_a_callers_own_request_asks_and_hears_what_that_proves",
            f"{_REPORT}test_a_reported_answer_is_replayed",
        ),
    ),
    Mutant(
        "gateway/api/evidence.py",
        "a report is about a command of the key's tenant",
        "key_digest=key_digest(who.salt, found.key),",
        "key_digest=key_digest(bytes(16), found.key),",
        (f"{_REPORT}test_a_report_settles_an_unknown_command_and_is_marked",),
    ),
    Mutant(
        _OUTCOMES,
        "what a report says of an attempt that was taken over is about nothing",
        "        v_judged := v_row.attempt;",
        "        v_judged := p_attempt;",
        (f"{_REPORT}test_a_report_that_an_attempt_was_executed_which_was_taken_over_decides",),
    ),
    Mutant(
        _OUTCOMES,
        "a reported answer is kept whatever its policy keeps",
        "and octet_length(p_body) <= k.keep_limit;",
        "and true;",
        (f"{_REPORT}test_a_reported_answer_is_kept_within_the_limit_of_its_policy",),
    ),
]
