"""The management API by its own description: what /openapi.json allows and what it does not, sent
to the gateway as it ships. Every answer must be one that the document names."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from gateway.api.openapi import document
from gateway.core.problems import PREFIX, TYPES
from tests.kit.db import Server
from tests.kit.gateway import Stack, policy, stack

TOOLS = """
[[tools]]
name = "pay"
"""

EXAMPLES = 15
"""Of each operation."""


@pytest.fixture(scope="module")
def served(postgres: Server) -> Iterator[Stack]:
    with stack(postgres, lambda url: [policy(url)], tools=TOOLS) as made:
        yield made


schema = schemathesis.openapi.from_dict(document())
# The edges of every member are 1,500 calls; hypothesis comes to most of them by itself.
schema.config.phases.coverage.enabled = False
schema.config.generation.update(modes=[GenerationMode.POSITIVE, GenerationMode.NEGATIVE])

CHECKS = [
    not_a_server_error,
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
]


def test_the_document_is_the_one_that_is_served(served: Stack) -> None:
    assert served.caller().call("GET", "/openapi.json").json() == document()


@schema.parametrize()
@settings(
    max_examples=EXAMPLES,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
def test_the_api_answers_as_its_document_says(case: schemathesis.Case, served: Stack) -> None:
    before = served.gateway.lines
    response = case.call(base_url=served.gateway.url)
    case.validate_response(response, checks=CHECKS)
    if response.status_code < 400:
        return
    problem = response.json()
    kind = problem["type"].removeprefix(PREFIX)
    assert TYPES[kind].status == response.status_code
    told: list[dict[str, object]] = []

    def found() -> bool:
        lines, _ = served.gateway.lines_from(before)
        told[:] = [each for each in map(json.loads, lines) if each.get("problem") == kind]
        return any(each["request_id"] == problem["request_id"] for each in told)

    assert served.gateway.wait_until(found, 10), problem
    lines, _ = served.gateway.lines_from(before)
    assert not [line for line in map(json.loads, lines) if "exception" in line]
