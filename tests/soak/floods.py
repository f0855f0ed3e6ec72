"""The mutants of what a flood may cost."""

from tests.soak.mutant import Mutant

__all__ = ["FLOODS"]

_AUDIT = "tests/integration/test_audit_floods.py::"
_BODY = "tests/unit/proxy/test_body.py::"
_E2E = "tests/e2e/test_floods.py::"
_LINE = "tests/unit/proxy/test_line.py::"
_SHARES = "tests/unit/proxy/test_shares.py::"
_SLOW = "tests/integration/test_http1_slow.py::"
_SQL = "migrations/0020_batches.sql"

FLOODS = [
    Mutant(
        _SQL,
        "a statement that is repeated counts once",
        "n.id = any (r.recent)\n                   and",
        "false\n                   and",
        (f"{_AUDIT}test_a_repeat_in_the_next_hour_of_the_clock_counts_once",),
    ),
    Mutant(
        _SQL,
        "many equal refusals share a row",
        "case when s.equal >= 10 then",
        "case when false then",
        (f"{_AUDIT}test_the_first_refusals_have_a_row_each_and_the_rest_share_one",),
    ),
    Mutant(
        _SQL,
        "refusals that differ have rows of their own",
        "           is not distinct from (n.policy, n.key, n.fence, n.job, n.principal)",
        "           is not distinct from (n.policy, a.key, n.fence, n.job, a.principal)",
        (f"{_AUDIT}test_what_differs_has_rows_of_its_own",),
    ),
    Mutant(
        _SQL,
        "few rows of an entity are read",
        "                 limit 200\n",
        "",
        (f"{_AUDIT}test_many_rows_of_an_entity_are_not_read_for_each_refusal",),
    ),
    Mutant(
        "gateway/proxy/shares.py",
        "a tenant that floods is refused before others are",
        "return not own or own + size <= WEIGHT * left or not self._several()",
        "return True",
        (f"{_SHARES}test_a_flood_of_one_tenant_is_refused_while_another_is_served",),
    ),
    Mutant(
        "gateway/proxy/shares.py",
        "who has nothing untaken is not refused for others",
        "return own > 0 and (left < 0",
        "return (left < 0",
        (f"{_SHARES}test_a_tenant_whose_callers_do_not_read_is_refused_and_others_are_not",),
    ),
    Mutant(
        "gateway/proxy/body.py",
        "a body that does not come whole holds nothing",
        "        if not kept:\n            held.close()\n",
        "        pass\n",
        (f"{_BODY}test_a_body_that_does_not_come_whole_holds_nothing",),
    ),
    Mutant(
        "gateway/proxy/body.py",
        "a stream that drips ends",
        "                        self._patience = min(BODY_S, left)\n",
        "",
        (f"{_BODY}test_a_stream_that_drips_ends_though_no_pause_is_long",),
    ),
    Mutant(
        "gateway/proxy/endpoint.py",
        "a body counts no longer than its command",
        "                taken.call.held.close()\n            else:",
        "            else:",
        (f"{_E2E}test_bodies_over_the_memory_are_refused_and_small_ones_go_on",),
    ),
    Mutant(
        "gateway/proxy/line.py",
        "one of each entity asks the database at a time",
        "        if not self._free or about in self._behind or self._next:\n",
        "        if not self._free:\n",
        (f"{_LINE}test_one_of_each_entity_asks_at_a_time_and_others_pass",),
    ),
    Mutant(
        "gateway/proxy/line.py",
        "tenants ask by turns",
        "            tenant, line = self._next.popitem(last=False)\n",
        "            tenant, line = self._next.popitem()\n",
        (f"{_LINE}test_a_tenant_that_floods_has_every_other_turn",),
    ),
    Mutant(
        "gateway/http1.py",
        "no byte gives a head more time",
        "        begins = self._fresh or (self._awaited is None and _answered(self.cycle))\n",
        "        begins = True\n",
        (f"{_SLOW}test_a_head_that_does_not_end_in_time_is_refused",),
    ),
    Mutant(
        "gateway/http1.py",
        "one that was let in is never one too many",
        "        if self._crowded:\n            over =",
        "        if True:\n            over =",
        (f"{_SLOW}test_one_that_was_let_in_may_ask_though_there_are_too_many_now",),
    ),
]
