"""The gateway beside nginx: what becomes of the same bytes, as docs/http-reference.md has it."""

from __future__ import annotations

import re

import pytest

from tests.kit.db import Server
from tests.reference.inputs import INPUTS
from tests.reference.nginx import version
from tests.reference.stage import measured
from tests.reference.table import Columns, on_page, rows, version_on_page

GATEWAY, NGINX = 3, 2


@pytest.fixture(scope="module")
def columns(postgres: Server) -> Columns:
    return measured(postgres)


def test_the_page_has_what_the_gateway_does(columns: Columns) -> None:
    page = [(*row[:NGINX], *row[GATEWAY:]) for row in on_page()]
    assert [(*row[:NGINX], *row[GATEWAY:]) for row in rows(columns)] == page


def test_the_page_has_what_nginx_does(columns: Columns) -> None:
    if columns.nginx is None:
        pytest.skip("there is no nginx on PATH (apt-get install nginx-light)")
    if version() != version_on_page():
        pytest.skip(f"the page is of nginx {version_on_page()}, here is {version()}")
    assert [row[NGINX] for row in rows(columns)] == [row[NGINX] for row in on_page()]


def test_where_they_differ_the_page_says_who_is_right_by_which_section() -> None:
    for name, _, theirs, ours, right in on_page():
        if theirs == ours:
            assert right == "agree", name
        else:
            assert re.match(r"(nginx|the gateway|both|as above)[,:]", right), name
            assert re.search(r"RFC 91(10|12) §\d", right), name


def test_neither_of_two_shapes_of_a_request_is_read_more_leniently(columns: Columns) -> None:
    """What frames a message is judged before anybody knows whether it is a command."""
    for name, (passage, command) in columns.gateway.items():
        assert passage == command, name


def test_the_list_is_of_at_most_sixty_different_inputs() -> None:
    assert len(INPUTS) <= 60
    assert len({each.name for each in INPUTS}) == len({each.text for each in INPUTS}) == len(INPUTS)
