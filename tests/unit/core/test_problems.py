"""The closed list of problem types, as the design's tables have it."""

from __future__ import annotations

import json
from typing import get_args

import pytest

from gateway.core.problems import PREFIX, TYPES, Problem, ProblemType, body_of

# Status, sent, retry.
DESIGN: dict[str, tuple[int, str, str]] = {
    # §6
    "key-missing": (400, "no", "never"),
    "key-invalid": (400, "no", "never"),
    "fence-invalid": (400, "no", "never"),
    "entity-missing": (400, "no", "never"),
    "body-unreadable": (400, "no", "never"),
    "request-invalid": (400, "no", "never"),
    "unauthenticated": (401, "no", "never"),
    "forbidden": (403, "no", "never"),
    "local-only": (403, "no", "never"),
    "entity-mismatch": (403, "no", "never"),
    "no-policy": (404, "no", "never"),
    "no-command": (404, "no", "never"),
    "evidence-refused": (409, "no", "never"),
    "method-not-allowed": (405, "no", "never"),
    "body-too-large": (413, "no", "never"),
    "fence-required": (428, "no", "never"),
    "overloaded": (503, "no", "same-key"),
    "store-unavailable": (503, "no", "same-key"),
    "loop-detected": (508, "no", "never"),
    # §4
    "fence-stale": (412, "no", "never"),
    "fence-not-held": (412, "no", "never"),
    "key-expired": (410, "unknown", "never"),
    "key-reused": (422, "no", "never"),
    "response-not-retained": (410, "yes", "never"),
    "in-flight": (409, "unknown", "wait"),
    "outcome-unknown": (504, "unknown", "wait"),
    "entity-unresolved": (409, "no", "wait"),
    "entity-busy": (409, "no", "wait"),
    # §5
    "not-sent": (502, "no", "same-key"),
    "response-incomplete": (502, "yes", "never"),
    # a failover that lost rows
    "rows-lost": (503, "no", "wait"),
    # §8
    "entity-leased": (409, "no", "wait"),
    "tool-unknown": (400, "no", "never"),
    "job-unknown": (404, "no", "never"),
    "job-state": (409, "no", "never"),
}

# RFC 9209 §2.3.
PROXY_ERRORS = {
    "dns_timeout", "dns_error", "destination_not_found", "destination_unavailable",
    "destination_ip_prohibited", "destination_ip_unroutable", "connection_refused",
    "connection_terminated", "connection_timeout", "connection_read_timeout",
    "connection_write_timeout", "connection_limit_reached", "tls_protocol_error",
    "tls_certificate_error", "tls_alert_received", "http_request_error", "http_request_denied",
    "http_response_incomplete", "http_response_header_section_size",
    "http_response_header_size", "http_response_body_size", "http_response_trailer_section_size",
    "http_response_trailer_size", "http_response_transfer_coding", "http_response_content_coding",
    "http_response_timeout", "http_upgrade_failed", "http_protocol_error",
    "proxy_internal_response", "proxy_internal_error", "proxy_configuration_error",
    "proxy_loop_detected",
}  # fmt: skip


def test_the_list_is_closed() -> None:
    assert set(TYPES) == set(get_args(ProblemType)) == set(DESIGN)


@pytest.mark.parametrize("name", DESIGN)
def test_each_type_is_what_the_design_says(name: ProblemType) -> None:
    kind = TYPES[name]
    assert (kind.status, kind.sent, kind.retry) == DESIGN[name]


@pytest.mark.parametrize("name", DESIGN)
def test_each_type_names_a_proxy_error_of_the_rfc(name: ProblemType) -> None:
    assert TYPES[name].error in PROXY_ERRORS


def test_titles_tell_the_types_apart() -> None:
    titles = [kind.title for kind in TYPES.values()]
    assert len(set(titles)) == len(titles)


@pytest.mark.parametrize("name", DESIGN)
def test_the_document_has_every_member(name: ProblemType) -> None:
    status, sent, retry = DESIGN[name]
    assert json.loads(body_of(Problem(name, "Do this."), "r-1")) == {
        "type": PREFIX + name,
        "title": TYPES[name].title,
        "status": status,
        "detail": "Do this.",
        "sent": sent,
        "retry": retry,
        "request_id": "r-1",
    }


def test_one_answer_may_know_better_than_its_type() -> None:
    problem = Problem("outcome-unknown", "d", sent="yes", retry="never", members={"fence": 2**62})
    document = json.loads(body_of(problem, "r"))
    assert (document["sent"], document["retry"], document["fence"]) == ("yes", "never", 2**62)


def test_the_document_is_plain_ascii_whatever_it_quotes() -> None:
    body = body_of(Problem("key-invalid", '«é» \u2028 \x00 \ud800 "'), "r")
    assert body.isascii()
    assert json.loads(body)["detail"] == '«é» \u2028 \x00 \ud800 "'
