"""Mutants of the boundary: whom the gateway believes, and how heads and loops are read."""

from tests.soak.mutant import Mutant

__all__ = ["BOUNDARY"]

_FRAMING = "tests/unit/core/test_framing.py::"
_FORWARDED = "tests/unit/core/test_forwarded.py::"
_LOCAL = "tests/unit/core/test_local.py::"
_HEADERS = "tests/unit/core/test_headers.py::"
_SETTLE = "tests/unit/core/test_settle.py::"
_DERIVE = "tests/unit/policy/test_derive.py::"
_BAD = "tests/e2e/test_bad_input.py::"
_E2E = "tests/e2e/test_boundary.py::"
_HTTP1 = "tests/e2e/test_http1.py::"
_ORDINARY = "tests/unit/core/test_ordinary.py::"

BOUNDARY = [
    Mutant(
        "gateway/core/framing.py",
        "a request line is taken only as it is written, behind nothing but line ends",
        'return UNREADABLE if not found or before.replace(b"\\r\\n", b"") else None',
        "return None",
        (f"{_FRAMING}test_a_request_line_is_taken_as_it_is_written",),
    ),
    Mutant(
        "gateway/core/framing.py",
        "absolute form names the host that Host names",
        "found[1].lower() != hosts[0].lower()",
        "False",
        (f"{_FRAMING}test_absolute_form_names_the_host_that_host_names",),
    ),
    Mutant(
        "gateway/core/forwarded.py",
        "nobody but a trusted proxy is believed",
        "if peer is None or not trusted.has(peer):\n        return tuple(",
        "if peer is None:\n        return tuple(",
        (f"{_FORWARDED}test_they_cross_from_trusted_proxies_only",),
    ),
    Mutant(
        "gateway/core/forwarded.py",
        "no twin crosses, whoever sends it",
        "if index not in told or name.lower() == folded(name)",
        "",
        (f"{_FORWARDED}test_they_cross_from_trusted_proxies_only",),
    ),
    Mutant(
        "gateway/core/forwarded.py",
        "what stands before the nearest stranger is not believed",
        "        if not trusted.has(known):\n            break\n",
        "",
        (f"{_FORWARDED}test_the_caller_is_the_nearest_that_is_no_trusted_proxy",),
    ),
    Mutant(
        "gateway/core/local.py",
        "a name that resolves here is not of here",
        "if not all(map(_is_loopback, hosts)):",
        "if False:",
        (f"{_LOCAL}test_any_other_host_or_origin_is_refused_with_the_mend",),
    ),
    Mutant(
        "gateway/core/local.py",
        "an image on a page of another site asks from here",
        "if not all(site.strip",
        "if sites and not any(site.strip",
        (f"{_LOCAL}test_what_a_page_of_another_site_or_port_asks_for_is_refused",),
    ),
    Mutant(
        "gateway/core/forwarded.py",
        "a quote left open is read on",
        "if _CLOSED.fullmatch(element) else []",
        "",
        (f"{_FORWARDED}test_the_caller_is_the_nearest_that_is_no_trusted_proxy",),
    ),
    Mutant(
        "gateway/core/headers.py",
        "a hop in a comment of a comment is a hop",
        "        elif depth == 0:\n            kept += piece",
        "        elif depth <= 1:\n            kept += piece",
        (f"{_HEADERS}test_the_last_hop_is_told_where_it_is_a_gateway",),
    ),
    Mutant(
        "gateway/core/headers.py",
        "somebody behind us in Via is the last hop",
        "lines[-1]",
        "lines[0]",
        (f"{_HEADERS}test_the_last_hop_is_told_where_it_is_a_gateway",),
    ),
    Mutant(
        "gateway/core/headers.py",
        "whatever was refused is what we sent",
        'blake2b(method + b" " + target, digest_size=8',
        'blake2b(b"", digest_size=8',
        (
            f"{_HEADERS}test_a_request_that_was_handed_on_is_named_by_hop_method_and_target",
            f"{_E2E}test_an_api_that_asks_us_with_our_fields_and_relays_our_refusal_has_acted",
        ),
    ),
    Mutant(
        "gateway/core/settle.py",
        "a loop that was refused to somebody else proves nothing",
        "if refused and refused == [hop]:",
        "if refused:",
        (f"{_SETTLE}test_a_loop_that_was_refused_to_anybody_else_proves_nothing",),
    ),
    Mutant(
        "gateway/policy/derive.py",
        "an offer to upgrade is no command",
        " or _check_upgrade(headers)\n",
        "\n",
        (f"{_DERIVE}test_an_offer_to_upgrade_is_no_command",),
    ),
    Mutant(
        "gateway/policy/derive.py",
        "Connection takes nothing away from what streams through either",
        "    return _check_nominated(_NEVER_NAMED, headers)\n",
        "    return None\n",
        (f"{_DERIVE}test_connection_takes_away_nothing_that_somebody_depends_on",),
    ),
    Mutant(
        "gateway/core/ordinary.py",
        "a bare line end is for the parser",
        "head.translate(None, _PRINTABLE) != breaks",
        "head.translate(None, _PRINTABLE + breaks)",
        (f"{_ORDINARY}test_whatever_else_is_for_the_parser",),
    ),
    Mutant(
        "gateway/core/ordinary.py",
        "what does not end with the read is for the parser",
        'len(lengths) == 1 and lengths[0] == b"%d" % len(body)',
        "len(lengths) == 1",
        (f"{_ORDINARY}test_whatever_else_is_for_the_parser",),
    ),
    Mutant(
        "gateway/http1.py",
        "garbage behind a command does not cost its answer",
        "        if _answer_due(self.cycle):\n",
        "        if False:\n",
        (f"{_BAD}test_garbage_behind_a_request_is_never_its_answer",),
    ),
    Mutant(
        "gateway/http1.py",
        "what is left over behind a message is looked at",
        "            self._lead = self._left_over(data)\n",
        "            pass\n",
        (f"{_HTTP1}test_only_whole_line_ends_stand_behind_a_message",),
    ),
    Mutant(
        "gateway/http1.py",
        "a head that began before the answer is a further request",
        "        if self._lead is None and self._coded:\n",
        "        if False:\n",
        (f"{_HTTP1}test_a_head_that_begins_in_one_with_a_last_chunk_is_never_read",),
    ),
    Mutant(
        "gateway/proxy/intake.py",
        "without keys only this machine is served",
        "wrong = foreign(headers)",
        "wrong = None",
        (f"{_E2E}test_without_keys_a_page_of_another_site_reaches_nothing",),
    ),
]
