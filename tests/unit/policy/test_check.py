"""What people see of policies that loaded."""

from __future__ import annotations

from gateway.policy import render_report
from tests.unit.policy.conftest import Load
from tests.unit.policy.texts import command, policy


def test_the_report_lists_mounts_commands_and_warnings_but_no_secret(load_text: Load) -> None:
    text = policy(
        command(more="send_key = 'Idempotency-Key'\nsend_fence = 'X-Fence'"),
        command("PUT /x", "{header.X-E}", "put", more="fence = 'off'\npass_authorization = true"),
    )
    policies = load_text(text + "[upstream_headers]\nX-Token = '${T}'\n", {"T": "s3cret"})
    report = render_report(policies)
    for part in (
        "/pay -> https://api.example  [payments, payments.toml]",
        "  sets X-Token",
        "  POST /v1/accounts/{account}/charges  [charge]",
        "fence required, {header.X-Execution-Fence}",
        "sends key as Idempotency-Key, fence as X-Fence",
        "fence off",
        "the caller's Authorization",
        "warning: payments.toml: commands[1].entity: ",
        "1 policy, 2 commands, 1 warning",
    ):
        assert part in report
    assert "s3cret" not in report
    assert policies.describe() == ("/pay -> https://api.example (policy payments, commands: 2)",)


def test_the_report_says_how_requests_are_compared(load_text: Load) -> None:
    more = (
        "fence_from = '{body./lease}'\n"
        "fingerprint = {body = 'form', ignore = ['/a~1b/c'], headers = ['X-V', 'Accept']}"
    )
    report = render_report(load_text(policy(command(more=more))))
    assert "    compares body as form | without /a~1b/c, /lease | with accept, x-v\n" in report
    assert "compares" not in render_report(load_text(policy()))


def test_the_report_says_how_an_unknown_outcome_is_found_out(load_text: Load) -> None:
    asked = (
        "unknown = 'probe'\nsettle_delay_s = 40\n[commands.probe]\nrequest = 'GET /f?k={key}'\n"
        "interval_s = 7\napplied = { status = [200, 201], where = '/d', items = 'some' }\n"
        "absent = { status = [200], where = '/a~1b/0', equals = ['no', 3, false] }"
    )
    again = "unknown = 'resend'\nsend_key = 'X-K'\nresend_within_s = 600"
    report = render_report(
        load_text(
            policy(command(more=again), command("PUT /x", "y:{header.X-E}", "put", more=asked))
        )
    )
    for part in (
        "settle_delay_s 40 |",
        "    asks GET /f?k={key} | interval_s 7\n",
        "    applied by status 200, 201, /d is a list with an element | absent by status 200, ",
        ' 200, /a~1b/0 is "no" or 3 or false\n',
        "    resend_within_s 600 | key in use by 409\n",
    ):
        assert part in report
