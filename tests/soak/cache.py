"""Mutants of the cache of settled responses: an entry answers for too much, or for too long."""

from tests.soak.mutant import Mutant

__all__ = ["CACHE"]

_LOCAL = "tests/unit/cache/test_in_process.py::"
_RECORD = "tests/unit/cache/test_record.py::"
_VERBATIM = "tests/unit/cache/test_verbatim.py::"
_SHARED = "tests/integration/test_shared_cache.py::"
_E2E = "tests/e2e/test_cache.py::"

CACHE = [
    Mutant(
        "gateway/cache/cache.py",
        "another fence is for the store",
        "        if command.fence != fence:\n            return False\n",
        "",
        (
            f"{_SHARED}test_only_the_same_command_of_the_same_tenant_is_answered",
            f"{_E2E}test_a_higher_fence_reaches_the_store_and_is_remembered",
        ),
    ),
    Mutant(
        "gateway/cache/cache.py",
        "a newer fence that was seen here goes before",
        "return latest is None or latest == fence",
        "return True",
        (
            f"{_SHARED}test_a_fence_that_this_process_has_seen_goes_before",
            f"{_E2E}test_a_newer_owner_of_another_command_makes_the_older_stale",
        ),
    ),
    Mutant(
        "gateway/cache/cache.py",
        "an entry ends with cache_s",
        "fits = entry.end_s > self._clock() and self._fits(",
        "fits = self._fits(",
        (f"{_E2E}test_it_ends_with_cache_s", f"{_SHARED}test_clocks_that_differ"),
    ),
    Mutant(
        "gateway/cache/cache.py",
        "what another clock says ends it no later",
        "min(entry.end_s - self._wall(), cache_s)",
        "entry.end_s - self._wall()",
        (f"{_SHARED}test_clocks_that_differ",),
    ),
    Mutant(
        "gateway/cache/cache.py",
        "what has ended by the clock of who wrote it is a miss",
        "if entry is None or left_s <= 0 or not",
        "if entry is None or not",
        (f"{_SHARED}test_set_back_to_yesterday",),
    ),
    Mutant(
        "gateway/cache/cache.py",
        "the same bytes are another entry after an erasure",
        "if wish is None or wish.name[: len(principal.epoch)] != principal.epoch:",
        "if wish is None:",
        (f"{_E2E}test_an_erasure_ends_it",),
    ),
    Mutant(
        "gateway/proxy/recalling.py",
        "fences that are issued here are judged by the store",
        "not (issued_here or call.command.issuer_here)",
        "True",
        (f"{_E2E}test_what_is_never_cached",),
    ),
    Mutant(
        "gateway/cache/record.py",
        "a name is of one erasure epoch",
        "return epoch + command.key_digest",
        "return bytes(16) + command.key_digest",
        (
            f"{_RECORD}test_a_name_is_of_one_tenant_key_request_and_epoch",
            f"{_SHARED}test_set_back_to_yesterday",
        ),
    ),
    Mutant(
        "gateway/cache/record.py",
        "a copy of the database that sends elsewhere has its own entries",
        " + command.upstream_digest\n",
        "\n",
        (f"{_SHARED}test_only_the_same_command_of_the_same_tenant_is_answered",),
    ),
    Mutant(
        "gateway/cache/record.py",
        "what was sealed opens only as it is",
        "return record if compare_digest(digest, _digest(salt, name, record)) else None",
        "return record",
        (
            f"{_RECORD}test_a_seal_opens_only_what_it_was_put_on",
            f"{_SHARED}test_a_mangled_or_foreign_entry_is_a_miss",
        ),
    ),
    Mutant(
        "gateway/cache/local.py",
        "one huge response drives out nothing",
        "        if len(record) > self.entry_limit:\n            return\n",
        "",
        (f"{_LOCAL}test_one_huge_response_drives_out_nothing",),
    ),
    Mutant(
        "gateway/cache/local.py",
        "the oldest goes where all are full",
        "            if len(self._segments) > _SEGMENTS:\n                self._segments.pop()\n",
        "",
        (f"{_LOCAL}test_what_fits_is_there_and_the_oldest_goes_first",),
    ),
    Mutant(
        "gateway/cache/shared.py",
        "after one failure nobody asks until it is back",
        "if self.away or len(self._asking) >= _ASKING:",
        "if len(self._asking) >= _ASKING:",
        (f"{_SHARED}test_silent_then_back",),
    ),
    Mutant(
        "gateway/cache/shared.py",
        "an answer to something else is none",
        "if not isinstance(values, list) or len(values) != len(keys):",
        "if False:",
        (f"{_SHARED}test_whatever_else_is_said_is_a_miss",),
    ),
    Mutant(
        "gateway/cache/shared.py",
        "what waits to be written is bounded",
        "or self._queued + size > _QUEUE:",
        "or False:",
        (f"{_SHARED}test_what_cannot_be_written_in_time_is_dropped",),
    ),
    Mutant(
        "gateway/cache/verbatim.py",
        "where the fields end is part of the bytes",
        '*self._lines(), b"", b""))',
        "*self._lines()))",
        (f"{_VERBATIM}test_only_equal_requests_have_one_digest",),
    ),
    Mutant(
        "gateway/proxy/recalling.py",
        "only what is recorded with its body is cached",
        " or call.resent or not settle.keep_body:",
        " or call.resent:",
        (f"{_E2E}test_what_is_never_cached",),
    ),
]
